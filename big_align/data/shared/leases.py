"""Leases of units of work, by which processes on several hosts share a folder.

A lease of unit U is the file `U.lease.0`. Whoever creates it has it, and writes it anew every
quarter of its term. Who sees the same content for a whole term, by a clock of its own, takes over
by creating `U.lease.1`, and so on: no clocks are compared, and all that is needed is that one of
several processes that create a file succeeds. A process of the same host that has ended is not
waited for.

An owner that was stopped for longer, and then goes on, does not know that another has taken over.
So the work of a unit must be such that it may be done twice, with the same result.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

from absl import logging

from big_align.core.errors import UserError
from big_align.data.shared import storage

SECONDS = 30.0
"""The term of a lease: after so long without a sign of its owner, another takes over."""
MARK = ".lease."


class LeaseName(NamedTuple):
    """What the name of the file of a lease says."""

    unit: str
    number: int  # how many owners the unit has had before

    @classmethod
    def parse(cls, name: str) -> "LeaseName | None":
        """Reads the name of a file; None if it is not that of a lease."""
        unit, _, number = name.rpartition(MARK)
        return cls(unit, int(number)) if unit and number.isdecimal() else None

    def __str__(self) -> str:
        return f"{self.unit}{MARK}{self.number}"


class Owner(NamedTuple):
    """What a lease says of the process that has it."""

    host: str = "a host"
    process: int = 0
    seconds: float = SECONDS  # the term

    @classmethod
    def read(cls, content: bytes) -> "Owner":
        """Reads the content of a lease; one that cannot be read is anybody's."""
        try:
            found = json.loads(content)
            return cls(str(found["host"]), int(found["process"]), float(found["seconds"]))
        except (ValueError, TypeError, KeyError):
            return cls()

    def __str__(self) -> str:
        return f"{self.host} (process {self.process})"

    def has_ended(self) -> bool:
        """Returns whether it is a process of this host that is no more."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.process, 0)
        except OSError as error:
            return isinstance(error, ProcessLookupError)
        return False


class Watched(NamedTuple):
    """What this process knows of a lease of another one."""

    owner: Owner
    alive: bool  # whether it has been renewed since this process looked first
    dead: bool  # whether it has not been for a term, or cannot be any more


class _Seen(NamedTuple):
    content: bytes
    since: float
    alive: bool


class Leases:
    """The leases that this process has in a folder, and what it knows of those of others.

    They are renewed by a thread, until `close`, which gives up those that are left.
    """

    def __init__(self, folder: str | os.PathLike, clock: Callable[[], float] = time.monotonic):
        self._folder, self._clock, self._seconds = os.fspath(folder), clock, SECONDS
        self._id, self._count = uuid.uuid4().hex, 0
        self._own: set[LeaseName] = set()
        self._seen: dict[LeaseName, tuple[bytes, float]] = {}
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, unit: str, number: int = 0) -> bool:
        """Tries to become the owner of a unit that had so many; returns whether this succeeded."""
        name = LeaseName(unit, number)
        if not storage.create_whole(self._path(name), self._write()):
            return False
        with self._lock:
            self._own.add(name)
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew_all, name="leases", daemon=True)
            self._thread.start()
        return True

    def release(self, unit: str) -> None:
        """Removes the leases of a unit that this process has taken, its own and those before."""
        with self._lock:  # not while it is written anew
            for name in [name for name in self._own if name.unit == unit]:
                self._own.discard(name)
                for number in range(name.number, -1, -1):
                    self.remove(LeaseName(unit, number))

    def give_up(self, unit: str) -> None:
        """Removes this process's own lease of a unit that is not finished."""
        with self._lock:
            for name in [name for name in self._own if name.unit == unit]:
                self._own.discard(name)
                self.remove(name)

    def remove(self, name: LeaseName) -> None:
        """Removes a lease, whoever has it."""
        with contextlib.suppress(OSError, UserError):  # it would be in nobody's way
            storage.remove(self._path(name))

    def watch(self, name: LeaseName) -> "Watched | None":
        """Looks at a lease of another process; None if it is no longer there."""
        now = self._clock()  # before it is read: this process itself may be stopped in between
        content = storage.read_bytes(self._path(name))
        if content is None:
            self._seen.pop(name, None)
            return None
        owner = Owner.read(content)
        seen = self._seen.get(name)
        if seen is None or seen.content != content:
            self._seen[name] = _Seen(content, self._clock(), seen is not None)
            return Watched(owner, seen is not None, False)
        return Watched(owner, seen.alive, now - seen.since >= owner.seconds or owner.has_ended())

    def close(self) -> None:
        """Gives up the leases that are left, and ends the thread."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        for name in list(self._own):
            self.give_up(name.unit)

    def _path(self, name: LeaseName) -> str:
        return storage.join(self._folder, str(name))

    def _write(self) -> bytes:
        self._count += 1
        about = Owner(socket.gethostname(), os.getpid(), self._seconds)._asdict()
        return json.dumps(about | {"owner": self._id, "count": self._count}).encode()

    def _renew_all(self) -> None:
        while not self._over.wait(self._seconds / 4):
            for name in list(self._own):
                with self._lock:
                    self._renew(name)

    def _renew(self, name: LeaseName) -> None:
        if name not in self._own:
            return
        path = self._path(name)
        try:
            if self._id.encode() in (storage.read_bytes(path) or b""):
                storage.write_bytes(path, self._write())
            else:  # another has taken over and finished
                self._own.discard(name)
        except (OSError, UserError) as error:  # tried again in a quarter of the term
            logging.warning("a lease cannot be renewed: %s", error)
