"""Flickr8k as its authors publish it: photographs, captions, and the lists of the splits."""

import glob
import io
import itertools
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from PIL import Image

from big_align.core.errors import UserError, tell_in_a_line
from big_align.core.progress import make_bar
from big_align.core.regular_files import read_regular
from big_align.data.images.decoding import MAX_PIXELS, open_picture, to_rgb
from big_align.data.shared import storage
from big_align.data.table_lines import BadLines, read_rows, read_text_lines
from big_align.prepare import shards

IMAGES = ("Flicker8k_Dataset", "Flickr8k_Dataset", "Images", "images")
"""Names of the folder of photographs; the archive's own name is misspelled."""
TOKENS, TABLE = "Flickr8k.token.txt", "captions.txt"
SPLITS = {
    "train": "Flickr_8k.trainImages.txt",
    "dev": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}
SLIP = re.compile(r"\.jpe?g\.\d+$")
"""How the archive's captions name a photograph that it lacks: `2258277193_586949ec62.jpg.1`."""
QUALITY = 95  # of JPEG, if photographs are resized


class Flickr8k(NamedTuple):
    """The content of the archive."""

    folder: str  # of the photographs
    captions: dict[str, list[str]]  # of each photograph, by file name, in the archive's order
    splits: dict[str, list[str]]  # the file names of each split, sorted
    left_out: int  # captions of photographs that the archive lacks by mistake


def read_archive(folder: str) -> Flickr8k:
    """Reads captions and splits; raises UserError if a file or a photograph is missing or wrong.

    The folder holds the photographs in a folder with a name in `IMAGES`, the captions in
    `Flickr8k.token.txt` or, as from Kaggle, `captions.txt`, and the lists of the splits, in it or
    in folders in it.
    """
    images = _find(folder, IMAGES, "the folder of photographs (Flickr8k_Dataset.zip)")
    source = _find(folder, (TOKENS, TABLE), "the captions (Flickr8k_text.zip)")
    there = set(os.listdir(images))
    captions: dict[str, list[str]] = {}
    left_out = 0
    for line, name, text in _read_captions(source):
        if name in there:
            captions.setdefault(name, []).append(text)
        elif SLIP.search(name):
            left_out += 1
        else:
            raise UserError(f"{source}, line {line}: there is no photograph {name} in {images}")
    splits, where = {}, {}
    for split, name in SPLITS.items():
        path = _find(folder, (name,), f"the list of the {split} split (Flickr8k_text.zip)")
        splits[split] = []
        for line, text in read_text_lines(BadLines(path)):
            if photograph := text.strip():
                told = _find_fault(photograph, there, captions, where, images)
                if told:
                    raise UserError(f"{path}, line {line}: {told}")
                where[photograph] = name
                splits[split].append(photograph)
        if not splits[split]:
            raise UserError(f"{path} names no photograph")
        splits[split].sort()
    return Flickr8k(images, captions, splits, left_out)


def _find(folder: str, names: tuple[str, ...], what: str) -> str:
    for name in names:
        for pattern in (name, f"*/{name}"):
            found = sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))
            if found:
                return found[0]
    raise UserError(f"{folder} has no {' or '.join(names)}, in it or in a folder in it: {what}")


def _find_fault(
    name: str, there: set[str], captions: dict[str, list[str]], where: dict[str, str], folder: str
) -> str:
    if name not in there:
        return f"there is no photograph {name} in {folder}"
    if name not in captions:
        return f"the photograph {name} has no caption"
    return f"the photograph {name} is in {where[name]} too" if name in where else ""


def _read_captions(path: str) -> Iterator[tuple[int, str, str]]:
    bad = BadLines(path)
    if os.path.basename(path) == TABLE:
        rows = read_rows(read_text_lines(bad), ",", bad)
        _, header = next(rows)
        if header != ["image", "caption"]:
            bad.refuse(1, f" is {','.join(header)[:60]!r} and must be 'image,caption'")
        pairs = ((line, *cells) for line, cells in rows)
    else:
        pairs = _split_tokens(bad)
    for line, name, text in pairs:
        if not text.strip():
            bad.refuse(line, " has no caption")
        yield line, name.strip(), text.strip()


def _split_tokens(bad: BadLines) -> Iterator[tuple[int, str, str]]:
    for line, text in read_text_lines(bad, "\n"):
        if not text.strip():
            continue
        name, tab, caption = text.partition("\t")
        photograph, number, _ = name.partition("#")
        if not (tab and number):
            bad.refuse(line, " does not read as PHOTOGRAPH.jpg#0, a tab, and a caption")
        yield line, photograph, caption


def write_shards(
    archive: Flickr8k, output: str, side: int | None, shard_size: int
) -> dict[str, list[str]]:
    """Writes the shards of all splits, with photographs resized to a side; returns their paths."""
    paths = {}
    for split, names in archive.splits.items():
        count = shards.count_shards(len(names), shard_size)
        paths[split] = [storage.join(output, f"{split}-{n:05d}.tar") for n in range(count)]
    ours = {path.rpartition("/")[2] for listed in paths.values() for path in listed}
    for name in storage.list_names(output):
        if name.endswith(".tar") and name not in ours:
            raise UserError(f"{output} has {name} of something else; choose another --output")
    total = sum(map(len, archive.splits.values()))
    with make_bar(total=total, unit="image", dynamic_ncols=True) as bar:
        for split, names in archive.splits.items():
            places = [
                shards.find_place(n, len(names), len(paths[split])) for n in range(len(names))
            ]
            placed = zip(names, places, strict=True)
            for number, some in itertools.groupby(placed, lambda each: each[1][0]):
                made = [_make_member(archive, name, place, side) for name, (_, place) in some]
                shards.write_shard(paths[split][number], made)
                bar.update(len(made))
    return paths


def _make_member(archive: Flickr8k, name: str, place: int, side: int | None) -> shards.Member:
    path = os.path.join(archive.folder, name)
    try:
        image = read_regular(path)
        picture = to_rgb(open_picture(image, MAX_PIXELS))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be used: {tell_in_a_line(error)}") from error
    if side:
        resized = io.BytesIO()
        picture.resize((side, side), Image.Resampling.LANCZOS).save(
            resized, "JPEG", quality=QUALITY
        )
        image = resized.getvalue()
    stem = name.partition(".")[0]
    about = {"captions": archive.captions[name], "flickr_id": stem.partition("_")[0]}
    return shards.Member(place, stem, "jpg", image, about)
