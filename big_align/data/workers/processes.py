"""Processes that write into batches: Python's lock keeps one process to a few cores."""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from big_align.data.workers.batch_memory import BatchMemory
from big_align.data.workers.channel import Channel, ChannelClosed, Remote, order
from big_align.data.workers.parcel import pack

ENVIRONMENT = {
    # by default glibc gives freed images back to the system and fetches new pages for the next;
    # with these thresholds only what a few huge ones took goes back
    "MALLOC_TRIM_THRESHOLD_": str(2**26),
    "MALLOC_MMAP_THRESHOLD_": str(2**26),
    # NumPy's linear algebra would start one thread per core in every process
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
ATTEMPTS = 3
"""How many processes may end over the same rows: one may be killed, or an image may be why."""
SIGNALS = {signal.SIGINT, signal.SIGTERM}


class RowProcesses:
    """Processes that fill rows of batches; they end when they are closed or when this one dies.

    They are new interpreters: a fork of this process would have the locks of its threads, of JAX
    and TensorFlow, in the state they were in at that moment. The filler has `fill(batch, ...)`; it
    is pickled (`parcel.pack`), but for objects that stay and are called here. The memory is shared.
    Each process does as many jobs at a time as it has threads.
    """

    def __init__(
        self,
        filler: Any,
        memory: BatchMemory,
        count: int,
        threads: int = 1,
        staying: Sequence[Any] = (),
    ):
        self._staying = tuple(staying)
        life, self._life = os.pipe()  # when this end closes, for whatever reason, they end
        self._kept = [life]
        try:
            with pack((memory.layout, filler), staying, Remote) as parcel:
                self._kept.append(os.dup(parcel.fileno()))
                descriptors = memory.descriptor, self._kept[1], life
                self._processes = [_Process(descriptors, threads) for _ in range(count)]
        except BaseException:
            self._close_descriptors()
            raise
        self._idle: queue.SimpleQueue[tuple[_Process, int]] = queue.SimpleQueue()
        for number in range(threads):
            for process in self._processes:
                self._idle.put((process, number))

    @property
    def pids(self) -> list[int]:
        return [process.child.pid for process in self._processes]

    def fill(self, number: int, *arguments: Any) -> None:
        """Calls `fill` of a batch, by the number of its block, in a process; waits for an idle one.

        A process that has ended is started again, and the rows are made again, a few times.
        """
        process, thread = self._idle.get()
        try:
            for attempt in range(ATTEMPTS):
                child, channel = process.child, process.channels[thread]
                try:
                    return order(channel, (number, *arguments), self._staying)
                except ChannelClosed:
                    channel.close()
                    status = process.replace(child)
                hint = "; the system kills it where memory is short" if status == -9 else ""
                ended = f"a process that makes rows ended with {status}{hint}"
                if attempt < ATTEMPTS - 1:
                    print(f"{ended}; another makes them", file=sys.stderr, flush=True)
            raise RuntimeError(f"{ended}, {ATTEMPTS} times over the same rows")
        finally:
            self._idle.put((process, thread))

    def close(self) -> None:
        """Ends the processes; nothing may be running in them."""
        self._close_descriptors()
        for process in self._processes:
            process.child.wait()
            for channel in process.channels:
                channel.close()

    def _close_descriptors(self) -> None:
        for descriptor in (self._life, *self._kept):
            os.close(descriptor)


class _Process:
    """One process, and the sockets to its threads."""

    def __init__(self, descriptors: tuple[int, int, int], threads: int):
        self._descriptors, self._threads = descriptors, threads
        self._lock = threading.Lock()
        self._start()

    def replace(self, child: subprocess.Popen) -> int:
        """Replaces a process that has ended, once; returns its exit status."""
        status = child.wait()
        with self._lock:
            if self.child is child:
                self._start()
        return status

    def _start(self) -> None:
        here, there = zip(*(socket.socketpair() for _ in range(self._threads)), strict=True)
        passed = [*self._descriptors, *(end.fileno() for end in there)]
        path = os.pathsep.join(each or os.getcwd() for each in sys.path)
        # a process inherits which signals are blocked; the parent handles these for it
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", "big_align.data.workers.worker", *map(str, passed)],
                stdin=subprocess.DEVNULL,
                pass_fds=passed,
                env={**ENVIRONMENT, **os.environ, "PYTHONPATH": path},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for end in there:
            end.close()
        # The channels first: a thread that sees a new process must see its channels.
        self.channels, self.child = [Channel(end.detach()) for end in here], child
