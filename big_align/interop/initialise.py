"""Training starts from published or earlier weights: `config.init`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from big_align.build import INIT
from big_align.errors import WeightsMismatch
from big_align.interop import api
from big_align.models import resize

Flat = dict[str, np.ndarray]


def read_initial_weights(
    fresh: Mapping[str, tuple[int, ...]], sources: Mapping[str, str]
) -> tuple[Flat, list[str]]:
    """Reads what a model takes from other models.

    A tower may come from a tower or from a dual encoder. Tables of positions are resized to the
    model's; what the source does not have stays fresh.

    Args:
      fresh: shapes of the model's arrays, by path below a dual encoder.
      sources: for "all", "image" and "text" a file, folder or workdir; the narrower one wins.

    Returns:
      Arrays by path, and a report with a line for each source.

    Raises:
      WeightsMismatch: arrays have shapes that do not fit; the message lists all of them.
    """
    taken, report, faults = {}, [], []
    for part in INIT:
        path = sources.get(part)
        if not path:
            continue
        found = _read(path, part)
        resized = []
        wanted = [name for name in fresh if part == "all" or _below(name).startswith(f"{part}/")]
        fitting = [name for name in wanted if name in found]
        for name in fitting:
            array = found[name]
            if array.shape != fresh[name]:
                array = _resize(name, array, fresh[name])
                resized.append(name)
            if array is None:
                faults.append(
                    f"{name}: {list(found[name].shape)} in {path}, {list(fresh[name])} in the model"
                )
            taken[name] = array
        if not fitting:
            raise WeightsMismatch(
                f"config.init.{part}: nothing in {path} has a place in the model; its arrays are "
                f"like {', '.join(sorted(found)[:3])}, the model's like {', '.join(wanted[:3])}"
            )
        unused = sorted(set(found) - set(fitting))
        report += _describe(f"init.{part} = {path}", fitting, resized, wanted, unused)
    if faults:
        raise WeightsMismatch(
            f"config.init: {len(faults)} arrays do not fit the model:\n"
            + "\n".join(f"  {fault}" for fault in faults)
        )
    return taken, report


def _below(name: str) -> str:
    return name.split("/", 1)[1]


def _read(path: str, part: str) -> Flat:
    """Reads a model's arrays under the names that they have in a dual encoder."""
    loaded = api.load(path)
    if loaded.kind == "dual":
        return {k: v for k, v in loaded.flat.items() if part == "all" or _below(k).startswith(f"{part}/")}
    if part not in ("all", loaded.kind):
        raise WeightsMismatch(f"config.init.{part}: {path} is a tower for {loaded.kind}s")
    return {
        "/".join((k.split("/", 1)[0], loaded.kind, _below(k))): v for k, v in loaded.flat.items()
    }


def _resize(name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Resizes a table of positions; None for everything else."""
    if array.ndim != 2 or array.shape[1] != shape[1]:
        return None
    if name.endswith("relative_position_bias"):
        old, new = ((round(rows**0.5) + 1) // 2 for rows in (len(array), shape[0]))
        return resize.resize_relative_bias(array, old, new)
    if not name.endswith("position_embedding"):
        return None
    if _below(name).startswith("text/"):
        return resize.resize_positions_1d(array, shape[0])
    for leading in (1, 0):  # with and without a class token
        sides = [round((rows - leading) ** 0.5) for rows in (len(array), shape[0])]
        if all(
            side**2 + leading == rows for side, rows in zip(sides, (len(array), shape[0]), strict=True)
        ):
            old, new = ((side, side) for side in sides)
            return resize.resize_positions(array, old, new, leading)
    return None


def _describe(
    title: str, taken: Sequence[str], resized: Sequence[str], wanted: Sequence[str], unused: Any
) -> list[str]:
    """Tells what was taken, what was resized and what stayed fresh."""
    fresh = sorted(set(wanted) - set(taken))
    lines = [f"{title}: {len(taken)} of {len(wanted)} arrays taken"]
    for what, names in (("resized", resized), ("fresh", fresh), ("not used", unused)):
        if names:
            shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
            lines.append(f"  {what}: {shown}")
    return lines
