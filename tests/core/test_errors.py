"""Checks of single values say the field, its value, and what would be right."""

import math

import pytest

from big_align.core.errors import UserError, check_at_least, check_known


def test_a_value_that_is_none_of_those_there_are_is_told_with_the_nearest():
    check_known("decay", "cosine", ("linear", "cosine"))
    with pytest.raises(UserError, match="^decay = 'step' is unknown; known: linear, cosine$"):
        check_known("decay", "step", (name for name in ("linear", "cosine")))
    told = r"^decay = 'cosin' is unknown \(did you mean 'cosine'\?\); known: linear, cosine$"
    with pytest.raises(UserError, match=told):
        check_known("decay", "cosin", {"linear": 1, "cosine": 2})
    with pytest.raises(UserError, match="^decay = None is unknown; known: linear$"):
        check_known("decay", None, ["linear"])


def test_the_first_number_that_is_too_small_is_told():
    check_at_least(1, rows=1, steps=None, others=2.5)
    with pytest.raises(UserError, match="^steps = 0 must be at least 1$"):
        check_at_least(1, rows=1, steps=0, others=-1)
    with pytest.raises(UserError, match="^tolerance = nan must be at least 0$"):
        check_at_least(0, tolerance=math.nan)
