"""Whatever stands in the files of a workdir, a page is made or one line names the file."""

import json
import shutil

import numpy as np
import pytest

from big_align.errors import UserError
from big_align.exhibits.exhibit import Confusion, Distributions, Examples, Finding, Item, encode
from big_align.reports import forms, report
from tests.reports.test_reports import make_workdir

VALUES = [None, 3, -1.5, "x", [], {}, [1], {"a": 1}, [[1]], True]


def list_places(node, path=()):
    yield path
    for key in node if isinstance(node, dict) else range(len(node)) if type(node) is list else ():
        yield from list_places(node[key], (*path, key))


def spoil(node):
    """Yields what a value of JSON is like with one place of it left out or replaced."""
    for path in list_places(node):
        for value in (*VALUES, ...):
            changed = at = {"root": json.loads(json.dumps(node))}
            for key in ("root", *path)[:-1]:
                at = at[key]
            at[("root", *path)[-1]] = value
            if value is ...:
                del at[("root", *path)[-1]]
            if "root" in changed:
                yield changed["root"]


@pytest.fixture
def workdir(tmp_path):
    folder = make_workdir(tmp_path / "run")
    images = Examples("Nearest", "Look.", [Finding(Item(text="dog"), [Item(text="no")])])
    counts = Confusion("Confused", "Look.", ["a", "b"], np.array([[1, 2, 0], [0, 3, 1]]))
    spread = Distributions("Cosines", "", ["a"], [-1.0, 0.0, 1.0], np.full((1, 1, 2), 0.5), [4])
    shown = {"step": 4, "exhibits": {"pairs": [encode(x) for x in (images, counts, spread)]}}
    (folder / "pictures.json").write_text(json.dumps(shown))
    report.write_report([str(folder)])
    return folder


@pytest.mark.parametrize(
    "name",
    [pytest.param("pictures.json", marks=pytest.mark.slow), "config.json", "goodput.json"],
)
def test_a_spoiled_file_is_one_line_that_names_it(workdir, name):
    good = json.loads((workdir / name).read_text())
    outcomes = set()
    for text in [*map(json.dumps, spoil(good)), "", "{", "\udcff", "[" * 10**5]:
        (workdir / name).write_bytes(text.encode(errors="surrogateescape"))
        try:
            report.write_report([str(workdir)])
            outcomes.add("written")
        except UserError as error:
            assert str(workdir / name) in str(error) and "\n" not in str(error)
            outcomes.add("refused")
    assert outcomes == {"written", "refused"}


@pytest.mark.slow
def test_a_spoiled_line_about_a_start_is_left_out(workdir):
    good = json.loads((workdir / "starts.jsonl").read_text())
    for bad in spoil(good):
        (workdir / "starts.jsonl").write_text(json.dumps(bad) + "\n")
        report.write_report([str(workdir)])
    shutil.rmtree(workdir)


def test_forms_by_hand():
    assert forms.fits({"a": 1}, {"a": int, "b?": str}) and forms.fits({"b": None}, {"b?": str})
    assert not forms.fits({}, {"a": int}) and not forms.fits({"a": "1"}, {"a": int})
    assert forms.fits([{"x": 1.5}], [{"*": float}]) and not forms.fits([{"x": 1}], [{"*": float}])
    with pytest.raises(UserError, match="here: a: 1 should be of type str and is 2; mend the"):
        forms.check_form({"a": ["x", 2]}, {"a": [str]}, "here")
