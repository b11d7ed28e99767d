"""Class lists: the names, descriptions and ids of the labels 0 to n - 1."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from big_align.core.errors import MissingFile, UserError, WrongValue, put_in_a_line, suggest
from big_align.core.words import compose, write_name
from big_align.data import files
from big_align.data.json_texts import find_half, format_json, read_json
from big_align.data.labels.line_ids import split_ids
from big_align.data.labels.templates import fill_templates, read_templates
from big_align.data.labels.word_net import ID
from big_align.data.table_lines import BadLines, read_records

NAMES = {"name", "names", "wnid"}
"""Columns of a table, of which it must have one."""
OWN_NAMES = "source"
"""In place of a class list: the names that a source has itself, such as those of its folders."""
BUILT_IN = os.path.join(os.path.dirname(__file__), "class_names")


@dataclasses.dataclass(frozen=True)
class ClassList:
    """Classes in the order of their labels.

    Two classes may have the same name: they remain two, distinguished by description or id.

    Attributes:
      names: what a class is called.
      descriptions: what the name means, "" if there is none.
      ids: the WordNet id ("n02124075") or the folder of a class, "" if there is none.
      templates: texts with {} for the name that belong to this list (`templates.py`); () for none.
      synonyms: other names of each class, whose texts are averaged with those of its name, as CLIP
        does for FER2013; () if no class has any.
      title: what `read_classes` has read; "" if the names are of another origin.
      described_in: the file that its descriptions are read from, if it is there; "" for none.
    """

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    ids: tuple[str, ...]
    templates: tuple[str, ...] = ()
    synonyms: tuple[tuple[str, ...], ...] = ()
    title: str = dataclasses.field(default="", compare=False)
    described_in: str = dataclasses.field(default="", compare=False)

    def __post_init__(self):
        counts = {len(self.names), len(self.descriptions), len(self.ids)}
        if len(counts) > 1 or 0 in counts:
            raise ValueError(
                f"{len(self.names)} names, {len(self.descriptions)} descriptions and "
                f"{len(self.ids)} ids; there must be one of each a class, and at least one class"
            )
        if self.synonyms and len(self.synonyms) != len(self.names):
            raise ValueError(f"{len(self.synonyms)} lists of synonyms for {len(self)} classes")

    @classmethod
    def from_names(cls, names: Sequence[str]) -> "ClassList":
        """Makes a list from names alone, which are kept as they are."""
        return cls(tuple(names), ("",) * len(names), ("",) * len(names))

    def __len__(self) -> int:
        return len(self.names)

    def take(self, positions: Sequence[int]) -> "ClassList":
        """Returns the classes at some positions, of which there must be one."""
        fields = (self.names, self.descriptions, self.ids)
        taken = (tuple(field[position] for position in positions) for field in fields)
        synonyms = tuple(self.synonyms[p] for p in positions) if self.synonyms else ()
        return ClassList(*taken, self.templates, synonyms, self.title, self.described_in)

    def phrases(self) -> tuple[str, ...]:
        """Returns "NAME, DESCRIPTION" of each class, or "NAME" if it has no description."""
        rows = zip(self.names, self.descriptions, strict=True)
        return tuple(fill_templates(("{}, {description}",), *row)[0] for row in rows)


def built_in_names() -> list[str]:
    """Lists the class lists that come with the package."""
    return sorted(name[:-5] for name in os.listdir(BUILT_IN) if name.endswith(".json"))


def join_classes(lists: Sequence[ClassList]) -> ClassList:
    """Concatenates class lists; a label of list i grows by the lengths of those before it.

    A class that is in two lists remains two classes. Templates are kept if all lists have the same.
    """
    templates = {classes.templates for classes in lists}
    return ClassList(
        tuple(name for classes in lists for name in classes.names),
        tuple(text for classes in lists for text in classes.descriptions),
        tuple(text for classes in lists for text in classes.ids),
        templates.pop() if len(templates) == 1 else (),
        tuple(more for classes in lists for more in classes.synonyms or ((),) * len(classes))
        if any(classes.synonyms for classes in lists)
        else (),
        ", ".join(dict.fromkeys(classes.title for classes in lists if classes.title)),
    )


def read_classes(name_or_path: str, allow_ids: bool = False) -> ClassList:
    """Reads a class list; the label of a class is its position.

    Underscores in names become spaces, since names are shown to text encoders. If there are several
    names (`names`: a JSON list, or a text with commas like WordNet's lemmas), the first is the
    name. `label`, if given, must be the position; an `id` that is the position as an integer is a
    label and not an id.

    Args:
      name_or_path: a list of the package ("imagenet", "cifar10", ...) or a file: JSON, which is a
        list of names, a list of objects {name or names, description?, id or wnid?, label?,
        synonyms?}, or an object {classes: such a list, templates?}; CSV or TSV with these columns;
        or text with one name per line, perhaps after ids or numbers (`line_ids.split_ids`).
      allow_ids: whether a class may be just a WordNet id, such as "n02124075"; its name is then ""
        (`descriptions.name_ids`).

    Raises:
      UserError: there is no such list or file, or it cannot be read; a class has no name, or only
        an id; a label is not the position; or two classes have the same name, description and id.
    """
    path = _find(name_or_path)
    if path.endswith(".json"):
        entries, templates = _entries_of_json(path)
    else:
        entries, templates = _entries_of_text(path), ()
    if not entries:
        raise UserError(f"class list {path}: has no class")
    rows = [
        _read_entry(entry, position, f"class list {path}, {place}")
        for position, (place, entry) in enumerate(entries)
    ]
    if not allow_ids and (bare := [id for name, _, id in rows if not name]):
        raise UserError(
            f"class list {path}: {bare[0]} is a WordNet id and no name"
            f"{f', and so are {len(bare) - 1} more' if len(bare) > 1 else ''}; python -m "
            f"big_align.tools.describe_classes --classes={path} --output=NAMED.json names them"
        )
    _check_distinct(rows, [place for place, _ in entries], path)
    synonyms = tuple(_read_synonyms(entry, f"class list {path}, {n}") for n, entry in entries)
    fields = *zip(*rows, strict=True), templates, synonyms if any(synonyms) else ()
    return ClassList(*fields, title=name_or_path)


def write_classes(classes: ClassList, path: str, source: str) -> None:
    """Writes a class list to a file, as `format_classes` formats it."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(format_classes(classes, source))


def format_classes(classes: ClassList, source: str) -> str:
    """Returns a class list as JSON that `read_classes` reads, and where it comes from."""
    synonyms = classes.synonyms or ((),) * len(classes)
    rows = zip(classes.names, classes.descriptions, classes.ids, synonyms, strict=True)
    objects = [dict(name=n, description=d, id=id, synonyms=more) for n, d, id, more in rows]
    lists = {"classes": [{key: value for key, value in row.items() if value} for row in objects]}
    lists |= {"templates": classes.templates} if classes.templates else {}
    return format_json({"source": source}, lists)


def _find(name_or_path: str) -> str:
    known = built_in_names()
    if name_or_path in known:
        return os.path.join(BUILT_IN, f"{name_or_path}.json")
    if os.path.isfile(name_or_path) or "://" in name_or_path:
        return name_or_path
    # What a path leads to may be mounted later.
    kind = MissingFile if os.path.splitext(name_or_path)[1] else WrongValue
    raise kind(
        f"class list {name_or_path!r} is neither a file nor a list of the package"
        f"{suggest(name_or_path, known)}, which are: {', '.join(known)}"
    )


def _entries_of_json(path: str) -> tuple[list[tuple[str, Any]], tuple[str, ...]]:
    content = read_json(path, "class list ")
    entries, templates = content, []
    if isinstance(content, dict):
        entries, templates = content.get("classes"), content.get("templates", [])
    if not isinstance(entries, list):
        raise UserError(
            f"class list {path}: must be a list of names or objects, or an object with `classes`"
        )
    if not isinstance(templates, list):
        raise UserError(f"class list {path}: `templates` must be a list of texts")
    try:
        read = read_templates(templates) if templates else ()
    except UserError as error:
        raise UserError(f"class list {path}: {error}") from error
    return [(f"entry {n}", entry) for n, entry in enumerate(entries)], read


def _entries_of_text(path: str) -> list[tuple[str, Any]]:
    """Returns the rows of a table, or the names that stand on a line each."""
    text = files.read_text(path, "class list ")
    first = text.partition("\n")[0].strip("\r")
    delimiter = "," * path.endswith(".csv")
    if path.endswith(".tsv") and ("\t" in first or first in NAMES):
        delimiter = "\t"
    if not delimiter:
        lines = [line.strip() for line in files.split_lines(text.rstrip())]
        rows = enumerate(split_ids(lines, f"class list {path}"), start=1)
        return [(f"line {n}", {"name": name, "id": id} if id else name) for n, (id, name) in rows]
    entries = []
    for line, row in read_records(text, delimiter, BadLines(f"class list {path}")):
        if not NAMES & row.keys():
            raise UserError(
                f"class list {path}: the first line must name the columns, `name` and perhaps "
                f"`description` and `id`, or `wnid`; it has: {', '.join(row)}"
            )
        for key in ("id", "label"):  # CSV has no integers
            number = row.get(key, "")
            if number.isdecimal() and (key == "label" or number == str(int(number))):
                row[key] = int(number)
        entries.append((f"line {line}", row))
    return entries


def _read_entry(entry: Any, position: int, where: str) -> tuple[str, str, str]:
    """Returns the name, description and id of a class; for a WordNet id alone the name is ""."""
    if isinstance(entry, str):
        entry = {"id" if ID.fullmatch(entry.strip()) else "name": entry.strip()}
    if not isinstance(entry, Mapping):
        shown = put_in_a_line(repr(entry))
        raise UserError(f"{where}: {shown} must be a text or an object with a `name`")
    label = entry.get("label")
    if label not in (None, "", position) or isinstance(label, bool):
        shown = put_in_a_line(repr(label))
        raise UserError(f"{where}: `label` is {shown}; it must be the position, {position}")
    name = _first_name(entry)
    description = entry.get("description") or ""
    ids = (entry.get("id"), entry.get("wnid"))
    id = next((str(value) for value in ids if value not in (None, "", position)), "")
    if name in (None, "") and ID.fullmatch(id):
        name = ""
    elif not isinstance(name, str) or not name.strip(" _\t"):
        raise UserError(f"{where}: has no name; a class is a text or an object with a `name`")
    if not isinstance(description, str):
        raise UserError(f"{where}: the description of {name!r} must be a text")
    if half := find_half(name + description):
        raise UserError(f"{where}: has {half}")
    return write_name(name), compose(description), id


def _read_synonyms(entry: Any, where: str) -> tuple[str, ...]:
    found = entry.get("synonyms") or [] if isinstance(entry, Mapping) else []
    if not isinstance(found, list) or not all(isinstance(n, str) and n.strip() for n in found):
        raise UserError(f"{where}: `synonyms` must be a list of names")
    if half := find_half("".join(found)):
        raise UserError(f"{where}: has {half}")
    return tuple(map(write_name, found))


def _first_name(entry: Mapping) -> Any:
    if entry.get("name"):
        return entry["name"]
    names = entry.get("names")
    if isinstance(names, str):
        names = names.split(",")
    return names[0] if isinstance(names, list) and names else None


def _check_distinct(rows: list[tuple[str, str, str]], places: list[str], path: str) -> None:
    first = {}
    for row, place in zip(rows, places, strict=True):
        if row in first:
            shown = row[0] or row[2]
            raise UserError(
                f"class list {path}: {first[row]} and {place} are both {shown!r} and nothing "
                "distinguishes them; give them different names, descriptions or ids"
            )
        first[row] = place
