"""Which of several evaluations is best: most numbers should be high, losses low; some are facts."""

import re
from collections.abc import Sequence

from big_align.training.saving.retention import is_better_low

FACT = re.compile(r"(^|_)(strength|tags|per_image|deviation|std|examples)$|^frequent_|_std$")


def is_fact(name: str) -> bool:
    """Returns whether a number is neither better nor worse for being larger.

    Args:
      name: `evaluator/number`.
    """
    return bool(FACT.search(name.partition("/")[2] or name))


def find_best(name: str, values: Sequence[float | None]) -> int | None:
    """Returns the index of the best value.

    Args:
      name: `evaluator/number`.
      values: some may be missing, and NaN counts as missing.

    Returns:
      Index of the first of the best; None if all are equal, or cannot be compared.
    """
    known = {k: value for k, value in enumerate(values) if value is not None and value == value}
    if is_fact(name) or len(set(known.values())) < 2:
        return None
    choose = min if is_better_low(name) else max
    return choose(known, key=known.__getitem__)
