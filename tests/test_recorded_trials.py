"""Tables of docs/results.md are what experiments print from the trials in docs/trials/."""

import importlib
import pathlib
import shlex
import shutil

import pytest

from benchmarks import trials
from tests.manual import ROOT, find_program, read_commands

PAGE = "docs/results.md"
RECORDED = sorted((ROOT / "docs/trials").glob("*.jsonl"))
UNRECORDED = ("benchmarks/align.py --output=workdirs/align --tables=batch",)
"""Commands whose trials were not kept when their tables were printed."""
PRINTED = [
    (path, command.text)
    for path in RECORDED
    for command in read_commands(PAGE)
    if pathlib.PurePath(find_program(command.text)[1]).stem == path.stem
    and not any(each in command.text for each in UNRECORDED)
]


def fail(todo, *_):
    raise AssertionError(f"not recorded: {', '.join(trial.name for trial in todo)}")


@pytest.mark.parametrize(
    ("path", "command"), PRINTED, ids=[f"{path.stem}-{n}" for n, (path, _) in enumerate(PRINTED)]
)
def test_a_table_is_that_of_its_trials(path, command, tmp_path, monkeypatch, capsys):
    shutil.copy(path, tmp_path / trials.FILE)
    arguments = [each for each in shlex.split(command)[2:] if not each.startswith("--plot")]
    arguments = [f"--output={tmp_path}" if "--output" in each else each for each in arguments]
    monkeypatch.setattr("sys.argv", [path.name, *arguments])
    run = trials.run_trials
    monkeypatch.setattr(trials, "_run_each", fail)  # at once, without what trials share
    monkeypatch.setattr(trials, "run_trials", lambda *given: run(*given[:3]))
    importlib.import_module(f"benchmarks.{path.stem}").main()
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    page = (ROOT / PAGE).read_text().splitlines()
    assert len(printed) > 2
    assert [line for line in printed if line not in page] == []


def test_every_record_is_a_finished_trial():
    for path in RECORDED:
        found = trials.read_trials(path)
        assert len(found) == len(path.read_text().splitlines())
        assert all(found.values())
