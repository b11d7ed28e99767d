"""The page about a run of several stages: all of them in one table, and in one curve."""

import dataclasses
import json

import pytest

from big_align.pages import charts
from big_align.pages.run_report import comparison, report
from big_align.pages.run_report.run_record import read_record
from big_align.pages.run_report.stages import join_stages, list_stages, tell_costs
from big_align.pages.run_report.starts import record_start


def make_stages(folder, *counts, done=None):
    """A stage for each count of steps, of which so many are done; the last is the run's."""
    done, before = done or counts, {}
    for number, (total, steps) in enumerate(zip(counts, done, strict=True)):
        place = folder.joinpath(*["first"] * (len(counts) - 1 - number))
        place.mkdir(parents=True, exist_ok=True)
        before = {"total_steps": total, "batch_size": 10 * (number + 1), "first": before}
        (place / "config.json").write_text(json.dumps(before))
        lines = [json.dumps({"step": n, "loss": n + 100.0 * number}) for n in range(1, steps + 1)]
        (place / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
        if steps:
            inputs = {"image": [8 * (number + 1)] * 2, "text": 12}
            record_start(str(place), {"time": 0, "step": 0, "inputs": inputs})
            spent = {"seconds": {"steps": 60.0}, "chip_seconds": 3600.0 * (number + 1)}
            (place / "goodput.json").write_text(json.dumps(spent))
    return read_record(str(folder))


def test_stages_are_rows_and_their_sum(tmp_path):
    record = make_stages(tmp_path, 4, 3, 2)
    assert list_stages(record)["rows"] == [
        ["1", "4", "40", "8 x 8 px", "12", "10", "60 s", "1"],
        ["2", "3", "60", "16 x 16 px", "12", "20", "60 s", "2"],
        ["3", "2", "60", "24 x 24 px", "12", "30", "60 s", "3"],
        ["in all", "9", "160", "", "", "", "3 min", "6"],
    ]
    assert tell_costs(record) == ["chip-hours: stage 1 1, stage 2 2, stage 3 3, in all 6"]
    (single,) = record.stages[0].stages
    assert list_stages(single)["rows"] == [] and tell_costs(single) == []
    assert join_stages(single) == (dataclasses.replace(single, saved=4), [])


def test_steps_are_counted_through(tmp_path):
    joined, marks = join_stages(make_stages(tmp_path, 2, 3, done=(2, 1)))
    assert joined.series["loss"] == [(1, 1.0), (2, 2.0), (3, 101.0)] and marks == [2]
    assert (joined.step, joined.total_steps, joined.seconds) == (3, 5, {"steps": 120.0})


def test_runs_are_compared_with_all_their_stages(tmp_path):
    records = [make_stages(tmp_path / "chain", 4, 3, 2), make_stages(tmp_path / "one", 9)]
    page = comparison.compare_runs(records).replace("<wbr>", "")
    assert page.count("9 of 9") == 2 and "2 of 2" not in page


def test_a_run_whose_last_stage_has_not_begun_has_its_page(tmp_path):
    record = make_stages(tmp_path, 4, 3, done=(2, 0))
    page = report.describe_run(record)
    assert "2 of 7" in page.replace("<wbr>", "") and "16 x 16" not in page
    assert list_stages(record)["rows"][1] == ["2", "0 of 3", "0", "", "", "20", "", ""]
    report.refresh_report(str(tmp_path))
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize("marks", [[30], [998], [300, 990]])
def test_another_stage_begins_at_a_line_however_short_it_is(marks):
    points = [(step, float(step)) for step in range(1, 1001, 37)]
    plain, drawn = (charts.draw_chart("a", {"a": points}, each) for each in ([], marks))

    def find(chart, tag):
        return [shape.fields for shape in chart.shapes if shape.tag == tag]

    lines = [x["x1"] for x in find(drawn, "line") if x["x1"] == x["x2"]]
    assert len(lines) == len(marks) and not [x for x in find(plain, "line") if x["x1"] == x["x2"]]
    edges = [charts.LEFT, *sorted(lines), charts.RIGHT]
    width = (charts.RIGHT - charts.LEFT) / len(edges)
    assert all(b - a > width / 4 for a, b in zip(edges, edges[1:], strict=False))
    x = [float(point.split(",")[0]) for point in find(drawn, "polyline")[0]["points"].split()]
    assert x == sorted(x)
    for (step, _), place in zip(points, x, strict=True):
        assert [place > line for line in sorted(lines)] == [step > mark for mark in marks]
