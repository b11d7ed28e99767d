"""Fewer patches and smaller images in equal time: FLIP's and CLIPA's question, and for UniCL."""

import copy
import functools
import pathlib
import statistics
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments import pictures, training, trials
from experiments.experiment import RECALLS, Experiment, Found, Numbers, Row, Table

PAGE = "docs/results/reduced.md"
END = 0.1
"""Fraction of the steps that a full-length end has; FLIP's and CLIPA's are shorter."""
END_RATE = 0.3
"""Learning rate of an end, as a part of that before."""
APART = 0.015
"""What two rows are apart in a picture, as a part of their minutes."""
POINTS = 2
"""Evaluations of a stage that is not an end."""
TOWER = dict(name="vit", width=128, depth=4, mlp_dim=512, heads=4, pool="mean")


class Part(NamedTuple):
    """What a stage sees of an image."""

    pixels: int
    keep: float


class Data(NamedTuple):
    """A data set, and what its rows are given.

    Attributes:
      config: the name of the config.
      pixels: of an edge of an image.
      minutes: of one core, which a row's steps take.
      seconds: of a step on one core while the other is as busy, by what it sees; `measure_steps`
        measured them.
      measures: of each evaluation, by their titles.
      changes: values by their path in the config.
    """

    config: str
    pixels: int
    minutes: float
    seconds: Mapping[Part, float]
    measures: Mapping[str, str]
    changes: Mapping[str, Any]


PAIRS, CLASSES = "reduced_pairs", "reduced_classes"
DATA = {
    PAIRS: Data(
        "align_flickr8k",
        128,
        4.0,
        {Part(128, 1.0): 0.93, Part(128, 0.5): 0.57, Part(128, 0.25): 0.39, Part(64, 1.0): 0.38},
        RECALLS,
        {
            "model.image": TOWER | {"variant": "ti/16"},
            "objective": {"name": "clip", "temperature": 0.07, "label_smoothing": 0.1},
            "data.source.path": "{data}/flickr8k/{trained}-*.tar",
            "evaluators.retrieval.source.path": "{data}/flickr8k/{split}-*.tar",
        },
    ),
    CLASSES: Data(
        "unicl_cifar10",
        32,
        1.75,
        {Part(32, 1.0): 0.715, Part(32, 0.5): 0.4, Part(32, 0.25): 0.255, Part(16, 1.0): 0.25},
        {"top-1": "zero_shot/top1"},
        {"model.image": TOWER | {"variant": "ti/4"}},
    ),
}
ROWS = {
    "all patches": ((1, 1.0),),
    "half of them": ((1, 0.5),),
    "half, then all": ((1, 0.5), (1, 1.0)),
    "a quarter": ((1, 0.25),),
    "a quarter, then all": ((1, 0.25), (1, 1.0)),
    "images of half the edge": ((2, 1.0),),
    "half the edge, then all": ((2, 1.0), (1, 1.0)),
}
"""The stages of each row: by what the edge of an image is divided, and the part of the patches."""


def list_parts(data: Data, title: str) -> list[Part]:
    """Returns what each stage of a row sees."""
    return [Part(data.pixels // divisor, keep) for divisor, keep in ROWS[title]]


def count_steps(data: Data, title: str) -> list[int]:
    """Returns the steps of each stage of a row, which take the same time in all rows."""
    parts = list_parts(data, title)
    shares = [1.0] if len(parts) == 1 else [1 - END, END]
    mean = sum(share * data.seconds[part] for share, part in zip(shares, parts, strict=True))
    return [max(1, round(share * 60 * data.minutes / mean)) for share in shares]


def set_stages(config: Any, row: Row, names: Mapping[str, str], data: Data) -> None:
    """Makes a config that of the last stage of a row, with the stage before as its first run."""
    training.change(config, data.changes, names)
    parts, steps = list_parts(data, row.key), count_steps(data, row.key)
    stages = [copy.deepcopy(config) for _ in parts[1:]] + [config]
    for number, (stage, part, count) in enumerate(zip(stages, parts, steps, strict=True)):
        with stage.unlocked():
            stage.total_steps = stage.checkpoint.every = count
            stage.average_decay = None
            stage.schedule.warmup_steps = count // 10
            stage.data.transform = f"random_resized_crop({part.pixels}, 0.5, 1.0)|flip_horizontal"
            stage.model.image.keep = part.keep
            stage.evaluate_every = count if number else -(-count // POINTS)
            for evaluator in stage.evaluators.values():
                evaluator.transform = f"resize({part.pixels})"
            if number:
                stage.schedule.learning_rate *= END_RATE
                stage.first = stages[0]


def measure_stages(found: Numbers, workdir: str, split: str, data: Data) -> Numbers:
    """Returns the measures at the end, and those of all evaluations by "MEASURE@MINUTES"."""
    from big_align.config.config_files import read_config
    from big_align.training.logs.evaluations import read_evaluations

    numbers, minutes = {each: found[each] for each in data.measures.values()}, 0.0
    first = pathlib.Path(workdir, "first")
    for folder in (first, workdir) if first.exists() else (workdir,):
        config = read_config(pathlib.Path(folder, "config.json"))
        seconds = data.seconds[_find_part(config)]
        for line in read_evaluations(folder):
            at = f"{minutes + line['step'] * seconds / 60:.2f}"
            numbers |= {f"{x}@{at}": line["numbers"][x] for x in data.measures.values()}
        minutes += config.total_steps * seconds / 60
    return numbers


def _find_part(config: Any) -> Part:
    from big_align.config.components.transforms import shape_of_image

    pixels, *_ = shape_of_image(config.data.transform, "config.data.transform")
    return Part(pixels, config.model.image.keep)


def plot(found: dict[str, Found], path: pathlib.Path, data: Data) -> None:
    """Draws what was measured against the minutes that a core had trained.

    Rows end at the same time, so they are drawn a little apart.
    """
    panels = []
    for title, measure in data.measures.items():
        lines = {}
        for number, (row, runs) in enumerate(found[""].items()):
            at = {key: key.partition("@")[2] for key in runs[0] if key.startswith(f"{measure}@")}
            apart = data.minutes * APART * (number - (len(ROWS) - 1) / 2)
            values = {float(x) + apart: [100 * run[key] for run in runs] for key, x in at.items()}
            lines[row] = pictures.Line(values, dict(marker="o", ls="--" if "then" in row else "-"))
        axes = dict(xlabel="minutes of a core", ylabel=f"{title} (%)")
        panels.append((lines, axes))
    pictures.draw(path, panels, (2.5 + 4 * len(panels), 4), sharex=True)


def measure_steps(name: str, part: Part) -> Numbers:
    """Returns the seconds of a step that sees a part of an image, with its data."""
    from big_align.runs import train as runs

    experiment, data = EXPERIMENTS[name], DATA[name]
    title = next(row for row in ROWS if list_parts(data, row) == [part])
    given = training.Training(experiment.tables[""].rows[title], "test", 1e-3, 0, "", steps=STEPS)
    config = training.configure(experiment, given)
    with config.unlocked():
        config.evaluators = {}
    with tempfile.TemporaryDirectory() as workdir:
        runs.run(config, workdir)
        logs = list(training.read_logs(workdir))
    return {"seconds": statistics.median(x["step_seconds"] for x in logs[STEPS // 4 :])}


def _make(name: str, question: str, paper: str, dev: Mapping[str, Any], needs: str) -> Experiment:
    data = DATA[name]
    rows = {title: Row(title, data.config, dev=dev) for title in ROWS}
    return Experiment(
        question=question,
        paper=paper,
        page=f"{PAGE}#{name.replace('_', '-')}",
        needs=needs,
        tables={"": Table(rows, baselines=("all patches", "a quarter"))},
        columns=data.measures,
        seeds=3,
        rates=(1e-3, 3e-3),
        change=functools.partial(set_stages, data=data),
        measure=functools.partial(measure_stages, data=data),
        plot=functools.partial(plot, data=data),
    )


EXPERIMENTS = {
    PAIRS: _make(
        PAIRS,
        "In equal time, is it worth seeing fewer patches, or smaller images?",
        "FLIP, Figure 1; CLIPA, Figure 1",
        {},
        "",
    ),
    CLASSES: _make(
        CLASSES,
        "In equal time, is it worth seeing fewer patches, or smaller images, with UniCL?",
        "none",
        {"data.hold_out": 0.1, "evaluators.*.source": {"name": "held_out"}},
        "CIFAR-10",
    ),
}
STEPS = 24


def main() -> None:
    """Measures the seconds of steps for `DATA`, as trials run: one a core."""
    output = training.ROOT / "workdirs" / "reduced_steps"
    output.mkdir(parents=True, exist_ok=True)
    todo = [
        trials.Trial(f"{name} {part}", (name, part))
        for name, data in DATA.items()
        for part in data.seconds
    ]
    trials.run_trials(todo, measure_steps, output)


if __name__ == "__main__":
    main()
