"""Sums and differences of texts and images, by hand."""

import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.use.search.queries import choose_weights, combine, split_sign

X, Y = np.eye(2, dtype=np.float32)


def test_the_weighted_sum_of_directions_is_a_direction():
    np.testing.assert_allclose(combine(np.stack([X, Y]), [3, 4]), [[0.6, 0.8]], atol=1e-7)
    np.testing.assert_allclose(combine(np.stack([X, Y]), [3, -4]), [[0.6, -0.8]], atol=1e-7)
    np.testing.assert_allclose(combine(X[None], [0.1]), [[1, 0]])


def test_a_text_beside_an_image_weighs_twice_as_the_paper_says():
    assert choose_weights(2, 1) == [2, 2, 1]
    assert choose_weights(2, 0) == [1, 1] and choose_weights(0, 2) == [1, 1]
    assert choose_weights(1, 1, [1, -2]) == [1, -2]


@pytest.mark.parametrize(
    "text, expected",
    [("cars", ("cars", 1)), (" -cars ", ("cars", -1)), ("\N{MINUS SIGN} cars", ("cars", -1))],
)
def test_a_minus_before_a_text_subtracts(text, expected):
    assert split_sign(text) == expected


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: choose_weights(0, 0), "the query is empty: give a text or an image"),
        (lambda: choose_weights(1, 1, [1]), "1 weights for 1 texts and 1 images"),
        (lambda: choose_weights(1, 0, [np.nan]), "each must be a finite number"),
        (lambda: combine(np.stack([X, X]), [1, -1]), "cancel each other; change the weights"),
        (lambda: split_sign("-"), "empty text"),
        (lambda: split_sign("  "), "empty text"),
    ],
)
def test_what_is_no_query_is_told(call, message):
    with pytest.raises(UserError, match=message):
        call()
