"""Tar shards, the same bytes for the same examples, and which shard an example goes to."""

import io
import json
import tarfile
from collections.abc import Iterable
from typing import Any, NamedTuple

from big_align.prepare import storage

NAME = "pairs-{:05d}.tar"
SHARD_SIZE = 5000  # examples


class Member(NamedTuple):
    """An example of a shard.

    Attributes:
      place: its place in the shard.
      key: what the names of its members begin with.
      ending: of the image file.
      image: the encoded file.
      about: what its JSON member holds: `captions`, `origin` and others.
    """

    place: int
    key: str
    ending: str
    image: bytes
    about: dict[str, Any]


def count_shards(examples: int, shard_size: int) -> int:
    """Returns how many shards hold so many examples, at most `shard_size` each."""
    return -(-examples // shard_size)


def find_place(rank: int, examples: int, shards: int) -> tuple[int, int]:
    """Returns the shard of an example and its place there; shards differ by one example at most.

    Args:
      rank: of the example in the order of all.
      examples: of all shards.
      shards: how many there are.
    """
    shard = rank * shards // examples
    return shard, rank - -(-shard * examples // shards)


def write_shard(path: str, members: Iterable[Member]) -> int:
    """Writes a shard in the layout of webdataset; it is there when it is whole.

    Args:
      path: of the shard.
      members: in any order.

    Returns:
      Bytes of the images.
    """
    total = 0
    with storage.open_whole(path) as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for member in sorted(members, key=lambda member: member.place):
                _add(tar, f"{member.key}.{member.ending}", member.image)
                captions, labels = member.about["captions"], member.about.get("labels", [])
                if captions:
                    _add(tar, f"{member.key}.txt", captions[0].encode())
                if len(labels) == 1:
                    _add(tar, f"{member.key}.cls", str(labels[0]).encode())
                about = json.dumps(member.about, ensure_ascii=False, sort_keys=True)
                _add(tar, f"{member.key}.json", about.encode("utf-8", "surrogatepass"))
                total += len(member.image)
    return total


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Adds a member that tells nothing of when, where and by whom it was written."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
