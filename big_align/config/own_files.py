"""One's own images and texts: recognized by their path, and counted, before a run is sized."""

import functools
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from big_align.config.components.source_flags import TEXT, YOURS, open_source, recognize_source
from big_align.core.errors import UserError
from big_align.data.derived.split_source import SplitSource
from big_align.data.labels.classes import OWN_NAMES

MANY = 1_000_000  # pairs that a config without a path is for
HELD_OUT = ((500, 0.2), (2000, 0.1), (100_000, 0.05), (2_000_000, 0.01))
"""Numbers of examples, and the fraction to hold out of fewer than each.

Dozens are needed for any measurement to mean something, and retrieval uses at most 5000. There are
few fractions, so that some more examples change none.
"""
LEAST_HELD_OUT = 0.001
SPLIT = 20_000
"""Up to so many examples are split to size a run: a batch may be as large as what is trained on."""
SHARED = ("pairs", "source", "classes")
"""Arguments about the files themselves."""
LABELS = {"tar": "cls", "files": "cls", "csv": "label", "imagefolder": "label", "parquet": "label"}
"""Where labels usually are, by the kind of source."""
LACKING = {
    TEXT: "it has texts, and no images",
    "images": "its images have no texts: put a .txt file of the same name beside each, name them "
    "in a table (docs/data.md), or make a folder for each class",
}
"""What files of a kind have too little of."""


class OwnPairs(NamedTuple):
    """What was found at a path."""

    source: dict[str, Any]  # its node in the config
    count: int  # examples
    classes: str | None = None  # the class list of their labels, if they have any
    kept: int | None = None  # how many are trained on, where they were counted

    @property
    def held_out(self) -> float:
        """The fraction of them that is never trained on."""
        return next((held for bound, held in HELD_OUT if self.count < bound), LEAST_HELD_OUT)

    @property
    def has_captions(self) -> bool:
        """Whether images have texts of their own; else their classes have names."""
        return self.source["name"] != "folder" and self.source.get("caption") != ""

    @property
    def trained(self) -> int:
        """How many are trained on, or are expected to be: hashes of keys decide which."""
        expected = round(self.count * (1 - self.held_out))
        return max(1, expected if self.kept is None else self.kept)


def list_arguments(legal: Mapping[str, Collection[str]]) -> str:
    """Lists the arguments of a config with their values, as in "size=b32|b16; batch=BATCH"."""
    return "; ".join(f"{n}={'|'.join(v) or n.upper()}" for n, v in legal.items())


def split_argument(arg: str, own: Mapping[str, Collection[str]]) -> tuple[dict[str, str], OwnPairs]:
    """Reads a config's argument: a path, then values by name, parted by commas.

    Args:
      arg: what stands behind the colon of --config. `pairs` is a number of examples, which are not
        counted then, `source` a kind of source, and `classes` a class list; names that are none of
        these, nor of `own`, are fields of the source.
      own: the values of each of the config's own arguments; none stand for any.

    Returns:
      The values of the config's own arguments, and what was found at the path.

    Raises:
      UserError: nothing that can be read is there.
    """
    parts = [part for part in re.split(r",(?![^{]*\})", arg) if part]  # none of those in braces
    named = [part for part in parts if re.match(r"[a-z_]+=", part)]
    path = ",".join(part for part in parts if part not in named)
    given = dict(part.split("=", 1) for part in named)
    fields = [part for part in named if part.partition("=")[0] not in (*SHARED, *own)]
    if fields and not path:
        listed = list_arguments(own | dict.fromkeys(SHARED, ()))
        raise UserError(f"{fields[0]} is not one of {listed}; a field of a source follows its path")
    pairs = _find_pairs(path, given.get("source"), tuple(fields), given.get("pairs"))
    classes = given.get("classes") or (OWN_NAMES if pairs.source["name"] == "folder" else None)
    if not (classes or pairs.has_captions):
        raise UserError("without captions, images need classes: classes=LIST, label=FIELD")
    source = dict(pairs.source)
    if classes and "label" not in source and source["name"] in LABELS:
        source["label"] = LABELS[source["name"]]
    values = {name: given[name] for name in own if name in given}
    return values, pairs._replace(source=source, classes=classes)


@functools.cache
def _find_pairs(
    path: str, name: str | None, fields: tuple[str, ...], number: str | None
) -> OwnPairs:
    """Recognizes the files at a path, counts the examples, and prints once what was found."""
    if number is not None and not (number.isdecimal() and int(number)):
        raise UserError(f"pairs={number} must be a number above 0")
    if not path:
        if name:
            raise UserError("there is no path; it comes first, as in photos/,source=files")
        count = int(number or MANY)
        return OwnPairs(dict(name="tar", path=YOURS, caption="txt"), count)
    try:
        kind = name or recognize_source(path)
        if kind in (TEXT, "images"):
            raise UserError(f"{path}: {LACKING[kind]}")
        source, node = open_source(path, kind, fields, captions=True)
    except UserError as error:  # it names the flags of tools
        told = str(error).replace("--source_argument=", "").replace("--source_name", "source")
        raise UserError(re.sub(r"--source[=.]", "", told)) from error
    count = int(number or source.shard_sizes.sum())
    print(f"{path}: {count:,} examples, read as source={kind} (source=NAME says otherwise)")
    found = OwnPairs(node, count)
    if number or count > SPLIT:
        return found
    return found._replace(kept=int(SplitSource(source, found.held_out).shard_sizes.sum()))
