"""Counts broken examples, and ends a run that has too many of them."""

import re
import textwrap
import threading

import numpy as np
from absl import logging

from big_align.core.errors import BrokenDataError, FieldError, put_in_a_line
from big_align.data import examples

LOGGED_FIRST = 20  # every broken example up to here is named in the log, then one in LOGGED_EVERY
LOGGED_EVERY = 100
READ_BEFORE_STOP = 2000  # fewer examples say too little about the fraction in the data
FEW = 2  # broken examples that end no run for which any may be broken, however small the data are


def tell_reason(error: Exception) -> str:
    """Returns why an example cannot be used, in the same words in every process."""
    return put_in_a_line(re.sub(r" <[^>]* at 0x\w+>", "", str(error)))


def name_kind(reason: str) -> str:
    """Returns what reasons of one kind have in common: no numbers, names or addresses."""
    kind = re.sub(r"'[^']*'|\"[^\"]*\"|<[^>]*>|\S*/\S+|\b0x[0-9a-f]+", "...", reason)
    return textwrap.shorten(re.sub(r"(?<![\w-])\d+(?!\w)", "N", kind), 160, placeholder=" ...")


def check_fraction(max_broken_fraction: float) -> None:
    """Raises a FieldError if a part of the examples is not from 0 to 1."""
    if not 0 <= max_broken_fraction <= 1:
        message = f"max_broken_fraction = {max_broken_fraction} is not a fraction from 0 to 1"
        raise FieldError(message, max_broken_fraction=0.01)


class BrokenTally:
    """Counts each broken example once, names it in the log, and stops when there are too many.

    Those found by reading may be `max_fraction` of the examples read; together with those that the
    source left out during indexing, they may be that fraction of all. Until 2000 examples (or all,
    if there are fewer) are read, that many are counted as read. Two are never too many, unless the
    fraction is 0.
    """

    def __init__(self, source: examples.Source, max_fraction: float):
        check_fraction(max_fraction)
        self._source = source
        self._max_fraction = max_fraction
        self._num_examples = int(source.shard_sizes.sum())
        self._left_out = int(source.broken.sum())
        self._read = 0
        self._found: set[tuple[int, int]] = set()
        self._last = ""
        self._lock = threading.Lock()
        self._check(0, self._num_examples)

    @property
    def count(self) -> int:
        """Examples known to be broken."""
        return self._left_out + len(self._found)

    def count_read(self, count: int) -> None:
        """Counts examples that were read, intact or broken."""
        with self._lock:
            self._read += count

    def add(self, shard: int, index: int, error: Exception) -> None:
        """Counts a broken example, once; raises BrokenDataError when there are too many."""
        name, reason = map(put_in_a_line, (self._source.name(shard, index), str(error)))
        with self._lock:
            if (shard, index) in self._found:
                return
            self._found.add((shard, index))
            found = len(self._found)
            read = min(self._num_examples, max(self._read, READ_BEFORE_STOP))
        if found <= LOGGED_FIRST or found % LOGGED_EVERY == 0:
            logging.warning("skipped %s: %s (%d skipped so far)", name, reason, found)
        self._last = f"; the last one is {name}: {reason}"
        self._check(found, read)

    def knows(self, shard: int, index: int) -> bool:
        """Returns whether an example was found to be broken."""
        with self._lock:
            return (shard, index) in self._found

    def tell_worst(self) -> str:
        """Names the shard with the most broken examples, and the last of them with its reason."""
        per_shard = self._source.broken.copy()
        with self._lock:
            shards = np.array([shard for shard, _ in self._found], np.int64)
        np.add.at(per_shard, shards, 1)
        worst = int(per_shard.argmax())
        shard = put_in_a_line(self._source.shard_name(worst))
        return f"most are in {shard} ({per_shard[worst]} broken there){self._last}"

    def _check(self, found: int, read: int) -> None:
        total = self._num_examples + self._left_out
        few = FEW if self._max_fraction else 0
        for count, examined in ((found, read), (self._left_out + found, total)):
            if count > max(self._max_fraction * examined, few):
                raise BrokenDataError(
                    f"{count} of {examined} examples are broken, which is more than "
                    f"max_broken_fraction={self._max_fraction:g}; {self.tell_worst()}. Mend "
                    "them or raise max_broken_fraction"
                )
