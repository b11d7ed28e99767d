"""Memory of batches: aligned, reused, and shared with worker processes if there are any.

The arrays of a batch lie in one block. A block is used again only when nothing refers to an array
of the batch that it held, be it a view of one or a JAX array on CPU that was made without a copy.
"""

import dataclasses
import math
import mmap
import os
import queue
import tempfile
import threading
import weakref
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes; XLA's CPU client copies what is not aligned like that

HostBatch = dict[str, np.ndarray]

Row = dict[str, tuple[tuple[int, ...], Any]]
"""The shape and the type of each array of a batch, without the batch's axis."""


@dataclasses.dataclass(frozen=True)
class BatchLayout:
    """Where the arrays of a batch lie in its block."""

    fields: dict[str, tuple[int, tuple[int, ...], Any]]  # the offset in bytes, shape and type
    size: int  # bytes of a block, in whole pages

    @classmethod
    def of(cls, row: Row, rows: int) -> "BatchLayout":
        """Lays out a batch of some rows."""
        fields, end = {}, 0
        for name, (shape, dtype) in row.items():
            fields[name] = (end, (rows, *shape), np.dtype(dtype))
            size = rows * math.prod(shape) * np.dtype(dtype).itemsize
            end = _round_up(end + size, ALIGNMENT)
        return cls(fields, _round_up(max(end, 1), mmap.ALLOCATIONGRANULARITY))

    def view(self, block: np.ndarray) -> HostBatch:
        """Returns the arrays that lie in a block, uint8 [size]."""
        arrays = {}
        for name, (start, shape, dtype) in self.fields.items():
            size = math.prod(shape) * dtype.itemsize
            arrays[name] = block[start : start + size].view(dtype).reshape(shape)
        return arrays


class BatchMemory:
    """Blocks of memory for batches, as many as there are batches at a time.

    Free blocks beyond `keep` give their memory back to the system. Shared ones lie in a file in
    memory that other processes can map.
    """

    def __init__(self, layout: BatchLayout, keep: int, shared: bool):
        self.layout = layout
        self._keep = keep
        self._file = open_memory("batches") if shared else None
        self._blocks: list[mmap.mmap] = []
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()  # put to by the garbage collector
        self._returned: list[int] = []
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """Blocks so far."""
        return len(self._blocks)

    @property
    def descriptor(self) -> int:
        """The file of shared blocks; block n begins at n times the size of one."""
        return self._file.fileno()

    def acquire(self) -> tuple[int, HostBatch]:
        """Returns the number of a block and its arrays, whose content is arbitrary.

        The block is free again when nothing refers to the arrays any longer.
        """
        with self._lock:
            while self._free.qsize() > self._keep:
                self._returned.append(self._free.get())
                advice = getattr(mmap, "MADV_REMOVE" if self._file else "MADV_DONTNEED", None)
                if advice is not None:  # the memory goes back to the system
                    self._blocks[self._returned[-1]].madvise(advice)
            try:
                number = self._free.get_nowait()
            except queue.Empty:
                number = self._returned.pop() if self._returned else self._add()
        lease = _Lease(self._blocks[number])
        weakref.finalize(lease, self._free.put, number).atexit = False
        return number, self.layout.view(np.asarray(lease))

    def close(self) -> None:
        """Closes the file; the memory stays until nothing refers to it."""
        if self._file:
            self._file.close()

    def _add(self) -> int:
        number, size = len(self._blocks), self.layout.size
        if self._file:
            os.truncate(self.descriptor, (number + 1) * size)
            block = mmap.mmap(self.descriptor, size, offset=number * size)
        else:
            block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._blocks.append(block)
        return number


class _Lease:
    """Holds a block while an array refers to it: NumPy keeps this as the base of every view."""

    def __init__(self, block: mmap.mmap):
        address = np.frombuffer(block, np.uint8).ctypes.data
        self._block = block
        described = {"shape": (len(block),), "typestr": "|u1", "version": 3}
        self.__array_interface__ = described | {"data": (address, False)}


class MappedBatches:
    """The shared blocks of another process, in the file of a descriptor."""

    def __init__(self, descriptor: int, layout: BatchLayout):
        self._descriptor, self._layout = descriptor, layout
        self._batches: dict[int, HostBatch] = {}

    def __getitem__(self, number: int) -> HostBatch:
        if number not in self._batches:
            size = self._layout.size
            # all pages at once, at a tenth of the cost of a fault for each
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            block = mmap.mmap(self._descriptor, size, flags, offset=number * size)
            self._batches[number] = self._layout.view(np.frombuffer(block, np.uint8))
        return self._batches[number]


def open_memory(name: str) -> Any:
    """Opens a file without a path: in memory on Linux, whatever the size of /dev/shm."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create(name), "r+b")
    return tempfile.TemporaryFile()


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step
