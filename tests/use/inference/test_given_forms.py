"""Images and embeddings mean the same in whatever form a caller has them."""

import pathlib

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest

import big_align
from big_align.core.errors import UserError


class Column:
    """A column of a table, as pandas has it: an array and an iterable, but no array of NumPy."""

    def __init__(self, values):
        self._values = np.array(values, object)
        self.dtype = self._values.dtype

    def __array__(self, dtype=None, copy=None):
        return self._values

    def __iter__(self):
        return iter(self._values)


def test_an_array_or_a_column_of_images_is_a_list(model, pictures):
    paths = pictures[:3]
    expected, named = model.embed_images(paths), model.classify(paths, ["dog", "cat"])
    files = [pathlib.Path(path) for path in paths]
    for given in (np.array(paths), np.array(paths, object), Column(paths), np.array(files, object)):
        np.testing.assert_allclose(model.embed_images(given), expected, atol=1e-6)
        assert model.classify(given, ["dog", "cat"]) == named
    data = np.empty(3, object)
    data[:] = [path.read_bytes() for path in files]
    np.testing.assert_allclose(model.embed_images(data), expected, atol=1e-6)
    (alone,) = model.classify(np.array(paths[:1]), ["dog", "cat"])
    assert dict(alone) == pytest.approx(dict(named[0]), abs=1e-5)
    np.testing.assert_array_equal(
        model.rank("a dog", Column(paths)).order, model.rank("a dog", paths).order
    )


def test_a_class_list_is_a_path_in_either_form(model, pictures, tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("dog\ncat\n")
    expected = model.classify(pictures[0], ["dog", "cat"])
    assert model.classify(pictures[0], path) == model.classify(pictures[0], str(path)) == expected
    one, listed = (model.classify(pictures[0], path, t) for t in ("a {}", ["a {}"]))
    assert one == listed


def test_a_folder_to_save_to_may_be_in_the_home_folder(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    big_align.save(pathlib.Path("~/out"), model, "big_align")
    assert big_align.load("~/out").path == str(tmp_path / "out")


@pytest.mark.parametrize("value", [0, np.nan, np.inf])
def test_a_broken_row_of_embeddings_comes_last_and_has_no_class(model, pictures, value):
    rows = model.embed_images(pictures[:4])
    expected = model.rank(rows[[0]], rows)
    mixed = np.insert(np.float16(rows), 1, value, axis=0)  # as tools.embed writes them
    found = model.rank(-rows[0], mixed), model.rank(rows[0], mixed)
    assert found[0].order[0, -1] == found[1].order[0, -1] == 1
    kept = np.array([0, 2, 3, 4])
    np.testing.assert_array_equal(found[1].order[0, :4], kept[expected.order[0]])
    np.testing.assert_allclose(found[1].cosine[0, :4], expected.cosine[0], atol=1e-3)
    assert [len(classes) for classes in model.classify(mixed, ["dog", "cat"])] == [2, 0, 2, 2, 2]
    assert model.classify(mixed[1], ["dog", "cat"]) == []


def test_embeddings_are_the_same_in_whatever_form_they_are_given(model, pictures):
    rows = np.float32(jnp.bfloat16(model.embed_images(pictures[:4])))  # rounded, for all forms
    expected, named = model.rank(rows, rows), model.classify(rows, ["dog", "cat"])
    objects = np.empty(4, object)
    objects[:] = list(rows)
    forms = [jnp.bfloat16(rows), np.float64(rows), list(rows), tuple(rows), rows.tolist(), objects]
    forms += [pa.array(rows.tolist()).to_pylist(), list(jnp.bfloat16(rows))]
    for form in forms:
        for found in (model.rank(form, rows), model.rank(rows, form), model.rank(form, form)):
            np.testing.assert_array_equal(found.order, expected.order)
            np.testing.assert_allclose(found.cosine, expected.cosine, atol=1e-6)
        assert model.classify(form, ["dog", "cat"]) == named
    for one in (rows[0], rows[0].tolist(), jnp.bfloat16(rows[0])):
        found = model.classify(one, ["dog", "cat"])  # a library sums one row in another order
        assert dict(found) == pytest.approx(dict(named[0]), abs=1e-6)
        np.testing.assert_array_equal(model.rank(one, rows).order, expected.order[:1])
    nulls = model.rank(rows, [None, *rows.tolist()])
    np.testing.assert_array_equal(nulls.order[:, :-1], expected.order + 1)
    assert (nulls.order[:, -1] == 0).all()
    assert model.classify([None, rows[0]], ["dog", "cat"]) == [[], named[0]]


@pytest.mark.parametrize(
    "given, message",
    [
        ([[0.5] * 16, [0.5] * 15], "begins like embeddings of 16 numbers must hold nothing else"),
        ([[0.5] * 16, "a.jpg"], "begins like embeddings of 16 numbers must hold nothing else"),
        ([0.5, "a.jpg"], "begins like an embedding's numbers must hold nothing else"),
        (["a.jpg", np.ones(16, np.float32)], "image 1 is an array of float32"),
        ([np.ones((8, 8, 3), np.float32)], "image 0 is an array of float32, whose range"),
        ([None], "image 0 is a NoneType"),
        (0.5, "images is a float; give a list"),
    ],
)
def test_a_list_that_only_begins_with_embeddings_is_told(model, given, message):
    with pytest.raises(UserError, match=message):
        model.rank("a dog", given)
