"""The headers of tar files: where the members are, without reading them."""

import posixpath
from collections.abc import Iterator
from typing import Any, NamedTuple

BLOCK = 512
END_CHUNK = 2**20  # bytes that are looked through at a time after an end mark
EXTENDED_MAX = 2**22  # bytes of a header that names a member or gives its size; rarely over 2**10


class BadHeader(ValueError):
    """Bytes that are not a header, or are cut off; the message says why the file ends there."""


REGULAR, WITHOUT_DATA, IGNORED = b"0\x007", b"123456", b"5VD"
"""Kinds of members: files; those that have no data, whatever size their headers claim; and folders,
labels of volumes and lists of folders."""
KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"M": "a part of a file of several volumes",
    b"S": "a sparse file",
}
MOST_LINKS = 40  # that lead to each other, as in Linux


class _Member(NamedTuple):
    name: str
    start: int
    length: int
    kind: bytes
    target: str


def scan_members(file: Any, size: int) -> Iterator[tuple[str, int, int, str]]:
    """Yields the name, offset, size in bytes and fault of each member of a tar file.

    Reads headers only. Understands ustar, GNU long names and the path and size of PAX headers, and
    reads on after an end mark: concatenated tar files hold the members of all. A link to a member
    of the same tar is that member; those that need others come last. Folders are left out.
    A member with a fault is no file. The last item may carry a fault without a name: why the file
    ends too early.
    """
    places: dict[str, tuple[int, int]] = {}
    links: dict[str, _Member] = {}
    fault = ""
    try:
        for member in _scan(file, size):
            name = posixpath.normpath(member.name)
            if not member.name:
                continue
            if member.target and _find_target(member) in places:
                places[name] = places[_find_target(member)]
                yield member.name, *places[name], ""
            elif member.target:
                links[name] = member
            elif member.kind in REGULAR:
                places[name] = member.start, member.length
                yield member.name, *places[name], ""
            elif member.kind not in IGNORED:
                told = KINDS.get(member.kind, f"of the unknown kind {member.kind!r}")
                yield member.name, member.start, 0, f"{member.name} is {told}, which is not read"
    except BadHeader as error:
        fault = str(error)
    for link in links.values():
        target = _find_target(link)
        for _ in range(MOST_LINKS):
            if target not in links:
                break
            target = _find_target(links[target])
        told = f"{link.name} is {KINDS[link.kind]} to {link.target[:80]}, which is not in the shard"
        advice = "; `tar --dereference` packs the files themselves"
        missing = "" if target in places else told + advice
        yield link.name, *places.get(target, (0, 0)), missing
    if fault:
        yield "", 0, 0, fault


def _find_target(link: _Member) -> str:
    """Returns the name of the member that a link means, if it is one."""
    folder = posixpath.dirname(link.name) if link.kind == b"2" else ""
    return posixpath.normpath(posixpath.join(folder, link.target))


def _scan(file: Any, size: int) -> Iterator[_Member]:
    """Yields the members of a tar file; raises BadHeader where it ends too early."""
    position, long, extended, ended = 0, {}, {}, False
    while True:
        file.seek(position)
        header = file.read(BLOCK)
        if ended and len(header) < BLOCK:
            return
        if len(header) < BLOCK:
            raise BadHeader(f"it ends at byte {size} without an end mark")
        if not header.strip(b"\0"):
            position, long, extended, ended = _skip_zeros(file, position), {}, {}, True
            continue
        try:
            kind, length = _read_header(header, extended)
        except BadHeader as error:
            raise BadHeader(_explain_header(header, position, ended, error)) from error
        start = _skip_sparse(file, header, position)
        position = start + -(-length // BLOCK) * BLOCK
        if start + length > size:
            raise BadHeader(f"it ends at byte {size}, inside {_name(header)[:80]!r}")
        ended = False
        try:
            if kind in (b"L", b"K", b"x"):
                if length > EXTENDED_MAX:
                    raise BadHeader(
                        f"it has {length} bytes, and more than {EXTENDED_MAX} are no name"
                    )
                data = file.read(length)
                if kind == b"x":
                    extended = _parse_pax(data)
                else:
                    long[kind] = _decode(data.rstrip(b"\0"))
        except BadHeader as error:
            raise BadHeader(f"the header at byte {start - BLOCK} is broken: {error}") from error
        if kind not in (b"L", b"K", b"x", b"g"):
            if sparse := any(key.startswith("GNU.sparse") for key in extended):
                kind = b"S"
            name = extended.get("path") or long.get(b"L") or _name(header)
            name = extended.get("GNU.sparse.name", name) if sparse else name
            target = (
                extended.get("linkpath") or long.get(b"K") or _decode(header[157:257].rstrip(b"\0"))
            )
            yield _Member(name, start, length, kind, target if kind in b"12" else "")
            long, extended = {}, {}


def _skip_sparse(file: Any, header: bytes, position: int) -> int:
    """Returns where the data of a member begin: after the further maps of GNU's sparse files."""
    more, position = header[156:157] == b"S" and header[482], position + BLOCK
    while more:
        file.seek(position)
        more, position = (file.read(BLOCK)[504:505] or b"\0")[0], position + BLOCK
    return position


def _skip_zeros(file: Any, position: int) -> int:
    """Returns the position of the block with the next nonzero byte, or the end."""
    file.seek(position)
    while data := file.read(END_CHUNK):
        rest = data.lstrip(b"\0")
        if rest:
            return (position + len(data) - len(rest)) // BLOCK * BLOCK
        position += len(data)
    return position


def _read_header(header: bytes, extended: dict[str, str]) -> tuple[bytes, int]:
    if _number(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        raise BadHeader("its checksum is wrong")
    kind = header[156:157]
    if kind in WITHOUT_DATA:
        return kind, 0
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
