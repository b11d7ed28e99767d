"""Records of TFRecord files, in which TensorBoard's events and examples are stored."""

import google_crc32c

LENGTH, CHECKSUM = 8, 4  # bytes before a record's data: its length, and the checksum of the length
MASK = 0xA282EAD8


def mask_checksum(data: bytes) -> bytes:
    """Returns the checksum of some bytes: CRC-32C, rotated and offset."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + MASK & 0xFFFFFFFF).to_bytes(CHECKSUM, "little")


def encode_record(data: bytes) -> bytes:
    """Returns data as a record: after its length and the checksum of that, before its own."""
    length = len(data).to_bytes(LENGTH, "little")
    return b"".join((length, mask_checksum(length), data, mask_checksum(data)))
