"""What processes are started with: an object, pickled once for all of them.

The data of its arrays are in a file in memory that all processes map, so there is one copy, however
many processes there are. Some objects stay with the parent, and processes call them there.
"""

import functools
import io
import mmap
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from big_align.core.errors import UserError
from big_align.data.workers.batch_memory import ALIGNMENT, open_memory

LOCKS = (type(threading.Lock()), type(threading.RLock()))
CACHE = type(functools.cache(len))  # these types have no public names


def pack(content: Any, staying: Sequence[Any], remote: Callable[..., Any]) -> Any:
    """Pickles an object for processes, into a file in memory, which `unpack` reads.

    Beyond what pickle supports, locks are made again in the processes, caches
    (`functools.lru_cache`) start empty there, and memory-mapped arrays are mapped again.

    Args:
      content: the object.
      staying: objects that stay here; in their place the processes get `remote(number,
        attributes)`, with the index in this list and the public attributes that are numbers or
        texts.
      remote: a class or function that can be imported.
    """
    buffers: list[pickle.PickleBuffer] = []
    data = io.BytesIO()
    pickler = _Pickler(data, staying, remote, buffers.append)
    try:
        pickler.dump(content)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{pickler.last or 'it'} cannot be sent to processes: {error}") from error
    views = [buffer.raw() for buffer in buffers]
    ends, end = [], 0
    for view in views:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        end = start + view.nbytes
        ends.append((start, end))
    file = open_memory("parcel")
    for view, (start, _) in zip(views, ends, strict=True):
        file.seek(start)
        file.write(view)
    file.seek(end)
    file.write(pickle.dumps((ends, data.getvalue())))
    file.write(end.to_bytes(8, "little"))
    file.flush()
    return file


def unpack(descriptor: int) -> Any:
    """Restores the object from a file that `pack` made; arrays are copied on write."""
    memory = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    end = int.from_bytes(memory[-8:], "little")
    ends, data = pickle.loads(memory[end:-8])
    return pickle.loads(data, buffers=[memory[start:stop] for start, stop in ends])


class _Pickler(pickle.Pickler):
    """Also pickles what holds caches, locks and mapped arrays; `last` is the class begun last."""

    def __init__(
        self,
        file: io.BytesIO,
        staying: Sequence[Any],
        remote: Callable[..., Any],
        buffer_callback: Callable[[pickle.PickleBuffer], Any],
    ):
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._numbers = {id(each): number for number, each in enumerate(staying)}
        self._staying, self._remote = staying, remote
        self.last = ""

    def reducer_override(self, each: Any) -> Any:
        """Says how to make an object again if its own class does not know."""
        if (number := self._numbers.get(id(each))) is not None:
            return self._remote, (number, _plain_attributes(each))
        if getattr(each, "__module__", "") == "__main__" and hasattr(each, "__qualname__"):
            raise pickle.PicklingError(
                f"{each.__qualname__} is defined in the program itself; move it into a module"
            )
        if isinstance(each, CACHE):
            return _reduce_cache(each)
        if isinstance(each, LOCKS):
            return threading.Lock if isinstance(each, LOCKS[0]) else threading.RLock, ()
        if isinstance(each, np.memmap) and isinstance(each.base, mmap.mmap):
            order = "C" if each.flags.c_contiguous else "F"
            mode = "r+" if each.mode == "w+" else each.mode
            where = each.filename, each.dtype, mode, each.offset, each.shape, order
            return np.memmap, where
        room = type(each).__module__.partition(".")[0]
        if room not in ("builtins", "numpy", "functools") and not room.startswith("_"):
            self.last = f"{type(each).__module__}.{type(each).__qualname__}"
        return NotImplemented


def _plain_attributes(each: Any) -> dict[str, Any]:
    named = {**vars(type(each)), **getattr(each, "__dict__", {})}
    return {
        name: value
        for name, value in named.items()
        if not name.startswith("_") and isinstance(value, int | float | str)
    }


def _reduce_cache(cache: Any) -> Any:
    """Keeps a cache that can be imported as it is; makes that of an object again, empty."""
    if getattr(sys.modules.get(cache.__module__), cache.__qualname__, None) is cache:
        return NotImplemented
    return _make_cache, (cache.cache_parameters(), cache.__wrapped__)


def _make_cache(parameters: dict[str, Any], function: Callable[..., Any]) -> Any:
    return functools.lru_cache(**parameters)(function)
