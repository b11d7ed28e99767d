"""A folder for each class with the images in it."""

import glob

from big_align.data import examples, files
from big_align.data.sources.listed_source import ListedSource
from big_align.errors import UserError


class FolderSource(ListedSource):
    """Images at PATH/CLASS/*.jpg; the label is the place of the class among the sorted folders.

    Args:
      path: the folder that holds the folders of classes, local or of any fsspec file system.
      pattern: of the images inside the folder of a class, as in `*` or `images/*`; files that do
        not end like an image are passed over.

    Raises:
      UserError: there is no such folder, or a folder of a class holds no image.
    """

    def __init__(self, path: str, pattern: str = "*"):
        path = path.rstrip("/")
        system = files.files_of(path)
        root = glob.escape(path)
        names = system.glob(f"{root}/*/{pattern}")
        images = sorted(name for name in names if _extension(name) in examples.IMAGE_EXTENSIONS)
        if not images:
            raise UserError(
                f"no image at {path}/*/{pattern}: there must be one folder for each class, with "
                f"files that end in {', '.join(examples.IMAGE_EXTENSIONS)}"
            )
        # the folder of a class is what stands below the path, whatever the file system puts before
        depth = -2 - pattern.count("/")
        folders = [name.split("/")[depth] for name in images]
        classes = sorted(set(folders))
        self._check_folders(path, root, pattern, classes)
        labels = {folder: (label,) for label, folder in enumerate(classes)}
        super().__init__(
            path, images, [labels[folder] for folder in folders], class_names=tuple(classes)
        )

    def _check_folders(self, path: str, root: str, pattern: str, classes: list[str]) -> None:
        """Refuses folders without images, which would shift the labels of those after them."""
        folders = {name.rstrip("/").split("/")[-1] for name in glob.glob(f"{root}/*/")}
        empty = sorted(folders - set(classes))
        if empty:
            raise UserError(
                f"{path}/{empty[0]} holds no image that matches {pattern!r} ({len(empty)} of "
                f"{len(folders)} folders there hold none); each folder is a class: remove it or "
                "mend `pattern`"
            )


def _extension(name: str) -> str:
    return name.rpartition(".")[2].lower()
