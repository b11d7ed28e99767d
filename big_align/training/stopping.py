"""Requests to stop, by SIGTERM or Ctrl-C: once to save and exit, twice to exit at once."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

from big_align.core.errors import Stopped

SAME_REQUEST_SECONDS = 1.0  # launchers and `timeout` send each signal twice, this close together


class StopSignals:
    """Counts the signals that ask this process to stop.

    Python runs a signal's handler between two instructions of the main thread, and so not while XLA
    compiles. But it writes the number of the signal to a pipe at once, and a thread reads that.
    """

    def __init__(self) -> None:
        self.received = False
        self._asked = 0.0
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._several = jax.process_count() > 1
        self._previous: dict[int, Any] = {}
        self._interrupted: str | None = None
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)

    def __enter__(self) -> "StopSignals":
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            # With several processes, SIGTERM belongs to JAX, which makes them agree on a step. A
            # shell ignores SIGINT for processes that it starts in the background.
            kept = self._several and number == signal.SIGTERM
            if not kept and signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.write(self._write, b"\0")  # ends the thread, which has read all signals before
        self._thread.join()
        for handler in self._previous.values():
            if isinstance(outer := getattr(handler, "__self__", None), StopSignals):
                # What is left to do has been asked to stop, too.
                outer.received |= self.received
                outer._asked = outer._asked or self._asked
        os.close(self._read)
        os.close(self._write)

    @contextlib.contextmanager
    def interrupting(self, message: str) -> Iterator[None]:
        """Lets a signal interrupt the code inside, as far as it is Python code.

        Several processes have to stay in step, so they finish what they do together. A signal that
        has arrived, now or before, raises Stopped with the message.
        """
        if not self._several:
            if self.received:
                raise Stopped(message)
            self._interrupted = message
        try:
            yield
        finally:
            self._interrupted = None
        if self.received and not self._several:  # while nothing could be interrupted
            raise Stopped(message)

    def _handle(self, number: int, frame: object) -> None:
        message, self._interrupted = self._interrupted, None
        if message is not None:
            self.received = True
            raise Stopped(message)

    def _listen(self) -> None:
        while number := os.read(self._read, 1)[0]:
            if number in self._previous:
                self._notice(number)
            elif self._wakeup != -1:  # somebody else listens
                os.write(self._wakeup, bytes([number]))

    def _notice(self, number: int) -> None:
        now = time.monotonic()
        if not self._asked:
            self._asked = now
            if self._several:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                self.received = True
        elif now > self._asked + SAME_REQUEST_SECONDS:
            os._exit(128 + number)
