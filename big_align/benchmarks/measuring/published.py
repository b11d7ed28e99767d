"""Published numbers for named data sets, to be shown next to measured ones."""

import functools
import json
import pathlib
from typing import NamedTuple

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

    Args:
      dataset: name of the data set.
      task: one of `plans.TASKS`.

    Returns:
      Numbers by column; "score" is the metric of the data set.
    """
    found: dict[str, list[PublishedNumber]] = {}
    for entry in _read_numbers():
        if entry["task"] == task and dataset in entry["values"]:
            fields = {name: entry[name] for name in PublishedNumber._fields[:-1]}
            number = PublishedNumber(**fields, value=entry["values"][dataset])
            found.setdefault(entry["column"], []).append(number)
    return found
