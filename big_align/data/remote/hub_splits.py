"""The Parquet files of a data set on a hub: its own, or those that the hub has made of it."""

import collections
import fnmatch
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from absl import logging

from big_align.core.errors import FieldError, UserError, check_known
from big_align.core.regular_files import read_regular
from big_align.data.remote import hub

CONVERTED = "refs/convert/parquet"
"""The branch of what the hub has converted, `SUBSET/SPLIT/0000.parquet`."""
PARTIAL = "partial-"
DEFAULT = "default"
SHARD = re.compile(r"(?:(.*)/)?([\w.]+?)-\d+-of-\d+(?:-\w+)?\.parquet")
NUMBERED = re.compile(r"(?:(.*)/)?([^/]+)/\d+\.parquet")
NAMED = re.compile(r"(?:(.*)/)?(train|test|validation|valid|val|dev|eval)\b[^/]*\.parquet")

Splits = Mapping[str, Mapping[str, list[str]]]
"""Files by subset and split."""


class Listing(NamedTuple):
    """The files of a data set at a commit."""

    id: str
    commit: str
    names: list[str]


def list_split(id: str, split: str, subset: str | None, revision: str | None) -> list[str]:
    """Returns the addresses of the files of a split, `hf://datasets/...`, at a commit.

    A UserError lists the subsets or the splits that there are.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", id):
        raise UserError(f"path = {id!r} must be OWNER/NAME, a data set of Hugging Face's hub")
    listing = _list(id, revision or "main")
    splits = _read_card(listing) or _group(listing.names)
    if not splits and revision is None:
        listing = _list_converted(listing)
        splits = _group(listing.names)
    if not splits:
        shown = ", ".join(listing.names[:8])
        raise UserError(
            f"the data set {id} has no Parquet files{revision and f' at {revision}' or ''}; it has "
            f"{shown or 'no files'}: hf://datasets/{id}/... reads other formats"
        )
    there = splits[_choose_subset(id, subset, splits)]
    check_known("split", split, there)
    if any(f"/{PARTIAL}" in f"/{name}" for name in there[split]):
        logging.warning("%s: the hub has converted only a part of the split %s", id, split)
    return [f"hf://datasets/{id}@{listing.commit}/{name}" for name in there[split]]


def _choose_subset(id: str, subset: str | None, splits: Splits) -> str:
    if subset is not None:
        check_known("subset", subset, splits)
        return subset
    if DEFAULT in splits or len(splits) == 1:
        return DEFAULT if DEFAULT in splits else next(iter(splits))
    raise FieldError(
        f"the data set {id} has several subsets: {', '.join(splits)}", subset=next(iter(splits))
    )


def _list(id: str, revision: str) -> Listing:
    library = hub.load_library(f"the data set {id}")
    where = f"the data set {id}" + (f" at {revision}" if revision != "main" else "")
    told = hub.call(where, library.HfApi().dataset_info, id, revision=revision)
    return Listing(id, told.sha, sorted(file.rfilename for file in told.siblings or ()))


def _list_converted(listing: Listing) -> Listing:
    """Lists what the hub has converted; the data set itself if it has converted nothing."""
    try:
        return _list(listing.id, CONVERTED)
    except hub.HubError as error:
        if error.status != 404:
            raise
        return listing


def _read_card(listing: Listing) -> Splits:
    """Returns the Parquet files that the card of a data set assigns to subsets and splits."""
    card = "README.md"
    if card not in listing.names:
        return {}
    library = hub.load_library(listing.id)
    options = {"repo_type": "dataset", "revision": listing.commit}
    path = hub.call_cached(listing.id, library.hf_hub_download, listing.id, card, **options)
    content = read_regular(pathlib.Path(path)).decode(errors="replace")
    try:
        configs = library.DatasetCard(content, ignore_metadata_errors=True).data.get("configs")
    except ValueError:  # no YAML
        return {}
    found: dict[str, dict[str, list[str]]] = collections.defaultdict(dict)
    for config in configs if isinstance(configs, list) else ():
        for split, patterns in _read_patterns(config):
            names = [n for n in listing.names if any(fnmatch.fnmatch(n, p) for p in patterns)]
            if names and all(name.endswith(".parquet") for name in names):
                found[str(config.get("config_name", DEFAULT))][split] = names
    return found


def _read_patterns(config: Any) -> Iterable[tuple[str, list[str]]]:
    """Yields the splits of a subset, each with the patterns of its files."""
    given = config.get("data_files") if isinstance(config, Mapping) else None
    entries = given if isinstance(given, list) else [given]
    if all(isinstance(entry, str) for entry in entries):
        entries = [{"split": "train", "path": entries}]
    for entry in entries:
        if isinstance(entry, Mapping) and "path" in entry:
            paths = entry["path"] if isinstance(entry["path"], list) else [entry["path"]]
            yield str(entry.get("split", "train")), [str(path) for path in paths]


def _group(names: Iterable[str]) -> Splits:
    """Groups Parquet files by what their names say of subsets and splits; the rest is "train"."""
    found: dict[str, dict[str, list[str]]] = collections.defaultdict(dict)
    for name in names:
        if not name.endswith(".parquet"):
            continue
        match = next(
            filter(None, (kind.fullmatch(name) for kind in (SHARD, NUMBERED, NAMED))), None
        )
        folder, split = match.groups() if match else (name.rpartition("/")[0], "train")
        subset = (folder or "").rpartition("/")[2]
        subset = DEFAULT if subset in ("", "data") else subset
        found[subset].setdefault(split.removeprefix(PARTIAL), []).append(name)
    return found
