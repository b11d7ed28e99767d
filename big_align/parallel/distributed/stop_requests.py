"""Requests to stop a program, SIGTERM and Ctrl-C, from its first instruction to its last.

Whatever a program does when it is asked to stop, it takes seconds until it can: it imports, and
waits for other processes. Meanwhile a request ends it with the status of `errors.Stopped`, so that
launchers start the same command again. Without a handler, the status would be that of a failure.
"""

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable

from big_align.core import huge_pages

NUMBERS = {signal.SIGINT, signal.SIGTERM}
FLUSH_SECONDS = 1  # nobody may read what was printed, as with `| less`

_answer: Callable[[], None] | None = None


def begin() -> None:
    """Begins a program: with huge pages, and so that a request to stop ends it.

    Its first instructions block these signals. What is blocked stays so in the program that
    `huge_pages.restart` executes in place of this one, and what arrives meanwhile waits.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
    huge_pages.restart()
    answer_with(leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)


def answer_with(act: Callable[[], None]) -> None:
    """Calls a function when this process is asked to stop, in place of an earlier one.

    It is called in a thread: the main one may be in code that is not Python, such as that which
    waits for other processes. `StopSignals`, and JAX if it watches for preemption, take over.
    """
    global _answer
    first, _answer = _answer is None, act
    if first:
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        # A shell ignores SIGINT for processes that it starts in the background.
        taken = [number for number in NUMBERS if signal.getsignal(number) != signal.SIG_IGN]
        for number in taken:  # only with a handler is a number written to the pipe
            signal.signal(number, lambda *_: None)
        threading.Thread(target=_listen, args=(read,), name="requests", daemon=True).start()
        # Registered first, it runs last: what is left is the interpreter's end, which would give
        # the signals back to the system, and the status of a run that has saved with them.
        atexit.register(lambda: [signal.signal(number, signal.SIG_IGN) for number in taken])


def leave() -> None:
    """Ends this process at once; nothing has begun, or everything is saved."""
    telling = threading.Thread(target=_tell, daemon=True)
    telling.start()
    telling.join(FLUSH_SECONDS)
    os._exit(os.EX_TEMPFAIL)


def _tell() -> None:
    with contextlib.suppress(OSError, ValueError):
        print("stopped on request; the same command continues", flush=True)
        sys.stderr.flush()


def _listen(read: int) -> None:
    while True:
        if os.read(read, 1)[0] in NUMBERS:
            assert _answer is not None  # it was set before the thread began
            _answer()
