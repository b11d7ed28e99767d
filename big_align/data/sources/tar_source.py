"""Tar shards in the layout of webdataset and img2dataset, read at random."""

import contextlib
import os
from typing import Any

import numpy as np

from big_align.core.errors import put_in_a_line
from big_align.core.nodes import Given
from big_align.core.regular_files import MEMBER_MAX
from big_align.data import examples, files, listing, text_members
from big_align.data.labels.label_names import UnitedNames, unite_folders
from big_align.data.sources import shard_index
from big_align.data.sources.tar_headers import BLOCK, scan_members

MEMBERS_SHOWN = 20
KEY_MAX = 1024  # characters; all keys of a shard are kept as wide as the longest
GAP = 2**14  # bytes between members; up to this, they are read along to save a request


class TarSource:
    """Examples of tar shards: members that share a name up to the first dot.

    The headers are scanned once, by seeking, and the places of the members kept (16 bytes and
    the key for an image with one text); members are then read by offset.

    Args:
      path: shards; globs, `{00000..00005}` and comma lists, local or any fsspec or gs:// path; or a
        list of them.
      caption: the member that holds the text, or the field of a JSON member that holds a text
        or a list of texts: `txt`, `json.captions`. Languages in braces, `json.{en,de}`, mean one
        field each. None or "" reads no captions.
      label: likewise the class number, or a JSON list of them: `cls`, `json.label`,
        `json.labels`. None reads none. If `classes.txt` beside the shards names them, a line each,
        they are joined by name.
      index_dir: a folder that keeps the scans for the next start.
      caption_lines: whether each line of a text is a caption of its own, as in the `txt` of
        CLIP_benchmark's shards.
      image: the member that holds the image, such as `jpg`; None takes any member that ends like
        an image, of which an example must have only one.
      language: likewise the language of the captions, as in `json.language`; None if nothing names
        it.
      columns: other members, or fields of JSON members such as `json.url`, that `read_columns`
        returns; an example need not have them.
      needs_texts: whether an image without its texts is left out; otherwise `read_image` reads it.

    Attributes:
      faults: why examples are left out, a line for each shard that lost some.
      other_columns: `columns`.

    Raises:
      ValueError: nothing matches the path, or no shard has an image with these members.
    """

    def __init__(
        self,
        path: listing.Paths,
        caption: str | None = "txt",
        label: str | None = None,
        index_dir: str | None = None,
        caption_lines: bool = False,
        image: str | None = None,
        language: str | None = None,
        columns: tuple[str, ...] = (),
        needs_texts: Given[bool] = True,
    ):
        self._text_members = text_members.TextMembers(caption, label, caption_lines, language)
        self._texts = self._text_members.names
        self._image = image
        slots = {name: 0 for name in ([image] if image else examples.IMAGE_EXTENSIONS)}
        slots |= {name: slot for slot, name in enumerate(self._texts, start=1)}
        self._own = 1 + len(self._texts)  # slots of the image and its texts
        required = self._own if needs_texts else 1
        self.other_columns = tuple(columns)
        self._columns = {name: examples.split_member(name) for name in columns}
        members = dict.fromkeys(member for member, _ in self._columns.values())
        others = [name for name in members if name not in slots]
        slots |= {name: slot for slot, name in enumerate(others, start=self._own)}
        self._slots = slots
        others = [name for name, slot in slots.items() if slot >= required]
        self._paths = listing.expand_paths(path, "*.tar")
        self._files = files.files_of(self._paths[0])
        self._united = unite_folders(self._paths) if label else UnitedNames(None, ())
        self.class_names = self._united.names
        self._indexes = shard_index.index_shards(
            self._paths,
            lambda file, size: _index(file, size, slots, required),
            f"tar {slots}" + f" without {others}" * bool(others),
            index_dir,
        )
        self.shard_sizes = np.array([len(index.table) for index in self._indexes], np.int64)
        self.broken = shard_index.count_broken(self._indexes)
        self.faults = shard_index.list_faults(self._paths, self._indexes)
        if not self.shard_sizes.sum():
            raise ValueError(self._explain_nothing(path, self._texts[: required - 1]))

    def read(self, shard: int, index: int) -> examples.Example:
        image, *texts = self._members(shard, self._find_places(shard, index))
        captions, labels = self._parse(shard, texts)
        return examples.Example(self.key(shard, index), image, captions, labels)

    def read_image(self, shard: int, index: int) -> bytes:
        return self._members(shard, self._indexes[shard].table[index, :2].tolist())[0]

    def read_text(self, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
        places = self._find_places(shard, index)[2:]
        return self._parse(shard, self._members(shard, places))

    def read_columns(self, shard: int, index: int, names: tuple[str, ...]) -> list[Any]:
        """Returns some of `columns` of an example; None for what it lacks or cannot be read."""
        row, read, found = self._indexes[shard].table[index], {}, []
        for member, fields in map(self._columns.__getitem__, names):
            slot = self._slots[member]
            place = row[2 * slot : 2 * slot + 2].tolist()
            if member not in read and place[0]:
                with contextlib.suppress(examples.BrokenExample):
                    read[member] = examples.read_member(*self._members(shard, place), member)
            found.append(text_members.find(read.get(member), member, fields))
        return found

    def name(self, shard: int, index: int) -> str:
        return f"{self.shard_name(shard)}: {self.key(shard, index)}"

    def key(self, shard: int, index: int) -> str:
        """Returns what the names of the members have in common."""
        return self._indexes[shard].keys[index].decode("utf-8", "surrogateescape")

    def shard_name(self, shard: int) -> str:
        return os.path.basename(self._paths[shard])

    def _parse(self, shard: int, texts: list[bytes]) -> tuple[list[str], tuple[int, ...]]:
        captions, labels = self._text_members.parse(texts)
        return captions, self._united.renumber(labels, shard) if labels else labels

    def _find_places(self, shard: int, index: int) -> list[int]:
        """Returns where the image and its texts are; raises BrokenExample if one is missing."""
        row = self._indexes[shard].table[index, : 2 * self._own].tolist()
        for name, block in zip(self._texts, row[2::2], strict=True):
            if not block:
                raise examples.BrokenExample(f"the member {name!r} is missing")
        return row

    def _members(self, shard: int, row: list[int]) -> list[bytes]:
        """Reads members, in one go if they are close together: each read may be a request."""
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

    def _explain_nothing(self, path: listing.Paths, texts: list[str]) -> str:
        image = repr(self._image) if self._image else "an image"
        wanted = " and ".join([image, *map(repr, texts)])
        first = self._indexes[0]
        said = [first.fault] * bool(first.fault) + [first.reason] * bool(first.reason)
        with self._files.open(self._paths[0]) as file:
            size = self._files.stamp(self._paths[0])[0]
            seen = {_split_name(name)[1] for name, _, _, _ in scan_members(file, size)}
        members = ", ".join(sorted(seen - {""})[:MEMBERS_SHOWN]) or "none"
        return f"no example of {path!r} has {wanted}; " + put_in_a_line(
            "; ".join([f"{self.shard_name(0)} has the members {members}", *said])
        )


def _split_name(name: str) -> tuple[str, str]:
    """Splits `folder/00042.seg.png` into the key `folder/00042` and the member `seg.png`."""
    folder, slash, base = name.removeprefix("./").rpartition("/")
    key, _, member = base.partition(".")
    return (folder + slash + key, member.lower()) if key else ("", "")


def _index(file: Any, size: int, slots: dict[str, int], required: int) -> shard_index.ShardIndex:
    """Collects the places of the members in `slots` (0 is the image), one row per key.

    An example need not have the members from slot `required` on. A member that occurs twice breaks
    its example: nothing says which of the two is meant. An image like `00042.seg.png` belongs to
    the key `00042`; without any other member of the key, a name with several dots is meant.
    """
    columns = 2 * (max(slots.values()) + 1)
    rows: dict[str, list[int]] = {}
    wrong: dict[str, str] = {}  # why an example is left out, by its key or the hash of a long one
    dotted: dict[str, str] = {}  # the keys of images with several dots, by their names
    fault = ""
    for name, offset, length, told in scan_members(file, size):
        key, member = _split_name(name)
        slot = slots.get(member)
        fault = "" if name else told
        if slot is None and slots.get(member.rpartition(".")[2]) == 0:
            dotted[name] = key
        if slot is None:
            continue
        if len(key) > KEY_MAX:
            start = f"{key[:20]}..."
            wrong[f"{start}{hash(key)}"] = f"{start} has a key of more than {KEY_MAX} characters"
            continue
        row = rows.setdefault(key, [0] * columns)
        if told:
            wrong.setdefault(key, told)
            continue
        if row[2 * slot]:
            first = row[2 * slot] * BLOCK
            told = f"{name} is at byte {offset}, and its like at byte {first}"
            advice = "; `image` chooses one of several endings" * (slot == 0)
            wrong.setdefault(key, told + advice)
        elif length > MEMBER_MAX:
            wrong.setdefault(key, f"{name} has {length} bytes; at most {MEMBER_MAX} are read")
        row[2 * slot : 2 * slot + 2] = offset // BLOCK, min(length, MEMBER_MAX)
    for name in (name for name, key in dotted.items() if key not in rows):
        wrong[name] = f"{name} has several dots: a key ends at the first dot"
    needed = slice(0, 2 * required, 2)
    whole = {key: row for key, row in rows.items() if all(row[needed]) and key not in wrong}
    table = np.array(list(whole.values()), np.uint32).reshape(-1, columns)
    keys = np.array([key.encode("utf-8", "surrogateescape") for key in whole], dtype="S")
    # an example that a truncated end cuts in two is already covered by the fault
    cut = 1 if fault and rows and not all(rows[next(reversed(rows))][needed]) else 0
    broken = len(rows.keys() | wrong.keys()) - len(whole) - cut
    reason = next(iter(wrong.values()), "a member is missing")
    return shard_index.ShardIndex(table, keys, broken, fault, reason if broken else "")
