"""The listing of files: what a path or a pattern names, and what is in a folder.

Links can give a file or a folder several names; it is listed once.
"""

import collections
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from big_align.core.errors import MissingFile, UserError, warn_once
from big_align.data.files import exists, files_of

Paths = str | Sequence[str]
"""One path with patterns, or a list of paths."""
COMMA = "\ud800"  # stands for a comma of a name; no path has it


def expand_paths(path: Paths, shards: str = "") -> list[str]:
    """Lists the files that a path with globs, braces and commas names, in order, each once.

    A file that links give several names is listed once, as is a folder (`drop_repeats`); those of
    one glob are sorted. A pattern that matches no file, or a folder instead of `shards`, is a
    ValueError.

    Args:
      path: names or patterns separated by commas; `**` stands for any folders, `{00000..00005}`
        counts, `{a,b}` enumerates, and `~` is the home folder. A comma is part of a name after a
        backslash, or if the whole path is a local file or folder. Brackets are part of the names if
        there is such a file, or if they match nothing as a pattern. Or a list of them, in which
        commas are part of a name, and an entry that is the name of a file is no pattern.
      shards: what files in a folder are called, as in "*.tar", if a folder is no file.
    """
    names = []
    for entry in _split_commas(path) if isinstance(path, str) else map(str, path):
        entry = os.path.expanduser(entry)
        if not isinstance(path, str) and _is_file(entry):
            names.append(entry)  # brackets and braces may be part of its name
            continue
        for pattern in _expand_braces(entry.replace(r"\,", COMMA)):
            pattern = pattern.replace(COMMA, ",")
            if not (matches := _match(pattern)):
                raise MissingFile(f"no file matches {pattern!r} (from the path {path!r})")
            names += matches
    if not names:
        raise ValueError(f"the path {path!r} names no file")
    if shards and os.path.isdir(names[0]):
        folder = escape_commas(names[0].rstrip("/"))
        raise UserError(f"{names[0]} is a folder; write '{folder}/{shards}'")
    return drop_repeats(names)


def escape_commas(path: str) -> str:
    """Returns the name of a file as `expand_paths` takes it beside patterns."""
    return path.replace(",", r"\,")


def find(pattern: str) -> list[str]:
    """Returns the files and folders that a pattern matches, local or remote, in order.

    In a local one, `**` stands for any folders, each once (`walk`).
    """
    if "://" in pattern:
        return sorted(files_of(pattern).glob(pattern))
    parts = pattern.split("/")
    if "**" not in parts:
        return sorted(glob.glob(pattern))
    at = parts.index("**")
    top, tail = "/".join(parts[:at]), "/".join(parts[at + 1 :] or ["*"])
    top = top or "/" * (at > 0)
    tops = sorted(glob.glob(f"{top}/")) if glob.has_magic(top) else [top]
    inside = (os.path.join(glob.escape(folder), tail) for folder, _ in walk(tops))
    return sorted({name for deeper in inside for name in find(deeper)})


def list_below(folder: str) -> list[str]:
    """Lists the files of a folder and of all folders below it, in order.

    A folder is listed once, whatever links lead to it; files may be links (`drop_repeats`). Below a
    remote folder, folders may be listed, too.
    """
    folder = folder.rstrip("/")
    if "://" not in folder:
        tops = walk([folder or "/"])
        return sorted(os.path.join(top, name) for top, names in tops for name in names)
    pattern, listed = f"{glob.escape(folder)}/*", []
    while found := find(pattern):  # not every file system knows `**`
        listed += found
        pattern += "/*"
    return sorted(listed)


def list_inside(path: str) -> list[str]:
    """Lists a file, or the files below a local folder."""
    return list_below(path) if "://" not in path and os.path.isdir(path) else [path]


def walk(tops: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields folders and those below them, each once, with the sorted names of their files.

    A folder to which links lead as well comes by the way with the fewest links: a new link gives no
    file another name, and so no other place among the held-out ones. A link to a folder above is
    not followed. What begins with a dot is left out, as in patterns. "" is the current folder.
    """
    seen: set[str] = set()
    repeated: list[str] = []
    level, links = [], []
    for top in tops:
        (links if os.path.islink(top.rstrip("/")) else level).append(top)
    while level or links:
        if not level:
            level, links = links[::-1], []
        folder = level.pop()
        place = os.path.realpath(folder)
        if place in seen:
            repeated.append(folder)
            continue
        seen.add(place)
        entries = _scan(folder)
        names, folders = [], []
        for entry in entries:
            (folders if _is_folder(entry) else names).append(entry)
        yield folder, [entry.name for entry in names]
        level += [os.path.join(folder, e.name) for e in reversed(folders) if not e.is_symlink()]
        links += [os.path.join(folder, e.name) for e in folders if e.is_symlink()]
    if repeated:
        told = f"left out {len(repeated)} links to folders that are listed already, such as"
        warn_once(f"{told} {repeated[0]}, which is {os.path.realpath(repeated[0])}")


def group_names(names: Sequence[str]) -> dict[str, list[str]]:
    """Groups the names of the same file or folder, which links give it, hard ones too.

    The name with the fewest links on its way comes first, in the order of `names`, and has the
    others. Names on other machines, `s3://...`, are names of their own.
    """
    names = list(dict.fromkeys(names))
    numbers = _read_numbers(names)
    counts = collections.Counter(numbers.values())
    named: dict[Any, list[str]] = {}
    for name in names:
        # a folder tells numbers without asking for each file; it may say the same of several
        alike = name in numbers and counts[numbers[name]] > 1
        named.setdefault((alike and _identify(name)) or name, []).append(name)
    chosen = {
        min(group, key=_count_links) if group[1:] else group[0]: group for group in named.values()
    }
    found = {name: [n for n in chosen[name] if n != name] for name in names if name in chosen}
    if several := [(name, others[0]) for name, others in found.items() if others]:
        told = "such as {}, which is also {}".format(*several[0])
        warn_once(f"{len(several)} files or folders have several names and are read once, {told}")
    return found


def drop_repeats(names: Sequence[str]) -> list[str]:
    """Returns names of which no two are the same file or folder; see `group_names`."""
    return list(group_names(names))


def _match(pattern: str) -> list[str]:
    """Returns the files that a name or a pattern without braces means."""
    if "[" in pattern and _is_file(pattern):
        return [pattern]
    if re.search(r"[*?\[]", pattern):
        found = find(pattern)
        return found if found or "[" not in pattern else find(pattern.replace("[", "[[]"))
    return [pattern] if exists(pattern) else []


def _is_file(entry: str) -> bool:
    """Returns whether an entry is the name of a file, and so no pattern."""
    try:
        return exists(entry)
    except OSError:  # too long for a name; or a bucket or a server tells nothing of such a name
        return False
    except UserError:
        raise
    except ValueError:
        return False


def _split_commas(path: str) -> list[str]:
    """Splits at the commas outside braces, unless the whole is the name of something local."""
    if "://" not in path and os.path.exists(os.path.expanduser(path)):
        return [escape_commas(path)]
    parts = re.findall(r"(?:\\,|[^,{]|\{[^}]*\}|\{)+", path)
    return [part.strip() for part in parts if part.strip()]


def _expand_braces(pattern: str) -> list[str]:
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        return [pattern]
    count = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    if count:
        first, last = int(count[1]), int(count[2])
        choices = [str(number).zfill(len(count[1])) for number in range(first, last + 1)]
    else:
        choices = match[1].split(",")
    head, tail = pattern[: match.start()], pattern[match.end() :]
    return [name for choice in choices for name in _expand_braces(head + choice + tail)]


def _scan(folder: str) -> list[os.DirEntry]:
    try:
        with os.scandir(folder or ".") as entries:
            found = [entry for entry in entries if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        warn_once(f"what is in {folder} is left out: {error}")
        return []
    return sorted(found, key=lambda entry: entry.name)


def _is_folder(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _read_numbers(names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Returns the device and the inode of files, as their folders and links tell them."""
    folders: dict[str, list[tuple[str, str]]] = {}
    for name in names:
        if "://" not in name:
            folder, base = os.path.split(name.rstrip("/"))
            folders.setdefault(folder, []).append((name, base))
    numbers = {}
    for folder, inside in folders.items():
        try:
            device = os.stat(folder or ".").st_dev
            with os.scandir(folder or ".") as found:
                entries = {entry.name: entry for entry in found}
        except (OSError, ValueError):  # no such folder, or a zero byte: whoever reads it says so
            continue
        for name, base in inside:
            if (entry := entries.get(base)) is None:
                continue
            if not entry.is_symlink():
                numbers[name] = device, entry.inode()
            elif target := _identify(name):
                numbers[name] = target[:2]
    return numbers


def _identify(name: str) -> tuple[int, ...] | None:
    """Returns what only names of the same file share; None if nothing tells.

    Some network disks give the inode of a file that nobody reads to another file, hence the size
    and the time.
    """
    try:
        status = os.stat(name)
    except (OSError, ValueError):
        return None
    known = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return known if status.st_ino else None


def _count_links(path: str) -> int:
    parts = path.rstrip("/").split("/")
    return sum(os.path.islink("/".join(parts[:n])) for n in range(1, len(parts) + 1))
