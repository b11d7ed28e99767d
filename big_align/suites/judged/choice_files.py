"""Files of choices: SugarCrepe's, Winoground's, and those of ARO."""

from collections.abc import Sequence

import numpy as np

from big_align.core.errors import UserError
from big_align.data.examples import Source
from big_align.suites.caption_files import find_folder
from big_align.suites.judged.judgments import Choices, Numbering
from big_align.suites.judged.rows import JudgedRow, read_line_rows, read_rows
from big_align.suites.judged.sources import BoxSource, list_images
from big_align.suites.judged.symmetric_relations import SYMMETRIC

GROUPS = {
    "replace": ("replace_obj", "replace_att", "replace_rel"),
    "swap": ("swap_obj", "swap_att"),
    "add": ("add_obj", "add_att"),
}
"""SugarCrepe's categories, named after how a caption is changed; each is a file."""
CATEGORIES = tuple(name for names in GROUPS.values() for name in names)
COCO_FOLDERS = ("", "/val2017", "/images/val2017", "/coco/images/val2017",
                "/../val2017", "/../coco/val2017", "/../coco/images/val2017",
                "/../../coco/val2017", "/../../coco/images/val2017")  # fmt: skip
WINOGROUND_FOLDERS = ("/images", "/images/images", "")
LEAST_CASES = 25
"""Pairs of attributes with fewer cases are not part of ARO's mean."""


def read_sugar_crepe(path: str) -> Choices:
    """Reads all seven files of SugarCrepe (Hsieh et al. 2023), given the path of one of them."""
    folder = path.rpartition("/")[0]
    images, texts, cases, category = Numbering(), Numbering(), [], []
    for name in CATEGORIES:
        for row in read_rows(f"{folder}/{name}.json"):
            options = row.text("caption"), row.text("negative_caption")
            cases.append((images.add(row.text("filename")), *map(texts.add, options)))
            category.append(name)
    place = find_folder(path, folder, COCO_FOLDERS, images.items[0])
    return _make_choices(
        list_images("SugarCrepe", place, images.items), texts, cases, category, CATEGORIES, GROUPS
    )


def read_winoground(path: str) -> Choices:
    """Reads `examples.jsonl` of Winoground (Thrush et al. 2022), whose categories are its tags."""
    images, texts, cases, category = Numbering(), Numbering(), [], []
    for row in read_line_rows(path):
        seen = [images.add(f"{row.text(field)}.png") for field in ("image_0", "image_1")]
        said = [texts.add(row.text(field)) for field in ("caption_0", "caption_1")]
        cases.append((*seen, *said))
        category.append(row.text("collapsed_tag"))
    folder = path.rpartition("/")[0]
    try:
        place = find_folder(path, folder, WINOGROUND_FOLDERS, images.items[0])
    except UserError as error:
        raise UserError(f"{error}; unpack images.zip there") from error
    source = list_images("Winoground", place, images.items)
    return _make_choices(source, texts, cases, category, images=2)


def read_boxes(path: str) -> Choices:
    """Reads ARO's `visual_genome_relation.json` or `_attribution.json` (Yuksekgonul et al. 2023).

    An image is the box around both objects. Each relation, or pair of attributes, is a category.
    The mean reported in the paper is over relations that are not symmetric, and over pairs of
    attributes with at least 25 cases.
    """
    boxes, texts, cases, category, listed = Numbering(), Numbering(), [], [], []
    for row in read_rows(path):
        name, box = row.text("image_path"), _read_box(row)
        number = boxes.add(f"{name} {box}")
        if number == len(listed):
            listed.append((name, box))
        options = row.text("true_caption"), row.text("false_caption")
        cases.append((number, *map(texts.add, options)))
        category.append(_read_category(row))
    place = find_folder(path, path.rpartition("/")[0], ("/images", ""), listed[0][0])
    paths = [f"{place}/{name}" for name, _ in listed]
    source = BoxSource(path.rpartition("/")[2], paths, [box for _, box in listed])
    return _make_choices(source, texts, cases, category, _choose_averaged(category))


def _read_box(row: JudgedRow) -> tuple[int, int, int, int]:
    """Returns the left, upper, right and lower edge of a box, in pixels."""
    left, top, width, height = (int(row.number(f"bbox_{x}")) for x in "xywh")
    if width < 1 or height < 1:
        raise UserError(f"{row.where}: its box has {width} by {height} pixels")
    return left, top, left + width, top + height


def _read_category(row: JudgedRow) -> str:
    """Returns the relation of a case, or its two attributes."""
    if "relation_name" in row.values:
        return row.text("relation_name")
    attributes = row.values.get("attributes")
    if not isinstance(attributes, list) or len(attributes) < 2:
        raise UserError(f"{row.where} has neither a relation_name nor two attributes")
    return f"{attributes[0]}, {attributes[1]}"


def _choose_averaged(category: Sequence[str]) -> tuple[str, ...]:
    """Returns the categories in the mean; only pairs of attributes have commas in their names."""
    names, counts = np.unique(np.array(category), return_counts=True)
    return tuple(
        name for name, count in zip(names.tolist(), counts.tolist(), strict=True)
        if (count >= LEAST_CASES if ", " in name else name not in SYMMETRIC)
    )  # fmt: skip


def _make_choices(
    source: Source,
    texts: Numbering,
    cases: Sequence[tuple[int, ...]],
    category: Sequence[str],
    averaged: tuple[str, ...] = (),
    groups: dict[str, tuple[str, ...]] | None = None,
    images: int = 1,
) -> Choices:
    """Makes choices from rows of numbers: first those of the images, then those of the texts."""
    rows = np.array(cases, np.int64)
    given = texts.items, rows[:, :images], rows[:, images:], tuple(category)
    return Choices(source, *given, averaged, groups or {})
