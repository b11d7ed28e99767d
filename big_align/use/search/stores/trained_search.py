"""Whether the rows of a kind get an approximate search, and what an index notes of it."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from jaxtyping import Float, Int

from big_align.core.errors import UserError
from big_align.use.search.stores.recall import Searcher, choose_settings, note_search
from big_align.use.search.stores.store import EXACT_BELOW, Sample, SearchGoal


class SearchTrainer(NamedTuple):
    """How a store makes an approximate search of rows."""

    method: str  # its name
    what: str  # begins a message of how many it finds: "ScaNN finds"
    least: int  # rows that it takes
    train: Callable[[], tuple[Searcher, dict[str, Any]]]  # returns also what is to be noted
    search_exactly: Callable[[Float[np.ndarray, "q d"], int], Int[np.ndarray, "q _"]]
    sample: Sample
    missing: str = ""  # what would have to be installed for it


def train_search(kind: str, count: int, goal: SearchGoal, trainer: SearchTrainer) -> dict[str, Any]:
    """Trains what searches `count` rows of a kind and measures it; returns what to note.

    Of few rows, or where the recall is not reached, the search stays exact.

    Raises:
      UserError: the search that was asked for does not reach the recall.
    """
    exact = {"method": "exact", "rows": count}
    asked = goal.method == trainer.method
    if goal.method == "exact" or count < (trainer.least if asked else EXACT_BELOW):
        return exact
    if trainer.missing and not asked:
        logging.warning("%s is not installed: the search of %s stays exact", trainer.missing, kind)
        return exact
    begin = time.monotonic()
    searcher, noted = trainer.train()
    queries = goal.draw(trainer.sample, kind)
    measured, recalls = choose_settings(searcher, trainer.search_exactly, queries, goal.recall)
    noted = exact | noted | note_search(measured, recalls, queries, goal.recall)
    noted["seconds_to_build"] = round(time.monotonic() - begin, 1)
    if measured.recall >= goal.recall:
        return noted | {"method": trainer.method}
    told = f"{trainer.what} {measured.recall:.3f} of the 10 nearest {kind}"
    told += f", less than {goal.recall:g}"
    if asked:
        raise UserError(f"{told}; give a lower --recall, or --search=exact")
    logging.warning("%s: the search of %s stays exact", told, kind)
    return exact | {"tried": noted}
