"""Two processes with four devices each do what one process with eight does."""

import functools
import json
import signal

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from big_align.core.errors import Stopped
from big_align.training.saving.checkpoint import Checkpointer
from tests.run_main import Run, read_losses

STEPS = 10


def start(workdir, processes, *flags, group_size=""):
    """Starts a run, whose parameters are split over its processes unless BatchNorm has groups.

    So they are where each GPU of a node has a process, or a TPU host has four chips.
    """
    flags = (f"--config.total_steps={STEPS}", *flags)
    if not group_size:
        flags += ("--config.mesh.fsdp=8",)
    config = f"tests/tiny_config.py:{group_size}"
    return Run(workdir, *flags, config=config, processes=processes)


def read_results(workdir):
    """The numbers of the last evaluation."""
    results = json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])
    return [results[name] for name in ("digits/top5", "pairs/text_to_image_r10")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Gives the workdir of an uninterrupted run."""

    @functools.cache
    def train(processes, group_size):
        # One setting is evaluated, which takes as long as all the training.
        evaluated = "--config.checkpoint.keep_best=digits/top5"
        flags = ("--config.evaluators={}",) if group_size else (evaluated,)
        workdir = tmp_path_factory.mktemp("finished")
        run = start(workdir, processes, *flags, group_size=group_size)
        assert run.wait() == 0, run.err
        assert run.steps == list(range(1, STEPS + 1))
        return run.workdir

    return train


def read_checkpoint(workdir, step):
    """The saved fields as NumPy arrays, whatever devices they lay on."""
    path = workdir / "checkpoints" / str(step) / "state"
    checkpointer = ocp.PyTreeCheckpointer()
    tree = checkpointer.metadata(path).item_metadata.tree
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    state = checkpointer.restore(path, restore_args=as_numpy)
    return {k: state[k] for k in ("step", "params", "model_state", "rng")}


@pytest.mark.slow
@pytest.mark.parametrize("group_size", ["", "4"])
def test_two_processes_give_the_losses_and_parameters_of_one(finished, group_size):
    one, two = (finished(processes, group_size) for processes in (1, 2))
    np.testing.assert_allclose(read_losses(two), read_losses(one), rtol=1e-5)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5),
        *(read_checkpoint(workdir, STEPS) for workdir in (one, two)),
    )
    if not group_size:
        np.testing.assert_allclose(read_results(two), read_results(one), atol=0.005)
        lines = (two / "evaluations.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [STEPS]
        best = Checkpointer(str(two), keep_best="digits/top5", read_only=True).find("best")
        assert best == STEPS


@pytest.mark.slow
def test_sigterm_stops_all_processes_at_one_step_and_the_run_continues(finished, tmp_path):
    run = start(tmp_path, 2, "--config.evaluators={}")
    run.wait_for_step(2)
    run.signal(signal.SIGTERM)
    assert run.wait() == Stopped.STATUS, run.err
    last = run.steps[-1]
    assert last < STEPS
    assert f"stopped on request after step {last}; the same command continues" in run.out
    assert read_checkpoint(tmp_path, last)["step"] == last

    # Also while a run that continues has made no step yet: it may end before it compiles.
    again = start(tmp_path, 2, "--config.evaluators={}")
    again.wait_for_owner()
    again.signal(signal.SIGTERM)
    assert again.wait() == Stopped.STATUS, again.err
    assert again.steps[-1] in (last, last + 1)

    continued = start(tmp_path, 2, "--config.evaluators={}")
    assert continued.wait() == 0, continued.err
    assert read_losses(tmp_path) == read_losses(finished(2, ""))


@pytest.mark.slow
def test_processes_agree_on_what_one_of_them_finds_damaged(finished, tmp_path):
    """Each of them reads every other file: a damaged one is seen by one alone."""
    flags = ("--config.evaluators={}", "--config.checkpoint.every=2")
    run = start(tmp_path, 2, *flags)
    run.wait_for_step(4)  # two checkpoints
    run.signal(signal.SIGTERM)
    assert run.wait() == Stopped.STATUS, run.err
    for process in range(2):
        steps = sorted(int(path.name) for path in (tmp_path / "checkpoints").glob("[0-9]*"))
        newest = tmp_path / "checkpoints" / str(steps[-1])
        names = sorted(json.loads((newest / "checksums/checksums.json").read_text())["files"])
        (newest / names[process::2][0]).write_bytes(b"")
        run = start(tmp_path, 2, *flags, f"--config.total_steps={steps[-1] if process else STEPS}")
        assert run.wait() == 0, run.err
        assert run.out.count(f"using step {steps[-2]} instead of {steps[-1]}") == 1
        assert (tmp_path / "checkpoints" / f"damaged_{steps[-1]}").is_dir()
    assert read_losses(tmp_path) == read_losses(finished(2, ""))


@pytest.mark.slow
def test_a_second_run_of_several_processes_is_refused(tmp_path):
    flags = ("--config.evaluators={}", "--config.total_steps=100000")
    run = start(tmp_path, 2, *flags)
    run.wait_for_step(2)
    second = start(tmp_path, 2, *flags)
    assert second.wait() == 1
    assert "belongs to another run (process" in second.err
    before = run.steps[-1]
    run.wait_for_step(before + 3)  # the first goes on
    run.signal(signal.SIGTERM)
    assert run.wait() == Stopped.STATUS, run.err
