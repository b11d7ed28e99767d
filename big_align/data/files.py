"""Files, local or remote: patterns, sizes, reads of byte ranges, and the one reader of texts."""

import codecs
import functools
import glob
import importlib.util
import os
from collections.abc import Callable
from typing import Any

from big_align.core.errors import MissingFile, UserError
from big_align.core.regular_files import MEMBER_MAX, open_given, open_regular
from big_align.data import tensorflow_on_cpu
from big_align.data.remote.fsspec_files import FsspecFiles, OpenedFile, open_filesystem

MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # begins as UTF-16's does
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Byte-order marks, and the encodings that they announce."""
CONVERTED = "`iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW` converts what Excel saves as CSV"
UNMARKED = (
    "is UTF-16 without a byte-order mark, since every other byte is zero; "
    "`iconv -f UTF-16LE -t UTF-8 OLD > NEW` converts it"
)
OPEN_FILES = 128  # kept open by one source; far below the usual limit of 1024 per process


class _Descriptor:
    """An open file that closes itself when the last thread that reads it is done."""

    def __init__(self, path: str):
        self.number = open_regular(path)

    def __del__(self, close: Callable[[int], None] = os.close):  # `os` may be gone at exit
        if hasattr(self, "number"):
            close(self.number)


class LocalFiles:
    """Files of the operating system, read by offset without a shared position.

    Other file systems have the same methods, which are safe to call from threads.
    """

    def __init__(self):
        self._descriptor = functools.lru_cache(maxsize=OPEN_FILES)(_Descriptor)

    def glob(self, path: str) -> list[str]:
        return glob.glob(path)

    def stamp(self, path: str) -> tuple[int, str]:
        """Returns the size in bytes and a text that changes when the file does."""
        status = os.stat(path)
        return status.st_size, str(status.st_mtime_ns)

    def open(self, path: str) -> Any:
        # unbuffered: a scan of headers jumps farther than any buffer reaches
        return os.fdopen(open_regular(path), "rb", buffering=0)

    def read(self, path: str, start: int, size: int) -> bytes:
        """Reads `size` bytes from `start`, or fewer at the end of the file."""
        descriptor = self._descriptor(path)  # held while it is read: another thread may evict it
        data = os.pread(descriptor.number, size, start)
        while 0 < len(data) < size:  # one call reads at most 2 GiB, and network disks less
            more = os.pread(descriptor.number, size - len(data), start + len(data))
            if not more:
                break
            data += more
        return data

    def read_all(self, path: str) -> bytes:
        with open_given(path) as file:
            if (size := os.fstat(file.fileno()).st_size) > MEMBER_MAX:
                raise OSError(f"{path} has {size} bytes; at most {MEMBER_MAX} are read")
            return file.read()


class TensorFlowFiles:
    """Files that only TensorFlow can open here, such as gs:// without gcsfs."""

    def __init__(self):
        self._tensorflow = tensorflow_on_cpu.load()
        self._gfile = self._tensorflow.io.gfile

    def __reduce__(self) -> tuple[type, tuple]:
        return type(self), ()

    def glob(self, path: str) -> list[str]:
        return self._call(path, self._gfile.glob, path)

    def stamp(self, path: str) -> tuple[int, str]:
        status = self._call(path, self._gfile.stat, path)
        return status.length, str(status.mtime_nsec)

    def open(self, path: str) -> OpenedFile:
        self.stamp(path)  # a file that is missing, or not ours to read, is noticed here
        return OpenedFile(self._gfile.GFile(path, "rb"), functools.partial(self._call, path))

    def read(self, path: str, start: int, size: int) -> bytes:
        with self.open(path) as file:
            file.seek(start)
            return file.read(size)

    def read_all(self, path: str) -> bytes:
        with self.open(path) as file:
            return file.read()

    def _call(self, path: str, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function; raises TensorFlow's errors as those of Python's files."""
        errors = self._tensorflow.errors
        try:
            return function(*args)
        except errors.NotFoundError as error:
            raise FileNotFoundError(path) from error
        except errors.OpError as error:
            raise OSError(f"{path}: {error.message}") from error


Files = LocalFiles | FsspecFiles | TensorFlowFiles


def files_of(path: str) -> Files:
    """Returns what can open a path: local, fsspec's, or TensorFlow's files for gs://, if any."""
    if "://" not in path:
        return LocalFiles()
    try:
        return open_filesystem(path)
    except UserError:
        if path.startswith("gs://") and importlib.util.find_spec("tensorflow"):
            return TensorFlowFiles()
        raise


def exists(path: str) -> bool:
    """Returns whether there is a file or a folder; ValueError if no file can have the path."""
    files = files_of(path)
    try:
        files.stamp(path)
    except FileNotFoundError:
        return False
    except UserError:
        raise
    except ValueError as error:
        raise ValueError(f"no file has the path {path!a}: {error}") from error
    return True


def is_file(path: str) -> bool:
    """Returns whether there is a file, local or remote; the errors are those of `exists`."""
    return exists(path) if "://" in path else os.path.isfile(path)


class NotText(ValueError):
    """Bytes that are no text; the message follows "the text", as in "is not UTF-8 (byte ...)"."""

    def __init__(self, message: str, line: int = 1):
        super().__init__(message)
        self.line = line


def find_encoding(start: bytes) -> str:
    """Returns the encoding of a text by its first bytes: its byte-order mark's, or else UTF-8."""
    return next((name for mark, name in MARKS.items() if start.startswith(mark)), "utf-8")


def is_unmarked(zeros: int, size: int) -> bool:
    """Returns whether a text has so many zeros that it must be UTF-16, read as UTF-8."""
    return 4 * zeros > size


def decode(data: bytes) -> str:
    """Decodes the content of a file of text, without its byte-order mark; raises NotText.

    It is UTF-8 unless the mark announces UTF-16 or UTF-32, as Windows writes them.
    """
    encoding = find_encoding(data[:4])
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        at = error.start
        told = f"is not {encoding.removesuffix('-sig').upper()} (byte {data[at]:#04x} at {at})"
        raise NotText(told, data.count(b"\n", 0, at) + 1) from error
    if is_unmarked(text.count("\0"), len(text)):
        raise NotText(UNMARKED)
    return text


def read_text(path: str, what: str = "") -> str:
    """Reads a file of text, local or remote (`decode`); errors begin with `what` and its name."""
    try:
        return decode(files_of(path).read_all(path))
    except FileNotFoundError as error:
        raise MissingFile(f"{what}{path} cannot be read: there is no such file") from error
    except NotText as error:
        raise UserError(f"{what}{path}, line {error.line} {error}; {CONVERTED}") from error
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"{what}{path} cannot be read: {error}") from error


def split_lines(text: str) -> list[str]:
    r"""Splits a text at `\n` and `\r\n` alone, as editors count lines.

    `str.splitlines` also splits at characters within a line, such as U+2028.
    """
    lines = text.replace("\r\n", "\n").removesuffix("\n")
    return lines.split("\n") if text else []
