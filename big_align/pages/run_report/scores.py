"""Which of several evaluations is best."""

from collections.abc import Sequence

from big_align.training.logs.directions import LOWER, NEITHER, Said, find_direction


def find_best(name: str, values: Sequence[float | None], said: Said) -> int | None:
    """Returns the index of the best value.

    Args:
      name: `evaluator/number`.
      values: some may be missing, and NaN counts as missing.
      said: which way the numbers of evaluators are better.

    Returns:
      Index of the first of the best; None if all are equal, or cannot be compared.
    """
    known = {k: value for k, value in enumerate(values) if value is not None and value == value}
    direction = find_direction(name, said)
    if direction == NEITHER or len(set(known.values())) < 2:
        return None
    choose = min if direction == LOWER else max
    return choose(known, key=known.__getitem__)
