"""Placeholders of the right size for files that a config names but that do not exist yet.

A plan needs the number of classes and tags, not their names.
"""

import json
from pathlib import Path

from ml_collections import ConfigDict

from big_align.config.kept_files import VOCABULARIES
from big_align.data import files
from big_align.data.labels.classes import OWN_NAMES, ClassList, built_in_names, write_classes
from big_align.data.tags.tag_list import make_tag_list, write_tag_list
from big_align.runs.check import BlankTokenizer
from big_align.runs.own_vocabulary import FROM_DATA

CLASSES = {"imagenet21k": 21_841, "imagenet22k": 21_841, "imagenet": 1000}
"""Length of a class list that does not exist, by a word in its path."""
TAGS = {"cc3m": 2500}
"""Length of a tag list that does not exist, likewise (IDEA §4.1)."""
OTHERWISE = 1000


def fill_in(config: ConfigDict, folder: Path) -> list[str]:
    """Names placeholders for missing files in a config, and writes them; tells what was assumed."""
    said = []
    data = config.data
    for node in (data, *(data.get("mixture") or {}).values()):
        listed = node.get("classes")
        if listed and not _is_there(listed):
            named = json.dumps(node.get("source", {}).to_dict()) if listed == OWN_NAMES else listed
            count = _count(named, CLASSES)
            node.classes = str(folder / f"classes_{count}.json")
            names = tuple(f"class {number}" for number in range(count))
            classes = ClassList(names, names, ("",) * count)  # described, for iCLIP
            write_classes(classes, node.classes, "made for a plan")
            said.append(f"the class list {listed!r} is not there: {count:,} classes are assumed")
    tags = data.get("tags") or {}
    if tags.get("path") and not _is_there(tags["path"]):
        count = _count(tags["path"], TAGS)
        said.append(f"the tag list {tags['path']} is not there: {count:,} tags are assumed")
        tags["path"] = _write_tags(config, count, folder)
    return said


def tell_vocabulary(config: ConfigDict) -> list[str]:
    """Tells how many word pieces the text tower has rows for, if their file is not there."""
    size = (config.model.get("text") or {}).get("vocab_size")
    given = next(filter(None, map(config.tokenizer.get, VOCABULARIES)), None)
    if not (size and given) or _is_there(given):
        return []
    lack = "will be learned from the data" if given == FROM_DATA else "is not there"
    field = "config.model.text.vocab_size"
    return [f"the vocabulary {given!r} {lack}: {size:,} word pieces are assumed, as in {field}"]


def _is_there(listed: str) -> bool:
    """Returns whether a list can be read; one in a bucket that is out of reach here cannot be."""
    try:
        return listed in built_in_names() or files.is_file(listed)
    except Exception:  # whatever a file system may raise, such as without credentials
        return False


def _count(path: str, known: dict[str, int]) -> int:
    return next((count for word, count in known.items() if word in path), OTHERWISE)


class _TwoTokens(BlankTokenizer):
    """Gives every name two tokens."""

    def __call__(self, texts):
        ids, mask = super().__call__(texts)
        mask = mask.copy()
        mask[:, 2:] = False
        return ids + 1, mask


def _write_tags(config: ConfigDict, count: int, folder: Path) -> str:
    path = str(folder / "tags.json")
    names = [f"tag {number}" for number in range(count)]
    tags = make_tag_list(names, range(count, 0, -1), _TwoTokens(config.tokenizer), path=path)
    write_tag_list(tags, path, {"what": "made for a plan"})
    return path
