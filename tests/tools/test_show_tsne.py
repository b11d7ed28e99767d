"""The command draws the names of two lists, and prints the nearest of the second to its queries."""

import json

import pytest

import big_align
from big_align.data.labels.classes import read_classes
from big_align.evaluators.zero_shot import average_texts
from big_align.tools import show_tsne
from tests.use.inference.test_loaded_model import folder  # noqa: F401  (a fixture)

NAMES = ("dog", "red cat", "grass", "Blue")
OTHERS = ("cat", "red dog", "blue", "green grass", "red")


@pytest.fixture
def flags(folder, tmp_path):  # noqa: F811
    """What the command needs at least; the file of the picture is the last."""
    for name, names in (("names", NAMES), ("others", OTHERS)):
        (tmp_path / f"{name}.json").write_text(json.dumps(names))
    lists = f"--names={tmp_path / 'names.json'}", f"--others={tmp_path / 'others.json'}"
    return ["--models", str(folder), *lists, f"--output={tmp_path / 'tsne.png'}"]


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 1000])
def test_the_nearest_other_name_is_printed_and_a_name_in_both_lists_is_none(flags, most, capsys):
    """Of all, however few are in the map."""
    queries = ("red cat", "grass", "dog")
    given = f"--queries={', '.join(queries)}", "--template=a {}", f"--most={most}"
    assert show_tsne.main([*flags, *given]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    model = big_align.load(flags[1])
    others = [name for name in OTHERS if name != "blue"]
    first, second = (
        average_texts(model.embed_texts([f"a {name}" for name in names]), [1] * len(names))
        for names in (queries, others)
    )
    cosines = first @ second.T
    for line, query, row in zip(lines, queries, cosines, strict=True):
        expected = [flags[1], query, others[row.argmax()], f"{row.max():.3f}"]
        assert line == expected
    with open(flags[-1].removeprefix("--output="), "rb") as picture:
        assert picture.read(4) == b"\x89PNG"


@pytest.mark.slow
def test_names_of_both_lists_stand_in_the_templates_of_the_first(flags, monkeypatch):
    given, embed = [], show_tsne.embed_names
    monkeypatch.setattr(show_tsne, "embed_names", lambda *x: given.append(x[1]) or embed(*x))
    assert show_tsne.main([*flags, "--names=cifar10", "--most=4"]) == 0
    templates = read_classes("cifar10").templates
    assert len(templates) > 1 and len(given) == 2
    others = [name for name in OTHERS if name not in read_classes("cifar10").names]
    assert given[1] == [[template.replace("{}", name) for template in templates] for name in others]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--queries=cow", "--queries: 'cow' is not in the class list"),
        ("--template=no place", "--template: template 'no place' needs one {}"),
        ("--most=0", "--most=0 must be at least 1"),
    ],
)
def test_mistakes_are_one_line(flags, flag, message, capsys):
    assert show_tsne.main([*flags, flag]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
