"""Folders with embeddings, captions' features or clusters of the examples of a source.

A folder holds `index.json` and, for each shard of the source, an array whose rows are in the
source's own order (`FILE.npy`, `FILE.captions.npy` or `FILE.clusters.npy`) and the keys of the
examples, one per line (`FILE.keys`). An example that could not be read when it was embedded keeps
its row, so that the place in a shard means the same everywhere: its row is zero (no cluster: -1)
and its key empty. Files are memory-mapped, so the folder must be on a disk that every process sees.
A file gets its name only when it is complete.
"""

import collections
import json
import os
import pathlib
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from big_align.core import formats
from big_align.core.errors import UserError, put_in_a_line
from big_align.core.whole_files import remove_leftovers
from big_align.data import files
from big_align.data.json_texts import read_json
from big_align.data.shared import storage

KIND = "folder of embeddings or clusters"
INDEX, KEYS = "index.json", ".keys"
SIZES = frozenset({"captions", "dim", "k", "labels_per_image"})
"""The fields of an index that are positive integers, in all folders that have them."""
FILE_MAX = 100  # characters; `list_shards` makes names of at most 67
EMBEDDINGS, CAPTIONS, CLUSTERS = ".npy", ".captions.npy", ".clusters.npy"


Folder = str | os.PathLike


class Shard(NamedTuple):
    """A shard of a source and its files."""

    name: str  # the source's name for it; the second of one name is "NAME (2)"
    file: str  # what its files are called, without the endings
    count: int  # its examples


def join(folder: Folder, name: str) -> str:
    """Returns the path of a file of a folder."""
    return storage.join(os.fspath(folder), name)


def list_shards(source: Any) -> list[Shard]:
    """Lists the shards of a `Source`, or of texts that have `shard_sizes` and `shard_name`, too."""
    shards, seen = [], collections.Counter()
    for number, count in enumerate(source.shard_sizes.tolist()):
        name = source.shard_name(number)
        seen[name] += 1
        plain = re.sub(r"[^\w.-]+", "_", name.rpartition("/")[2], flags=re.ASCII)[-60:]
        times = f" ({seen[name]})" if seen[name] > 1 else ""
        shards.append(Shard(name + times, f"{number:06d}-{plain}", count))
    return shards


def claim_folder(
    folder: Folder, index: Mapping[str, Any], write: bool = True, free: Sequence[str] = ()
) -> None:
    """Writes the index of a folder, or raises UserError if the one there does not say the same.

    Of several processes that come at once, one writes it. The entries of `made_by` in `free` may
    differ. Without `write`, it only checks.
    """
    path = join(folder, INDEX)
    text = json.dumps(formats.stamp(KIND, index), indent=1, ensure_ascii=False) + "\n"
    content = text.encode(errors="backslashreplace")  # names may be in Latin-1
    if not (write and storage.create_whole(path, content)):
        there = read_index(folder, ())
        here = formats.strip(json.loads(content))  # as it will be read
        there["made_by"] = there.get("made_by", {}) | {k: here["made_by"].get(k) for k in free}
        check_same(folder, there, here)
    if write and "://" not in path:
        remove_leftovers(pathlib.Path(folder))


def check_same(folder: Folder, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raises a UserError that names what differs between what is there and what would be made."""
    if faults := list_differences(there, json.loads(json.dumps(here))):
        raise UserError(
            f"{folder} was made with other settings: {'; '.join(faults)}; give another --output, "
            f"or remove the folder"
        )


def list_differences(
    there: Any, here: Any, said: Mapping[str, str] = types.MappingProxyType({}), where: str = ""
) -> list[str]:
    """Lists the entries in which two JSON objects differ, what was there and what is here.

    Of some entries the values say nothing to people; `said` has what is said of these instead.
    `where` is the place of the objects in others.
    """
    if there == here:
        return []
    if (name := where.rpartition(".")[2]) in said:
        return [f"{said[name]} differs"]
    if isinstance(there, dict) and isinstance(here, dict):
        keys = dict.fromkeys([*there, *here])
        parts = [(there.get(k), here.get(k), said, f"{where}.{k}".lstrip(".")) for k in keys]
        return [fault for part in parts for fault in list_differences(*part)]
    lists = isinstance(there, list) and isinstance(here, list)
    short = lists and len(there) <= 3 and len(here) <= 3  # lists of texts, which can be shown
    if lists and not (short and all(isinstance(each, str) for each in there + here)):
        pairs = [pair for pair in zip(there, here, strict=False) if pair[0] != pair[1]]
        first = f", and {pairs[0][0]} is now {pairs[0][1]}" if pairs else ""
        return [f"{where} are {len(there)} there and {len(here)} now{first}"]
    return [f"{where} is {there!r} there and {here!r} now"]


def read_index(folder: Folder, fields: Sequence[str]) -> dict[str, Any]:
    """Reads the index of a folder, which must have some fields; sizes must be positive integers."""
    path = join(folder, INDEX)
    if not files.is_file(path):
        raise UserError(f"{folder} has no {INDEX}: big_align.tools.embed and cluster write one")
    index = formats.strip(read_description(path, KIND, fields))
    if not isinstance(index.get("made_by", {}), dict):
        raise UserError(f"{path}: `made_by` is no object; it is not as it was written")
    for field in SIZES.intersection(fields):
        value = index[field]
        if type(value) is not int or not 0 < value < 2**31:
            raise UserError(f"{path}: `{field}` is {str(value)[:40]!r}: no size")
    return index


def read_description(path: str | os.PathLike, kind: str, fields: Sequence[str]) -> dict[str, Any]:
    """Reads the JSON object in which a folder of a kind of `formats` says what it holds."""
    found = read_json(os.fspath(path))
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no object; it is not as it was written")
    formats.check(kind, found, path)
    if missing := [field for field in fields if field not in found]:
        raise UserError(f"{path} lacks {', '.join(missing)}: the folder holds something else")
    return found


def read_shards(folder: Folder, entries: Any) -> list[Shard]:
    """Returns the shards that an index lists; raises UserError if an entry is none."""
    shards = []
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        values = [entry.get(field) for field in Shard._fields] if isinstance(entry, dict) else []
        names = [isinstance(value, str) for value in values[:2]]
        if len(entry if values else ()) != len(Shard._fields) or not all(names):
            fault = "needs a name, a file and a count"
        elif not values[1].isprintable():  # ours; the name is that of a user's file
            fault = "has a file whose name cannot be shown"
        elif type(values[2]) is not int or not 0 <= values[2] < 2**40:
            fault = "has a count that is no number of examples"
        elif pathlib.PurePath(values[1]).name != values[1] or len(values[1]) > FILE_MAX:
            fault = "has a file that is no name of one in the folder"
        else:
            shards.append(Shard(*values))
            continue
        shown = put_in_a_line(repr(entry))
        raise UserError(f"{join(folder, INDEX)}: entry {number} of `shards` {fault}: {shown}")
    return shards


def write_array(path: str | os.PathLike, rows: np.ndarray) -> None:
    """Writes an array, whole or not at all."""
    with storage.open_whole(os.fspath(path)) as file:
        np.save(file, rows)


def list_missing(folder: Folder, ending: str, shards: Sequence[Shard] | None = None) -> list[Shard]:
    """Lists the shards that are not there, of those that the index lists or of given ones."""
    if shards is None:
        shards = read_shards(folder, read_index(folder, ("shards",))["shards"])
    names = set(storage.list_names(os.fspath(folder)))
    return [shard for shard in shards if shard.count and shard.file + ending not in names]


def has_shard(folder: Folder, shard: Shard, ending: str) -> bool:
    """Returns whether the files of a shard are there, or it needs none."""
    return not shard.count or files.is_file(join(folder, shard.file + ending))


def write_shard(folder: Folder, shard: Shard, ending: str, rows: np.ndarray, keys: bytes) -> None:
    """Writes the files of a shard; the array comes last, so if it is there, all are."""
    storage.write_bytes(join(folder, shard.file + KEYS), keys)
    write_array(join(folder, shard.file + ending), rows)


def join_keys(keys: Iterable[str]) -> bytes:
    """Returns the content of a file of keys; raises UserError if a key contains a line break."""
    keys = list(keys)
    if broken := [key for key in keys if "\n" in key]:
        raise UserError(f"the key {broken[0]!r} holds an end of line: rename the example")
    return "".join(f"{key}\n" for key in keys).encode("utf-8", "surrogateescape")


def cut_in_shards(
    pieces: Iterable[Shaped[np.ndarray, "_ ..."]], shards: Sequence[Shard]
) -> Iterator[tuple[Shard, np.ndarray]]:
    """Joins rows that come in pieces of any size, and yields those of each shard that has any."""
    stream, held, have = iter(pieces), [], 0
    for shard in shards:
        if not shard.count:
            continue
        while have < shard.count:
            held.append(next(stream))
            have += len(held[-1])
        joined = np.concatenate(held)
        yield shard, joined[: shard.count]
        held, have = [joined[shard.count :]], have - shard.count
