"""What the classes of a list mean, from WordNet and from files (iCLIP §3, eq. 5)."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence

from big_align.core.errors import UserError
from big_align.core.words import compose, write_name
from big_align.data.files import read_text
from big_align.data.json_texts import read_json
from big_align.data.labels.classes import ClassList
from big_align.data.labels.word_net import ID, WordNet
from big_align.data.table_lines import BadLines, read_records

ORIGINS = {
    "file": "by the file of descriptions",
    "list": "by the class list itself",
    "id": "by WordNet ids",
    "name": "by names in WordNet",
    "": "without a description",
}


@dataclasses.dataclass(frozen=True)
class Description:
    """What a class means."""

    text: str  # "" if none was found
    origin: str  # where it comes from, a key of ORIGINS
    note: str = ""  # for the report: which of how many senses was taken, or why there is no text


def read_descriptions(path: str) -> dict[str, str | None]:
    """Reads descriptions by id and by name; None stands for a name that has several.

    The file is JSON, an object {name or id: description} or a list of objects {name?, id or wnid?,
    description}; or CSV with these columns.
    """
    if path.endswith(".csv"):
        text = read_text(path, "descriptions ")
        rows = [row for _, row in read_records(text, ",", BadLines(f"descriptions {path}"))]
    else:
        rows = _rows_of_json(path)
    found = defaultdict(set)
    for row in rows:
        description = compose(str(row.get("description") or ""))
        for key in (row.get("id"), row.get("wnid"), row.get("name")):
            if description and isinstance(key, str) and key.strip():
                found[write_name(key)].add(description)
    if not found:
        raise UserError(
            f"descriptions {path}: has none; a row needs a `description` and a `name` or an `id`"
        )
    return {key: texts.pop() if len(texts) == 1 else None for key, texts in found.items()}


def _rows_of_json(path: str) -> list[Mapping]:
    content = read_json(path, "descriptions ")
    if isinstance(content, dict) and not isinstance(content.get("classes"), list):
        return [{"name": key, "description": text} for key, text in content.items()]
    rows = content["classes"] if isinstance(content, dict) else content
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(
            f"descriptions {path}: must be an object {{name or id: description}} or a list of "
            "objects"
        )
    return rows


def name_ids(classes: ClassList, word_net: WordNet, rename: bool = False) -> ClassList:
    """Names classes after the first lemma of their synsets: bare ids, or all that have an id."""
    rows = zip(classes.names, classes.ids, strict=True)
    names = tuple(
        word_net.name_id(id) if not name or (rename and ID.fullmatch(id)) else name
        for name, id in rows
    )
    return dataclasses.replace(classes, names=names)


def describe(
    classes: ClassList, word_net: WordNet, given: Mapping[str, str | None]
) -> list[Description]:
    """Finds what each class means.

    What is given comes first, then the description in the list, then the synset of a WordNet id,
    and for a class without such an id the first sense of its name. WordNet is opened only if it is
    needed. A name with several descriptions in `given` is a UserError.
    """
    return [
        _describe_one(*one, word_net, given)
        for one in zip(classes.names, classes.descriptions, classes.ids, strict=True)
    ]


def _describe_one(
    name: str, own: str, id: str, word_net: WordNet, given: Mapping[str, str | None]
) -> Description:
    key = next((key for key in (write_name(id), name) if key in given), None)
    if key is not None:
        if given[key] is None:
            raise UserError(
                f"descriptions: {key!r} has several; choose one by the `id` of the class list"
            )
        return Description(given[key], "file")
    if own:
        return Description(own, "list")
    if ID.fullmatch(id):
        text = word_net.describe_id(id)
        return Description(text, "id") if text else Description("", "", "no synset has this id")
    senses = word_net.senses_of(name)
    if not senses:
        return Description("", "", "no noun of WordNet")
    count = f"{senses[0][0]}, first of {len(senses)}" if len(senses) > 1 else ""
    return Description(senses[0][1], "name", count)


def take_descriptions(classes: ClassList, given: Mapping[str, str | None]) -> ClassList:
    """Returns the list with descriptions that are given by id or by name, and no others."""
    rows = zip(classes.names, classes.ids, strict=True)
    found = tuple(given.get(write_name(id)) or given.get(name) or "" for name, id in rows)
    return dataclasses.replace(classes, descriptions=found)


def apply_descriptions(classes: ClassList, found: Sequence[Description]) -> ClassList:
    """Returns the list with its descriptions; UserError if nothing sets two classes apart."""
    described = dataclasses.replace(classes, descriptions=tuple(each.text for each in found))
    for phrase, labels in find_repeated(described.phrases()).items():
        ids = {classes.ids[label] for label in labels if ID.fullmatch(classes.ids[label])}
        if len(ids) < len(labels):
            raise UserError(
                f"labels {', '.join(map(str, labels))} are all {phrase!r}, and nothing sets them "
                "apart; give them WordNet ids, or descriptions by id"
            )
    return described


def find_repeated(texts: Sequence[str]) -> dict[str, list[int]]:
    """Returns the texts that occur more than once, with their positions."""
    places = defaultdict(list)
    for position, text in enumerate(texts):
        places[text].append(position)
    return {text: positions for text, positions in places.items() if len(positions) > 1}


def report(
    classes: ClassList, found: Sequence[Description], given: Mapping[str, str | None]
) -> list[str]:
    """Reports what was found, in lines."""
    counts = {origin: sum(each.origin == origin for each in found) for origin in ORIGINS}
    lines = [f"{len(classes)} classes"]
    lines += [f"  {counts[key]:6d} {words}" for key, words in ORIGINS.items() if counts[key]]
    rows = list(zip(range(len(classes)), classes.names, classes.ids, found, strict=True))
    lines += _section(
        "Names with several senses in WordNet, and the one taken (an id chooses another):",
        [f"{n} {name}: {x.text} ({x.note})" for n, name, _, x in rows if x.text and x.note],
    )
    lines += _section(
        "Without a description:",
        [f"{n} {name} {id}".rstrip() + f": {x.note}" for n, name, id, x in rows if not x.text],
    )
    phrases = classes.phrases()
    lines += _section(
        "One name, several classes:",
        [
            f"{n} {phrases[n]}{f' ({classes.ids[n]})' if classes.ids[n] else ''}"
            for labels in find_repeated(classes.names).values()
            for n in labels
        ],
    )
    lines += _section(
        "Several classes with the same name and description, which no text can distinguish:",
        [f"{', '.join(map(str, n))}: {phrase}" for phrase, n in find_repeated(phrases).items()],
    )
    known = {*classes.names, *map(write_name, classes.ids)}
    unused = [key for key in given if key not in known]
    return lines + _section("In the file of descriptions, but no class:", unused)


def _section(title: str, rows: list[str]) -> list[str]:
    return [f"{title[:-1]} ({len(rows)}):", *(f"  {row}" for row in rows)] if rows else []
