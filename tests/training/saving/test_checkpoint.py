"""Checkpoints restore bit for bit, on any mesh, and refuse another model by name."""

import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import struct

from big_align.errors import CheckpointMismatch
from big_align.parallel.meshes import replicated
from big_align.training.optimizers import make_optimizer
from big_align.training.saving.checkpoint import Checkpointer
from big_align.training.saving.handlers import SMALLEST_SLICE
from big_align.training.saving.step_folders import find_folder
from big_align.training.state import describe_state
from tests import tiny

RECORD = {"seed": 0, "tokenizer": "abc"}


def describe(devices, fsdp=1, **kwargs):
    mesh = tiny.make_mesh(devices, fsdp)
    optimizer = make_optimizer(name="lamb", learning_rate=optax.constant_schedule(1e-2))
    objective = tiny.make_objective(mesh, **kwargs)
    return describe_state(objective, optimizer, tiny.make_batch(1), mesh, seed=3)


def equal(left, right):
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y), left, right)


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    _, create = describe(8, fsdp=4)
    state, folder = create(), tmp_path_factory.mktemp("saved")
    checkpointer = Checkpointer(str(folder))
    checkpointer.save(state, RECORD)
    checkpointer.close()
    return folder, state


@pytest.fixture
def saved(saved_once, tmp_path):
    folder, state = saved_once
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return tmp_path, state


@struct.dataclass
class Counted:
    step: Any
    arrays: Any


def test_devices_share_the_writing_of_large_arrays_alone(tmp_path):
    mesh = tiny.make_mesh(8)
    large = jnp.arange(8 * SMALLEST_SLICE // 4, dtype=jnp.float32).reshape(8, -1)
    arrays = {"large": large, "below": large[:, :-1], "bias": large[0, :8]}
    state = jax.device_put(Counted(jnp.int32(3), arrays), replicated(mesh))
    checkpointer = Checkpointer(str(tmp_path))
    checkpointer.save(state, RECORD)
    checkpointer.close()
    described = ocp.PyTreeCheckpointHandler().metadata(
        find_folder(str(tmp_path), None) / "3" / "state"
    )
    chunks = {name: x.storage.chunk_shape for name, x in described.tree["arrays"].items()}
    assert chunks == {"large": (1, 4096), "below": (8, 4095), "bias": (8,)}
    equal(Checkpointer(str(tmp_path), read_only=True).restore(state, RECORD), state)


@pytest.mark.slow
def test_restores_bit_for_bit_on_another_number_of_devices(saved):
    workdir, state = saved
    for devices, fsdp in ((8, 4), (4, 2), (1, 1)):
        described, _ = describe(devices, fsdp)
        checkpointer = Checkpointer(str(workdir), read_only=True)
        restored = checkpointer.restore(described, RECORD)
        equal(restored, state)
        jax.tree.map(
            lambda x, d: np.testing.assert_(x.sharding.is_equivalent_to(d.sharding, x.ndim)),
            restored,
            described,
        )


def test_restores_some_fields(saved):
    workdir, state = saved
    described, _ = describe(1)
    fields = {"params": described.params, "model_state": described.model_state}
    restored = Checkpointer(str(workdir), read_only=True).restore(fields, {})
    equal(restored, {"params": state.params, "model_state": state.model_state})


def test_another_model_is_refused_and_the_difference_listed(saved):
    workdir, _ = saved
    described, _ = describe(1, learn_temperature=False)
    with pytest.raises(CheckpointMismatch, match="only in the checkpoint: params/temperature"):
        Checkpointer(str(workdir), read_only=True).restore(described, RECORD)


@pytest.mark.slow
def test_another_tokenizer_is_refused(saved):
    workdir, _ = saved
    described, _ = describe(1)
    with pytest.raises(CheckpointMismatch, match="tokenizer = abc, the config has xyz"):
        Checkpointer(str(workdir), read_only=True).restore(described, {"tokenizer": "xyz"})


@pytest.mark.slow
def test_keeps_the_last_and_every_nth(tmp_path):
    _, create = describe(1)
    state = create()
    checkpointer = Checkpointer(str(tmp_path), keep_last=2, keep_every=4)
    for step in range(1, 8):
        checkpointer.save(state.replace(step=np.int32(step)), RECORD)
    checkpointer.close()
    steps = sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit())
    assert steps == [4, 6, 7]


@pytest.mark.slow
def test_checkpoints_can_lie_elsewhere(tmp_path):
    described, create = describe(1)
    state = create()
    workdir, folder = str(tmp_path / "run"), str(tmp_path / "shared" / "run")
    checkpointer = Checkpointer(workdir, folder=folder)
    checkpointer.save(state, RECORD)
    checkpointer.close()
    equal(Checkpointer(workdir, folder=folder, read_only=True).restore(described, RECORD), state)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "name",
    [
        "lr[1,2] a*b? größe {1} 100%",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("lr[1,2]", "a*b?", "process_*")),
    ],
)
def test_the_name_of_a_folder_is_no_pattern(name, tmp_path):
    """With [ and * in the path Orbax merged nothing: the checkpoint counted, and held nothing."""
    _, create = describe(8, fsdp=4)
    state = create()
    checkpointer = Checkpointer(str(tmp_path / name))
    checkpointer.save(state, RECORD)
    checkpointer.close()
    described, _ = describe(1)
    equal(Checkpointer(str(tmp_path / name), read_only=True).restore(described, RECORD), state)


def test_a_folder_of_checkpoints_may_be_given_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    described, create = describe(1)
    checkpointer = Checkpointer("run", folder="shared/run")
    checkpointer.save(create(), RECORD, last=True)
    checkpointer.close()
    assert (tmp_path / "shared" / "run" / "0").is_dir()
    assert str(find_folder("run", "gs://bucket/run")) == "gs://bucket/run"


def test_an_unfinished_checkpoint_is_not_restored(saved):
    workdir, state = saved
    # Orbax writes under another name and renames at the end; a kill leaves the other name.
    (workdir / "checkpoints" / "9.orbax-checkpoint-tmp").mkdir()
    checkpointer = Checkpointer(str(workdir))
    assert checkpointer.latest_step == 0
    checkpointer.close()


def test_no_checkpoint_to_evaluate(tmp_path):
    with pytest.raises(FileNotFoundError, match="train with this workdir first"):
        Checkpointer(str(tmp_path), read_only=True)


@pytest.mark.slow
def test_weight_decay_from_or_to_zero_is_told(tmp_path):
    """Orbax has a page about it, and the run could not know which field it is."""

    def describe_decay(weight_decay):
        mesh = tiny.make_mesh(1)
        rate = optax.constant_schedule(1e-2)
        optimizer = make_optimizer(name="adamw", learning_rate=rate, weight_decay=weight_decay)
        return describe_state(tiny.make_objective(mesh), optimizer, tiny.make_batch(1), mesh)

    checkpointer = Checkpointer(str(tmp_path))
    checkpointer.save(describe_decay(0.1)[1](), {})
    checkpointer.close()
    described, _ = describe_decay(0.0)
    with pytest.raises(CheckpointMismatch, match="its weight_decay, but not from or to 0"):
        Checkpointer(str(tmp_path), read_only=True).restore(described, {})
    described, _ = describe_decay(1e-30)
    assert Checkpointer(str(tmp_path), read_only=True).restore(described, {}) is not None


@pytest.mark.slow
def test_a_checkpoint_that_a_run_removes_meanwhile_is_not_damaged(saved, monkeypatch, capsys):
    """As evaluation sees it: the run has saved another one, and removed the one that was found."""
    workdir, state = saved
    folder, inner = find_folder(str(workdir), None), Checkpointer._find_fault
    writer = Checkpointer(str(workdir))
    later = state.replace(step=state.step + 1)
    writer.save(later, RECORD)
    writer.close()
    shutil.move(folder / "1", workdir / "later")
    checkpointer = Checkpointer(str(workdir), read_only=True)

    def find_fault(self, step):
        monkeypatch.setattr(Checkpointer, "_find_fault", inner)
        shutil.move(workdir / "later", folder / "1")
        shutil.rmtree(folder / "0")
        return inner(self, step)

    monkeypatch.setattr(Checkpointer, "_find_fault", find_fault)
    described, _ = describe(1)
    restored = checkpointer.restore(described, RECORD)
    equal(restored, later)
    assert capsys.readouterr().out == ""
