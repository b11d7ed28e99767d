"""Files beside shards that name their labels, a line each."""

from collections.abc import Sequence

from big_align.data import files
from big_align.data.labels.label_names import Names, UnitedNames, unite_names
from big_align.data.labels.line_ids import split_ids

NAME_FILES = "classes.txt", "classnames.txt"
"""What `big_align.tools.prepare` and CLIP_benchmark call such a file."""


def read_names(path: str) -> tuple[str, ...]:
    """Returns the names of the labels 0, 1, ... in a file, without ids (`line_ids.split_ids`)."""
    lines = [line.strip() for line in files.split_lines(files.read_text(path).rstrip())]
    return tuple(name for _, name in split_ids(lines, path))


def unite_folders(paths: Sequence[str]) -> UnitedNames:
    """Joins the names that the folders of some shards have for their labels (`unite_names`)."""
    folders = [path.rpartition("/")[0] or "." for path in paths]
    found = {folder: _find_names(folder) for folder in dict.fromkeys(folders)}
    return unite_names([found[folder] for folder in folders], folders)


def _find_names(folder: str) -> Names:
    for name in NAME_FILES:
        if files.is_file(path := f"{folder}/{name}"):
            return read_names(path)
    return None
