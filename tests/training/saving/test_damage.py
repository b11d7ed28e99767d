"""A damaged checkpoint is named, set aside and passed over: no traceback and no garbage."""

import json
import os
import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint._src.path import atomicity, atomicity_defaults

from big_align.core import file_checksums
from big_align.core.errors import DamagedCheckpoint, UserError
from big_align.training.saving.checkpoint import Checkpointer
from big_align.training.state import TrainState

RECORD = {"seed": 0, "tokenizer": "abc"}


def make_state(step):
    """A state whose numbers tell its step, with an array of several kinds each."""
    key = jax.random.key(step)
    params = {
        "kernel": jax.random.normal(key, (37, 11)),
        "bias": jnp.full(5, step, jnp.bfloat16),
    }
    moments = jax.tree.map(lambda x: x + step, params)
    return TrainState(
        step=jnp.int32(step),
        params=params,
        model_state={},
        opt_state=(moments, jnp.int32(step)),
        rng=jax.random.key_data(key),
        tables={},
    )


def restore(workdir, **kwargs):
    checkpointer = Checkpointer(str(workdir), **kwargs)
    try:
        return checkpointer.restore(jax.eval_shape(lambda: make_state(0)), RECORD)
    finally:
        checkpointer.close()


def check_state(state, steps):
    """Checks that a state is one of those that were saved, in every bit; returns its step."""
    step = int(state.step)
    assert step in steps
    jax.tree.map(np.testing.assert_array_equal, state, make_state(step))
    return step


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    checkpointer = Checkpointer(str(folder))
    for step in (120, 130):
        checkpointer.save(make_state(step), RECORD)
    checkpointer.close()
    return folder


@pytest.fixture
def saved(saved_once, tmp_path):
    shutil.copytree(saved_once, tmp_path, dirs_exist_ok=True)
    return tmp_path


def list_files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


SPECIAL = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "device": lambda path: os.symlink("/dev/zero", path),
}
"""What can be under the name of a file, and is none."""


def damage(folder, random_):
    """Damages one file or folder of a checkpoint; returns how."""
    path = random_.choice(list_files(folder))
    kinds = ["flip", "bit", "cut", "empty", "delete", "rename", "grow", "up", "zero", *SPECIAL]
    kind = random_.choice(kinds)
    data = path.read_bytes()
    place = random_.randrange(max(len(data), 1))
    if kind == "up":  # a folder on the way to it
        folders = [p for p in path.parents if folder in p.parents or p == folder]
        path = random_.choice(folders)
        shutil.rmtree(path) if random_.random() < 0.5 else path.rename(f"{path}_moved")
    elif kind in SPECIAL:
        path.unlink()
        SPECIAL[kind](path)
    elif kind == "delete":
        path.unlink()
    elif kind == "rename":
        path.rename(path.with_name("other"))
    else:
        changed = {
            "flip": data[:place] + bytes([random_.randrange(256)]) + data[place + 1 :],
            "bit": data[:place] + bytes(b ^ 1 for b in data[place : place + 1]) + data[place + 1 :],
            "cut": data[:place],
            "empty": b"",
            "grow": data + b"\0",
            "zero": data[:place] + bytes(len(data) - place),
        }
        path.write_bytes(changed[kind])
    return f"{kind} {path.relative_to(folder.parent)}"


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 200))]
)
def test_what_is_restored_is_what_was_saved(saved, seed):
    newest = saved / "checkpoints" / "130"
    before = {path: path.read_bytes() for path in list_files(newest)}
    how = damage(newest, random.Random(seed))
    if how.startswith(("pipe", "device")) and how.count("/") == 1:
        with pytest.raises(UserError, match="130/.* is a .*, not a file; remove it"):
            restore(saved)
        return
    step = check_state(restore(saved), (120, 130))
    if step == 130:  # a note of Orbax, which is not read, or bytes that are what they were
        changed = [p for p in before if not p.is_file() or p.read_bytes() != before[p]]
        assert all(p.parent == newest or p.name == "commit_success.txt" for p in changed), how
    else:
        assert not newest.exists(), how
    again = check_state(restore(saved), (step,))  # and the next start finds everything in order
    assert again == step


@pytest.mark.slow
def test_every_byte_of_every_file_of_arrays_counts(saved):
    newest = saved / "checkpoints" / "130"
    for path in list_files(newest / "state"):
        data = path.read_bytes()
        for place in {0, len(data) // 2, len(data) - 1} if data else ():
            path.write_bytes(data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :])
            state = restore(saved, read_only=True)
            assert check_state(state, (120, 130)) == 120, (path, place)
        path.write_bytes(data)
    assert check_state(restore(saved), (130,)) == 130


def test_the_line_names_the_file_and_how_many_steps_are_repeated(saved, capsys):
    (path,) = (saved / "checkpoints/130").rglob("ocdbt.process_0/manifest.ocdbt")
    path.unlink()
    check_state(restore(saved), (120,))
    lines = capsys.readouterr().out.splitlines()
    folder = saved / "checkpoints"
    assert lines == [
        f"{folder}/130 is damaged (state/ocdbt.process_0/manifest.ocdbt cannot be read "
        "(FileNotFoundError)); its name is now damaged_130",
        "using step 120 instead of 130; 10 steps are repeated",
    ]
    assert (folder / "damaged_130/state/manifest.ocdbt").is_file()  # nothing is thrown away


def test_nothing_is_renamed_where_a_run_is_only_read(saved, capsys):
    next((saved / "checkpoints/130/state").rglob("manifest.ocdbt")).write_bytes(b"")
    check_state(restore(saved, read_only=True), (120,))
    assert (saved / "checkpoints/130").is_dir()
    printed = capsys.readouterr()  # what reads may print results for another program
    assert "130 is damaged (state/" in printed.err and not printed.out
    assert "using step 120 instead of 130\n" in printed.err


def test_a_file_that_may_not_be_read_is_not_damaged(saved, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(file_checksums, "_add_up", refuse)
    for read_only in (True, False):
        with pytest.raises(PermissionError, match="Permission denied: .*130"):
            restore(saved, read_only=read_only)
    assert sorted(path.name for path in (saved / "checkpoints").iterdir()) == ["120", "130"]


def test_a_checkpoint_that_is_asked_for_is_not_replaced_by_another(saved):
    (saved / "checkpoints/130/record/metadata").write_text("{}")
    checkpointer = Checkpointer(str(saved), read_only=True)
    described = jax.eval_shape(lambda: make_state(0))
    with pytest.raises(DamagedCheckpoint, match="130 is damaged: record/metadata has 2 bytes"):
        checkpointer.restore(described, RECORD, 130)
    check_state(checkpointer.restore(described, RECORD, 120), (120,))
    checkpointer.close()


def test_a_run_does_not_start_over_when_all_are_damaged(saved):
    for step in (120, 130):
        (saved / f"checkpoints/{step}/state/manifest.ocdbt").unlink()
    for _ in range(2):  # and neither does the same command again
        with pytest.raises(DamagedCheckpoint, match=r"in .* is whole \(2 are damaged"):
            restore(saved)
    shutil.rmtree(saved / "checkpoints")
    assert restore(saved) is None


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file_in_a_checkpoint_is_not_waited_for(saved, kind):
    """No file is opened that waits for another process or never ends; one of its own is a line."""
    newest = saved / "checkpoints/130"
    for name in ("state/manifest.ocdbt", "record/metadata", "checksums/checksums.json"):
        path = newest / name
        whole = path.read_bytes()
        path.unlink()
        SPECIAL[kind](path)
        assert check_state(restore(saved, read_only=True), (120, 130)) == 120
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(whole)
    (newest / "_CHECKPOINT_METADATA").unlink()
    SPECIAL[kind](newest / "_CHECKPOINT_METADATA")
    if kind == "folder":  # of which Orbax makes nothing
        check_state(restore(saved, read_only=True), (130,))
        return
    for read_only in (True, False):
        with pytest.raises(UserError, match="130/_CHECKPOINT_METADATA is a .*; remove it, which"):
            restore(saved, read_only=read_only)


def test_a_stray_folder_is_in_nobodys_way(saved, capsys):
    for step in (125, 140):
        (saved / f"checkpoints/{step}").mkdir()
    (saved / "checkpoints/140/notes.txt").write_text("mine")
    checkpointer = Checkpointer(str(saved), keep_last=10)
    described = jax.eval_shape(lambda: make_state(0))
    check_state(checkpointer.restore(described, RECORD), (130,))
    (saved / "checkpoints/150").mkdir()  # while it runs
    for step in (140, 150):
        checkpointer.save(make_state(step), RECORD)
    checkpointer.close()
    check_state(restore(saved), (150,))
    assert (saved / "checkpoints/stray_140/notes.txt").read_text() == "mine"
    assert "140 is not a checkpoint" in capsys.readouterr().out


def test_one_under_another_name_is_not_taken_for_that_step(saved):
    (saved / "checkpoints/130").rename(saved / "checkpoints/999")
    assert check_state(restore(saved), (120,)) == 120


def test_checkpoints_of_a_time_before_checksums_are_read(saved):
    for step in (120, 130):
        folder = saved / f"checkpoints/{step}"
        shutil.rmtree(folder / "checksums")
        record = json.loads((folder / "record/metadata").read_text())
        (folder / "record/metadata").write_text(json.dumps({k: record[k] for k in RECORD}))
    check_state(restore(saved), (130,))
    (saved / "checkpoints/130/state/manifest.ocdbt").unlink()
    check_state(restore(saved), (120,))


def test_what_an_interrupted_save_has_left_is_removed(saved):
    left = saved / "checkpoints/135.orbax-checkpoint-tmp"
    shutil.copytree(saved / "checkpoints/130", left)
    check_state(restore(saved, read_only=True), (130,))
    assert left.is_dir()
    check_state(restore(saved), (130,))
    assert not left.exists()


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """A folder with Orbax's rule for buckets, and other things beside the checkpoints."""
    rule = atomicity.CommitFileTemporaryPath
    monkeypatch.setattr(
        atomicity_defaults, "get_default_temporary_path_class", lambda *given, **named: rule
    )
    checkpointer = Checkpointer(str(tmp_path))
    for step in (120, 130):
        checkpointer.save(make_state(step), RECORD)
    checkpointer.close()
    folder = tmp_path / "checkpoints"
    assert (folder / "130/commit_success.txt").exists()
    for other in ("pairs/00000.tar", "finetune/100/state/x", "2024/photo.jpg"):
        (folder / other).parent.mkdir(parents=True)
        (folder / other).write_text("mine")
    yield tmp_path
    for other in ("pairs/00000.tar", "finetune/100/state/x", "2024/photo.jpg"):
        assert (folder / other).read_text() == "mine"


def test_in_a_bucket_only_interrupted_saves_are_removed(bucket):
    left = bucket / "checkpoints/140"
    shutil.copytree(bucket / "checkpoints/130", left)
    (left / "commit_success.txt").unlink()
    shutil.rmtree(left / "checksums")
    check_state(restore(bucket, read_only=True), (130,))
    assert left.is_dir()
    check_state(restore(bucket), (130,))
    assert not left.exists()


def test_a_checkpoint_in_a_bucket_that_lost_only_its_mark_is_used(bucket):
    (bucket / "checkpoints/130/commit_success.txt").unlink()
    check_state(restore(bucket), (130,))


def test_one_in_a_bucket_that_lost_its_mark_and_more_is_set_aside(bucket, capsys):
    (bucket / "checkpoints/130/commit_success.txt").unlink()
    (bucket / "checkpoints/130/state/manifest.ocdbt").write_bytes(b"")
    check_state(restore(bucket), (120,))
    assert (bucket / "checkpoints/damaged_130/record").is_dir()
    assert "its name is now damaged_130" in capsys.readouterr().out
