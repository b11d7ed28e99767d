"""What processes of a run decide about checkpoints is the same, whatever each of them sees."""

import shutil

import jax
import jax.numpy as jnp
import pytest

from big_align.core.errors import MissingCheckpoint, UserError
from big_align.training.saving import checkpoint, reading
from big_align.training.saving.checkpoint import Checkpointer
from big_align.training.state import TrainState
from tests.two_processes import run_both

BEST = "pairs/r10"


def make_state(step):
    return TrainState(jnp.int32(step), {"x": jnp.full(3, float(step))}, {}, (), jnp.zeros(2), {})


@pytest.fixture
def hosts(tmp_path):
    """The workdir as two hosts see it: the second does not see the last checkpoint."""
    folders = [tmp_path / "0", tmp_path / "1"]
    saved = Checkpointer(str(folders[0]), keep_best=BEST)
    for step, number in ((1, 0.5), (2, 0.9)):
        saved.save(make_state(step), {"seed": 0}, {BEST: number})
    saved.close()
    shutil.copytree(*folders)
    shutil.rmtree(folders[1] / "checkpoints" / "2")
    return folders


def restore(workdir, **kwargs):
    saved = Checkpointer(str(workdir), read_only=True, **kwargs)
    return int(saved.restore(jax.eval_shape(lambda: make_state(0)), {"seed": 0}).step)


def test_processes_that_find_different_checkpoints_read_the_same(hosts, monkeypatch):
    # The first process finds step 2, which the second does not see: none of them can use it.
    assert run_both(monkeypatch, lambda process: restore(hosts[process])) == [1, 1]
    assert run_both(monkeypatch, lambda process: restore(hosts[1 - process])) == [1, 1]


def test_processes_agree_whether_an_evaluation_is_the_best(hosts, monkeypatch):
    def improves(process):
        return Checkpointer(str(hosts[process]), keep_best=BEST).improves({BEST: 0.7})

    assert run_both(monkeypatch, improves) == [False, False]


def test_a_folder_that_one_process_does_not_see_is_told_to_all(hosts, tmp_path, monkeypatch):
    """The other would begin without a checkpoint: evaluate initial weights, or train again."""
    hosts[1] = tmp_path / "empty"
    for outcome in run_both(monkeypatch, lambda process: restore(hosts[process])):
        assert isinstance(outcome, UserError) and not isinstance(outcome, MissingCheckpoint)
        assert "process 1 does not see it, and others do" in str(outcome)


def test_what_one_process_cannot_read_is_set_aside_by_all(hosts, monkeypatch):
    """A checkpoint that is older than checksums shows only when it is read that it is damaged."""
    monkeypatch.setattr(checkpoint.checksums, "inspect", lambda *_: (None, False))

    def read(process):
        def read_state(folder, *given):
            if process == 1 and folder.name == "2":
                raise ValueError("not what an array was written as")
            return reading.read_state(folder, *given)

        readers[process] = read_state
        return restore(hosts[0])

    readers = {}
    monkeypatch.setattr(
        checkpoint, "read_state", lambda *given: readers[agreeing().process_id](*given)
    )

    def agreeing():
        return checkpoint.agreement.processes.coordination()

    assert run_both(monkeypatch, read) == [1, 1]
