"""Files of ratings: those of Crisscrossed Captions, and of SimLex-999."""

import numpy as np

from big_align.core.errors import UserError
from big_align.suites.caption_files import find_folder, list_karpathy
from big_align.suites.judged.judgments import Numbering, RatedCaptions, RatedWords, Ratings
from big_align.suites.judged.rows import JudgedRow, read_columns
from big_align.suites.judged.sources import list_images

COCO_FOLDERS = ("", "/..", "/../coco", "/../../coco")
"""Where to look for Karpathy's file of COCO, relative to the folder of the ratings."""
COCO_FILE = "dataset_coco.json"
SIMILAR_TEXTS, SIMILAR_IMAGES = 3.0, 2.5
"""From these ratings on, a pair belongs together (Parekh et al. 2021, §3)."""
SIMLEX_COLUMNS = ("word1", "word2", "POS", "SimLex999", "conc(w1)", "conc(w2)", "concQ",
                  "Assoc(USF)", "SimAssoc333", "SD(SimLex)")  # fmt: skip
SUBSETS = ("all", "adjs", "nouns", "verbs", "conc_q1", "conc_q2", "conc_q3", "conc_q4", "hard")
"""Subsets that are measured separately.

They are parts of speech, quarters by concreteness, and the 333 most strongly associated pairs.
"""
PARTS_OF_SPEECH = {"A": "adjs", "N": "nouns", "V": "verbs"}


CAPTION = "sentid"
"""Prefix of the id of a caption in tables and numberings."""


def read_crisscrossed(path: str, split: str) -> RatedCaptions:
    """Reads the three tables of a split of Crisscrossed Captions, and COCO's captions.

    The path is that of `sits_test.csv` or `sits_val.csv`, beside which the others are; the split
    has the name that Karpathy's file of COCO gives it.
    """
    folder, _, name = path.rpartition("/")
    coco = _CocoSplit(f"{find_folder(path, folder, COCO_FOLDERS, COCO_FILE)}/{COCO_FILE}", split)
    sits = _read_ratings(path, coco, ("caption", "image"), SIMILAR_TEXTS)
    table = f"{folder}/{name.replace('sits_', 'sts_')}"
    sts = _read_ratings(table, coco, ("caption1", "caption2"), SIMILAR_TEXTS)
    table = f"{folder}/{name.replace('sits_', 'sis_')}"
    sis = _read_ratings(table, coco, ("image1", "image2"), SIMILAR_IMAGES)
    source = list_images(COCO_FILE, coco.folder, coco.files)
    return RatedCaptions(source, tuple(coco.texts), np.array(coco.owner), sts, sis, sits)


class _CocoSplit:
    """The images and captions of a split, and their numbers by their names in the tables."""

    def __init__(self, path: str, split: str):
        self.files: list[str] = []
        self.texts: list[str] = []
        self.owner: list[int] = []
        self.numbers: dict[str, int] = {}
        self.path, self.split = path, split
        images, self.folder = list_karpathy(path, split, ids=True)
        for image in images:
            self.numbers[image.name] = len(self.files)
            for number, text in image.captions:
                self.numbers[f"{CAPTION}:{number}"] = len(self.texts)
                self.texts.append(text)
                self.owner.append(len(self.files))
            self.files.append(image.path)

    def find(self, row: JudgedRow, column: str) -> int:
        """Returns the number of a caption, such as `COCO_val2014:sentid:411553`, or of an image."""
        name = row.text(column)
        known = name.partition(":")[2] if column.startswith("caption") else name
        if known not in self.numbers:
            raise UserError(f"{row.where}: {name} is not in the split {self.split} of {self.path}")
        return self.numbers[known]


def _read_ratings(
    path: str, coco: _CocoSplit, columns: tuple[str, str], positive: float
) -> Ratings:
    rows = list(read_columns(path, (*columns, "agg_score"), ","))
    if not rows:
        raise UserError(f"{path} has no rating")
    pairs = [[coco.find(row, column) for column in columns] for row in rows]
    ratings = [row.number("agg_score") for row in rows]
    return Ratings(np.array(pairs, np.int64), np.array(ratings), positive)


def read_simlex(path: str) -> RatedWords:
    """Reads `SimLex-999.txt`; its subsets are those of Kiros et al. 2018."""
    words, pairs, ratings = Numbering(), [], []
    subsets: dict[str, list[int]] = {name: [] for name in SUBSETS}
    for number, row in enumerate(read_columns(path, SIMLEX_COLUMNS, "\t")):
        pairs.append([words.add(row.text("word1")), words.add(row.text("word2"))])
        ratings.append(row.number("SimLex999"))
        for name in _name_subsets(row):
            subsets[name].append(number)
    if not pairs:
        raise UserError(f"{path} has no pair of words")
    places = {name: np.array(numbers, np.int64) for name, numbers in subsets.items()}
    return RatedWords(words.items, Ratings(np.array(pairs), np.array(ratings)), places)


def _name_subsets(row: JudgedRow) -> list[str]:
    """Returns the subsets of SimLex-999 that contain a pair."""
    speech, quarter = row.text("POS"), row.text("concQ")
    if speech not in PARTS_OF_SPEECH or quarter not in ("1", "2", "3", "4"):
        raise UserError(
            f"{row.where}: POS is {speech} and concQ is {quarter}; they are A, N or V, and 1 to 4"
        )
    hard = ["hard"] if row.number("SimAssoc333") else []
    return ["all", PARTS_OF_SPEECH[speech], f"conc_q{quarter}", *hard]
