"""What the header of a JPEG file says, read without decoding or setting up a decoder."""

import re
from typing import NamedTuple

from PIL import ExifTags, Image

END = b"\xff\xd9"
BASELINE, EXTENDED, PROGRESSIVE = 0xC0, 0xC1, 0xC2  # frames with Huffman codes, of 8 bits a sample
START_OF_SCAN, APP1, TABLES = 0xDA, 0xE1, (0xC4, 0xC8, 0xCC)


class JpegSize(NamedTuple):
    """The size of a picture in pixels."""

    width: int
    height: int


def read_plain_jpeg(data: bytes) -> JpegSize | None:
    """Returns the size of a JPEG file that every decoder reads alike, or None for other bytes.

    Such a file is complete, upright, and gray or of three components of 8 bits.

    Args:
      data: an encoded image.
    """
    if data[:2] != b"\xff\xd8" or data[-2:] != END:
        return None
    place, end = 2, len(data) - 9
    while place < end and data[place] == 0xFF:
        marker = data[place + 1]
        length = int.from_bytes(data[place + 2 : place + 4], "big")
        if marker in (BASELINE, EXTENDED, PROGRESSIVE):
            precision, components = data[place + 4], data[place + 9]
            height = int.from_bytes(data[place + 5 : place + 7], "big")
            width = int.from_bytes(data[place + 7 : place + 9], "big")
            plain = precision == 8 and components in (1, 3) and width and height
            return JpegSize(width, height) if plain else None
        if marker == START_OF_SCAN or (0xC0 <= marker <= 0xCF and marker not in TABLES):
            return None
        if marker == APP1 and not _is_upright(data[place + 4 : place + 2 + length]):
            return None
        place += 2 + length
    return None


def _is_upright(segment: bytes) -> bool:
    """Returns whether a segment has neither EXIF nor XMP data of a picture that is turned."""
    if not segment.startswith(b"Exif\0\0"):
        return re.search(rb'tiff:Orientation(="|>)[02-9]', segment) is None
    try:
        exif = Image.Exif()
        exif.load(segment)
        return exif.get(ExifTags.Base.Orientation) == 1
    except Exception:  # Pillow raises all kinds of errors for broken data
        return False
