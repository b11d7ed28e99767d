"""Two processes with four devices each do what one process with eight does."""

import signal

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.runs import Run, read_losses


def start(workdir, steps, processes, group_size=""):
    # The rate does not depend on the number of steps, so that all runs share a compiled step.
    return Run(
        workdir,
        f"--config.total_steps={steps}",
        "--config.schedule.decay=constant",
        config=f"tests/tiny_config.py:{group_size}",
        processes=processes,
    )


def read_checkpoint(workdir, step):
    """The saved fields as NumPy arrays, whatever devices they lay on."""
    path = workdir / "checkpoints" / str(step) / "state"
    checkpointer = ocp.PyTreeCheckpointer()
    tree = checkpointer.metadata(path).item_metadata.tree
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    state = checkpointer.restore(path, restore_args=as_numpy)
    return {k: state[k] for k in ("step", "params", "model_state", "rng")}


@pytest.mark.parametrize("group_size", ["", "4"])
def test_two_processes_give_the_losses_and_parameters_of_one(group_size, tmp_path):
    states = {}
    for processes in (1, 2):
        run = start(tmp_path / str(processes), 6, processes, group_size)
        assert run.wait() == 0, run.err
        states[processes] = read_checkpoint(run.workdir, 6)
        assert run.steps == list(range(1, 7))
    losses = [read_losses(tmp_path / name) for name in ("1", "2")]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), *states.values()
    )


def test_sigterm_stops_all_processes_at_one_step_and_the_run_continues(tmp_path):
    uninterrupted = start(tmp_path / "uninterrupted", 40, 2)
    assert uninterrupted.wait() == 0, uninterrupted.err

    run = start(tmp_path / "stopped", 40, 2)
    run.wait_for_step(5)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0, run.err  # launch/local.sh returns 0 only if all processes do
    last = run.steps[-1]
    assert last < 40
    assert f"stopped on request after step {last}; the same command continues" in run.out
    assert read_checkpoint(run.workdir, last)["step"] == last

    continued = start(tmp_path / "stopped", 40, 2)
    assert continued.wait() == 0, continued.err
    assert read_losses(continued.workdir) == read_losses(uninterrupted.workdir)
