"""Files that are complete or absent, on this machine or any fsspec file system."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from big_align.core import whole_files
from big_align.core.errors import Unreachable, UserError
from big_align.core.whole_files import lock_folder
from big_align.data import files
from big_align.data.json_texts import NotJson, parse_json
from big_align.data.remote.fsspec_files import open_filesystem

AGAIN = "delete it, and it is made again"


def join(folder: str, *names: str) -> str:
    """Puts a folder before a name."""
    return "/".join((folder.rstrip("/"), *names))


@contextlib.contextmanager
def open_whole(path: str) -> Iterator[Any]:
    """Opens a file for writing bytes; it gets its name only when all has been written.

    Two processes may write it at once, as when a runner tries a step twice: the last one wins.
    """
    try:
        if "://" in path:
            with tempfile.NamedTemporaryFile() as file:
                yield file
                file.flush()
                open_filesystem(path).write(path, file.name)
            return
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with whole_files.open_whole(path) as file:
            yield file
    except Unreachable:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}") from error


def create_whole(path: str, content: bytes) -> bool:
    """Writes a file if there is none; returns whether this has made it, or one with this content.

    Of several processes that try at once, one alone makes it. Its answer may be lost, and the
    system's own second try then finds the file: the content must tell whose it is.
    """
    try:
        if "://" in path:
            made = open_filesystem(path).create(path, content)
        else:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            made = whole_files.create_whole(path, content)
    except Unreachable:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}") from error
    return made or read_bytes(path) == content


@contextlib.contextmanager
def own_folder(folder: str) -> Iterator[None]:
    """Makes a folder and keeps a second process of this machine out; elsewhere it does nothing."""
    if "://" in folder:
        yield
        return
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error}") from error
    with lock_folder(folder, "another prepare writes into it; wait for it, or stop it"):
        yield


def write_text(path: str, text: str) -> None:
    """Writes a text as a whole file in UTF-8, which escapes what has no UTF-8."""
    with open_whole(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))  # as JSON writes it, too


def write_json(path: str, value: Any) -> None:
    """Writes JSON for people to read, the same for equal values."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) + "\n")


def write_bytes(path: str, content: bytes) -> None:
    """Writes a file."""
    with open_whole(path) as file:
        file.write(content)


def read_json(path: str) -> Any:
    """Returns what a file holds; None if there is no such file."""
    text = read_text(path)
    return None if text is None else _parse(text, path)


def read_text(path: str) -> str | None:
    """Returns the text of a file; None if there is no such file."""
    data = read_bytes(path)
    try:
        return None if data is None else data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 ({error.reason}); {AGAIN}") from error


def read_bytes(path: str) -> bytes | None:
    """Returns what a file holds; None if there is no such file."""
    try:
        return files.files_of(path).read_all(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_lines(path: str, optional: bool = False) -> Iterator[Any]:
    """Yields the objects of a file with one JSON object per line; one that is optional may lack."""
    text = read_text(path)
    if text is None and not optional:
        raise UserError(f"{path} is not there any more; run the same command again")
    for number, line in enumerate((text or "").split("\n"), start=1):
        if line:
            yield _parse(line, path, f", line {number},")


def _parse(text: str, path: str, place: str = "") -> Any:
    try:
        return parse_json(text)
    except NotJson as error:
        raise UserError(f"{path}{place} {error}; {AGAIN}") from error


def write_lines(path: str, objects: list[Any]) -> None:
    """Writes a file with one JSON object per line."""
    lines = (json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in objects)
    with open_whole(path) as file:  # halves of a surrogate pair stay apart, as in the texts
        file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass"))


def list_names(folder: str) -> list[str]:
    """Returns the names of the finished files of a folder, sorted; none if there is no folder."""
    try:
        found = open_filesystem(folder).list(folder) if "://" in folder else os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in found if not name.endswith(whole_files.PARTIAL))


def remove(path: str) -> None:
    """Removes a folder and all in it, or a file, if it is there."""
    if "://" in path:
        open_filesystem(path).remove(path)
    elif os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def remove_unfinished(folder: str, which: Callable[[str], bool] = bool) -> None:
    """Removes what killed processes have left half written in a local folder.

    Of some files alone, if `which` says so of their names.
    """
    if "://" not in folder and os.path.isdir(folder):
        for name in os.listdir(folder):
            if name.endswith(whole_files.PARTIAL) and which(whole_files.find_whole(name)):
                remove(os.path.join(folder, name))
