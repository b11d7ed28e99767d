"""How many of the nearest rows a search finds, and the settings that find enough of them."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

K = 10
"""Neighbors by which recall is measured."""


class Attempt(NamedTuple):
    """The result of trying settings: the recall among the 10 nearest, and seconds per query."""

    settings: Any
    recall: float
    seconds: float


def measure_recall(found: Int[np.ndarray, "q _"], true: Int[np.ndarray, "q k"]) -> float:
    """Returns the fraction of the true numbers that were found, over all queries; of none, 1."""
    if not true.size:
        return 1.0
    return float((true[:, :, None] == found[:, None, :]).any(axis=2).mean())


@runtime_checkable
class Searcher(Protocol):
    """An approximate search with settings."""

    def list_settings(self) -> Iterable[Iterable[Any]]:
        """Yields groups of settings, in each of which the later ones search more."""

    def search(
        self, queries: Float[np.ndarray, "q d"], k: int, settings: Any
    ) -> Int[np.ndarray, "q _"]:
        """Returns the numbers of rows that are probably nearest."""


def choose_settings(
    rows: Searcher,
    search_exactly: Callable[[Float[np.ndarray, "q d"], int], Int[np.ndarray, "q _"]],
    queries: Mapping[str, tuple[Float[np.ndarray, "_ d"], Int[np.ndarray, "_"]]],
    target: float,
) -> tuple[Attempt, dict[str, float]]:
    """Chooses the fastest settings whose recall reaches a target for every kind of query.

    Each query comes with the number of its own row, which does not count as found, so that one more
    is asked for; -1 if it has none. Returns the settings, with the lowest recall among the kinds,
    and the recall of each kind. If no settings reach the target, those with the highest recall.
    """
    wanted = {kind: K + bool((own >= 0).any()) for kind, (_, own) in queries.items()}
    true = {
        kind: _leave_out(search_exactly(given, wanted[kind]), own)
        for kind, (given, own) in queries.items()
    }
    best: tuple[Attempt, dict[str, float]] | None = None
    for group in rows.list_settings():
        for settings in group:
            recalls, seconds, count = {}, 0.0, 0
            for kind, (given, own) in queries.items():
                begin = time.perf_counter()
                found = rows.search(given, wanted[kind], settings)
                seconds += time.perf_counter() - begin
                count += len(given)
                recalls[kind] = measure_recall(_leave_out(found, own), true[kind])
            here = Attempt(settings, min(recalls.values()), seconds / count)
            if best is None or _is_better(here, best[0], target):
                best = here, recalls
            if here.recall >= target:  # to search more only takes longer
                break
    return best


def note_search(
    measured: Attempt, recalls: Mapping[str, float], queries: Mapping[str, Any], target: float
) -> dict[str, Any]:
    """Returns what an index says about a search that was measured."""
    return {
        **measured.settings._asdict(),
        "recall@10": {name: round(value, 4) for name, value in recalls.items()},
        "queries": {name: len(given) for name, (given, _) in queries.items()},
        "target": target,
        "seconds_a_query": round(measured.seconds, 6),
    }


def _is_better(here: Attempt, there: Attempt, target: float) -> bool:
    if (here.recall >= target) != (there.recall >= target):
        return here.recall >= target
    return here.seconds < there.seconds if here.recall >= target else here.recall > there.recall


def _leave_out(found: Int[np.ndarray, "q _"], own: Int[np.ndarray, "q"]) -> Int[np.ndarray, "q _"]:
    """Drops the query itself from its neighbors, or else the last; nothing if no query is a row."""
    if not (own >= 0).any():
        return found
    last = np.arange(found.shape[1]) == found.shape[1] - 1
    is_own = (found == own[:, None]) & (own >= 0)[:, None]
    drop = np.where(is_own.any(axis=1)[:, None], is_own, last)
    return found[~drop].reshape(len(found), -1)
