"""A run that is killed, stopped or moved continues as if nothing had happened."""

import json
import random
import shutil
import signal
import time

import jax
import numpy as np
import pytest
from etils import epath

import big_align
from big_align.config.overrides import load_config
from big_align.core.errors import CheckpointMismatch, ConfigError, MissingCheckpoint, Stopped
from big_align.runs import build, evaluate, restore, train
from big_align.training.logs.evaluations import read_evaluations
from big_align.training.logs.goodput import PHASES
from tests.data.samples import make_members, write_tar
from tests.run_main import TINY, Run, read_losses

STEPS = 60
FLAGS = (
    f"--config.total_steps={STEPS}",
    "--config.checkpoint.every=7",
    "--config.evaluators={}",
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("uninterrupted"), *FLAGS)
    assert run.wait() == 0, run.err
    losses = read_losses(run.workdir)
    assert [step for step, _ in losses] == list(range(1, STEPS + 1))
    return losses


@pytest.fixture(scope="module")
def stopped(uninterrupted, tmp_path_factory):
    """A run on 8 devices that was told to stop about half-way."""
    run = Run(tmp_path_factory.mktemp("stopped"), *FLAGS)
    run.wait_for_step(STEPS // 3)
    run.signal(signal.SIGTERM)
    assert run.wait() == Stopped.STATUS == 75, run.err
    return run


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 2), (2, 0)])
def test_a_killed_run_continues_with_the_same_losses(uninterrupted, tmp_path, before, after):
    """Whether threads or processes fill its batches."""
    run = Run(tmp_path, *FLAGS, f"--config.data.num_processes={before}")
    run.wait_for_step(random.randint(3, STEPS // 2))
    run.signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    assert run.steps[-1] < STEPS
    assert Run(tmp_path, *FLAGS, f"--config.data.num_processes={after}").wait() == 0
    assert read_losses(tmp_path) == uninterrupted


@pytest.mark.slow
def test_a_run_logs_where_its_time_goes_and_tells_when_it_stops(stopped):
    lines = (stopped.workdir / "metrics.jsonl").read_text().splitlines()
    for record in map(json.loads, lines):
        fractions = {k: v for k, v in record.items() if k.startswith("time/")}
        assert sum(fractions.values()) == pytest.approx(1)
        assert min(fractions[f"time/{k}"] for k in ("starting", "compiling", "data", "steps")) > 0
        assert record["goodput"] == fractions["time/steps"]
    seconds = json.loads((stopped.workdir / "goodput.json").read_text())["seconds"]
    for phase in ("steps", "saving", "compiling"):
        assert f"{PHASES[phase]:<32}  {seconds[phase]:>10,.1f} s" in stopped.out


@pytest.mark.slow
def test_steps_after_the_last_checkpoint_are_repeated_with_the_same_losses(tmp_path):
    flags = *FLAGS, "--config.total_steps=4", "--config.checkpoint.every=2"
    train.run(load_config(TINY, *flags), str(tmp_path))
    losses = read_losses(tmp_path)
    assert [step for step, _ in losses] == [1, 2, 3, 4]
    for folder in (tmp_path / "checkpoints").iterdir():
        if folder.name.isdecimal() and int(folder.name) > 2:
            shutil.rmtree(folder)  # as if the run had been killed in step 3
    train.run(load_config(TINY, *flags), str(tmp_path))
    assert read_losses(tmp_path) == losses


@pytest.mark.slow
def test_a_stopped_run_says_so_and_continues_with_the_same_losses(uninterrupted, stopped, tmp_path):
    last = stopped.steps[-1]
    assert last < STEPS
    assert f"stopped on request after step {last}; the same command continues" in stopped.out
    assert read_losses(stopped.workdir) == uninterrupted[:last]
    shutil.copytree(stopped.workdir, tmp_path, dirs_exist_ok=True)
    run = Run(tmp_path, *FLAGS)
    assert run.wait() == 0
    assert read_losses(tmp_path) == uninterrupted
    assert "the whole run" in run.out and PHASES["down"] in run.out


@pytest.mark.slow
def test_ctrl_c_before_the_first_step_is_honored_after_it(uninterrupted, tmp_path):
    run = Run(tmp_path, *FLAGS)
    while not (tmp_path / "config.json").exists():  # written just before compiling
        time.sleep(0.01)
    run.signal(signal.SIGINT)
    assert run.wait() == Stopped.STATUS, run.err
    assert "Traceback" not in run.err
    assert run.steps == [1] and (tmp_path / "checkpoints" / "1").is_dir()
    assert read_losses(tmp_path) == uninterrupted[:1]


def test_a_request_to_stop_while_data_is_opened_stops_the_run(tmp_path, monkeypatch):
    def be_asked(*_):
        signal.raise_signal(signal.SIGTERM)
        time.sleep(10)

    monkeypatch.setattr(train, "_build", be_asked)
    with pytest.raises(Stopped, match="before the first step"):
        train.run(load_config(TINY), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_half_the_devices_continue_with_the_same_losses_to_rounding(
    uninterrupted, stopped, tmp_path
):
    shutil.copytree(stopped.workdir, tmp_path, dirs_exist_ok=True)
    run = Run(tmp_path, *FLAGS, devices=4)
    assert run.wait() == 0, run.err
    assert run.steps == [step for step, _ in uninterrupted]
    np.testing.assert_allclose(read_losses(tmp_path), uninterrupted, rtol=1e-4)


@pytest.mark.slow
def test_a_workdir_of_another_model_is_refused_with_the_differences(stopped):
    before = (stopped.workdir / "config.json").read_text()
    run = Run(stopped.workdir, *FLAGS, "--config.model.text.mlp_dim=48")
    assert run.wait() == 1
    assert run.err.startswith("error: ") and "Traceback" not in run.err
    assert "belongs to another model" in run.err
    assert "(16, 32) in the checkpoint, (16, 48) in the config's model" in run.err
    assert (stopped.workdir / "config.json").read_text() == before


def write_shards(folder, *sizes):
    for number, size in enumerate(sizes):
        members = [m for example in range(size) for m in make_members(100 * number + example)]
        write_tar(folder / f"{number}.tar", members)


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", ["", "big_align.runs.pipelines:image_text"])
def test_a_run_continues_with_as_many_examples_in_another_place_and_with_no_others(
    tmp_path, pipeline
):
    before, after = tmp_path / "before", tmp_path / "after"

    def train_to(step, place, *flags):
        fields = (f"source.path={place}/*.tar", "source.name=tar", f"pipeline={pipeline}")
        flags += tuple(f"--config.data.{field}" for field in fields)
        config = load_config(TINY, *FLAGS, f"--config.total_steps={step}", *flags)
        train.run(config, str(tmp_path / "run"))

    before.mkdir()
    write_shards(before, 30, 20)
    train_to(2, before)
    for sizes in ((30, 24), (20, 30)):
        write_shards(before, *sizes)
        message = f"^config.data had 50 examples .* now has {sum(sizes)} examples .*config.init.all"
        with pytest.raises(CheckpointMismatch, match=message):
            train_to(3, before)
    write_shards(before, 30, 20)
    with pytest.raises(CheckpointMismatch, match="hold_out"):  # the cause, and not its effect
        train_to(3, before, "--config.data.hold_out=0.1")
    before.rename(after)
    train_to(3, after)
    assert [step for step, _ in read_losses(tmp_path / "run")] == [1, 2, 3]


def test_sizes_that_differ_name_their_part(tmp_path):
    record = tmp_path / "4" / "record" / "metadata"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"sizes": {"pairs": "5 examples", "labels": "6 examples"}}))
    now = {"pairs": "5 examples", "labels": "8 examples"}
    message = "^config.data.mixture.labels had 6 examples and now has 8 examples: run would"
    with pytest.raises(CheckpointMismatch, match=message):
        restore.check_continued(load_config(TINY), "run", epath.Path(tmp_path), 4, now)


@pytest.mark.slow
def test_a_run_that_diverges_stops_and_names_the_last_good_checkpoint(tmp_path):
    run = Run(tmp_path, "--config.schedule.learning_rate=1e30", "--config.checkpoint.every=1")
    assert run.wait() == 1
    errors = [line for line in run.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "Traceback" not in run.err
    # The rate is 0 at step 1; step 2 would be saved with parameters that are not finite.
    assert "at step 2; the last good checkpoint is that of step 1." in errors[0]
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["1"]


@pytest.mark.slow
def test_what_was_trained_is_saved_when_evaluation_fails(tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("no image can be decoded")

    monkeypatch.setattr(train, "evaluate_all", fail)
    config = load_config(TINY)
    config.total_steps = 2
    with pytest.raises(ValueError, match="no image can be decoded"):
        train.run(config, str(tmp_path))
    assert (tmp_path / "checkpoints" / "2").is_dir()


@pytest.mark.slow
def test_evaluations_and_the_best_are_those_of_a_run_that_never_stopped(tmp_path):
    flags = (
        *("--config.total_steps=6", "--config.evaluate_every=1", "--config.checkpoint.every=3"),
        *("--config.checkpoint.keep_last=9", "--config.evaluators.digits={}"),
        "--config.checkpoint.keep_best=pairs/image_to_text_r10",
    )
    config, checkpoints = load_config(TINY, *flags), tmp_path / "checkpoints"

    def look():
        """What stands in the workdir, without times."""
        records = [
            {k: v for k, v in record.items() if k not in ("time", "seconds")}
            for record in read_evaluations(tmp_path)
        ]
        steps = sorted(int(path.name) for path in checkpoints.iterdir())
        return records, steps, restore.load_weights(config, str(tmp_path), tokenizer, "best")[-1]

    tokenizer = build.build_tokenizer(config)
    train.run(config, str(tmp_path))
    records, steps, best = whole = look()
    measured = [record["numbers"]["pairs/image_to_text_r10"] for record in records]
    assert best == measured.index(max(measured)) + 1 and {best, 3, 6} <= set(steps)
    kept = [str(checkpoints / str(step)) if step in steps else None for step in range(1, 7)]
    assert [record["checkpoint"] for record in records] == kept
    assert records[0]["evaluators"] == {
        "pairs": {"name": "retrieval", "source": {"name": "digits", "split": "test"}}
    }
    for step in steps:
        if step > 3:
            shutil.rmtree(checkpoints / str(step))  # as if the run had been killed in step 4
    train.run(config, str(tmp_path))
    assert look() == whole

    results = evaluate.run(config, str(tmp_path), "best")
    last = list(read_evaluations(tmp_path))[-1]
    assert (last["mode"], last["step"], last["numbers"]) == ("eval", best, results)
    assert results == pytest.approx(records[best - 1]["numbers"])
    opened, same = (big_align.load(checkpoints / name).variables for name in ("best", str(best)))
    jax.tree.map(np.testing.assert_array_equal, opened, same)
    with pytest.raises(MissingCheckpoint, match="has no checkpoint of step 77"):
        evaluate.run(config, str(tmp_path), 77)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ("digit/top1", "did you mean 'digits/top1'.*: digits/top1, .*, pairs/text_to_image_r10"),
        ("pairs/r10", "no number of config.evaluators.*: digits/top1, digits/top5"),
        ("pairs", "config.checkpoint: keep_best = 'pairs' is no number: write EVALUATOR/NAME"),
    ],
)
def test_a_best_number_that_no_evaluator_has_is_named_before_training(tmp_path, number, message):
    config = load_config(TINY, f"--config.checkpoint.keep_best={number}")
    with pytest.raises(ConfigError, match=message):
        train.run(config, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
