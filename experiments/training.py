"""One training of an experiment: its config, its run, and the numbers of its evaluation."""

import contextlib
import importlib
import itertools
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from big_align.configs import common

ROOT = pathlib.Path(__file__).resolve().parent.parent
TUNING_SEED = 100
SPLITS = {"dev": "train", "test": "{train,dev}"}
"""What is measured, and the splits of Flickr8k that come before it."""


class Training(NamedTuple):
    """A training."""

    row: Any
    split: str  # what is measured, "dev" or "test"
    rate: float | None  # the learning rate; None for the config's
    seed: int
    output: str  # the folder of the experiment
    steps: int | None = None  # to try it out; None for those of the config
    keep: str | None = None  # folder in which its workdir stays


class Shared(NamedTuple):
    """For whom to make what trainings share."""

    experiment: Any
    rows: Sequence[Any]
    output: pathlib.Path
    seeds: int  # trainings of each row
    steps: int | None = None  # as in `Training`


def load(name: str) -> Any:
    """Returns the config of a name with its argument."""
    module, _, argument = name.partition(":")
    get_config = importlib.import_module(f"big_align.configs.{module}").get_config
    return get_config(argument) if argument else get_config()


def configure(experiment: Any, training: Training, row: Any = None) -> Any:
    """Returns the config of a training, or of the row that comes before its own."""
    row = row or training.row
    names = dict(data=common.data_dir(), output=training.output, seed=str(training.seed))
    names |= dict(split=training.split, trained=SPLITS[training.split])
    config = load(row.config)
    with config.unlocked():
        config.seed = training.seed
        if training.rate is not None and not row.before:
            own = config.schedule.learning_rate if experiment.times else 1
            config.schedule.learning_rate = own * training.rate
        if experiment.change:
            experiment.change(config, row, names)
        change(config, experiment.changes | row.changes, names)
        if training.split == "dev":
            change(config, experiment.dev | row.dev, names)
        _shorten(config, training.steps)
    return config


def _shorten(config: Any, steps: int | None) -> None:
    """Has a config train for a few steps, to try an experiment out; in place."""
    if steps:
        if first := config.get("first"):
            _shorten(first, steps)
        config.total_steps, config.schedule.warmup_steps, config.log_every = steps, 0, 1
        config.evaluate_every = config.checkpoint.every = steps


def change(config: Any, changes: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Sets values by their paths, in place; `*` is every child, and texts may hold names.

    `names` has what stands for each {name} in a text.
    """
    for path, value in changes.items():
        *parents, last = path.split(".")
        nodes = [config]
        for parent in parents:
            nodes = [
                child
                for node in nodes
                for child in (node.values() if parent == "*" else [node[parent]])
            ]
        for node in nodes:
            node[last] = fill(value, names)


def fill(value: Any, names: Mapping[str, str]) -> Any:
    """Returns a value whose texts have what each {name} stands for."""
    if isinstance(value, Mapping):
        return {key: fill(each, names) for key, each in value.items()}
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace(f"{{{name}}}", text)
    return value


def train(experiment: Any, training: Training) -> dict[str, float]:
    """Trains what comes before a row, and the row; returns the numbers of its evaluation."""
    kept = contextlib.nullcontext(training.keep) if training.keep else None
    with kept or tempfile.TemporaryDirectory() as workdir:
        found = _train_row(experiment, training, training.row, workdir)
        if experiment.measure:
            return experiment.measure(found, workdir, training.split)
        return {measure: found[measure] for measure in experiment.measures if measure in found}


def _train_row(
    experiment: Any, training: Training, row: Any, workdir: str, last: bool = True
) -> dict[str, float]:
    from big_align.runs import train as runs

    config = configure(experiment, training, row)
    with config.unlocked():
        if row.before:
            config.init.image = f"{workdir}/before"
            _train_row(experiment, training, row.before, config.init.image, last=False)
        if not last:
            config.evaluators = {}
    return runs.run(config, workdir)


def cache_features(shared: Shared) -> None:
    """Computes the features of locked towers that rows share, by all cores, where they are not."""
    from big_align.runs.cached_features import cache_features

    made, output = {}, str(shared.output)
    for row, split in itertools.product(shared.rows, SPLITS):
        config = configure(shared.experiment, Training(row, split, None, 0, output))
        images = config.model.image, config.init.image, config.data.source, config.data.hold_out
        made[str(images)] = config
    for config in made.values():
        cache_features(config, output)


def train_shared(shared: Shared, config: str, folder: str, seed: int) -> str:
    """Trains a config that several trainings start from, once; returns its workdir.

    It is not evaluated. The folder is in that of the experiment; an interrupted run continues.
    """
    from big_align.runs import train as runs

    workdir = shared.output / folder
    if not (finished := workdir / "finished").exists():
        made = load(config)
        with made.unlocked():
            made.seed, made.evaluators = seed, {}
            _shorten(made, shared.steps)
        runs.run(made, str(workdir))
        finished.touch()
    return str(workdir)


def call_tool(name: str, **flags: Any) -> None:
    """Runs a tool with flags in the root of the repository and lets it print."""
    given = [f"--{flag}={value}" for flag, value in flags.items()]
    command = [sys.executable, "-m", f"big_align.tools.{name}", *given]
    if code := subprocess.run(command, cwd=ROOT).returncode:
        sys.exit(f"failed with exit status {code}: {' '.join(command)}")


def read_windows(
    workdir: str, metrics: Iterable[str], steps: Iterable[int], window: int
) -> dict[str, float]:
    """Returns the mean of what a run has logged in windows of steps, by "METRIC/LAST STEP".

    `steps` are the last of each window; windows in which nothing was logged are left out.
    """
    lines = list(read_logs(workdir))
    found = {}
    for last in steps:
        near = [line for line in lines if last - window < line["step"] <= last]
        for metric in metrics:
            if values := [line[metric] for line in near if metric in line]:
                found[f"{metric}/{last}"] = statistics.mean(values)
    return found


def read_logs(workdir: str) -> Iterator[dict[str, Any]]:
    """Yields what a run has logged."""
    from big_align.training.logs import line_files

    return line_files.read_lines(pathlib.Path(workdir, "metrics.jsonl"), ("step",))
