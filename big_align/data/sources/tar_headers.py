"""The headers of tar files: where the members are, without reading them."""

from collections.abc import Iterator

from big_align.data import files

BLOCK = 512
END_CHUNK = 2**20  # bytes that are looked through at a time after an end mark
EXTENDED_MAX = 2**22  # bytes of a header that names a member or gives its size; rarely over 2**10


class BadHeader(ValueError):
    """Bytes that are not a header; the message says why."""


def scan_members(file: files.ReadableFile, size: int) -> Iterator[tuple[str, int, int, str]]:
    """Yields the name, offset, size in bytes and fault of each regular member of a tar file.

    Reads headers only. Understands ustar, GNU long names and the path and size of PAX headers, and
    reads on after an end mark: concatenated tar files hold the members of all.
    The last item may carry a fault instead of a member: why the file ends too early.
    """
    position, long_name, extended, ended = 0, "", {}, False
    while True:
        file.seek(position)
        header = file.read(BLOCK)
        if ended and len(header) < BLOCK:
            return
        if len(header) < BLOCK:
            yield "", 0, 0, f"it ends at byte {size} without an end mark"
            return
        if not header.strip(b"\0"):
            position, long_name, extended, ended = _skip_zeros(file, position), "", {}, True
            continue
        try:
            kind, length = _read_header(header, extended)
        except BadHeader as error:
            yield "", 0, 0, _explain_header(header, position, ended, error)
            return
        start = position + BLOCK
        position = start + -(-length // BLOCK) * BLOCK
        if start + length > size:
            yield "", 0, 0, f"it ends at byte {size}, inside {_name(header)[:80]!r}"
            return
        ended = False
        try:
            if kind in (b"L", b"x"):
                data = _read_extended(file, length)
                if kind == b"L":
                    long_name = _decode(data.rstrip(b"\0"))
                else:
                    extended = _parse_pax(data)
        except BadHeader as error:
            yield "", 0, 0, f"the header at byte {start - BLOCK} is broken: {error}"
            return
        if kind not in (b"L", b"x", b"g", b"K"):
            if kind in (b"0", b"\0", b"7"):
                yield extended.get("path") or long_name or _name(header), start, length, ""
            long_name, extended = "", {}


def _skip_zeros(file: files.ReadableFile, position: int) -> int:
    """Returns the position of the block with the next nonzero byte, or the end."""
    file.seek(position)
    while data := file.read(END_CHUNK):
        rest = data.lstrip(b"\0")
        if rest:
            return (position + len(data) - len(rest)) // BLOCK * BLOCK
        position += len(data)
    return position


def _read_header(header: bytes, extended: dict[str, str]) -> tuple[bytes, int]:
    """Returns the kind of a member and its size."""
    if _number(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        raise BadHeader("its checksum is wrong")
    kind = header[156:157]
    if kind in (b"L", b"K", b"x", b"g") or "size" not in extended:
        return kind, _number(header[124:136])
    text = extended["size"]
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise BadHeader(f"it has the size {text[:20]!r}")
    return kind, int(text)


def _explain_header(header: bytes, position: int, ended: bool, error: BadHeader) -> str:
    if position == 0 and header[:2] == b"\x1f\x8b":
        return "it is compressed with gzip, which cannot be read at random; unpack it"
    after = ", after an end mark" if ended else ""
    return f"there is no tar header at byte {position}{after} ({error})"


def _number(field: bytes) -> int:
    if field[0] == 0x80:  # GNU's base 256, for sizes that octal digits cannot hold
        return int.from_bytes(field[1:], "big")
    digits = field.replace(b"\0", b" ").strip() or b"0"
    if digits.translate(None, b"01234567"):
        raise BadHeader(f"{field!r} is no octal number")
    return int(digits, 8)


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _name(header: bytes) -> str:
    name = _decode(header[:100].rstrip(b"\0"))
    prefix = header[345:500].rstrip(b"\0") if header[257:263] == b"ustar\0" else b""
    return f"{_decode(prefix)}/{name}" if prefix else name


def _read_extended(file: files.ReadableFile, length: int) -> bytes:
    if length > EXTENDED_MAX:
        raise BadHeader(f"it has {length} bytes, and more than {EXTENDED_MAX} are no name")
    return file.read(length)


def _parse_pax(data: bytes) -> dict[str, str]:
    """Parses records of the form `length key=value\\n`."""
    records, start = {}, 0
    data = data.rstrip(b"\0")
    while start < len(data):
        digits = data[start : start + 20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        record = data[start : start + length]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not equals or record[-1:] != b"\n":
            raise BadHeader(f"{data[start : start + 20]!r} begins no record of PAX")
        records[_decode(key)] = _decode(value)
        start += length
    return records
