"""An open remote file, whose errors are those of files."""

import io
from collections.abc import Callable
from typing import Any


class OpenedFile(io.RawIOBase):
    """A remote file that is open for reading.

    Args:
      file: what a library has opened.
      call: takes a function and its arguments, and calls it; raises errors of files alone.
    """

    def __init__(self, file: Any, call: Callable[..., Any]):
        super().__init__()
        self._file, self._call = file, call

    def read(self, size: int = -1) -> bytes:
        return self._call(self._file.read, size)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, position: int, whence: int = 0) -> int:
        self._call(self._file.seek, position, whence)
        return self.tell()

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
