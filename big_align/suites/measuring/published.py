"""Published numbers for named data sets, to be shown next to measured ones."""

import functools
import json
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

from big_align.suites import catalog

FILE = pathlib.Path(__file__).parent / "published.json"


class PublishedNumber(NamedTuple):
    """A number from a table.

    Attributes:
      model: the model, as named in the table.
      data: what it was trained on; "" if the table does not say.
      paper: the paper of the table.
      table: the table, as in "Table 4".
      value: value in percent.
    """

    model: str
    data: str
    paper: str
    table: str
    value: float


@functools.cache
def read_papers() -> dict[str, str]:
    """Returns the authors and titles of the papers, by the names that numbers use for them."""
    return json.loads(FILE.read_text(encoding="utf-8"))["papers"]


@functools.cache
def _read_numbers() -> list[dict]:
    return json.loads(FILE.read_text(encoding="utf-8"))["numbers"]


def find_published(dataset: str, task: str) -> dict[str, list[PublishedNumber]]:
    """Returns the published numbers for a data set, by the column of results they belong to.

    For a suite these are the means that papers report, and those of tables that have all of it.

    Args:
      dataset: name of the data set, or of a suite.
      task: one of `plans.TASKS`.

    Returns:
      Numbers by column; "score" is the metric of the data set.
    """
    found: dict[str, list[PublishedNumber]] = {}
    for entry in _read_numbers():
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
