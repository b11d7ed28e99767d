"""Images in folders: a folder for each class, or just files that a pattern names."""

import glob
import os
from collections.abc import Iterable

from absl import logging

from big_align.core.errors import MissingFile, UserError
from big_align.data import examples, listing
from big_align.data.sources.listed_source import ListedSource


class FolderSource(ListedSource):
    """Images at PATH/CLASS/*.jpg; the label is the position of the class in the sorted folders.

    A file that links put into the folders of several classes is one example with all of these
    labels. A folder that is a link to another one, or to a folder above, is no class of its own.

    Args:
      path: the folder that holds the folders of classes, local or of any fsspec file system.
      pattern: the pattern of the images inside the folder of a class, such as `*` or `images/*`;
        files that do not end like an image are skipped.

    Raises:
      UserError: there is no such folder, or a folder of a class holds no image; or the pattern
        leaves open which folder is the class.
    """

    def __init__(self, path: str, pattern: str = "*"):
        if "**" in pattern:
            raise UserError(
                f"pattern = {pattern!r}: `**` is any number of folders, which hides the one that "
                "is the class; write `*` for each folder below it"
            )
        path = os.path.expanduser(path).rstrip("/")
        root = glob.escape(path)
        remote = "://" in path  # where a folder is known only by what lies in it
        inner = listing.find(f"{root}/*/*" if remote else f"{root}/*/")
        inner = listing.drop_repeats([path, *inner])[1:]
        # the class folder is what follows the path, whatever the file system puts before it
        at = inner[0].count("/") - 1 if inner else 0
        there = {name.split("/")[at] for name in inner}
        tops = [f"{root}/*/"] if remote else list(map(glob.escape, inner))
        names = [name for top in tops for name in listing.find(top + pattern)]
        tell_unread(path, names)
        images = sorted(name for name in names if _extension(name) in examples.IMAGE_EXTENSIONS)
        found = listing.group_names(images)
        if not images:
            raise MissingFile(
                f"no image at {path}/*/{pattern}: there must be one folder for each class, with "
                f"files that end in {', '.join(examples.IMAGE_EXTENSIONS)}"
            )
        below = (name for top in tops for name in listing.find(f"{top}{pattern}/**/*"))
        deeper = sorted(
            name
            for name in below
            if _extension(name) in examples.IMAGE_EXTENSIONS and not os.path.isdir(name)
        )
        if deeper:
            logging.warning(
                "%s: %d images lie deeper than %s and are left out, such as %s; set `pattern`, or "
                "move them", path, len(deeper), f"CLASS/{pattern}", deeper[0]
            )  # fmt: skip
        classes = sorted({name.split("/")[at] for name in images})
        if empty := sorted(there - set(classes)):  # would shift the labels of those after them
            raise UserError(
                f"{path}/{empty[0]} holds no image that matches {pattern!r} ({len(empty)} of "
                f"{len(there)} folders there hold none); each folder is a class: remove it or mend "
                "`pattern`"
            )
        numbers = {folder: label for label, folder in enumerate(classes)}
        labels = [
            tuple(sorted({numbers[n.split("/")[at]] for n in (name, *others)}))
            for name, others in found.items()
        ]
        super().__init__(path, list(found), labels, class_names=tuple(classes))


def _extension(name: str) -> str:
    return name.rpartition(".")[2].lower()


class ImageFiles(ListedSource):
    """Images without captions or labels, in the order of their names.

    Args:
      path: files or folders; globs, in which `**` stands for any folders, braces and comma lists,
        local or any fsspec path; or a list of them. In a folder, and among the matches of a glob,
        files that do not end like an image are skipped.

    Raises:
      UserError: nothing matches, or there is no image.
    """

    def __init__(self, path: listing.Paths):
        try:
            listed = listing.expand_paths(path)
        except ValueError as error:
            raise UserError(str(error)) from error
        names = [inner for name in listed for inner in listing.list_inside(name)]
        tell_unread(path, names)
        images = [name for name in names if _extension(name) in examples.IMAGE_EXTENSIONS]
        if not images:
            endings = ", ".join(examples.IMAGE_EXTENSIONS)
            raise MissingFile(f"no image at {path!r}: none of the files there ends in {endings}")
        images = listing.drop_repeats(images)
        super().__init__(str(path), images, [()] * len(images))


def tell_unread(path: listing.Paths, names: Iterable[str]) -> None:
    """Warns of images at a path whose endings are not read."""
    found = [ending for ending in map(_extension, names) if ending in examples.UNREAD_EXTENSIONS]
    if found:
        endings = ", ".join(f".{ending}" for ending in sorted(set(found)))
        logging.warning(
            "left out from %s: %d with endings that are not read, %s; convert them to JPEG or PNG",
            path, len(found), endings,
        )  # fmt: skip
