"""Files of any fsspec file system."""

import contextlib
import functools
import io
import shutil
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from big_align.core.errors import UserError, put_in_a_line, tell_in_a_line
from big_align.data.remote import hub

PAUSES = 1.0, 5.0  # seconds before what failed for the network is tried again
SILENCE = 30.0  # seconds without a byte from a web server, after which it has failed
FINAL = FileExistsError, FileNotFoundError, IsADirectoryError, PermissionError
"""Errors that another try does not mend."""
CHANGES = "etag", "ETag", "mtime", "updated", "LastModified", "blob_id"
"""What file systems call that which changes with a file."""
NO_PARTS = (
    "the server sends whole files where a part is asked for (it ignores the header Range), so "
    "nothing can be read at random; copy the files to a disk, or to a server or bucket that sends "
    "parts"
)

NOT_EXCLUSIVE = (
    "this file system does not say which of several processes was the first to create a file, so "
    "they cannot share work here; disks, S3, Google Cloud Storage and Azure do, by a new fsspec"
)

_EXCLUSIVE: set[type] = set()  # kinds of file systems that have been found to say so


class SendsNoParts(UserError, PermissionError):
    """A web server sends whole files alone, whatever the example; another try changes nothing."""


class ClosedRepository(hub.HubError, PermissionError):
    """A hub does not give a whole repository, whatever file of it is asked for."""


class OpenedFile(io.RawIOBase):
    """What a library has opened; `call` calls its methods, and raises errors of files."""

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


class FsspecFiles:
    """Files of any fsspec file system; what fails for the network is tried again twice."""

    exact: dict[str, Any] = {}  # options by which a part is read and nothing around it

    def __init__(self, filesystem: Any):
        self._filesystem = filesystem

    def glob(self, path: str) -> list[str]:
        try:
            names = self._call(path, self._filesystem.glob, path)
        except FileNotFoundError:  # a folder that is not there
            return []
        return [self._filesystem.unstrip_protocol(name) for name in names]

    def stamp(self, path: str) -> tuple[int, str]:
        info = self._call(path, self._filesystem.info, path)
        if info["size"] is None:
            raise OSError(f"{path}: the server does not tell its size")
        changed = (info.get(key) for key in CHANGES)
        return info["size"], next((str(value) for value in changed if value), "")

    def open(self, path: str) -> OpenedFile:
        file = self._call(path, self._filesystem.open, path, "rb")
        return OpenedFile(file, functools.partial(self._call, path))

    def read(self, path: str, start: int, size: int) -> bytes:
        try:
            part = {"start": start, "end": start + size, **self.exact}
            data = self._call(path, self._filesystem.cat_file, path, **part)
        except EOFError:
            return b""
        if len(data) > size:
            raise SendsNoParts(f"{path}: {NO_PARTS}")
        return data

    def read_all(self, path: str) -> bytes:
        return self._call(path, self._filesystem.cat_file, path)

    def write(self, path: str, content: BinaryIO) -> None:
        """Writes a file, which is there once all of it has been written."""
        with self._filesystem.open(path, "wb") as remote:
            shutil.copyfileobj(content, remote, 2**24)

    def create(self, path: str, content: bytes) -> bool:
        """Writes a file if there is none; returns whether this has made it.

        It is a UserError if the file system cannot tell which of several writers was the first.
        """
        kind, made = type(self._filesystem), self._create(path, content)
        if made and kind not in _EXCLUSIVE and self._create(path, content):
            raise UserError(f"{path}: {NOT_EXCLUSIVE}")  # it writes over what is there
        _EXCLUSIVE.add(kind)
        return made

    def _create(self, path: str, content: bytes) -> bool:
        try:
            self._call(path, self._filesystem.pipe_file, path, content, mode="create")
        except FileExistsError:
            return False
        except (NotImplementedError, TypeError, ValueError) as error:
            raise UserError(f"{path}: {NOT_EXCLUSIVE} ({put_in_a_line(str(error))})") from error
        return True

    def list(self, folder: str) -> list[str]:
        """Returns the names of what is in a folder now."""
        self._filesystem.invalidate_cache()
        found = self._call(folder, self._filesystem.ls, folder, detail=False)
        self._filesystem.invalidate_cache()  # of what others write from now on
        return [name.rstrip("/").rpartition("/")[2] for name in found]

    def remove(self, path: str) -> None:
        """Removes a file, or a folder and all in it, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._call(path, self._filesystem.rm, path, recursive=True)

    def _call(self, path: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Calls a function; raises errors of files that name the path.

        Files of HTTP, unlike those of buckets, do not try again by themselves.
        """
        for pause in (*PAUSES, None):
            try:
                return function(*args, **options)
            except Exception as error:
                told = _translate(path, error)
                if told is error and (pause is None or not _may_pass(error)):
                    raise
                if pause is None or not _may_pass(told):
                    raise told from error
                pause = min(hub.find_pause(error) or pause, hub.LONGEST_PAUSE)
            time.sleep(pause)


class HubFiles(FsspecFiles):
    """Files of Hugging Face's hub, `hf://datasets/OWNER/NAME@REVISION/...`."""

    exact = {"cache_type": "none"}


def open_filesystem(path: str) -> FsspecFiles:
    """Returns the files of the file system of a path; a UserError says what fsspec lacks for it."""
    import fsspec

    protocol, options = path.partition("://")[0], {}
    if protocol == "hf":
        hub.load_library(path)
    if protocol in ("http", "https"):
        import aiohttp

        # its own limit is for a whole file, however large, and it has none for silence
        limits = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
        set_by_user = fsspec.config.conf.get(protocol, {}).get("client_kwargs", {})
        options["client_kwargs"] = {"timeout": limits, **set_by_user}
    try:
        found = fsspec.core.url_to_fs(path, **options)[0]
        return HubFiles(found) if protocol == "hf" else FsspecFiles(found)
    except (ImportError, ValueError) as error:  # no package of the protocol, or no such protocol
        raise UserError(f"{path}: {error}") from error


def _may_pass(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and not isinstance(error, FINAL)


def _translate(path: str, error: Exception) -> Exception:
    """Returns the error of files that an error of HTTP means; others as they are."""
    if hub.is_of_hub(error):
        return _translate_hub(path, error)
    cause = error.__cause__
    # of whatever it could not ask about, it says that it is not there
    unasked = isinstance(error, FileNotFoundError) and (_is_of_http(cause) or _may_pass(cause))
    real = cause if unasked else error
    if "support range requests" in str(real):
        return SendsNoParts(f"{path}: {NO_PARTS}")
    if isinstance(real, TimeoutError):
        return TimeoutError(f"{path}: the server was silent for too long")
    if not unasked and not _is_of_http(real):
        return error
    status = getattr(real, "status", None)
    if status == 416:  # nothing is there: the file has become shorter
        return EOFError(path)
    if status in (404, 410):
        return FileNotFoundError(f"{path}: there is no such file")
    told = tell_in_a_line(real)
    if status:
        told = put_in_a_line(f"the server answers {status} {getattr(real, 'message', '')}").strip()
    return (PermissionError if status in (401, 403) else OSError)(f"{path}: {told}")


def _translate_hub(path: str, error: Exception) -> Exception:
    status, told = hub.find_status(error), f"{path}: {hub.tell(error)}"
    if hub.is_missing_file(error):
        return FileNotFoundError(told)
    if status == 416:
        return EOFError(path)
    return ClosedRepository(told, status) if status in (401, 403, 404) else OSError(told)


def _is_of_http(error: BaseException | None) -> bool:
    return type(error).__module__.startswith("aiohttp.")
