"""COCO's captions: a JSON file of images and annotations beside a folder of images."""

import collections
import os
from collections.abc import Iterator
from typing import Any

from absl import logging

from big_align.core.errors import FieldError, UserError, pass_unreachable, put_in_a_line
from big_align.core.nodes import Given
from big_align.data import files
from big_align.data.json_texts import read_json
from big_align.data.sources.table_source import Row, TableSource, join


class CocoSource(TableSource):
    """Images and their captions, in the order of the file.

    Args:
      path: the JSON file, such as `annotations/captions_val2017.json`, local or of any fsspec file
        system.
      images: the folder of the images. None looks beside the file, and in folders beside it or
        beside its folder that are called `images` or like the end of its name, such as `val2017`.
      needs_texts: whether images without a caption are skipped; otherwise `read_image` reads them.

    Raises:
      UserError: the file cannot be read or has no captions, or the images are not found.
    """

    def __init__(self, path: str, images: str | None = None, needs_texts: Given[bool] = True):
        path, images = os.path.expanduser(path), images and os.path.expanduser(images)
        found = read_json(path)
        found = found if isinstance(found, dict) else {}
        try:
            names = {image["id"]: image["file_name"] for image in found["images"]}
            captions: dict[Any, list[str]] = {number: [] for number in names}
            for number, annotation in enumerate(found["annotations"]):
                if annotation["image_id"] not in captions:
                    shown = put_in_a_line(str(annotation["image_id"]))
                    raise UserError(
                        f"{path}: annotation {number}, counted from 0, is of the image {shown}, "
                        "which `images` does not list; remove the annotation or add the image"
                    )
                captions[annotation["image_id"]].append(annotation["caption"])
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{path} is no file of COCO's captions: it needs `images`, each with `id` and "
                "`file_name`, and `annotations`, each with the `image_id` of one of them and a "
                f"`caption` (the first thing missing is {error})"
            ) from error
        if len(names) < len(found["images"]):
            ids = collections.Counter(image["id"] for image in found["images"])
            raise UserError(
                f"{path}: {ids.most_common(1)[0][1]} images have the id "
                f"{put_in_a_line(str(ids.most_common(1)[0][0]))}; each needs one of its own"
            )
        rows = list(_make_rows(path, names, captions))
        told = [row for row in rows if row.captions]
        if not told:
            raise UserError(f"{path} has no caption")
        if len(told) < len(rows):
            logging.info("%s: %d images have no caption", path, len(rows) - len(told))
        rows = told if needs_texts else rows
        super().__init__(path, images or _find_images(path, rows[0].image), rows, True)


def _make_rows(path: str, names: dict[Any, Any], captions: dict[Any, list[str]]) -> Iterator[Row]:
    for identity, name in names.items():
        texts = captions[identity]
        if not isinstance(name, str) or not all(isinstance(text, str) for text in texts):
            raise UserError(f"{path}: the file name or a caption of image {identity} is no text")
        yield Row(0, name, [], texts)


def _find_images(path: str, first: str) -> str:
    folder, _, base = path.rpartition("/")
    ending = base.rpartition(".")[0].rpartition("_")[2]
    above = join(folder, "..")
    folders = [folder, *(join(f, n) for f in (folder, above) for n in (ending, "images"))]
    for candidate in folders:
        image = join(candidate, first)
        try:
            files.files_of(image).stamp(image)
        except (OSError, ValueError) as error:
            pass_unreachable(error)
            continue
        return candidate
    raise FieldError(f"the image {first} of {path} is not beside it", images="FOLDER")
