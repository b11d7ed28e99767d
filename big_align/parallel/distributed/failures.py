"""A process that fails says why, and the others exit with the same reason.

Otherwise they would wait for it: in a collective, and five minutes in JAX's barrier at the end. All
communication uses the key-value store of JAX's coordination service, which lives in process 0.
"""

import ctypes
import json
import os
import re
import signal
import sys
import threading
import time
from typing import Any

import jax
from tqdm import tqdm

from big_align.core.errors import Stopped
from big_align.parallel.distributed import activity

BEAT_SECONDS = 5
SILENT_BEATS = 6  # that may be missed: a process busy with computation is late by one or two

LAST_WORD_SECONDS = 2  # how much later process 0 exits; the others learn from it what happened

FINISH_SECONDS = 300  # how long a process that has finished waits for the others

RETRY_SECONDS, RETRIES = 1.0, 5
"""How often, in a row, the store fails to answer before process 0 counts as gone: a network may
lose a message. If the connection breaks, JAX calls abort(), which is faster."""

GONE = "error: process 0 failed: it was killed or stopped, or its host is gone"

_BEATS = "big_align/beats/"
_OUTCOME = "big_align/outcome"
"""Holds the first process that ended early, what the others print then and their exit status; null
after all have finished."""


class Watch:
    """Watches the other processes of a run, in two threads.

    One waits for a process to fail. The other reports that this process is alive and what it is
    doing; in process 0 it also notices which processes have become silent. JAX has heartbeats of
    its own, which end the remaining processes after 100 seconds, with a page of C++.
    """

    def __init__(self, store: Any, process: int, count: int):
        self._store = store
        self._process = process
        self._over = threading.Event()
        self._abort_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._abort)
        self._leaving = threading.Lock()
        # Since when the thread of the beats sleeps; its last sleep that was too long, and its end.
        self._asleep: float | None = None
        self._pause = 0.0, 0.0
        # The last beat of each process, and its age in beats.
        self._beats: dict[int, tuple[Any, int]] = dict.fromkeys(range(count), (None, 0))
        self._threads = [
            threading.Thread(target=target, name=target.__name__, daemon=True)
            for target in (self._wait_for_outcome, self._beat)
        ]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()
        # JAX calls abort() if process 0 is gone, mostly before the waiting thread is notified.
        # Handlers of Python's `signal` would run in the main thread, which is too late for that.
        ctypes.CDLL(None).signal(signal.SIGABRT, self._abort_handler)

    def finish(self) -> None:
        """Waits until the others have finished too, or exits if one fails; stops the threads."""
        try:
            self._store.wait_at_barrier("big_align/finished", FINISH_SECONDS * 1000)
            self._store.key_value_set(_OUTCOME, "null", allow_overwrite=True)
        except jax.errors.JaxRuntimeError:
            pass  # JAX's own barrier comes next, and reports the problem
        for thread in self._threads:
            thread.join(timeout=BEAT_SECONDS)

    def stop(self) -> None:
        """Ends all processes as one that was asked to stop."""
        text = f"stopped on request of process {self._process}"
        self._announce(self._process, text, Stopped.STATUS)
        self._leave(text, Stopped.STATUS)

    def fail(self, text: str, reason: str, is_consequence: bool = False, status: int = 1) -> None:
        """Reports to all processes why this one fails, prints the text, and exits.

        The others print the reason, a line, after the number of this process. If its failure may be
        the consequence of another process's loss, that one is reported instead, as soon as its
        silence is noticed.
        """
        if is_consequence:
            time.sleep(BEAT_SECONDS * (SILENT_BEATS + 2))
        if not re.match(r"process(es)? \d", reason):  # it may name the process that is at fault
            reason = f"process {self._process} failed: {reason}"
        self._announce(self._process, f"error: {reason}", status)
        self._leave(text, status)

    def activities(self) -> dict[int, dict[str, Any]]:
        """Returns in process 0 what every process last reported to be doing, by process number.

        `silent` is the number of seconds since its last report, and `seconds` includes them.
        """
        table = {self._process: activity.describe() | {"silent": 0}}
        for process, (beat, age) in self._beats.items():
            if beat and process != self._process:
                silent = (age > 1) * age * BEAT_SECONDS
                table[process] = beat | {"silent": silent, "seconds": beat["seconds"] + silent}
        return table

    def _wait_for_outcome(self) -> None:
        outcome, unanswered = None, 0
        while outcome is None:
            try:
                outcome = self._store.blocking_key_value_get(_OUTCOME, 60_000)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" in str(error):
                    unanswered = 0
                    continue
                unanswered += 1
                if unanswered > RETRIES:
                    self._leave(self._tell_pause() or GONE)
                time.sleep(RETRY_SECONDS)
        self._over.set()
        process, text, status = json.loads(outcome) or (self._process, "", 0)
        if process != self._process:
            self._leave(self._tell_pause() or text if status == 1 else text, status)

    def _sleep(self, seconds: int) -> bool:
        """Sleeps until the next beat, and notices if this process was stopped; returns `is_set`."""
        self._asleep = time.monotonic()
        over = self._over.wait(seconds)
        began, self._asleep, now = self._asleep, None, time.monotonic()
        if now - began > SILENT_BEATS * BEAT_SECONDS:
            self._pause = now - began, now
        return over

    def _tell_pause(self) -> str:
        """Tells that the others are gone because this process was stopped; "" if it was not."""
        seconds, end = self._pause
        now = time.monotonic()
        if self._asleep and now - self._asleep > SILENT_BEATS * BEAT_SECONDS:  # just awake
            seconds, end = now - self._asleep, now
        if not seconds or now - end > SILENT_BEATS * BEAT_SECONDS:
            return ""
        return (
            f"error: process {self._process} failed: it was stopped for {seconds:.0f} s, as by "
            "SIGSTOP, and the others have given it up"
        )

    def _beat(self) -> None:
        number = 0
        while not self._sleep(BEAT_SECONDS if number else 0):
            number += 1
            beat = activity.describe() | {"number": number}
            try:
                key = f"{_BEATS}{self._process}"
                self._store.key_value_set(key, json.dumps(beat), allow_overwrite=True)
                if self._process == 0:
                    self._notice_silence()
            except jax.errors.JaxRuntimeError:
                pass  # the next one may get through; the other thread notices if process 0 is gone

    def _notice_silence(self) -> None:
        """Counts its own beats, not seconds: a delay of process 0 makes no other seem silent."""
        texts = {int(k.rpartition("/")[2]): v for k, v in self._store.key_value_dir_get(_BEATS)}
        for process, (last, age) in self._beats.items():
            beat = json.loads(texts.get(process, "null"))
            age = age + 1 if beat == last else 0
            self._beats[process] = beat, age
            if age >= SILENT_BEATS:
                silent, host = age * BEAT_SECONDS, beat["host"] if beat else ""
                self._announce(
                    process,
                    f"error: process {process} failed: no sign of life for {silent} s; it was "
                    f"killed, or its host {host} is gone",
                )

    def _abort(self, _: int) -> None:
        if pause := self._tell_pause():
            self._leave(pause)
        time.sleep(LAST_WORD_SECONDS)  # if process 0 is gone, the waiting thread learns of it now
        # Another thread informs the others. If it cannot, the lock of the store's client is held by
        # the code that aborts: so this is the client, which has lost process 0.
        text = f"error: process {self._process} failed: aborted, see what it printed"
        told = threading.Event()

        def tell() -> None:
            if self._announce(self._process, text):
                told.set()

        threading.Thread(target=tell, daemon=True).start()
        self._leave("error: aborted, see above" if told.wait(LAST_WORD_SECONDS) else GONE)

    def _announce(self, process: int, text: str, status: int = 1) -> bool:
        """Tells all processes why they end; returns whether the store has answered."""
        try:
            self._store.key_value_set(_OUTCOME, json.dumps([process, text, status]))
        except jax.errors.JaxRuntimeError as error:
            return "ALREADY_EXISTS" in str(error)  # another was first; or process 0 is gone
        return True

    def _leave(self, text: str, status: int = 1) -> None:
        self._leaving.acquire()  # never released: only the first caller reports
        sys.stdout.flush()
        with tqdm.external_write_mode(file=sys.stderr):  # clears a progress bar
            try:
                sys.stderr.flush()
                stderr = os.dup(2)
                # So that the reason is the last line: JAX's client may write a page of C++ now, and
                # the main thread, which is still there, what it prints at its own end.
                for descriptor in (1, 2):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
                os.write(stderr, f"{text.rstrip()}\n".encode(errors="backslashreplace"))
                if self._process == 0:
                    time.sleep(LAST_WORD_SECONDS)
            finally:
                os._exit(status)
