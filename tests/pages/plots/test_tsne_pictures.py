"""Maps of names: neighbors stay neighbors, and the nearest of the other list is joined."""

import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.pages.plots.tsne_pictures import Concepts, draw_concepts, lay_out


def make_groups(counts=(9, 9, 9), seed=0):
    """Unit vectors in a few narrow groups."""
    rng = np.random.default_rng(seed)
    middles = np.eye(len(counts), 8).repeat(counts, axis=0)
    rows = middles + 0.05 * rng.normal(size=middles.shape)
    return np.float32(rows / np.linalg.norm(rows, axis=1, keepdims=True))


@pytest.mark.slow
def test_the_nearest_point_on_the_map_is_of_the_same_group():
    groups = np.arange(3).repeat(9)
    points = lay_out(make_groups(), seed=1)
    distance = np.linalg.norm(points[:, None] - points, axis=2) + 1e9 * np.eye(27)
    assert (groups[distance.argmin(axis=1)] == groups).all()
    np.testing.assert_array_equal(points, lay_out(make_groups(), seed=1))


@pytest.mark.slow
def test_queries_are_named_with_their_nearest_and_the_lists_are_in_the_legend():
    first, second = make_groups(seed=0), make_groups((3, 3, 3), seed=2)
    names = [f"a{n}" for n in range(27)], ["b$", *(f"b{n}" for n in range(1, 9))]
    concepts = Concepts(first, second)
    expected = [max(range(9), key=lambda n: first[q] @ second[n]) for q in (4, 20)]
    assert list(concepts.nearest([4, 20])) == expected
    figure = draw_concepts({"one": concepts, "two": concepts}, names, ("own", "other"), [4, 20])
    assert [axis.get_title() for axis in figure.axes] == ["one", "two"]
    for axis in figure.axes:
        written = [text.get_text().replace("\\$", "$") for text in axis.texts]
        assert written == ["a4", names[1][expected[0]], "a20", names[1][expected[1]]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["own", "other"]
    figure.canvas.draw()


def test_too_few_names_are_told():
    with pytest.raises(UserError, match="a map needs at least 4 names, not 3"):
        lay_out(make_groups((1, 1, 1)))
