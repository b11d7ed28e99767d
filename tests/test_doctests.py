"""The examples in docstrings of public names run, and print what they say."""

import doctest

import pytest

import big_align

MANY = 20
"""At least so many public names have an example."""
SLOW = {"as_dataset", "train"}  # TensorFlow is imported; a model is compiled


def find_examples() -> dict[str, list[doctest.DocTest]]:
    """Returns the doctests of each public name and of its methods."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = {name: finder.find(getattr(big_align, name), name) for name in big_align.__all__}
    return {name: tests for name, made in found.items() if (tests := [t for t in made if t.examples])}


EXAMPLES = find_examples()


def test_most_public_names_have_an_example():
    assert len(EXAMPLES) >= MANY, sorted(set(big_align.__all__) - set(EXAMPLES))
    assert set(EXAMPLES) >= SLOW


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in SLOW else x for x in EXAMPLES]
)
def test_an_example_prints_what_it_says(name):
    for test in EXAMPLES[name]:
        test.globs = {}  # as where someone pastes it: it imports what it uses
        said: list[str] = []
        failures = doctest.DocTestRunner(verbose=False).run(test, out=said.append).failed
        assert not failures, "".join(said)
