"""A save of several processes succeeds in all of them or in none, and ends in any case.

Orbax waits for the other processes in barriers that one which has failed never reaches. So here
each process tells process 0 how its own writing has ended, and process 0 tells all what that means.
"""

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
from etils import epath

from big_align.core.errors import UserError
from big_align.parallel.distributed import processes
from big_align.training.saving import leftovers, step_folders

STAGES = PROBED, BEGUN, WRITTEN = "probed", "begun", "written"  # what each process tells
RETRY_SECONDS = 1.0  # pause after a message that did not get through
WAIT_MILLISECONDS = 60_000
MOST_NAMED = 8
MOST_SECONDS = 10**6
_NUMBERS = itertools.count()  # numbers of this process's saves, the same in all processes

Fault = tuple[int, str]  # a process and why it could not write


def check_deadline(deadline: int = 1800) -> int:
    """Returns a deadline in seconds."""
    if not 1 <= deadline <= MOST_SECONDS:
        raise ValueError(f"deadline = {deadline} must be from 1 to {MOST_SECONDS} seconds")
    return deadline


class FailedElsewhere(Exception):
    """Another process has not written its part, so that nothing is to be completed here."""


class Round:
    """One attempt to save; every process makes one, in the same order.

    After `deadline` seconds it ends the process, with a line that says who is late.
    """

    def __init__(self, folder: epath.Path, step: int, deadline: int):
        state = processes.coordination()
        self._store, self._process = state.client, state.process_id
        self._count = state.num_processes
        self._folder, self._step, self._deadline = folder, step, deadline
        self._number = next(_NUMBERS)
        self._fault: Fault | None = None
        self._thread: threading.Thread | None = None
        self._timer = threading.Timer(deadline, self._give_up)
        self._timer.daemon = True
        self._timer.start()
        if self._count > 1 and self._process == 0 and self._number > 1:
            # The others have ended that one, since they have begun the one after it.
            _insist(self._store.key_value_delete, f"big_align/saves/{self._number - 2}/")

    def probe(self) -> Fault | None:
        """Lets every process write a small file; all return the first that cannot, and why."""
        if self._count == 1:
            return None
        reason = step_folders.try_writing(self._folder, self._process)
        self._tell(PROBED, reason)
        self._fault = self._agree(PROBED, (0, reason) if reason else None)
        if self._fault:
            self._timer.cancel()
        return self._fault

    def follow(self, wait: Callable[[], Any]) -> None:
        """Follows in a thread what this process writes; `wait` returns at its end, or raises."""
        self._tell(BEGUN, "")
        self._thread = threading.Thread(target=self._follow, args=(wait,), name="saving")
        self._thread.daemon = True
        self._thread.start()

    def wait_for_others(self) -> None:
        """Waits in process 0, which has written its part, until the others have written theirs."""
        self._tell(WRITTEN, "")
        if fault := self._collect(WRITTEN):
            raise FailedElsewhere(fault[1])

    def wait(self) -> Fault | None:
        """Waits until all have ended; returns the first that failed, and why, in every process."""
        if self._thread:
            self._thread.join()
        return self._fault

    def cancel(self) -> None:
        """Ends what has not begun."""
        self._timer.cancel()

    def _follow(self, wait: Callable[[], Any]) -> None:
        reason = ""
        try:
            wait()
        except FailedElsewhere:
            pass
        except Exception as error:  # whatever a file system, or code that writes to it, may raise
            reason = step_folders.find_reason(error)
        if self._process:
            self._tell(WRITTEN, reason)
        self._fault = self._agree(WRITTEN, (0, reason) if reason else None)
        self._timer.cancel()

    def _agree(self, stage: str, own: Fault | None) -> Fault | None:
        """Returns the first fault of a stage, the same in all processes; `own` is process 0's."""
        key = f"big_align/saves/{self._number}/{stage}"
        if self._process == 0:
            others = self._collect(stage)  # in any case: nobody writes any more
            fault = own or others
            if fault:
                leftovers.remove(self._folder)
            if self._count > 1:
                _insist(self._store.key_value_set, f"{key} by all", json.dumps(fault))
            return fault
        found = json.loads(_insist(self._get, f"{key} by all"))
        return tuple(found) if found else None

    def _collect(self, stage: str) -> Fault | None:
        """Waits for what the other processes tell; returns the first fault among them."""
        key = f"big_align/saves/{self._number}/{stage}"
        told = [(n, _insist(self._get, f"{key}/{n}")) for n in range(1, self._count)]
        return next(((n, reason) for n, reason in told if reason != "."), None)

    def _tell(self, stage: str, reason: str) -> None:
        if self._count > 1:  # the store keeps no empty values
            key = f"big_align/saves/{self._number}/{stage}/{self._process}"
            _insist(self._store.key_value_set, key, reason or ".")

    def _get(self, key: str) -> str:
        return self._store.blocking_key_value_get(key, WAIT_MILLISECONDS)

    def _find_late(self) -> list[int]:
        """Returns who is waited for: those that lack the first stage which not all have reached."""
        for stage in STAGES:
            told = self._store.key_value_dir_get(f"big_align/saves/{self._number}/{stage}/")
            reached = {int(key.rpartition("/")[2]) for key, _ in told}
            if late := sorted(set(range(self._count)) - reached):
                return late
        return [0]  # which completes the checkpoint

    def _give_up(self) -> None:
        late = self._find_late() if self._count > 1 else [0]
        names = ", ".join(map(str, late[:MOST_NAMED])) + ", ..." * (len(late) > MOST_NAMED)
        who = f"process{'es' * (len(late) > 1)} {names}"
        error = UserError(
            f"{who} did not finish saving step {self._step} to {self._folder} within "
            f"{self._deadline} s (config.checkpoint.deadline)"
        )
        processes.fail(error)
        print(f"error: {error}", file=sys.stderr, flush=True)  # there is no other process
        os._exit(1)


def _insist(call: Callable[..., Any], *arguments: Any) -> Any:
    """Calls the store until it answers; if process 0 is gone, the watch ends this process."""
    while True:
        try:
            return call(*arguments)
        except jax.errors.JaxRuntimeError as error:
            if "ALREADY_EXISTS" in str(error):  # it got through, and its answer did not
                return None
            if "DEADLINE_EXCEEDED" not in str(error):
                time.sleep(RETRY_SECONDS)
