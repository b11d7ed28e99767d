"""The page about a run: what stands in a workdir stands there, whatever is missing or cut short."""

import functools
import json
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from big_align.evaluators.exhibits.cosines import show_cosines
from big_align.evaluators.exhibits.exhibit import Confusion, Examples, Finding, Item, encode
from big_align.pages import charts, rendering
from big_align.pages.run_report import report, run_record, sections
from big_align.pages.run_report.comparison import compare_runs, name_runs
from big_align.pages.run_report.gallery import Gallery
from big_align.pages.run_report.run_record import RunRecord, read_record
from big_align.pages.run_report.starts import compare_configs, record_start
from big_align.tools import report as tool
from big_align.training.logs.directions import FIELD
from big_align.training.logs.evaluations import TRAINING, EvaluationLog
from big_align.training.saving.retention import Evaluated, Retention

CONFIG = {
    "total_steps": 4,
    "seed": 0,
    "data": {"source": {"name": "digits", "split": "train"}},
    "evaluators": {"pairs": {"name": "retrieval", "source": {"name": "digits"}}},
}
START = {
    "time": 0,
    "step": 0,
    "command": "python main.py --config=configs/some.py --workdir=here --config.seed=7",
    "config": "configs/some.py",
    "changes": {"seed": [0, 7]},
    "parameters": {"model/image": 1200, "model/text": 34},
    "examples": {"training": 5678, "pairs": 90},
    "versions": {"jax": "0.10.2"},
    "devices": {"count": 8, "kind": "TPU v5e", "processes": 2},
}


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_workdir(folder, losses=(3.0, 2.0, 1.5, 1.0), r1=(0.1, 0.3), **fields):
    folder.mkdir(exist_ok=True)
    lines = [{"step": n, "loss": x, "time/steps": 0.5} for n, x in enumerate(losses, 1)]
    lines += [{"step": 2 * n, "pairs/r1": x, "pairs/loss": 1 - x} for n, x in enumerate(r1, 1)]
    write_lines(folder / "metrics.jsonl", sorted(lines, key=lambda line: line["step"]))
    (folder / "config.json").write_text(json.dumps(CONFIG | fields))
    record_start(str(folder), START)
    (folder / "goodput.json").write_text(json.dumps({"seconds": {"steps": 30.0, "data": 10.0}}))
    return folder


def texts_of(page):
    """What a reader sees, without marks."""
    body = page.partition("</style>")[2].replace("<wbr>", "")
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))


def test_the_page_has_what_the_workdir_holds(tmp_path):
    folder = make_workdir(tmp_path / "run")
    images = Examples("Nearest", "Look.", [Finding(Item(text="a <dog>"), [Item(text="no")])])
    shown = {"step": 4, "exhibits": {"pairs": [encode(images)]}}
    (folder / "pictures.json").write_text(json.dumps(shown))
    assert report.write_report([str(folder)]) == str(folder / "report.html")
    page = (folder / "report.html").read_text()
    seen = texts_of(page)
    for fact in (
        "4 of 4 steps are done", "1 loss", "40 s since the run began", "75% of it trained",
        "1,234 parameters", "5,678 training examples", "configs/some.py with these changes",
        "seed 0 7", "pairs (retrieval) 90 name=digits", "8 x TPU v5e of 2 processes",
        "jax 0.10.2", "waiting for data 10 s (25%)", "pairs: nearest", "a &lt;dog&gt;",
        "--mode=eval --config=configs/some.py", "--config.total_steps=8",
        "big_align.tools.convert --input=",
    ):  # fmt: skip
        assert fact in seen, fact
    assert not re.search(r"<script|<link|src=.?http|@import|url\(", page)
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in page


def test_evaluations_show_the_last_the_best_and_the_first(tmp_path):
    folder = make_workdir(tmp_path / "run", r1=(0.1, 0.4, 0.2))
    seen = texts_of(report.describe_run(read_record(str(folder))))
    assert "last step 6 best at step first step 2" in seen
    assert "pairs/r1 0.2 0.4 4 0.1" in seen and "pairs/loss 0.8 0.6 4 0.9" in seen


def test_chance_stands_beside_a_number_and_has_no_curve(tmp_path):
    folder = make_workdir(tmp_path / "run", r1=(0.1, 0.4))
    with (folder / "metrics.jsonl").open("a") as file:
        for step in (2, 4):
            facts = {"step": step, "pairs/r1_chance": 0.05, "pairs/x_candidates": 20.0}
            file.write(json.dumps(facts) + "\n")
    record = read_record(str(folder))
    seen = texts_of(report.describe_run(record))
    assert "first step 2 chance" in seen and "0.4 pairs/r1 (chance 0.05)" in seen
    assert "pairs/r1 0.4 0.4 4 0.1 0.05" in seen and "pairs/r1_chance" not in seen
    curves = {name for curves in sections.evaluation_curves(record).values() for name in curves}
    assert curves == {"r1", "loss"}


def test_a_finished_run_names_the_commands_that_use_its_model(tmp_path, capsys):
    model = {"image": {"name": "vit"}, "text": {"name": "bert"}}
    source = {"name": "csv", "path": "a b.csv", "caption": "title", "columns": []}
    folder = make_workdir(tmp_path / "run", model=model, data={"source": source})
    uses = sections.list_uses(read_record(str(folder)))
    assert list(uses) == ["Classify", "Index", "Search in a browser", "Export"]
    flags = "--source='a b.csv' --source_name=csv --source_argument=caption=title --output="
    assert shlex.split(flags)[:-1] == shlex.split(uses["Index"])[4:-1]
    assert uses["Export"].endswith("--format=big_align")
    record_start(str(folder), START | {"formats": {"transformers": "no", "open_clip": ""}})
    report.print_uses(str(folder))
    assert "--format=open_clip" in capsys.readouterr().out
    images = make_workdir(tmp_path / "images", model=model | {"text": {}})
    assert "Classify" not in sections.list_uses(read_record(str(images)))


def test_a_line_under_the_title_says_what_is_trained(tmp_path):
    fields = {
        "batch_size": 4096,
        "objective": {"name": "clip"},
        "model": {
            "image": {"name": "vit", "variant": "b/32", "width": None, "depth": 3},
            "text": {"name": "bert", "variant": "mini", "width": 64},
            "locked": ["image"],
        },
        "optimizer": {"name": "adamw"},
        "schedule": {"learning_rate": 0.0005},
    }
    folder = make_workdir(tmp_path / "run", **fields)
    line = (
        "objective clip; locked image tower vit b/32 (depth 3); text tower bert mini (width 64); "
        "batch size 4,096; steps 4; adamw at a learning rate of 0.0005"
    )
    seen = texts_of(report.describe_run(read_record(str(folder))))
    assert f"run {line} configs/some.py" in seen
    make_workdir(folder / "first", objective={"name": "lit"}, total_steps=9)
    first = fields | {"objective": {"name": "siglip"}, "first": {"objective": {"name": "lit"}}}
    seen = texts_of(report.describe_run(read_record(str(make_workdir(folder, **first)))))
    told = f"run stage 1: objective lit; steps 9 stage 2: {line.replace('clip', 'siglip', 1)}"
    assert told in seen
    spoiled = {"objective": 3, "optimizer": {"name": ["a"]}, "schedule": {"learning_rate": "b"}}
    spoiled["model"] = {"image": {"name": 1, "variant": 2.5, "width": "c"}, "locked": 5}
    for odd in spoiled, {}:
        report.describe_run(read_record(str(make_workdir(tmp_path / "odd", **odd))))


def test_the_command_that_classifies_names_the_classes_of_the_run(tmp_path):
    model = {"image": {"name": "vit"}, "text": {"name": "bert"}}

    def list_named(**fields):
        folder = make_workdir(tmp_path / "run", model=model, **fields)
        words = shlex.split(sections.list_uses(read_record(str(folder)))["Classify"])
        (names,) = [word.removeprefix("--names=") for word in words if word.startswith("--names=")]
        return names.split(",")

    measured = lambda names: {"own": {"name": "zero_shot", "names": names}}  # noqa: E731
    digits = ["zero", "one", "two", "three", "four", "five"]
    example = ["a dog", "a cat"]
    assert list_named(evaluators=measured(digits)) == digits[:5]
    assert list_named(evaluators=measured(["cow's eye", "a $HOME", "this, or that"])) == [
        "cow's eye", "a $HOME"
    ]  # fmt: skip
    assert list_named(evaluators=measured("cifar10"))[:2] == ["airplane", "automobile"]
    assert list_named(data={"classes": "cifar10"})[:2] == ["airplane", "automobile"]
    for nothing in (["one, alone", "other"], "nowhere.json", "s3://bucket/a.json", 3, [1, 2]):
        assert list_named(evaluators=measured(nothing)) == example
    kept = tmp_path / "run" / "files" / "data.classes.json"
    kept.parent.mkdir()
    kept.write_text(json.dumps(["oak", "elm"]))
    assert list_named(data={"classes": "source"}) == ["oak", "elm"]


def test_a_command_that_needs_more_packages_says_so(tmp_path, monkeypatch):
    record = read_record(str(make_workdir(tmp_path / "run")))
    for found, end in ((None, "/index  # pip install -e '.[serve]' first"), (True, "/index")):
        monkeypatch.setattr(sections.importlib.util, "find_spec", lambda name, x=found: x)
        assert sections.list_uses(record)["Search in a browser"].endswith(end)


def test_a_run_under_way_or_killed_can_be_shown(tmp_path):
    folder = make_workdir(tmp_path / "run")
    for name in ("goodput.json", "starts.jsonl"):
        (folder / name).unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "loss": "nan"}\n{"step": 6, "lo')
    record = read_record(str(folder))
    assert record.step == 5 and np.isnan(dict(record.series["loss"])[5])
    assert "Evaluations" in texts_of(report.describe_run(record))
    (folder / "metrics.jsonl").unlink()  # before the first step
    assert "Every field of the config" in report.describe_run(read_record(str(folder)))


def test_steps_between_the_last_logged_one_and_the_checkpoint_are_done(tmp_path):
    folder = make_workdir(tmp_path, losses=(3.0, 2.0, 1.5), r1=(0.1,))
    assert read_record(str(folder)).step == 3
    for name in ("2", "4", "damaged_7"):
        (folder / "checkpoints" / name).mkdir(parents=True)
    record = read_record(str(folder))
    assert rendering.Tile("4 of 4", "steps are done") in sections.summarize(record)
    assert "Train on, with more steps" in "".join(sections.list_commands(record))
    elsewhere = make_workdir(tmp_path, losses=(3.0,), r1=(), checkpoint={"folder": "gs://a/b"})
    assert read_record(str(elsewhere)).step == 1


def test_changes_of_a_run_that_goes_on_by_its_own_config_add_up(tmp_path):
    folder = make_workdir(tmp_path / "run")
    own = {"config": "run/config.json", "changes": {"seed": [7, 8], "total_steps": [4, 9]}}
    record_start(str(folder), START | own)
    changes = {"seed": [0, 8], "total_steps": [4, 9]}
    assert read_record(str(folder)).find_changes() == ("configs/some.py", changes)
    record_start(str(folder), START | {"config": "configs/other.py", "changes": {}})
    assert read_record(str(folder)).find_changes() == ("configs/other.py", {})


def test_fields_that_are_gone_are_removed_but_for_those_of_what_was_replaced(tmp_path):
    """As `data.source.split` of digits, which no other source has."""
    changes = {
        "evaluators.digits": [{"name": "knn"}, None], "seed": [0, None], "init.all": [None, "x"],
        "data.source.name": ["npz", "digits"], "data.source.path": ["a.npz", None],
    }  # fmt: skip
    folder = make_workdir(tmp_path / "run", seed=None)
    record_start(str(folder), START | {"changes": changes})
    rows = list(sections.list_changes(read_record(str(folder))))
    assert rows == [
        ["evaluators.digits", '{"name": "knn"}', "removed"], ["seed", "0", "none"],
        ["init.all", "none", "x"], ["data.source.name", "npz", "digits"],
    ]  # fmt: skip


def test_of_a_long_run_all_evaluations_and_the_newest_step_are_read(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    losses = [float(n) for n in range(1, 1001)]
    whole = read_record(str(make_workdir(folder, losses, np.linspace(0, 1, 400).tolist())))
    monkeypatch.setattr(run_record, "LARGE", 5000)
    part = read_record(str(folder))
    assert part.evaluations == whole.evaluations and len(part.evaluations["pairs/r1"]) == 400
    assert part.series["loss"][-1] == (1000, 1000.0)
    assert 20 < len(part.series["loss"]) < 200
    assert set(part.series["loss"]) < set(whole.series["loss"])


def test_evaluations_of_checkpoints_join_those_of_training(tmp_path):
    folder = make_workdir(tmp_path / "run", r1=(0.1, 0.3))
    lines = [
        {"time": 1.0, "step": 4, "checkpoint": "x", "numbers": {"pairs/r1": 0.35, "new/top1": 0.9}},
        {"step": 2, "pairs/r1": 0.1},
    ]
    write_lines(folder / "evaluations.jsonl", lines)
    record = read_record(str(folder))
    assert record.evaluations["pairs/r1"] == [(2, 0.1), (4, 0.35)]
    assert record.evaluations["new/top1"] == [(4, 0.9)]
    assert "pairs/r1" not in record.series


def test_several_runs_are_compared(tmp_path):
    one = make_workdir(tmp_path / "one", seed=1)
    two = make_workdir(tmp_path / "two", r1=(0.2, 0.25), batch_size=64)
    output = tmp_path / "both.html"
    flags = [f"--workdir={one}", f"--workdir={two}", f"--output={output}"]
    assert tool.main(flags) == 0
    page = output.read_text()
    seen = texts_of(page)
    assert "pairs/r1 0.3 0.25" in seen and "seed 1 0" in seen and "batch_size – 64" in seen
    assert page.count('<td class="n best">0.3<') == 1 and page.count('n best">0.25<') == 0
    (chart,) = [x for x in page.split("<figure") if 'aria-label="pairs/r1"' in x]
    assert chart.count("<polyline") == 2 and "one" in chart and "two" in chart


def test_runs_that_differ_in_seeds_alone_have_a_mean(tmp_path):
    """Both stages of a run have one; a number that a run lacks has no mean."""
    for seed, r1 in ((0, 0.1), (1, 0.2), (2, 0.6)):
        folder = make_workdir(tmp_path / f"run{seed}", r1=(r1,), seed=seed, first={"seed": seed})
        if seed == 2:
            with open(folder / "metrics.jsonl", "a") as file:
                file.write(json.dumps({"step": 4, "pairs/r5": 0.9}) + "\n")
    records = [read_record(str(tmp_path / f"run{seed}")) for seed in range(3)]
    seen = texts_of(compare_runs(records))
    assert "run0 run1 run2 mean" in seen and "pairs/r1 0.1 0.2 0.6 0.3 " in seen
    assert "pairs/r5 0.9 Curves" in seen
    make_workdir(tmp_path / "run1", r1=(0.2,), seed=1, batch_size=64)
    records = [read_record(str(tmp_path / f"run{seed}")) for seed in range(3)]
    assert "run0 run1 run2 mean" not in texts_of(compare_runs(records))


def test_runs_of_equal_folder_names_are_told_apart():
    runs = [RunRecord(path, {}, [], {}, {}, {}, {}) for path in ("/a/x/run", "/a/y/run")]
    assert name_runs(runs) == ["x/run", "y/run"]
    assert len(set(name_runs([runs[0], runs[0]]))) == 2


def test_mistakes_of_the_command_are_one_line(tmp_path, capsys):
    assert tool.main([f"--workdir={tmp_path}"]) == 1
    error = capsys.readouterr().err
    assert error == (
        f"error: --workdir={tmp_path} is no workdir of a run: it has neither config.json nor "
        "metrics.jsonl\n"
    )
    assert tool.main([f"--workdir={tmp_path}/nowhere"]) == 1
    assert "no folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        tool.main(["--workdir=a", "--workdir=b"])
    assert "--output is missing" in capsys.readouterr().err


def test_the_tool_starts_without_jax():
    code = "import sys, big_align.tools.report; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_report_that_fails_is_a_line(tmp_path, capsys, monkeypatch):
    folder = make_workdir(tmp_path / "run")

    def fail(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(report, "write_report", fail)
    report.refresh_report(str(folder))
    assert capsys.readouterr().err == "warning: no report: OSError: the disk is full\n"


def test_a_workdir_in_which_nothing_began_gets_no_report(tmp_path, capsys):
    report.refresh_report(str(tmp_path))
    assert not list(tmp_path.iterdir()) and capsys.readouterr() == ("", "")


def test_a_page_of_many_pictures_stays_small(tmp_path):
    folder = make_workdir(tmp_path / "run")
    noise = np.random.default_rng(0).integers(0, 255, (160, 160, 3), np.uint8)
    one = encode(Examples("Nearest", "", [Finding(Item(noise), [Item(noise)] * 4)] * 2))
    large = one | {"rows": one["rows"] * 40}
    exhibits = {"a": [large], **{f"set{n}": [one] for n in range(9)}}
    shown = {"step": 4, "exhibits": exhibits}
    (folder / "pictures.json").write_text(json.dumps(shown))
    page = report.describe_run(read_record(str(folder)))
    assert len(page) < 2e6 and "the page would be too large" in page and "data:image" in page


def test_configs_differ_by_field():
    before = {"a": 1, "b": {"c": (1, 2), "d": None}, "e": {"x": 1}}
    after = {"a": 1, "b": {"c": [1, 2], "d": 3}, "f": {"x": 1}}
    assert compare_configs(before, after) == {
        "b.d": [None, 3], "e": [{"x": 1}, None], "f": [None, {"x": 1}],
    }  # fmt: skip
    assert compare_configs(after, after) == {}


LOW = ("loss", "itm_loss", "ece", "top1_error", "perplexity", "valloss", "valLoss", "loss_de")
LOW += ("top1err", "cross_entropy", "rmse", "median_rank")


@pytest.mark.parametrize("name", LOW + ("r1", "lossless", "place", "rank_correlation"))
@pytest.mark.parametrize("said", [None, False, True])
def test_a_page_and_what_is_kept_agree_on_the_best_which_the_evaluator_knows(name, said):
    lower = name in LOW if said is None else said
    words = {} if said is None else {"mine": [name] if said else ["other"]}
    values = [2.0, 3.0, 1.0]
    assert sections.find_best(f"mine/{name}", values, words) == (2 if lower else 1)
    kept = Retention(1, None, f"mine/{name}", words)
    found = kept.find_best([Evaluated(n, {f"mine/{name}": x}) for n, x in enumerate(values)])
    assert found.step == (2 if lower else 1)


def test_evaluations_say_which_way_is_better(tmp_path):
    """Two runs, and an evaluator that says that its r1 is better if low."""
    for folder, r1 in (("one", (0.3, 0.2)), ("two", (0.1, 0.25))):
        workdir = make_workdir(tmp_path / folder, r1=r1)
        about = {FIELD: {"pairs": ["r1"]}}
        EvaluationLog(str(workdir), TRAINING, about).write(4, {"pairs/r1": r1[-1]}, 1.0, None)
    records = [read_record(str(tmp_path / folder)) for folder in ("one", "two")]
    assert '<td class="n best">0.2<' in compare_runs(records)
    # last, best and first
    assert "pairs/r1 0.2 0.2 4 0.3" in texts_of(report.describe_run(records[0]))
    assert "pairs/r1 0.25 0.1 2 0.1" in texts_of(report.describe_run(records[1]))


def test_the_best_is_nothing_of_facts_and_of_equals():
    find_best = functools.partial(sections.find_best, said={})
    assert find_best("a/r1", [0.1, 0.3, None, 0.3]) == 1
    assert find_best("a/r1", [0.2, 0.2]) is None and find_best("a/r1", [None, 0.2]) is None
    assert find_best("probe/strength", [1.0, 2.0]) is None
    assert find_best("found/found_per_image", [1.0, 2.0]) is None
    assert find_best("a/r1", [float("nan"), 0.1, 0.2]) == 2
    assert find_best("a/r1", [float("nan"), float("nan")]) is None


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (0.1, 0.37), (-3.0, 1e4), (5.0, 5.0), (0.0, 0.0), (1e-7, 2e-7)]
)
def test_ticks_are_round_and_enclose_the_values(low, high):
    ticks = charts.choose_ticks(low, high)
    assert 3 <= len(ticks) <= 7 and ticks[0] <= low and high <= ticks[-1]
    steps = np.diff(ticks)
    np.testing.assert_allclose(steps, steps[0])
    digit = float(f"{steps[0]:e}"[0])
    assert digit in (1, 2, 5)


@pytest.mark.parametrize(
    ("low", "high"), [(58.939, 58.951), (0.0, 600.0), (-3e-7, 0.0), (1e6, 2e6)]
)
def test_labels_of_ticks_differ(low, high):
    ticks = charts.choose_ticks(low, high)
    labels = [charts.format_tick(tick, ticks[1] - ticks[0]) for tick in ticks]
    assert len(set(labels)) == len(ticks)
    assert [float(label.replace(",", "")) for label in labels] == pytest.approx(ticks)


def find_shapes(drawing, tag):
    return [shape.fields for shape in drawing.shapes if shape.tag == tag]


def test_a_curve_goes_where_its_values_do():
    chart = charts.draw_chart("loss", {"loss": [(1, 0.0), (2, float("nan")), (3, 1.0)]})
    (path,) = find_shapes(chart, "polyline")
    (x0, y0), (x1, y1) = (map(float, point.split(",")) for point in path["points"].split())
    told = [shape.text for shape in chart.shapes if shape.tag == "circle"]
    assert told == ["loss, step 1: 0", "loss, step 3: 1"]
    assert x0 < x1 and y0 == charts.BOTTOM and y1 == charts.TOP  # up is less
    assert charts.draw_chart("loss", {"loss": []}) is None


def test_a_curve_that_is_missing_leaves_the_others_their_colors():
    points = [(1, 0.0), (2, 1.0)]
    chart = charts.draw_chart("r1", {"one": [], "two": points, "three": points})
    colors = [fields["stroke"] for fields in find_shapes(chart, "polyline")]
    assert colors == ["var(--c1)", "var(--c2)"]
    assert chart.legend == [("two", 1), ("three", 2)]


def test_many_points_are_averaged_without_moving_the_mean():
    values = [(step, float(step % 2)) for step in range(100_000)]
    chart = charts.draw_chart("loss", {"loss": values})
    (path,) = find_shapes(chart, "polyline")
    heights = [float(point.partition(",")[2]) for point in path["points"].split()]
    assert len(heights) <= charts.POINTS and not find_shapes(chart, "circle")
    assert np.mean(heights) == pytest.approx((charts.TOP + charts.BOTTOM) / 2, abs=1)


def test_numbers_are_short():
    numbers = (0.98056, 1.0, 12345.6, 0.00001234, float("nan"), 1437.0, 268.29)
    shown = [rendering.format_number(x) for x in numbers]
    assert shown == ["0.9806", "1", "12,346", "1.23e-05", "nan", "1,437", "268.3"]


def confusion():
    return [Confusion("Confused", "", ["a", "b"], np.eye(2, 3, dtype=int))]


def test_pictures_are_made_at_most_twenty_times_and_at_the_end(tmp_path):
    calls = []
    gallery = Gallery(str(tmp_path), 1003, {})
    for step in range(1, 1004):
        gallery.begin(step)
        gallery.add("x", lambda step=step: calls.append(step) or confusion())
        drawn = gallery.finish(step)
        assert bool(drawn) == (calls[-1:] == [step])
    assert calls[0] == 1 and calls[-1] == 1003 and len(calls) <= 22
    assert json.loads((tmp_path / "pictures.json").read_text())["step"] == 1003


def test_a_picture_that_fails_leaves_the_others(tmp_path, caplog):
    def fail():
        raise ValueError("the image is gone")

    gallery = Gallery(str(tmp_path), 1, {"data": confusion})
    gallery.begin(1)
    gallery.add("bad", fail)
    gallery.add("good", confusion)
    assert list(gallery.finish(1)) == ["good/Confused", "data/Confused"]
    assert "no pictures of bad: ValueError: the image is gone" in caplog.text


def test_pictures_of_the_data_are_there_from_the_start_and_go_with_no_step(tmp_path):
    folder = make_workdir(tmp_path / "run")

    def shown():
        pictures = read_record(str(folder)).pictures
        return pictures["step"], list(pictures["exhibits"]), list(pictures["data"])

    gallery = Gallery(str(folder), 3, {"first batch": confusion})
    assert shown() == (0, [], ["first batch"])
    seen = texts_of(report.describe_run(read_record(str(folder))))
    assert "first batch: confused" in seen and "Step 0" not in seen
    gallery.begin(1)
    gallery.add("x", confusion)
    gallery.finish(1)
    Gallery(str(folder), 3, {"data": confusion})  # of a process that goes on
    assert shown() == (1, ["x"], ["data"])


def test_what_does_not_change_is_made_once_and_always_shown(tmp_path):
    calls = []
    gallery = Gallery(str(tmp_path), 3, {"data": lambda: calls.append(1) or confusion()})
    for step in (1, 2, 3):
        gallery.begin(step)
        gallery.add("x", confusion)
        assert list(gallery.finish(step)) == ["x/Confused", "data/Confused"]
    assert calls == [1]


def spread(value):
    return [show_cosines("Cosines", ["right", "<wrong>"], [np.full(5, value), np.full(5, -value)])]


def test_distributions_are_shown_at_all_steps_also_of_a_run_that_was_killed(tmp_path):
    folder = make_workdir(tmp_path / "run")

    def evaluate(gallery, step):
        gallery.begin(step)
        gallery.add("pairs", lambda: spread(step / 10))
        assert list(gallery.finish(step)) == ["pairs/Cosines"]
        (shown,) = read_record(str(folder)).pictures["exhibits"]["pairs"]
        return shown["steps"]

    gallery = Gallery(str(folder), 4, {})
    assert [evaluate(gallery, step) for step in (1, 2, 3)] == [[1], [1, 2], [1, 2, 3]]
    gallery = Gallery(str(folder), 4, {})  # continues from a checkpoint of step 1
    assert [evaluate(gallery, step) for step in (2, 4)] == [[1, 2], [1, 2, 4]]
    page = report.describe_run(read_record(str(folder)))
    assert page.count("<polygon") == 6 and "step 4</text>" in page and "&lt;wrong&gt;" in page
    (folder / "pictures.json").write_text("{")
    assert evaluate(Gallery(str(folder), 4, {}), 3) == [3]


def test_every_kind_of_exhibit_is_written(tmp_path):
    folder = make_workdir(tmp_path / "run")
    gray = np.full((4, 4, 3), 99, np.uint8)
    tagged = Examples("Tags", "", [Finding(Item(gray, "a dog"), [Item(text="dog", right=True)])])
    nothing = Examples("Nothing", "", [Finding(Item(gray), [])])
    gallery = Gallery(str(folder), 1, {})
    gallery.begin(1)
    gallery.add("x", lambda: [tagged, nothing, *confusion()])
    gallery.finish(1)
    page = report.describe_run(read_record(str(folder)))
    assert '<li class="right">dog' in page and "nothing found" in page
    assert page.count("data:image/webp") == 2 and "--strength: 1.0" in page


def test_no_chart_has_more_curves_than_there_are_colors():
    names = [f"pairs/number_{n}" for n in range(2 * charts.COLORS + 1)]
    evaluations = {name: [(1, 0.5)] for name in [*names, "other/r1"]}
    record = RunRecord("run", {}, [], {}, evaluations, {}, {})
    drawn = sections.evaluation_curves(record)
    assert [*drawn] == ["pairs, 1 of 3", "pairs, 2 of 3", "pairs, 3 of 3", "other"]
    assert [len(curves) for curves in drawn.values()] == [charts.COLORS, charts.COLORS, 1, 1]
    assert [f"pairs/{key}" for title in [*drawn][:3] for key in drawn[title]] == names
