"""Published numbers for named data sets, to be shown next to measured ones."""

import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from big_align.suites import catalog

FILE = pathlib.Path(__file__).parent / "published.json"


class PublishedNumber(NamedTuple):
    """A number from a table."""

    model: str  # as named in the table
    data: str  # what it was trained on; "" if the table does not say
    paper: str
    table: str  # as in "Table 4"
    value: float  # in percent


@functools.cache
def _read_file() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def read_papers() -> dict[str, str]:
    """Returns the authors and titles of the papers, by the names that numbers use for them."""
    return _read_file()["papers"]


def find_published(dataset: str, task: str) -> dict[str, list[PublishedNumber]]:
    """Returns the published numbers for a data set or suite, by the column of results.

    For a suite these are the means that papers report, and those of tables that have all of it.
    """
    found: dict[str, list[PublishedNumber]] = {}
    for entry in _read_file()["numbers"]:
        value = _find_value(entry["values"], dataset) if entry["task"] == task else None
        if value is not None:
            fields = {name: entry[name] for name in PublishedNumber._fields[:-1]}
            found.setdefault(entry["column"], []).append(PublishedNumber(**fields, value=value))
    return found


def _find_value(values: Mapping[str, float], dataset: str) -> float | None:
    """Returns the number of a data set or suite, None if there is none."""
    if dataset in values or dataset not in catalog.suites():
        return values.get(dataset)
    names = catalog.expand([dataset])
    return sum(values[x] for x in names) / len(names) if values.keys() >= set(names) else None
