import json

import pytest

from big_align.core.errors import UserError
from big_align.suites.measuring.page import write_page
from big_align.suites.measuring.results import ResultFiles, write_csv, write_table

ROW = {
    "dataset": "cifar10", "title": "CIFAR-10", "task": "zeroshot_classification",
    "model": "tiny", "pretrained": "model", "model_fullname": "tiny model", "fingerprint": "ab",
    "images": 40, "metric": "accuracy", "score": 1.0, "metrics": {"acc1": 1.0, "ece": 0.0},
    "settings": {"task": "zero_shot"},
}  # fmt: skip


def write_rows(folder, *rows):
    (folder / "r.json").write_text(json.dumps(rows))
    return ResultFiles(str(folder / "r.csv"))


@pytest.mark.parametrize(
    "field, value, said",
    [
        ("score", None, "number as score, but None"),
        ("score", True, "number as score, but True"),
        ("images", "many", "whole number as images, but 'many'"),
        ("title", None, "text as title, but None"),
        ("model_fullname", ["tiny"], "text as model_fullname, but "),
        ("metric", 1, "text as metric, but 1"),
        ("metrics", [], "object as metrics, but "),
        ("settings", {"task": ["knn"]}, "settings.task"),
    ],
)
def test_a_field_that_became_something_else_is_named(field, value, said, tmp_path):
    with pytest.raises(UserError, match=f"r.json: row 1 has no {said}.*: mend it or move"):
        write_rows(tmp_path, ROW, ROW | {field: value})


def test_numbers_that_another_program_wrote_without_a_point_are_the_same(tmp_path):
    """As jq and JavaScript write 1.0."""
    whole = ROW | {"score": 1, "metrics": {"acc1": 1, "ece": 0}}
    found = write_rows(tmp_path, whole).rows
    assert write_table(found) == write_table([ROW]) and write_csv(found) == write_csv([ROW])
    write_page(found, tmp_path / "page.html")
    write_page([ROW], tmp_path / "same.html")
    assert (tmp_path / "page.html").read_text() == (tmp_path / "same.html").read_text()


@pytest.mark.parametrize("left", [[], [ROW]])
def test_a_table_that_lacks_results_after_a_kill_is_written_again(left, tmp_path):
    newest = ROW | {"dataset": "mnist"}
    files, table = write_rows(tmp_path, ROW, newest), tmp_path / "r.csv"
    if left:
        table.write_text(write_csv(left))
    files.begin()
    assert table.read_text() == write_csv([ROW, newest])


def test_a_table_with_all_results_is_left_as_its_user_has_it(tmp_path):
    files, table = write_rows(tmp_path, ROW), tmp_path / "r.csv"
    table.write_text(own := write_csv([ROW]).replace("tiny", "mine"))
    files.begin()
    assert table.read_text() == own


def test_a_new_output_is_checked_before_anything_is_measured(tmp_path):
    ResultFiles(str(tmp_path / "new" / "r.csv")).begin()
    assert list(tmp_path.rglob("*")) == [tmp_path / "new"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--output=.*file/r.csv cannot be written: "):
        ResultFiles(str(tmp_path / "file" / "r.csv")).begin()
