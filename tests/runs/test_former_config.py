"""Continuing with another config: what differs is told, and the former one is kept."""

import json
import re
import shutil

import pytest
from etils import epath

from big_align.config.components import docstrings, signatures, tables
from big_align.config.overrides import load_config
from big_align.core.errors import CheckpointMismatch, ConfigError, UserError
from big_align.data.sources.digits import DIGIT_WORDS
from big_align.runs import build, check, restore, train
from tests.run_main import TINY, read_losses

FLAGS = ("--config.total_steps=4", "--config.checkpoint.every=2", "--config.evaluators={}")


def test_what_differs_is_a_line_a_field():
    former, now = load_config(TINY), load_config(TINY, "--config.schedule.learning_rate=0.0005")
    now.batch_size = 32
    with now.unlocked():
        now.optimizer = dict(name="adamw", b1=0.9)
        now.evaluators.new = dict(name="knn", k=5)
        del now.evaluators["pairs"]
    lines = restore.describe_changes(former, now)
    assert "config.schedule.learning_rate: 0.01 -> 0.0005" in lines
    assert "config.batch_size: 16 -> 32" in lines
    assert "config.evaluators.new.k: None -> 5" in lines
    assert "config.evaluators.pairs.name: 'retrieval' -> None" in lines
    assert not any("seed" in line for line in lines)
    assert restore.describe_changes(former, load_config(TINY)) == []


def test_a_config_that_differs_is_kept_for_the_step_where_the_next_takes_over(tmp_path):
    first, path = load_config(TINY), tmp_path / "config.json"
    assert restore.keep_config(str(tmp_path), first, 0) == []
    before = path.read_bytes()
    assert restore.keep_config(str(tmp_path), first, 3) == []
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]
    second = load_config(TINY, "--config.schedule.learning_rate=0.5")
    told = restore.keep_config(str(tmp_path), second, 3)
    assert told[0] == "config.schedule.learning_rate: 0.01 -> 0.5" and len(told) == 2
    assert (tmp_path / "config.3.json").read_bytes() == before
    # Killed before it was saved and changed again: the state of step 3 is still the first one's.
    third = load_config(TINY, "--config.schedule.learning_rate=0.25")
    told = restore.keep_config(str(tmp_path), third, 3)
    assert told[0] == "config.schedule.learning_rate: 0.01 -> 0.25" and len(told) == 2
    assert restore.keep_config(str(tmp_path), third, 3) == told
    assert (tmp_path / "config.3.json").read_bytes() == before
    assert json.loads(path.read_text())["schedule"]["learning_rate"] == 0.25


SCHEDULES = [
    (f"--config.schedule.decay={decay}", f"--config.schedule.warmup_steps={warmup}", *more)
    for decay, *more in (
        ("linear", "--config.schedule.end_value=0.0001"),
        ("cosine",),
        ("step", "--config.schedule.decay_every=7"),
        ("constant",),
    )
    for warmup in (0, 30)
]
CHANGES = {
    "config.total_steps": "--config.total_steps=400",
    "config.schedule.learning_rate": "--config.schedule.learning_rate=0.003",
    "config.schedule.warmup_steps": "--config.schedule.warmup_steps=25",
}


@pytest.mark.parametrize("field", CHANGES)
@pytest.mark.parametrize("flags", SCHEDULES)
@pytest.mark.parametrize(
    "step", [60, *(pytest.param(n, marks=pytest.mark.slow) for n in (10, 100))]
)
def test_a_rate_that_another_config_changes_is_told_with_what_keeps_it(
    tmp_path, flags, field, step
):
    """The flags that the line ends with do what it says they do."""
    given = ("--config.total_steps=100", "--config.schedule.learning_rate=0.01", *flags)
    former, now = load_config(TINY, *given), load_config(TINY, *given, CHANGES[field])
    rates = [float(build.build_schedule(config)(step)) for config in (former, now)]
    restore.keep_config(str(tmp_path), former, 0)
    told = [line for line in restore.keep_config(str(tmp_path), now, step) if "rate of" in line]
    if rates[0] == pytest.approx(rates[1], rel=1e-3):
        assert told == []
        return
    begins = f"the learning rate of step {step + 1} changes from {rates[0]:.3g} to {rates[1]:.3g}, "
    (line,) = told
    assert line.startswith(f"{begins}because of {field}; write --")
    *keeping, holding = line.split("; write ")[1:]
    assert bool(keeping) == (field != "config.total_steps" or step < 100)
    for text, rate in (*((text, rates[0]) for text in keeping), (holding, rates[0] or None)):
        again = [word for word in text.split() if word.startswith("--")]
        kept = build.build_schedule(load_config(TINY, *given, CHANGES[field], *again))
        assert rate is None or float(kept(step)) == pytest.approx(rate, rel=1e-4)
    assert kept(step) == kept(399) > 0


def test_fields_of_a_start_alone_are_told_to_have_no_effect(tmp_path):
    former = load_config(TINY)
    now = load_config(TINY, "--config.init.all=weights", "--config.objective.temperature=0.5")
    told = "config.init.all, config.objective.temperature have no effect, since the run has begun"
    for step, count in ((0, 0), (3, 1)):
        workdir = tmp_path / str(step)
        workdir.mkdir()
        restore.keep_config(str(workdir), former, 0)
        lines = restore.keep_config(str(workdir), now, step)
        assert sorted(line.partition(":")[0] for line in lines) == sorted(
            ["config.init.all", "config.objective.temperature", *[told] * count]
        )
    kept = load_config(TINY, "--config.objective.learn_temperature=False")
    now = load_config(
        TINY, "--config.objective.learn_temperature=False", "--config.objective.temperature=0.5"
    )
    assert list(restore.tell_consequences(kept, now, 3)) == []


def test_fields_of_a_start_are_those_whose_help_says_so():
    for path in tables.OBJECTIVES.values():
        objective = signatures.import_attribute(path, "config.objective.name")
        fields, lines = signatures.list_settable(objective), docstrings.read_arguments(objective)
        said = {x for x in fields if "initial value of" in lines.get(x, "").partition(";")[0]}
        assert said == set(objective.initial), path


@pytest.mark.parametrize("text", ["{", "[]", "", "\0", '{"seed": 1}', '{"seed": 1, "seed": 2}'])
def test_a_config_that_cannot_be_read_is_one_line(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "config.json"))) as error:
        restore.keep_config(str(tmp_path), load_config(TINY), 0)
    assert "\n" not in str(error.value) and "mend it or move it away" in str(error.value)
    assert (tmp_path / "config.json").read_text() == text


@pytest.mark.slow
def test_a_run_goes_on_with_another_rate_and_names_another_tokenizer(tmp_path, capsys):
    train.run(load_config(TINY, *FLAGS), str(tmp_path / "a"))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    flags = *FLAGS, "--config.total_steps=6", "--config.schedule.learning_rate=0.02"
    capsys.readouterr()
    train.run(load_config(TINY, *flags), str(tmp_path / "a"))
    out = capsys.readouterr().out.splitlines()
    assert "devices: 8 x cpu" in out
    assert "config.schedule.learning_rate: 0.01 -> 0.02" in out
    (told,) = [line for line in out if line.startswith("the learning rate of step 5 changes from")]
    assert "because of config.schedule.learning_rate, config.total_steps; write --config." in told
    assert f"continues after step 4 of {tmp_path / 'a' / 'checkpoints'}" in out
    assert sorted(each.name for each in (tmp_path / "a").glob("config*")) == [
        "config.4.json",
        "config.json",
    ]
    assert [step for step, _ in read_losses(tmp_path / "a")] == [1, 2, 3, 4, 5, 6]

    before = {path.name: path.read_bytes() for path in (tmp_path / "a").glob("*.json*")}
    with pytest.raises(ConfigError, match="config.total_steps = 4, but .* has reached step 6"):
        train.run(load_config(TINY, *FLAGS), str(tmp_path / "a"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").glob("*.json*")} == before

    config = load_config(TINY, *FLAGS)
    config.tokenizer.words = (*DIGIT_WORDS, "more")
    with pytest.raises(CheckpointMismatch) as error:
        train.run(config, str(tmp_path / "b"))
    message = str(error.value)
    kept = "words (length=12, shorten='truncate', words=("
    assert f"{tmp_path / 'b'} was trained with the tokenizer {kept}" in message
    assert "the config has words (length=12" in message and not re.search("[0-9a-f]{16}", message)
    assert "\n" not in message
    with pytest.raises(CheckpointMismatch, match="trained with the tokenizer words"):
        restore.load_weights(config, str(tmp_path / "b"), train.build.build_tokenizer(config))


def test_a_run_does_not_end_before_the_step_that_it_has_reached(tmp_path):
    folder = epath.Path(tmp_path)
    config = load_config(TINY, "--config.total_steps=50")
    for step in (49, 50):  # a finished run that is started again is finished
        restore.check_continued(config, "run", folder, step, {})
    told = "^config.total_steps = 50, but run has reached step 51: give at least 51, or another"
    with pytest.raises(ConfigError, match=told):
        restore.check_continued(config, "run", folder, 51, {})


@pytest.mark.slow
def test_initial_weights_may_be_gone_once_they_are_in_a_checkpoint(tmp_path):
    gone, workdir = f"--config.init.all={tmp_path / 'gone'}", str(tmp_path / "run")
    config, after = load_config(TINY, gone), load_config(TINY)
    with after.unlocked():
        after.first = load_config(TINY, gone)
    for checked, field, folder in ((config, "init", "run"), (after, "first.init", "run/first")):
        absent = f"config.{field}.all: there is no file, folder or workdir"
        with pytest.raises(ConfigError, match=absent):
            check.check_config(checked, workdir=workdir)
        (tmp_path / folder / "checkpoints" / "4").mkdir(parents=True)
        check.check_config(checked, workdir=workdir)
    config.cached_features.towers = ("image",)  # by the weights of a tower, each time
    with pytest.raises(ConfigError, match="config.init.all: there is no file"):
        check.check_config(config, workdir=workdir)


def test_where_a_run_continues_is_told_and_that_another_may_have_been_there(tmp_path, capsys):
    workdir, folder = tmp_path / "run", epath.Path(tmp_path / "shared")
    workdir.mkdir()
    told, config = f"continues after step 7 of {folder}", load_config(TINY)
    restore.check_continued(config, str(workdir), folder, 7, {})
    other = f"{workdir} has no config.json: another workdir may have written it"
    assert capsys.readouterr().out == f"{told}; {other}\n"
    restore.keep_config(str(workdir), config, 7)
    restore.check_continued(config, str(workdir), folder, 7, {})
    assert capsys.readouterr().out == f"{told}\n"


def begin(workdir, logged, *flags):
    """Leaves what a run leaves that has logged so many steps; returns where it now looks."""
    config = load_config(TINY, "--config.checkpoint.every=5", "--config.total_steps=99", *flags)
    workdir.mkdir()
    restore.keep_config(str(workdir), config, 0)
    lines = [json.dumps({"step": step, "loss": 1.0}) for step in (None, logged - 1, logged)]
    (workdir / "metrics.jsonl").write_text("\n".join(lines))
    return epath.Path(workdir / "checkpoints")


def test_a_run_that_was_killed_before_a_save_was_complete_begins_again(tmp_path, capsys):
    for logged in (1, 5, 6, 20):
        workdir = tmp_path / str(logged)
        folder = begin(workdir, logged)
        (workdir / "spreads.jsonl").write_text('{"step": 5, "spreads": {}}\n' * (logged > 5))
        restore.check_not_begun(str(workdir), folder)
        steps = "1 logged step is" if logged == 1 else f"{logged} logged steps are"
        told = f"{workdir} starts at step 0: it has no checkpoint, and {steps} dropped\n"
        assert capsys.readouterr().out == told
    restore.check_not_begun(str(tmp_path / "new"), epath.Path(tmp_path / "new" / "checkpoints"))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("logged", "saves"), [(10, (5, 10)), (99, (99,)), (21, ())])
def test_a_copy_without_the_checkpoints_does_not_begin_again(tmp_path, logged, saves):
    """It has begun a second save, has reached the end, or has logged too much for neither."""
    folder = begin(tmp_path / "copy", logged)
    lines = [json.dumps({"step": step, "spreads": {}}) for step in saves]
    (tmp_path / "copy" / "spreads.jsonl").write_text("\n".join(lines))
    told = f"has logged {logged} steps, but there is no checkpoint in {folder}; make the folder"
    with pytest.raises(UserError, match=told):
        restore.check_not_begun(str(tmp_path / "copy"), folder)


def test_a_run_whose_checkpoints_are_elsewhere_does_not_begin_again(tmp_path):
    """Beginning again would erase what it has logged."""
    folder = begin(tmp_path / "lost", 21)
    told = f"has logged 21 steps, but there is no checkpoint in {folder}; make the folder"
    with pytest.raises(UserError, match=told):
        restore.check_not_begun(str(tmp_path / "lost"), folder)
    there, workdir = tmp_path / "there", tmp_path / "run"
    folder = begin(workdir, 6, f"--config.checkpoint.folder={there}")
    told = f"no checkpoint in {folder}; they were saved in {there}: set config.checkpoint.folder"
    with pytest.raises(UserError, match=told):  # a disk that is not there
        restore.check_not_begun(str(workdir), folder)
    there.mkdir()
    restore.check_not_begun(str(workdir), folder)  # it was killed before its first save
    (there / "5").mkdir()
    with pytest.raises(UserError, match=told):
        restore.check_not_begun(str(workdir), folder)
