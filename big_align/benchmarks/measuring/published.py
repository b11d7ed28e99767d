"""What papers have published of named data sets, to be set beside what is measured."""

import functools
import json
import pathlib
from typing import NamedTuple

FILE = pathlib.Path(__file__).parent / "published.json"


class PublishedNumber(NamedTuple):
    """A number of a table.

    Attributes:
      model: as the table calls it.
      data: what it was trained on; "" where the table does not tell.
      paper: which paper the table is in.
      table: as in "Table 4".
      value: in hundredths.
    """

    model: str
    data: str
    paper: str
    table: str
    value: float


@functools.cache
def read_papers() -> dict[str, str]:
    """Returns the authors and titles of the papers, by the names that numbers have for them."""
    return json.loads(FILE.read_text(encoding="utf-8"))["papers"]


@functools.cache
def _read_numbers() -> list[dict]:
    return json.loads(FILE.read_text(encoding="utf-8"))["numbers"]


def find_published(dataset: str, task: str) -> dict[str, list[PublishedNumber]]:
    """Returns what was published of a data set, by the column of results that it is beside.

    Args:
      dataset: its name.
      task: of `plans.TASKS`.

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
