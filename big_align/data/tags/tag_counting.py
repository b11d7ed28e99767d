"""Which tags a corpus of captions has, and how often: the making of a tag list (IDEA §4.1)."""

import collections
import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from absl import logging

from big_align.core.errors import UserError
from big_align.core.progress import make_bar
from big_align.core.words import split_words, write_name
from big_align.data import boundary, examples, files
from big_align.data.labels.classes import read_classes
from big_align.data.labels.word_net import WordNet
from big_align.data.tags.tag_extraction import FUNCTION_WORDS, TagExtractor

OPEN_IMAGES_ID = re.compile(r"/[mgt]/\w+")
OPEN_IMAGES_HEADER = ["LabelName", "DisplayName"]
COMPOUNDS = ("without_hypernyms_inside", "without_hypernyms", "all")


class Chosen(NamedTuple):
    """Tags of a corpus."""

    names: list[str]  # the most frequent first
    counts: list[int]  # captions with each
    removed: list[str]  # more frequent tags that were left out
    candidates: int  # names that were looked for
    captions: int  # how many there are


def read_names(path: str, ids: str | None = None) -> list[str]:
    """Reads the names that tags may have, in lower case and each once.

    They are OpenImages' class descriptions (CSV with rows "/m/011k07,Tortoise", with or without a
    header), of which a file `ids` chooses some, one id a line; or what `read_classes` takes.
    """
    rows = _read_open_images(path) if path.endswith(".csv") else None
    if ids is not None:
        rows = _keep_ids(rows, path, ids)
    names = read_classes(path).names if rows is None else [name for _, name in rows]
    # names with the same words are one tag
    kept: dict[tuple[str, ...], str] = {}
    for name in names:
        if words := tuple(split_words(name)):
            kept.setdefault(words, write_name(name).lower())
    return list(kept.values())


def _keep_ids(rows: list[list[str]] | None, path: str, ids: str) -> list[list[str]]:
    if rows is None:
        raise UserError(f"--ids is of OpenImages' class descriptions, and {path} has no ids")
    wanted = {line.strip() for line in files.split_lines(files.read_text(ids, "--ids="))}
    kept = [row for row in rows if row[0] in wanted]
    if not kept:
        raise UserError(f"--ids={ids} has no id of {path}, one per line, such as {rows[0][0]}")
    return kept


def _read_open_images(path: str) -> list[list[str]] | None:
    """Returns the ids and names in OpenImages' CSV; None for another file."""
    try:
        lines = io.StringIO(files.read_text(path), newline="")
        rows = [row for row in csv.reader(lines) if row]
    except (UserError, csv.Error):
        return None  # `read_classes` says what is wrong
    if rows and rows[0] == OPEN_IMAGES_HEADER:
        rows = rows[1:]
    if not rows or not OPEN_IMAGES_ID.fullmatch(rows[0][0]):
        return None
    for number, row in enumerate(rows, start=1):
        if len(row) != 2:
            raise UserError(f"{path}: class {number} is {','.join(row)!r}, not an id and a name")
    return rows


def list_nouns(dictionary: WordNet) -> list[str]:
    """Lists the nouns of WordNet that can be tags of one or several words.

    Left out are plurals of other nouns, numbers, single letters, and what begins with a function
    word.
    """

    def is_tag(name: str) -> bool:
        words = split_words(name)
        if " ".join(words) != name or words[0] in FUNCTION_WORDS or len(words[0]) < 2:
            return False
        return name.replace(" ", "").isalpha() and dictionary.lemma_of(words[-1]) == words[-1]

    return [name for name in dictionary.nouns() if is_tag(name)]


def keep_compounds(names: Sequence[str], which: str, dictionary: WordNet) -> list[str]:
    """Leaves out compound nouns that have a hypernym among the names (IDEA §3.2).

    "We only select the compound nouns without hypernyms" has two readings, as any noun of WordNet
    but "entity" has some hypernym:

    - "without_hypernyms_inside": none of the names inside the compound is its hypernym. "brown
      bear" is left out for "bear", which matches in its place; "hot dog", the paper's example, is
      no "dog" and stays.
    - "without_hypernyms": no name at all is. "hot dog" is left out where "food" or "person" is a
      name.

    Compounds that WordNet lacks have none; "all" leaves out nothing, as the authors' list does.
    """
    if which == "all":
        return list(names)
    known = {tuple(split_words(name)): name for name in names}
    everything = {" ".join(words) for words in known}
    kept = []
    for words, name in known.items():
        count = len(words)
        others = everything
        if which == "without_hypernyms_inside":
            spans = ((i, j) for i in range(count) for j in range(i + 1, count + 1))
            others = {" ".join(words[i:j]) for i, j in spans if j - i < count} & everything
        if count == 1 or not others or not dictionary.hypernyms_of(" ".join(words)) & others:
            kept.append(name)
    return kept


def choose_tags(
    names: Sequence[str],
    read_captions: Callable[[], Iterable[str]],
    min_count: int = 6,
    remove_top: int = 0,
    max_tags: int | None = None,
    dictionary: WordNet | None = None,
) -> Chosen:
    """Chooses the tags of a list and counts them; raises UserError if none remains.

    Captions are read twice. The choice follows from the counts with all names; the counts that are
    returned are those with the chosen ones alone, and may be higher: a compound that is too rare to
    be a tag no longer hides the noun in it.

    Args:
      names: the names that tags may have.
      read_captions: yields the captions from the beginning.
      min_count: captions that a tag needs (§4.1: "more than 5").
      remove_top: how many of the most frequent tags are left out (Table 4, RmTopFreq).
      max_tags: how many of the most frequent remaining ones are kept; None for all.
      dictionary: leaves out names that are mostly not nouns; None for names that someone chose.
    """
    captions, counts = _count(names, read_captions(), "counting names")
    frequent = [id for id, count in counts.most_common() if count >= min_count]
    frequent.sort(key=lambda id: (-counts[id], id))
    if dictionary:
        frequent = [id for id in frequent if dictionary.is_mostly_noun(names[id])]
    kept = [names[id] for id in frequent[remove_top:][:max_tags]]
    if not kept:
        raise UserError(
            f"no tag remains: of {len(names)} names {len(frequent)} occur in at least {min_count} "
            f"of {captions} captions, and the {remove_top} most frequent are left out; give more "
            "captions or other names, or lower --min_count or --remove_top"
        )
    captions, counts = _count(kept, read_captions(), "counting tags")
    order = sorted(range(len(kept)), key=lambda id: (-counts[id], id))
    return Chosen(
        [kept[id] for id in order],
        [counts[id] for id in order],
        [names[id] for id in frequent[:remove_top]],
        len(names),
        captions,
    )


def _count(
    names: Sequence[str], captions: Iterable[str], what: str
) -> tuple[int, collections.Counter]:
    extract = TagExtractor(names, len(names))
    counts: collections.Counter = collections.Counter()
    number = 0
    for caption in make_bar(captions, what, unit=" captions", mininterval=1.0):
        counts.update(extract.find([caption]))
        number += 1
    return number, counts


def read_captions(source: examples.Source, used: int | None = None) -> Iterator[str]:
    """Yields the captions of a source, or the first `used` of each example; logs broken ones."""
    broken = 0
    for shard, size in enumerate(source.shard_sizes.tolist()):
        for index in range(size):
            try:
                yield from boundary.read_texts(source, shard, index)[0][:used]
            except examples.BrokenExample as error:
                broken += 1
                if broken == 1:
                    logging.warning("left out %s: %s", source.name(shard, index), error)
    if broken:
        logging.warning("%d broken examples were left out", broken)
