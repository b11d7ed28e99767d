"""Whatever stands in the files of a workdir, a page is made or one line names the file."""

import itertools
import json
import os
import pathlib
import shutil
from unittest import mock

import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.evaluators.exhibits.exhibit import (
    Confusion,
    Distributions,
    Examples,
    Finding,
    Item,
    encode,
)
from big_align.reports import forms, pictures, report
from big_align.reports.gallery import Gallery
from big_align.reports.starts import record_start
from big_align.training.logs.evaluations import TRAINING, EvaluationLog
from big_align.training.logs.goodput import Clock, RunTime
from big_align.training.logs.metrics import MetricWriter
from big_align.training.saving import ownership
from tests.pages.test_reports import make_workdir

VALUES = [None, 3, -1.5, "x", [], {}, [1], {"a": 1}, [[1]], True]
VALUES += [10**400, -1e308, "it's", {"a.b": 1, "__class__": 2, "\0": 3}]
LINES = ("metrics.jsonl", "evaluations.jsonl", "starts.jsonl")
SPECIAL = (os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path))


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


def test_numbers_of_any_size_are_drawn(workdir):
    sizes = (0, 5e-324, -1e308, 1e308, 1e308, 10**400, 10**30, 1, "inf", 5e-324, 1e-310, True)
    with (workdir / "metrics.jsonl").open("w") as file:
        for first, second in itertools.pairwise(sizes):
            line = {"step": -(10**30) if first == 1 else 1, "loss": first, "pairs/r1": first}
            file.write(json.dumps(line) + "\n")
            file.write(json.dumps({"step": 2, "loss": second, "pairs/r1": second}) + "\n")
            file.flush()
            report.write_report([str(workdir)])
            report.write_report([str(workdir), str(workdir)], str(workdir / "both.html"))
            writer = MetricWriter(str(workdir), 2)
            writer.close()


def test_pages_are_made_in_a_moment_of_any_number_of_classes(workdir):
    """What does not fit a page is not written: two million cells took half a minute."""
    counts = Confusion("C", "", [str(n) for n in range(1500)], np.ones((1500, 1501), np.int64))
    shown = {"step": 4, "exhibits": {"pairs": [encode(counts)]}}
    (workdir / "pictures.json").write_text(json.dumps(shown))
    cells = []
    with mock.patch.object(pictures.html, "escape", lambda text: cells.append(text) or text):
        path = report.write_report([str(workdir)])
    assert "the page would be too large" in pathlib.Path(path).read_text() and len(cells) < 1000


@pytest.mark.parametrize("address", ["http://x/y.png", "//x/y", "data:image/png;base64,!", "y.png"])
def test_no_picture_is_fetched(workdir, address):
    images = encode(Examples("Nearest", "", [Finding(Item(text="dog"), [Item(text="no")])]))
    images["rows"][0]["found"][0]["image"] = address
    (workdir / "pictures.json").write_text(json.dumps({"step": 4, "exhibits": {"a": [images]}}))
    with pytest.raises(UserError, match="pictures.json: exhibits: a: 0 should be as it was"):
        report.write_report([str(workdir)])


@pytest.mark.parametrize("make", SPECIAL)
@pytest.mark.parametrize(
    ("name", "use"),
    [
        *((name, lambda run: report.write_report([run])) for name in LINES),
        ("metrics.jsonl", lambda run: MetricWriter(run, 1)),
        ("evaluations.jsonl", lambda run: EvaluationLog(run, TRAINING, {}).drop_after(1)),
        ("evaluations.jsonl", lambda run: EvaluationLog(run, TRAINING, {}).write(1, {}, 1.0, "")),
        ("starts.jsonl", lambda run: record_start(run, {})),
        ("events.out.tfevents.1.x", lambda run: MetricWriter(run, 1)),
        ("owner.json", lambda run: ownership.own(run).__enter__()),
    ],
)
def test_what_is_no_file_under_the_name_of_one_is_a_line(workdir, name, use, make):
    (workdir / name).unlink(missing_ok=True)
    make(workdir / name)
    with pytest.raises((OSError, UserError), match=name):
        use(str(workdir))


@pytest.mark.parametrize("make", SPECIAL)
@pytest.mark.parametrize("name", ["config.json", "goodput.json", "pictures.json"])
def test_what_is_no_file_is_passed_over_where_a_file_may_be_missing(workdir, name, make):
    (workdir / name).unlink()
    make(workdir / name)
    report.write_report([str(workdir)])
    Gallery(str(workdir), 1, {}).begin(1)
    assert RunTime(str(workdir), Clock()).metrics()


def test_forms_by_hand():
    assert forms.fits({"a": 1}, {"a": int, "b?": str}) and forms.fits({"b": None}, {"b?": str})
    assert not forms.fits({}, {"a": int}) and not forms.fits({"a": "1"}, {"a": int})
    assert forms.fits([{"x": 1.5}], [{"*": float}]) and not forms.fits([{"x": 1}], [{"*": float}])
    with pytest.raises(UserError, match="here: a: 1 should be of type str and is 2; mend the"):
        forms.check_form({"a": ["x", 2]}, {"a": [str]}, "here")
