"""The shards of a folder as work that processes share."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from big_align.core.errors import UserError
from big_align.data.precomputed import shard_files
from big_align.data.precomputed.shard_files import INDEX, KEYS, Folder, Shard
from big_align.data.shared.shared_work import SharedWork, Unit

LEAST = 2048
"""Examples of a unit: shards with fewer are taken together with their neighbors."""


def group_shards(shards: Sequence[Shard]) -> list[list[int]]:
    """Puts neighbors together until they have enough examples; those without any are left out."""
    groups: list[list[int]] = [[]]
    size = 0
    for number, shard in enumerate(shards):
        if not shard.count:
            continue
        if size >= LEAST:
            groups, size = [*groups, []], 0
        groups[-1].append(number)
        size += shard.count
    return [group for group in groups if group]


class SharedShards(SharedWork):
    """The shards that are left of a folder, some at a time; see `SharedWork`.

    A shard that is there, of a unit that a lost process has begun, is not made again.
    """

    def __init__(
        self, folder: Folder, shards: Sequence[Shard], ending: str, noun: str, **options: Any
    ):
        self._shards, self._ending = shards, ending
        self._groups = group_shards(shards)
        units = [
            Unit(
                shards[group[0]].file,
                (INDEX, *(shards[n].file + each for n in group for each in (KEYS, ending))),
                sum(shards[n].count for n in group),
            )
            for group in self._groups
        ]
        super().__init__(folder, units, noun, **options)

    def list_missing(self, unit: int) -> list[int]:
        """Returns the numbers of the shards of a unit that are not there yet."""
        group = self._groups[unit]
        if len(group) == 1:
            return group  # which was looked for when it was taken
        return [n for n in group if not self.has(self._shards[n].file + self._ending)]

    def write(self, number: int, rows: np.ndarray, keys: bytes) -> None:
        """Writes the files of a shard."""
        shard = self._shards[number]
        try:
            shard_files.write_shard(self.folder, shard, self._ending, rows, keys)
        except UserError:
            # of a process that was stopped for so long that others have finished and tidied up
            if not self.has(shard.file + self._ending):
                raise
