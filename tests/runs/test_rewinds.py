"""A run that diverges goes back and leaves data out, and whoever continues it does the same."""

import json
import re
import shutil
import signal

import numpy as np
import pytest

from big_align.config.overrides import load_config
from big_align.core.errors import DivergedError
from big_align.runs import build, dataset, train
from big_align.training.health import rewinds
from tests.poisoned_config import POISON, STEPS, WHITE
from tests.run_main import Run, read_losses

CONFIG = "tests/poisoned_config.py"
FLAGS = ("--config.on_divergence=rewind",)


def read(workdir, name):
    return [json.loads(line) for line in (workdir / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run that meets a poisoned batch and is never stopped."""
    run = Run(tmp_path_factory.mktemp("straight"), *FLAGS, config=CONFIG, devices=1)
    assert run.wait() == 0, run.err
    return run


@pytest.mark.slow
def test_a_run_goes_back_before_the_jump_and_leaves_its_data_out(straight):
    (line,) = read(straight.workdir, "rewinds.jsonl")
    checkpoint = POISON - POISON % 8
    assert (line["checkpoint"], line["step"]) == (checkpoint, POISON)
    told = f"at step {POISON}, expected was .*; going back to step {checkpoint}, and leaving out "
    assert re.search(f"{told}the data of {POISON - checkpoint} steps", straight.out)
    losses = read_losses(straight.workdir)
    assert [step for step, _ in losses] == list(range(1, STEPS + 1))
    assert max(loss for step, loss in losses if step > 40) < 10
    epochs = {x["step"]: x["epoch"] for x in read(straight.workdir, "metrics.jsonl")}
    jump = (epochs[checkpoint + 1] - epochs[checkpoint]) / (epochs[2] - epochs[1])
    assert jump == pytest.approx(1 + POISON - checkpoint)


@pytest.mark.slow
def test_the_examples_of_the_jump_are_named(straight):
    (line,) = read(straight.workdir, "suspects.jsonl")
    assert line["step"] == POISON and line["value"] > line["expected"][1]
    config = load_config(CONFIG)
    with build.make_loader(config) as loader:
        labels = loader.batch(POISON - 1)["label"].tolist()
    source = dataset.open_source(next(iter(dataset.read_parts(config).values())))
    numbers = {source.name(0, n): n for n in range(int(source.shard_sizes[0]))}
    examples = [source.read(0, numbers[name]) for name in line["keys"]]
    assert [example.label for example in examples] == labels
    assert (examples[5].image == WHITE).all()


@pytest.mark.slow
@pytest.mark.parametrize("when", [POISON - 3, POISON + 6])
def test_killed_and_continued_it_is_the_run_that_never_stopped(straight, tmp_path, when):
    """Before the jump, and after the run has gone back."""
    run = Run(tmp_path, *FLAGS, config=CONFIG, devices=1)
    run.wait_for_step(when)
    run.signal(signal.SIGKILL)
    assert run.wait() in (-signal.SIGKILL, 0)
    assert Run(tmp_path, *FLAGS, config=CONFIG, devices=1).wait() == 0
    assert read_losses(tmp_path) == read_losses(straight.workdir)
    assert read(tmp_path, "rewinds.jsonl") == read(straight.workdir, "rewinds.jsonl")


@pytest.mark.slow
def test_continued_from_before_it_went_back_it_leaves_the_same_data_out(straight, tmp_path):
    """As it is when the newer checkpoints are lost."""
    flags = *FLAGS, "--config.checkpoint.keep_last=99"
    assert Run(tmp_path, *flags, config=CONFIG, devices=1).wait() == 0
    for folder in (tmp_path / "checkpoints").iterdir():
        if int(folder.name) >= POISON - POISON % 8:
            shutil.rmtree(folder)
    assert Run(tmp_path, *flags, config=CONFIG, devices=1).wait() == 0
    assert read_losses(tmp_path) == read_losses(straight.workdir)
    assert len(read(tmp_path, "rewinds.jsonl")) == 1


@pytest.mark.slow
def test_two_processes_go_back_together_and_are_the_run_of_one(straight, tmp_path):
    run = Run(tmp_path, *FLAGS, config=CONFIG, devices=2, processes=2)
    assert run.wait() == 0, run.err
    (mine,), (theirs,) = (read(w, "rewinds.jsonl") for w in (tmp_path, straight.workdir))
    assert (mine["checkpoint"], mine["step"]) == (theirs["checkpoint"], theirs["step"])
    (mine,), (theirs,) = (read(w, "suspects.jsonl") for w in (tmp_path, straight.workdir))
    assert mine["keys"] == theirs["keys"]
    losses, expected = read_losses(tmp_path), read_losses(straight.workdir)
    assert [step for step, _ in losses] == list(range(1, STEPS + 1))
    np.testing.assert_allclose(losses, expected, rtol=1e-3)


@pytest.mark.slow
def test_by_default_a_jump_is_reported_and_the_run_goes_on(tmp_path):
    run = Run(tmp_path, config=CONFIG, devices=1)
    assert run.wait() == 0, run.err
    assert read(tmp_path, "suspects.jsonl")[0]["step"] == POISON
    assert not (tmp_path / "rewinds.jsonl").exists()
    told = [line for line in (run.out + run.err).splitlines() if f"at step {POISON}" in line]
    assert len(told) == 1 and "suspects.jsonl" in told[0]


@pytest.mark.slow
def test_what_diverges_whatever_the_data_ends_after_some_rewinds(tmp_path, monkeypatch):
    monkeypatch.setattr(rewinds, "MOST", 2)
    config = load_config(CONFIG, *FLAGS, "--config.schedule.learning_rate=1e30")
    with pytest.raises(DivergedError, match="after 2 rewinds, which is the most: lower config"):
        train.run(config, str(tmp_path))
    assert len(read(tmp_path, "rewinds.jsonl")) == 2
