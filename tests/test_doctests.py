"""The examples in docstrings of public names run, and print what they say."""

import doctest

import pytest

import big_align

WITHOUT = {
    "__version__",
    *("Embedder", "Evaluator", "Objective"),  # docs/extend.md has files that are whole
    *("SearchIndex", "load_index", "save"),  # of a model or an index that is in a file
    "load",  # stands in the example of `train`
}
SLOW = {"as_dataset", "train"}  # TensorFlow is imported, a model is compiled
WITH = sorted(set(big_align.__all__) - WITHOUT)


def test_at_least_two_dozen_public_names_have_an_example():
    assert len(WITH) >= 24
    assert WITHOUT | SLOW <= set(big_align.__all__)


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in SLOW else x for x in WITH]
)
def test_an_example_prints_what_it_says(name):
    tests = doctest.DocTestFinder().find(getattr(big_align, name), name)
    assert any(test.examples for test in tests)
    for test in tests:
        test.globs = {}  # as where someone pastes it: it imports what it uses
        said: list[str] = []
        assert not doctest.DocTestRunner().run(test, out=said.append).failed, "".join(said)
