"""Tables of docs/results are what experiments print from the trials in experiments/trials."""

import re
import shlex

import pytest

from experiments import run, trials
from experiments.table import EXPERIMENTS
from tests.manual import PAGES, ROOT, find_program, read_commands

RESULTS = [p for p in PAGES if p.startswith("docs/results/") and "README" not in p]
PROGRAM = "experiments/run.py"
RECORDED = [path.stem for path in sorted(trials.RECORDED.glob("*.jsonl"))]
UNRECORDED = ("align --tables batch",)
"""Commands whose trials were not kept when their tables were printed."""


def read_arguments(text: str) -> list[str]:
    """Returns the arguments of a command that runs an experiment; [] for others."""
    words = find_program(text)
    return words[2:] if words[1:2] == [PROGRAM] else []


PRINTED = [
    (page, arguments)
    for page in RESULTS
    for command in read_commands(page)
    if (arguments := read_arguments(command.text))
    and arguments[0] in RECORDED
    and not any(each in command.text for each in UNRECORDED)
    and "--anew" not in arguments
]


def test_every_recorded_experiment_is_on_a_page():
    assert {arguments[0] for _, arguments in PRINTED} == set(RECORDED)


@pytest.mark.parametrize(
    ("page", "arguments"), PRINTED, ids=[f"{n}-{x[0]}" for n, (_, x) in enumerate(PRINTED)]
)
def test_a_table_is_that_of_its_trials(page, arguments, tmp_path, monkeypatch, capsys):
    given = [x for x in arguments if not x.startswith(("--plot", "--output"))]
    monkeypatch.setattr("sys.argv", [PROGRAM, *given, f"--output={tmp_path}"])
    monkeypatch.setattr(trials, "run_trials", lambda todo, *_: pytest.fail(f"trains {todo}"))
    run.main()
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    lines = (ROOT / page).read_text().splitlines()
    assert len(printed) > 2
    assert [line for line in printed if line not in lines] == []


def test_every_record_is_a_finished_trial():
    for name in RECORDED:
        path = run.find_recorded(name)
        found = trials.read_records(path)
        assert len(found) == len(path.read_text().splitlines())
        assert all(record.numbers for record in found.values())


def test_the_summary_and_the_list_name_experiments_and_where_they_are(monkeypatch, capsys):
    page = ROOT / "docs/results/README.md"
    rows = [line for line in page.read_text().splitlines() if re.match(r"\| \[\w+, ", line)]
    named = [cell for row in rows for cell in re.findall("`([^`]+)`", row.rpartition(" | ")[2])]
    for text in named:
        monkeypatch.setattr("sys.argv", [PROGRAM, *shlex.split(text)])
        run.parse_arguments()
    assert {text.split()[0] for text in named} == EXPERIMENTS.keys()
    monkeypatch.setattr("sys.argv", [PROGRAM, "--list"])
    run.main()
    listed = capsys.readouterr().out
    assert all(f"| {name} | {each.paper} |" in listed for name, each in EXPERIMENTS.items())
    assert all((ROOT / each.page.partition("#")[0]).exists() for each in EXPERIMENTS.values())
