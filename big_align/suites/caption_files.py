"""Captions in the files of their data sets: Karpathy's, lines, and Crossmodal-3600's."""

import glob
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from big_align.core.errors import UserError, pass_unreachable, put_in_a_line
from big_align.data import files, listing
from big_align.data.json_texts import NotJson, parse_json, read_json
from big_align.data.sources.table_source import Row, TableSource

KARPATHY_FOLDERS = ("", "/images", "/Images", "/flickr30k-images", "/Flicker8k_Dataset")
"""Where to look for images relative to Karpathy's file; COCO's are in folders that it names."""
LINES_FOLDERS = ("", "/images", "/../flickr30k-images", "/../flickr30k/flickr30k-images",
                 "/../coco/train2014", "/../coco/val2014")  # fmt: skip


def read_karpathy(path: str, splits: str) -> TableSource:
    """Makes a source of some splits of Karpathy's `dataset_*.json`, as in "train,restval"."""
    images, folder = list_karpathy(path, splits)
    rows = [Row(0, image.path, [], [text for _, text in image.captions]) for image in images]
    return TableSource(path, folder, rows, True)


class KarpathyImage(NamedTuple):
    """An image of Karpathy's files."""

    name: str
    path: str  # where the file is in the folder of images
    captions: list[tuple[int | None, str]]  # each after its id, if there are any


def list_karpathy(path: str, splits: str, ids: bool = False) -> tuple[list[KarpathyImage], str]:
    """Lists the images of some splits, and finds their folder; `ids` requires ids of captions."""
    found, wanted = read_json(path), splits.split(",")
    try:
        images = [
            KarpathyImage(
                image["filename"],
                "/".join(filter(None, (image.get("filepath", ""), image["filename"]))),
                [
                    (int(text["sentid"]) if ids else None, _check_text(text["raw"], path))
                    for text in image["sentences"]
                ],
            )
            for image in found["images"]
            if image["split"] in wanted
        ]
        there = sorted({str(image["split"]) for image in found["images"]})
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is no file of Karpathy's splits: it needs `images`, each with `split`, "
            f"`filename` and `sentences` with `raw`{' and `sentid`' * ids} (the first thing "
            f"missing is {error})"
        ) from error
    if not images:
        raise UserError(f"{path} has no image of the split {splits}; it has {', '.join(there)}")
    place = path.rpartition("/")[0]
    return images, find_folder(path, place, KARPATHY_FOLDERS, images[0].path)


def read_lines(folder: str, path: str, captions: str) -> TableSource:
    """Makes a source from a file with one image per line and files with one caption for each.

    The files of captions are a pattern, relative to the folder.
    """
    names = _lines(path)
    pattern = f"{glob.escape(folder)}/{captions}"
    texts = listing.find(pattern)
    if not texts:
        raise UserError(f"{path} is there, and no captions {folder}/{captions} beside it")
    columns = [_lines(text) for text in texts]
    for text, column in zip(texts, columns, strict=True):
        if len(column) != len(names):
            raise UserError(f"{text} has {len(column)} lines, and {path} {len(names)}")
    rows = [
        Row(number, name.partition("#")[0], [], [column[number - 1] for column in columns])
        for number, name in enumerate(names, start=1)
    ]
    if not rows:
        raise UserError(f"{path} names no image")
    return TableSource(path, find_folder(path, folder, LINES_FOLDERS, rows[0].image), rows, True)


def read_crossmodal(path: str, language: str) -> TableSource:
    """Makes a source from Crossmodal-3600's `captions.jsonl` in one language."""
    rows = list(_crossmodal_rows(path, language))
    folder = path.rpartition("/")[0]
    if not rows:
        raise UserError(f"{path} has no caption in the language {language!r}")
    return TableSource(path, find_folder(path, folder, ("/images", ""), rows[0].image), rows, True)


def find_folder(path: str, folder: str, places: Sequence[str], image: str) -> str:
    """Returns the first of some places, relative to a folder, with an image that a file names."""
    tried = [f"{folder}{place}" for place in places]
    for candidate in tried:
        there = f"{candidate}/{image}"
        try:
            files.files_of(there).stamp(there)
        except (OSError, ValueError) as error:
            pass_unreachable(error)
            continue
        return candidate
    raise UserError(f"{path} needs {image}, which is in none of {', '.join(tried)}")


def _crossmodal_rows(path: str, language: str) -> Iterator[Row]:
    for number, line in enumerate(_lines(path), start=1):
        try:
            found = parse_json(line)
            name, captions = found["image/key"], found[language]["caption"]
        except NotJson as error:
            raise UserError(f"{path}, line {number} {error}") from error
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{path}, line {number}: there is no {error}; each line has `image/key` and, for "
                "each language, `caption`"
            ) from error
        yield Row(number, f"{name}.jpg", [], [_check_text(text, path) for text in captions])


def _check_text(text: Any, path: str) -> str:
    if not isinstance(text, str):
        raise UserError(f"{path}: a caption is {put_in_a_line(str(text))}, not a text")
    return " ".join(text.split())


def _lines(path: str) -> list[str]:
    return files.read_text(path).rstrip("\n").split("\n")
