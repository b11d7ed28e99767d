"""Files of any fsspec file system."""

import contextlib
import errno
import functools
import io
from collections.abc import Callable
from typing import Any

from big_align.core.errors import (
    AccessRefused,
    Unreachable,
    UserError,
    put_in_a_line,
    tell_in_a_line,
)
from big_align.data.remote import hub, retries

SILENCE = 30.0  # seconds without a byte from a server, after which it has failed
FINAL = (
    *(FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError),
    *(PermissionError, UserError),
)
"""Errors that are about a file, and that another try does not mend."""
LIBRARIES = "aiohttp.", "botocore.", "aiobotocore."
"""How the modules begin whose errors are those of a connection, and no errors of files."""
CUT = "ClientPayloadError", "ConnectionClosedError", "ServerDisconnectedError"
UNMENDED = "Credential", "Token", "Profile", "Param", "Region", "Config"
"""In the names of botocore's errors about what the user has set."""
CHANGES = "etag", "ETag", "mtime", "updated", "LastModified", "blob_id"
"""What file systems call that which changes with a file."""
S3 = "s3", "s3a"
CONFLICT = 409
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


class SendsNoParts(AccessRefused):
    """A web server sends whole files alone, whatever the example; another try changes nothing."""


class ClosedRepository(hub.HubError, AccessRefused):
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
    """Files of any fsspec file system; what fails for the network is tried again (`retries`).

    A failure that does not pass is an Unreachable, unlike a file that is not there.
    """

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

    def write(self, path: str, local: str) -> None:
        """Writes a file with what a local one holds; it is there once all of it has been written.

        It is sent whole at every try. A file that was opened for writing would get its name, with a
        part of its content, when it is closed after an error.
        """
        self._call(f"{path} cannot be written", self._filesystem.put_file, local, path)

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
        except Unreachable as error:
            if _find_status(error.__cause__) == CONFLICT:  # with another that creates it just now
                return False
            raise
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
        """Calls a function; raises errors of files that name the path."""
        judge = functools.partial(_judge, path)
        return retries.call(lambda: function(*args, **options), judge)


class HubFiles(FsspecFiles):
    """Files of Hugging Face's hub, `hf://datasets/OWNER/NAME@REVISION/...`."""

    exact = {"cache_type": "none"}


def open_filesystem(path: str) -> FsspecFiles:
    """Returns the files of the file system of a path; a UserError says what fsspec lacks for it."""
    import fsspec

    protocol = path.partition("://")[0]
    if protocol == "hf":
        hub.load_library(path)
    try:
        found = fsspec.core.url_to_fs(path, **_list_options(protocol))[0]
    except (ImportError, ValueError) as error:  # no package of the protocol, or no such protocol
        raise UserError(f"{path}: {error}") from error
    if protocol in S3:
        found.retries = 1  # `retries` decides for all, and says so
    return HubFiles(found) if protocol == "hf" else FsspecFiles(found)


def _list_options(protocol: str) -> dict[str, Any]:
    """Returns what a file system is opened with, of which the user's settings of fsspec prevail."""
    import fsspec

    set_by_user = fsspec.config.conf.get(protocol, {})
    if protocol in ("http", "https"):
        import aiohttp

        # its own limit is for a whole file, however large, and it has none for silence
        limits = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
        return {"client_kwargs": {"timeout": limits, **set_by_user.get("client_kwargs", {})}}
    if protocol in S3:
        limits = {"read_timeout": SILENCE, "retries": {"total_max_attempts": 1}}
        return {
            "config_kwargs": limits | set_by_user.get("config_kwargs", {}),
            # a listing that is kept does not have what another process, or thread, has just written
            "use_listings_cache": False,
        }
    return {}


def _judge(path: str, error: Exception) -> retries.Verdict | None:
    """Returns what an error means for a file; None if it is one of files, or a bug."""
    if hub.is_of_hub(error):
        return _judge_hub(path, error)
    cause = error.__cause__
    # of whatever it could not ask about, it says that it is not there
    unasked = isinstance(error, FileNotFoundError) and (_is_of_network(cause) or _may_pass(cause))
    real = cause if unasked else error
    if "support range requests" in str(real):
        return retries.Verdict(SendsNoParts, f"{path}: {NO_PARTS}")
    if isinstance(real, TimeoutError):
        told = f"{path}: the server was silent for too long"
        return retries.Verdict(Unreachable, told, passes=True)
    if status := _find_status(real):
        return _judge_answer(path, status, real)
    if getattr(real, "errno", None) == errno.ENAMETOOLONG or isinstance(real, FINAL):
        return None
    if not isinstance(real, OSError) and not _is_of_network(real):
        return None
    passes = not any(word in type(real).__name__ for word in UNMENDED)
    cut = type(real).__name__ in CUT
    told = "the connection was cut" if cut else tell_in_a_line(real)
    return retries.Verdict(Unreachable, f"{path}: {told}", passes)


def _judge_answer(path: str, status: int, error: BaseException | None) -> retries.Verdict | None:
    """Returns what an answer that is an error means."""
    if status == 416:  # nothing is there: the file has become shorter
        return retries.Verdict(EOFError, path)
    if getattr(error, "errno", None) == errno.ENAMETOOLONG or isinstance(error, FileExistsError):
        return None
    told = _tell_answer(error)
    if status in (404, 410):
        kind = "bucket" if "NoSuchBucket" in told else "file"
        return retries.Verdict(FileNotFoundError, f"{path}: there is no such {kind}")
    told = put_in_a_line(f"{path}: the server answers {status} {told}").strip()
    if status in (401, 403) or isinstance(error, PermissionError):
        return retries.Verdict(AccessRefused, told)
    return retries.Verdict(Unreachable, told, status in retries.PASSING)


def _tell_answer(error: BaseException | None) -> str:
    """Returns the words of an answer, without its status."""
    for each in retries.follow(error):
        if isinstance(response := getattr(each, "response", None), dict):
            about = response.get("Error", {})
            words = [str(about.get(key, "")) for key in ("Code", "Message")]
            return ": ".join(word for word in words if word and not word.isdigit())
    return getattr(error, "message", "")


def _judge_hub(path: str, error: Exception) -> retries.Verdict:
    status, told = hub.find_status(error), f"{path}: {hub.tell(error)}"
    if hub.is_missing_file(error):
        return retries.Verdict(FileNotFoundError, told)
    if status == 416:
        return retries.Verdict(EOFError, path)
    if status in (401, 403, 404):
        return retries.Verdict(functools.partial(ClosedRepository, status=status), told)
    passes = status in retries.PASSING if status else not hub.is_offline(error)
    return retries.Verdict(Unreachable, told, passes, hub.find_pause(error))


def _find_status(error: BaseException | None) -> int:
    """Returns the HTTP status behind an error of aiohttp or s3fs; 0 if nothing was answered."""
    for each in retries.follow(error):
        response = getattr(each, "response", None)
        about = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
        if status := about.get("HTTPStatusCode") or getattr(each, "status", 0):
            return status
    return 0


def _may_pass(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and not isinstance(error, FINAL)


def _is_of_network(error: BaseException | None) -> bool:
    return type(error).__module__.startswith(LIBRARIES)
