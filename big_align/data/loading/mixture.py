"""Which rows of every batch belong to which part of the data (UniCL appendix B.2, iCLIP §4.1)."""

import math
import zlib
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from big_align.core.errors import UserError

SUM_TOLERANCE = 1e-6


def part_rows(weights: Mapping[str, float], batch_size: int) -> dict[str, int]:
    """Divides the rows of a batch by largest remainder, at least one each; ties go to the first."""
    listed = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
    wrong = [name for name, weight in weights.items() if not weight > 0]
    if wrong:
        raise UserError(f"the weight of {wrong[0]} must be above 0; the weights are {listed}")
    total = math.fsum(weights.values())
    if not abs(total - 1) <= SUM_TOLERANCE:
        raise UserError(f"the weights must sum to 1 and sum to {total:g}: {listed or 'none'}")
    fractions = {name: weight / total * batch_size for name, weight in weights.items()}
    # a fraction within rounding of a whole number is meant to be that number
    rows = {name: math.floor(fraction + SUM_TOLERANCE) for name, fraction in fractions.items()}
    by_remainder = sorted(fractions, key=lambda name: rows[name] - fractions[name])
    for name in by_remainder[: batch_size - sum(rows.values())]:
        rows[name] += 1
    empty = [name for name, count in rows.items() if not count]
    if empty:
        raise UserError(
            f"batch_size is {batch_size} and gives no row to {empty[0]}, whose weight is "
            f"{weights[empty[0]]:g}; raise batch_size or the weight"
        )
    return rows


def part_seed(seed: int, name: str) -> int:
    """Returns the seed of a part: parts with the same examples have them in different order."""
    return (seed << 32) + zlib.crc32(name.encode())


def interleave(counts: Mapping[str, int]) -> tuple[Int[np.ndarray, " b"], Int[np.ndarray, " b"]]:
    """Spreads the rows of the parts over one batch as evenly as possible.

    Row k of n is due at (k + 1/2) / n of the batch. So the pattern repeats g times for counts with
    the greatest common divisor g, and any stretch of rows, such as that of a process, a device or a
    BatchNorm group, has nearly the proportions of the whole. For each row of the batch, this
    returns the number of its part, and its row in the batch of the part, which increases.
    """
    sizes = list(counts.values())
    parts = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.concatenate([np.arange(size) for size in sizes])
    due = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
    order = np.argsort(due, kind="stable")
    return parts[order], rows[order]
