"""Where images are decoded and transformed: in the calling thread, or in processes.

Decoding runs outside Python's lock, but opening a file and setting up its decoder do not: with
small images or many cores, threads wait for each other. A process of its own has a lock of its own.
"""

import contextlib
import importlib
import mmap
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from big_align.data import examples
from big_align.data.images import image_ops
from big_align.errors import UserError

KEEP_MEMORY = {  # glibc gives freed images back to the system and fetches new pages for the next
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
    "MALLOC_MMAP_THRESHOLD_": str(2**28),
}

Work = Sequence[tuple[Any, image_ops.Rng]]
"""Encoded images or pixels, each with the random numbers of its transform."""

Outcome = examples.BrokenExample | None
"""Why an image could not be decoded, or None."""


@runtime_checkable
class Images(Protocol):
    """What decodes and transforms the images of a batch."""

    def apply(self, work: Work, rows: Sequence[Any]) -> list[Outcome]:
        """Writes the results of each image into a row, and tells which could not be decoded."""

    def close(self) -> None:
        """Ends what was started."""


def make_images(
    transform: str,
    shape: tuple[int, ...],
    count: int,
    capacity: int,
    views: int = 1,
    max_pixels: int = image_ops.MAX_PIXELS,
) -> Images:
    """Makes `count` processes; with 0, what transforms in the calling thread."""
    if count:
        return ImageProcesses(transform, shape, count, capacity, views, max_pixels)
    return LocalImages(transform, shape, views, max_pixels)


class LocalImages:
    """Transforms images in the calling thread.

    Args:
      transform: image operations.
      shape: h w 3 of every result.
      views: results of each image, one after the other in its row, each with its own draws.
      max_pixels: an encoded image with more is broken.
    """

    def __init__(
        self,
        transform: str,
        shape: tuple[int, ...],
        views: int = 1,
        max_pixels: int = image_ops.MAX_PIXELS,
    ):
        self._transform = image_ops.Transform(transform, max_pixels)
        self._shape = shape
        self._size = int(np.prod(shape))
        self._views = views

    def apply(self, work: Work, rows: Sequence[Any]) -> list[Outcome]:
        """Writes the results of each image into a row, a flat memoryview of bytes.

        Raises:
          UserError: the sizes of the results differ.
        """
        return [self._apply(image, rng, row) for (image, rng), row in zip(work, rows, strict=True)]

    def close(self) -> None:
        """There is nothing to end."""

    def _apply(self, image: Any, rng: image_ops.Rng, row: Any) -> Outcome:
        for start in range(0, self._views * self._size, self._size):
            try:
                pixels = self._transform(image, rng)
            except examples.BrokenExample as error:
                return error
            if pixels.shape != self._shape:
                raise UserError(image_ops.explain_sizes(self._shape, pixels.shape))
            # NumPy's copy would let go of Python's lock and wait for it
            row[start : start + self._size] = pixels.reshape(-1)
        return None


class ImageProcesses:
    """Transforms images in processes, which end when they are closed or when this one dies.

    Args:
      transform: image operations.
      shape: h w 3 of every result.
      count: how many processes.
      capacity: images sent at a time, at most.
      views: results of each image.
      max_pixels: an encoded image with more is broken.
    """

    def __init__(
        self,
        transform: str,
        shape: tuple[int, ...],
        count: int,
        capacity: int,
        views: int = 1,
        max_pixels: int = image_ops.MAX_PIXELS,
    ):
        settings = transform, shape, capacity, views, max_pixels
        self._processes = [_Process(*settings) for _ in range(count)]
        self._idle: queue.SimpleQueue = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)

    def apply(self, work: Work, rows: Sequence[Any]) -> list[Outcome]:
        """Like `LocalImages.apply`; waits for a process that is idle.

        Raises:
          UserError: the sizes of the results differ.
          RuntimeError: a process has ended.
        """
        process = self._idle.get()
        try:
            return process.apply(work, rows)
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """Ends the processes; nothing may be running in them."""
        for process in self._processes:
            process.close()


class _Process:
    """One process and the memory it shares with this one."""

    def __init__(
        self, transform: str, shape: tuple[int, ...], capacity: int, views: int, max_pixels: int
    ):
        self._size = views * int(np.prod(shape))
        file = _open_memory(capacity * self._size)
        path = os.pathsep.join(filter(None, sys.path))
        self._memory = memoryview(mmap.mmap(file.fileno(), capacity * self._size))
        self._child = subprocess.Popen(
            [sys.executable, "-m", "big_align.data.images.image_workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pipesize=2**20,  # a chunk of small images in one go
            pass_fds=[file.fileno()],
            env={**KEEP_MEMORY, **os.environ, "PYTHONPATH": path},
        )
        modules = image_ops.Transform(transform).modules
        self._send((transform, shape, views, max_pixels, file.fileno(), capacity, modules))
        file.close()

    def apply(self, work: Work, rows: Sequence[Any]) -> list[Outcome]:
        try:
            self._send(list(work))
            outcomes = pickle.load(self._child.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            status = self._child.wait()
            raise RuntimeError(f"a process that decodes images ended with {status}") from error
        if isinstance(outcomes, ValueError):
            raise outcomes
        for number, row in enumerate(rows):
            if outcomes[number] is None:
                row[:] = self._memory[number * self._size : (number + 1) * self._size]
        return outcomes

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # what it did not take before it died
            self._child.stdin.close()
        self._child.wait()
        self._child.stdout.close()

    def _send(self, message: Any) -> None:
        pickle.dump(message, self._child.stdin, pickle.HIGHEST_PROTOCOL)
        self._child.stdin.flush()


def _open_memory(size: int) -> Any:
    """Opens a file without a name: in memory on Linux, whatever the size of /dev/shm."""
    if hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create("images"), "r+b")
    else:
        file = tempfile.TemporaryFile()
    os.truncate(file.fileno(), size)
    return file


def serve() -> None:
    """Runs in the process: answers requests on the standard streams until they end."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides when to end
        signal.signal(number, signal.SIG_IGN)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # so that nothing else is printed there
    transform, shape, views, max_pixels, descriptor, capacity, modules = pickle.load(requests)
    for module in modules:  # operations register themselves there
        importlib.import_module(module)
    size = views * int(np.prod(shape))
    memory = memoryview(mmap.mmap(descriptor, capacity * size))
    rows = [memory[number * size : (number + 1) * size] for number in range(capacity)]
    images = LocalImages(transform, tuple(shape), views, max_pixels)
    while True:
        try:
            work = pickle.load(requests)
        except EOFError:
            return
        try:
            answer: Any = images.apply(work, rows[: len(work)])
        except ValueError as error:
            answer = UserError(str(error))
        pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    serve()
