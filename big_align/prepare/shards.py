"""Shards, the same bytes for the same examples, and which shard an example goes to."""

import io
import json
import tarfile
from collections.abc import Iterable
from typing import Any, NamedTuple

from big_align.data import record_encoding
from big_align.data.shared import storage

FORMATS = ("tar", "tfrecord", "array_record")
"""What shards are, and how their names end."""
SHARD_SIZE = 5000  # examples


class Member(NamedTuple):
    """An example of a shard."""

    place: int  # in the shard
    key: str  # what the names of its members begin with
    ending: str  # of the image file
    image: bytes  # the encoded file
    about: dict[str, Any]  # what its JSON member holds: `captions`, `origin` and others


def count_shards(examples: int, shard_size: int) -> int:
    """Returns how many shards hold all examples, at most `shard_size` each."""
    return -(-examples // shard_size)


def find_place(rank: int, examples: int, shards: int) -> tuple[int, int]:
    """Returns shard and place of an example by its rank; shards differ by at most one example."""
    shard = rank * shards // examples
    return shard, rank - -(-shard * examples // shards)


def count_members(shard: int, examples: int, shards: int) -> int:
    """Returns how many examples a shard has (`find_place`)."""
    return -(-(shard + 1) * examples // shards) + -shard * examples // shards


def name_shard(shard: int | str, shard_format: str) -> str:
    """Returns the name of a shard; `*` gives the pattern for all."""
    number = shard if isinstance(shard, str) else f"{shard:05d}"
    return f"pairs-{number}.{shard_format}"


def write_shard(path: str, members: Iterable[Member], shard_format: str = "tar") -> int:
    """Writes a shard, which appears only when it is complete.

    A tar shard has the layout of webdataset. Records are tf.train.Example messages: `image`,
    `caption` (all of them), `label`, `key`, and `json`, as in a tar shard.
    """
    ordered = sorted(members, key=lambda member: member.place)
    records = map(_encode_record, ordered)
    with storage.open_whole(path) as file:
        if shard_format == "tar":
            with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
                for member in ordered:
                    _add_members(tar, member)
        elif shard_format == "tfrecord":
            record_encoding.write_tfrecord(file, records)
        else:
            record_encoding.write_array_record(file, records)
    return sum(len(member.image) for member in ordered)


def _encode_record(member: Member) -> bytes:
    about = member.about
    return record_encoding.encode_example(
        {
            "image": [member.image],
            "caption": [caption.encode() for caption in about["captions"]],
            "label": about.get("labels", []),
            "key": [member.key.encode()],
            "json": [write_json(about)],
        }
    )


def write_json(value: Any) -> bytes:
    """Returns an object as JSON in UTF-8, which escapes what has no UTF-8."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text.encode("utf-8", "backslashreplace")  # as JSON writes it, too


def _add_members(tar: tarfile.TarFile, member: Member) -> None:
    captions, labels = member.about["captions"], member.about.get("labels", [])
    _add(tar, f"{member.key}.{member.ending}", member.image)
    if captions:
        _add(tar, f"{member.key}.txt", captions[0].encode())
    if len(labels) == 1:
        _add(tar, f"{member.key}.cls", str(labels[0]).encode())
    _add(tar, f"{member.key}.json", write_json(member.about))


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Adds a member without saying when, where and by whom it was written."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
