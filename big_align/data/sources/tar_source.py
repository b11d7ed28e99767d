"""Tar shards in the layout of webdataset and img2dataset, read at random."""

import os
from collections.abc import Iterator

import numpy as np

from big_align.data import examples, files
from big_align.data.sources import shard_index
from big_align.data.text_members import TextMembers

BLOCK = 512
GAP = 2**14  # bytes between members that are read along rather than asked for twice


class TarSource:
    """Examples of tar shards: members that share a name up to the first dot.

    The headers are scanned once, by seeking, and the places of the members kept (16 bytes and
    the key for an image with one text); members are then read by offset.

    Args:
      path: shards; globs, `{00000..00005}` and comma lists, local or any fsspec or gs:// path; or a
        list of them.
      caption: the member that holds the text, or the field of a JSON member that holds a text
        or a list of texts: `txt`, `json.captions`. None or "" reads no captions.
      label: likewise the class number, or a JSON list of them: `cls`, `json.label`,
        `json.labels`. None reads none.
      index_dir: a folder that keeps the scans for the next start.
      caption_lines: whether each line of a text is a caption of its own, as in the `txt` of
        CLIP_benchmark's shards.

    Raises:
      ValueError: nothing matches the path, or no shard has an image with these members.
    """

    class_names: tuple[str, ...] | None = None

    def __init__(
        self,
        path: files.Paths,
        caption: str | None = "txt",
        label: str | None = None,
        index_dir: str | None = None,
        caption_lines: bool = False,
    ):
        self._text_members = TextMembers(caption, label, caption_lines)
        self._texts = self._text_members.names
        slots = {name: 0 for name in examples.IMAGE_EXTENSIONS}
        slots |= {name: slot for slot, name in enumerate(self._texts, start=1)}
        self._paths = files.expand_paths(path)
        self._files = files.files_of(self._paths[0])
        self._indexes = shard_index.index_shards(
            self._paths, lambda file, size: _index(file, size, slots), f"tar {slots}", index_dir
        )
        self.shard_sizes = np.array([len(index.table) for index in self._indexes], np.int64)
        self.broken = shard_index.count_broken(self._indexes)
        if not self.shard_sizes.sum():
            raise ValueError(self._explain_nothing(path))

    def read(self, shard: int, index: int) -> examples.Example:
        """Reads an example; raises BrokenExample."""
        table = self._indexes[shard]
        image, *texts = self._members(shard, table.table[index].tolist())
        captions, labels = self._text_members.parse(texts)
        return examples.Example(table.keys[index].decode(), image, captions, labels)

    def read_text(self, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
        """Reads captions and labels without the image; raises BrokenExample."""
        places = self._indexes[shard].table[index, 2:].tolist()
        return self._text_members.parse(self._members(shard, places))

    def name(self, shard: int, index: int) -> str:
        """Names an example, as in `train-00003.tar: 00000042`."""
        return f"{self.shard_name(shard)}: {self._indexes[shard].keys[index].decode()}"

    def key(self, shard: int, index: int) -> str:
        """Returns what the names of the members have in common."""
        return self._indexes[shard].keys[index].decode("utf-8", "surrogateescape")

    def shard_name(self, shard: int) -> str:
        """Names a shard."""
        return os.path.basename(self._paths[shard])

    def _members(self, shard: int, row: list[int]) -> list[bytes]:
        """Reads members, in one go where they lie close together: each read may be a request."""
        places = [(block * BLOCK, size) for block, size in zip(row[::2], row[1::2], strict=True)]
        if not places:
            return []
        first = min(start for start, _ in places)
        end = max(start + size for start, size in places)
        if end - first > sum(row[1::2]) + GAP:
            return [self._read(shard, *place) for place in places]
        data = self._read(shard, first, end - first)
        return [data[start - first : start - first + size] for start, size in places]

    def _read(self, shard: int, start: int, size: int) -> bytes:
        data = self._files.read(self._paths[shard], start, size)
        if len(data) != size:
            raise examples.BrokenExample("the shard has become shorter than its index says")
        return data

    def _explain_nothing(self, path: files.Paths) -> str:
        wanted = " and ".join(["an image", *(repr(name) for name in self._texts)])
        fault = self._indexes[0].fault
        with self._files.open(self._paths[0]) as file:
            size = self._files.stamp(self._paths[0])[0]
            seen = {_split_name(name)[1] for name, _, _, _ in scan_members(file, size)}
        return (
            f"no example of {path!r} has {wanted}; {self.shard_name(0)} has the members "
            f"{', '.join(sorted(seen - {''})) or 'none'}" + (f" and {fault}" if fault else "")
        )


def _split_name(name: str) -> tuple[str, str]:
    """Splits `folder/00042.seg.png` into the key `folder/00042` and the member `seg.png`."""
    folder, slash, base = name.removeprefix("./").rpartition("/")
    key, _, member = base.partition(".")
    return (folder + slash + key, member.lower()) if key else ("", "")


def _index(file: files.ReadableFile, size: int, slots: dict[str, int]) -> shard_index.ShardIndex:
    """Collects the places of the members in `slots` (0 is the image), one row a key."""
    columns = 2 * (max(slots.values()) + 1)
    rows: dict[str, list[int]] = {}
    fault = ""
    for name, offset, length, fault in scan_members(file, size):
        key, member = _split_name(name)
        slot = slots.get(member)
        if slot is not None and not fault:
            row = rows.setdefault(key, [0] * columns)
            row[2 * slot : 2 * slot + 2] = offset // BLOCK, length
    whole = {key: row for key, row in rows.items() if all(row[::2])}
    table = np.array(list(whole.values()), np.uint32).reshape(-1, columns)
    keys = np.array([key.encode("utf-8", "surrogateescape") for key in whole], dtype="S")
    # the example that a truncated end cuts in two is part of what the fault stands for
    cut = 1 if fault and rows and not all(rows[next(reversed(rows))][::2]) else 0
    return shard_index.ShardIndex(table, keys, len(rows) - len(whole) - cut, fault)


def scan_members(file: files.ReadableFile, size: int) -> Iterator[tuple[str, int, int, str]]:
    """Yields the name, offset, size in bytes and fault of each regular member of a tar file.

    Reads headers only. Understands ustar, GNU long names and the path and size of PAX headers.
    The last item may carry a fault instead of a member: why the file ends too early.
    """
    position, long_name, extended = 0, "", {}
    while True:
        file.seek(position)
        header = file.read(BLOCK)
        if len(header) < BLOCK:
            yield "", 0, 0, f"it ends at byte {size} without an end mark"
            return
        if not header.strip(b"\0"):
            return
        if not _is_header(header):
            yield "", 0, 0, _explain_header(header, position)
            return
        kind = header[156:157]
        length = int(extended.get("size", 0)) or _number(header[124:136])
        start = position + BLOCK
        position = start + -(-length // BLOCK) * BLOCK
        if start + length > size:
            yield "", 0, 0, f"it ends at byte {size}, inside {_name(header)!r}"
            return
        if kind == b"L":
            long_name = _decode(file.read(length).rstrip(b"\0"))
        elif kind == b"x":
            extended = _parse_pax(file.read(length))
        elif kind not in (b"g", b"K"):
            if kind in (b"0", b"\0", b"7"):
                yield extended.get("path") or long_name or _name(header), start, length, ""
            long_name, extended = "", {}


def _is_header(header: bytes) -> bool:
    try:
        checksum = _number(header[148:156])
    except ValueError:
        return False
    return checksum == sum(header) - sum(header[148:156]) + 8 * ord(" ")


def _explain_header(header: bytes, position: int) -> str:
    if position == 0 and header[:2] == b"\x1f\x8b":
        return "it is compressed with gzip, which cannot be read at random; unpack it"
    return f"there is no tar header at byte {position}"


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # GNU's base 256, for sizes that octal digits cannot hold
        return int.from_bytes(field[1:], "big")
    return int(field.replace(b"\0", b" ").strip() or b"0", 8)


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _name(header: bytes) -> str:
    name = _decode(header[:100].rstrip(b"\0"))
    prefix = header[345:500].rstrip(b"\0") if header[257:263] == b"ustar\0" else b""
    return f"{_decode(prefix)}/{name}" if prefix else name


def _parse_pax(data: bytes) -> dict[str, str]:
    """Parses records of the form `length key=value\\n`."""
    records = {}
    while data.strip(b"\0"):
        length = int(data.partition(b" ")[0])
        key, _, value = data[:length].partition(b" ")[2].rstrip(b"\n").partition(b"=")
        records[_decode(key)] = _decode(value)
        data = data[length:]
    return records
