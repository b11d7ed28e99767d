"""Work that processes take from one list, at any time and on any number of hosts.

A unit of work is finished when all of its files are in the folder that the processes share, so a
host may be lost at any moment, and what is there is never made again. What is not, a process takes
by a lease.
"""

import os
import random
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from big_align.core.progress import make_bar
from big_align.data import files
from big_align.data.shared import storage
from big_align.data.shared.leases import LeaseName, Leases, Watched
from big_align.parallel.distributed import processes

LOOK_EVERY = 5.0  # seconds between looks at what others have finished, for the progress
LOOK_PART = 20  # at least so many times as long as a look takes
FIRST_PAUSE = 0.05  # seconds between looks at leases; it doubles, up to an eighth of their term
NAMED = 3  # owners that are named


class Unit(NamedTuple):
    """A unit of work."""

    name: str  # of its leases
    files: tuple[str, ...]  # with all of them in the folder, it is finished
    size: int  # in the examples, or whatever else the progress counts


class SharedWork:
    """The units that are left of a list, for one of the processes that work on it.

    `for unit in work` yields the numbers of those that this process has got hold of, the next one
    when the last is finished, until all are finished, by whomever; with `wait=False`, until nothing
    is left to take. Whoever prepares units ahead of others calls `more` and `take` instead.

    Args:
      folder: the folder that all processes see, local or an address.
      units: the same in all processes.
      noun: what the sizes of units count.
      wait: whether to wait for what others have.
      alone: whether the caller has the folder to itself: leases are not needed, and its progress
        is only a part of another one's.
      label: what stands before the progress.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        units: Sequence[Unit],
        noun: str,
        wait: bool = True,
        alone: bool = False,
        label: str = "",
    ):
        self.folder, self.units = os.fspath(folder), units
        self._noun, self._wait = noun, wait
        self._leases = None if alone else Leases(folder)
        self._mine: set[int] = set()  # units that this process has
        self._left_out: set[int] = set()
        self._held: dict[int, LeaseName] = {}  # units that others have: the newest lease of each
        self._lost: dict[int, int] = {}  # those of lost processes: the number of the next lease
        self.done: set[int] = set()
        self._numbers = {unit.name: number for number, unit in enumerate(units)}
        self._files = {name for unit in units for name in unit.files}
        self._here = self._pending = 0  # done by this process; of units that it has not finished
        self._told, self._began = False, time.monotonic()
        self._look()
        self._at = random.randrange(len(units)) if self._held else 0
        self._bar = make_bar(
            desc=label or None, total=self.total, initial=self._count_done(), unit=noun,
            dynamic_ncols=True, smoothing=0, leave=not alone,
            disable=self.finished or bool(processes.coordination().process_id),
        )  # fmt: skip

    @property
    def total(self) -> int:
        """The size of all units."""
        return sum(unit.size for unit in self.units)

    @property
    def finished(self) -> bool:
        """Whether all units were finished when this process looked last."""
        return len(self.done) == len(self.units)

    def __iter__(self) -> Iterator[int]:
        while self.more():
            yield from self.take()

    def __enter__(self) -> "SharedWork":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives up what this process has not finished."""
        if self._leases is not None:
            self._leases.close()
        self._bar.close()

    def more(self) -> bool:
        """Waits until a unit can be taken; returns whether there is one, or all is over.

        What this process has taken must be finished first: others may wait for it.
        """
        pause = FIRST_PAUSE
        while True:
            self._look()
            if self._find_free() is not None:
                return True
            if not self._held:
                self._sweep()
                return False
            watched = list(filter(None, map(self._watch, list(self._held))))
            if self._lost:
                return True
            owners = list(dict.fromkeys(str(each.owner) for each in watched))
            if not self._wait and owners and all(each.alive for each in watched):
                self._tell(owners, "leaves the rest to others, and ends")
                return False
            if owners and not self._told:
                self._told = True
                self._tell(owners, "waits" if self._wait else "waits for a sign of life")
            time.sleep(pause)
            pause = min([2 * pause, *(each.owner.seconds / 8 for each in watched)])

    def take(self) -> Iterator[int]:
        """Yields units that this process has got hold of, while any can be taken at once."""
        while (number := self._find_free()) is not None:
            unit, self._at = self.units[number], number + 1
            if self._leases is not None:
                if not self._leases.take(unit.name, self._lost.pop(number, 0)):
                    self._at = random.randrange(len(self.units))  # others are at work near here
                    time.sleep(random.uniform(0, FIRST_PAUSE))
                    self._look()
                    continue
                if self.is_finished(unit):  # since this process has looked
                    self.finish(number)
                    continue
            self._mine.add(number)
            yield number

    def advance(self, count: int) -> None:
        """Shows that this process has done some of its units."""
        self._here += count
        self._pending += count
        self._show()

    def finish(self, number: int) -> None:
        """Gives back a unit all of whose files are there."""
        if self._leases is not None:
            self._leases.release(self.units[number].name)
        self._mine.discard(number)
        self.done.add(number)
        self._pending = max(0, self._pending - self.units[number].size)
        if time.monotonic() > self._next_look:
            self._look()
        self._show()

    def leave_out(self, number: int) -> None:
        """Gives back a unit that this process cannot do."""
        if self._leases is not None:
            self._leases.release(self.units[number].name)
        self._mine.discard(number)
        self._left_out.add(number)

    def has(self, name: str) -> bool:
        """Returns whether a file is in the folder."""
        return files.exists(storage.join(self.folder, name))

    def is_finished(self, unit: Unit, names: set[str] | None = None) -> bool:
        """Returns whether a unit is finished, by the names of the files in the folder if given."""
        return all(map(self.has, unit.files)) if names is None else names.issuperset(unit.files)

    def _look(self) -> None:
        """Looks at what is in the folder."""
        began = time.monotonic()
        names = set(storage.list_names(self.folder))
        for number, unit in enumerate(self.units):
            if number not in self.done and self.is_finished(unit, names):
                self.done.add(number)
        self._held = {}
        for lease in sorted(
            filter(None, map(LeaseName.parse, names)), key=lambda each: each.number
        ):
            number = self._numbers.get(lease.unit)
            if number is not None and number not in self.done and number not in self._mine:
                self._held[number] = lease
        self._lost = {
            number: after
            for number, after in self._lost.items()
            if number in self._held and self._held[number].number == after - 1
        }
        self._next_look = time.monotonic() + max(LOOK_EVERY, LOOK_PART * (time.monotonic() - began))

    def _find_free(self) -> int | None:
        """Returns the next unit that nobody has, or that a process had which is lost."""
        for step in range(len(self.units)):
            number = (self._at + step) % len(self.units)
            busy = number in self._held and number not in self._lost
            if not (
                busy or number in self.done or number in self._mine or number in self._left_out
            ):
                return number
        return None

    def _watch(self, number: int) -> Watched | None:
        """Looks at the owner of a unit, and notes whether it is lost."""
        lease = self._held[number]
        found = self._leases.watch(lease) if self._leases is not None else None
        if found is not None and found.dead:
            self._lost[number] = lease.number + 1
        return found

    def _count_done(self) -> int:
        return sum(self.units[number].size for number in self.done)

    def _show(self) -> None:
        seconds = max(time.monotonic() - self._began, 1e-9)
        parts = f"{len(self.done)} of {len(self.units)} parts"
        self._bar.set_postfix_str(
            f"{parts}, {self._here / seconds:.1f} {self._noun}/s here", refresh=False
        )
        self._bar.update(max(0, self._count_done() + self._pending - self._bar.n))

    def _tell(self, owners: Sequence[str], what: str) -> None:
        others = f" and {len(owners) - NAMED} more" if len(owners) > NAMED else ""
        have = "has" if len(owners) == 1 else "have"
        print(
            f"{self.folder}: {', '.join(owners[:NAMED])}{others} still {have} {len(self._held)} of "
            f"{len(self.units)} parts; this process {what}",
            flush=True,
        )

    def _sweep(self) -> None:
        """Removes what lost processes have left of units that are finished."""
        for lease in filter(None, map(LeaseName.parse, storage.list_names(self.folder))):
            if lease.unit in self._numbers:
                storage.remove(storage.join(self.folder, str(lease)))
        storage.remove_unfinished(self.folder, self._is_ours)

    def _is_ours(self, name: str) -> bool:
        lease = LeaseName.parse(name)
        unit = lease.unit if lease else ""
        return unit in self._numbers or name in self._files
