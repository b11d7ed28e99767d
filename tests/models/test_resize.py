"""Resized tables: what does not change, what is linear, and numbers of torch's interpolation."""

import numpy as np
import pytest

from big_align.models.parts.resize import (
    find_window,
    resize_grid,
    resize_relative_bias,
)


def resize_square(table, new):
    """Resizes a square grid of one channel."""
    return resize_grid(np.float32(table)[..., None], (new, new))[..., 0]


def test_numbers_of_torch():
    # torch.nn.functional.interpolate(x, mode="bicubic", antialias=True), torch 2.13.
    squares = np.arange(9.0).reshape(3, 3) ** 2 / 10
    expected = [
        [-0.0721, -0.0601, -0.0132, 0.1546, 0.2607],
        [0.1734, 0.2726, 0.4784, 0.8050, 0.9984],
        [0.8472, 1.1052, 1.6000, 2.2157, 2.5679],
        [2.6090, 3.0259, 3.8097, 4.7144, 5.2255],
        [3.7022, 4.2064, 5.1491, 6.2126, 6.8110],
    ]
    np.testing.assert_allclose(resize_square(squares, 5), expected, atol=1e-4)

    spike = np.zeros((4, 4))
    spike[1, 1] = 1
    expected = [[0.2104, 0.0550], [0.0550, 0.0144]]
    np.testing.assert_allclose(resize_square(spike, 2), expected, atol=1e-4)


def test_same_size_is_the_same_table():
    table = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    grid = table[:9].reshape(3, 3, 3)
    np.testing.assert_array_equal(resize_grid(grid, (3, 3)), grid)
    np.testing.assert_array_equal(resize_relative_bias(table[:9], 2), table[:9])


@pytest.mark.parametrize("new", [(5, 9), (2, 3), (3, 8)])
def test_constants_stay(new):
    constant = np.float32([1.5, -2.0, 0.25])
    resized = resize_grid(np.tile(constant, (4, 6, 1)), new)
    np.testing.assert_allclose(resized, np.tile(constant, (*new, 1)), rtol=1e-6)
    bias = resize_relative_bias(np.tile(constant, (49, 1)), 7)
    np.testing.assert_allclose(bias, np.tile(constant, (169, 1)), rtol=1e-6)


def test_ramps_stay_ramps_away_from_the_edges():
    rows, columns = np.meshgrid(np.arange(8.0), np.arange(8.0), indexing="ij")
    resized = resize_square(rows + 10 * columns, 16)
    places = (np.arange(16) + 0.5) / 2 - 0.5  # centers of the new pixels, in old ones
    expected = places[:, None] + 10 * places
    np.testing.assert_allclose(resized[4:-4, 4:-4], expected[4:-4, 4:-4], rtol=1e-5)
    assert np.abs(resized - expected).max() < 4


def test_relative_biases_keep_their_middle_and_their_mirror():
    rng = np.random.default_rng(0)
    half = rng.normal(size=(7, 7, 2)).astype(np.float32)
    even = half + half[::-1, ::-1]  # the same for an offset and its opposite
    resized = resize_relative_bias(even.reshape(49, 2), 7).reshape(13, 13, 2)
    np.testing.assert_allclose(resized[::-1, ::-1], resized, atol=1e-5)
    np.testing.assert_allclose(resized[6, 6], even[3, 3], atol=1e-5)


def test_axes_are_rows_then_columns():
    table = np.arange(6, dtype=np.float32).reshape(2, 3, 1)
    resized = resize_grid(table, (4, 5))
    turned = resize_grid(table.swapaxes(0, 1), (5, 4))
    np.testing.assert_allclose(resized, turned.swapaxes(0, 1), atol=1e-6)


def test_windows_follow_from_the_number_of_offsets():
    assert [find_window((2 * edge - 1) ** 2) for edge in (1, 2, 7, 12)] == [1, 2, 7, 12]
    for offsets in (10, 16):
        with pytest.raises(ValueError, match=f"{offsets} offsets is not that of a window"):
            find_window(offsets)
