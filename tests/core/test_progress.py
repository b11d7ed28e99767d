"""What a progress bar writes on a terminal, and into a file."""

import io
import os
import re
import sys
import types

import pytest
from tqdm import tqdm

from big_align.core import progress
from big_align.core.progress import LineBar, make_bar


@pytest.fixture
def clock(monkeypatch):
    """Seconds, which pass only when a test says so."""
    now = types.SimpleNamespace(seconds=0.0)
    fake = types.SimpleNamespace(monotonic=lambda: now.seconds)
    monkeypatch.setattr(progress, "time", fake)
    return now


def work(bar, clock, seconds):
    """Does one of the bar's steps a second."""
    for _ in range(seconds):
        clock.seconds += 1
        bar.update()
        bar.refresh()


def test_in_a_file_it_is_lines_and_the_last_says_all(capsys, clock):
    with make_bar(total=23, unit="step") as bar:
        work(bar, clock, 23)
        bar.set_postfix_str("loss 0.5", refresh=False)
    output = capsys.readouterr().err
    lines = output.split("\n")
    assert "\r" not in output and lines.pop() == ""
    assert [re.search(r"\d+/\d+", line)[0] for line in lines] == [
        *("5/23", "10/23", "15/23", "20/23", "23/23")
    ]
    assert all("step/s" in line for line in lines) and "loss 0.5" in lines[-1]


def test_lines_become_rarer_and_stay_within_a_minute(capsys, clock):
    with make_bar(total=5000) as bar:
        work(bar, clock, 5000)
    told = [int(found) for found in re.findall(r"(\d+)/5000", capsys.readouterr().err)]
    gaps = [after - before for before, after in zip(told, told[1:], strict=False)]
    assert told[0] == 5 and told[-1] == 5000
    assert max(gaps) == 60 and gaps == sorted(gaps[:-1]) + gaps[-1:]
    assert len(told) < 140


def test_what_is_written_meanwhile_is_not_a_reason_for_a_line(capsys, clock):
    bar = make_bar(total=10)
    for number in range(10):
        bar.update()
        bar.write(f"said {number}", file=sys.stderr)
    assert capsys.readouterr().err == "".join(f"said {number}\n" for number in range(10))
    bar.close()
    bar.close()
    assert capsys.readouterr().err.count("10/10") == 1


@pytest.mark.parametrize("options", [{"disable": True}, {"delay": 1}, {"leave": False}])
def test_nothing_is_told_of_short_work_or_where_none_is_wanted(capsys, clock, options):
    assert list(make_bar(range(7), **options)) == list(range(7))
    assert capsys.readouterr().err == ""


def test_iterating_counts_to_the_end(capsys, clock):
    assert sum(make_bar(range(7), "adding")) == 21
    assert capsys.readouterr().err.startswith("adding: 100% 7/7 [")


def test_the_last_line_has_the_rate_of_all_the_work_and_no_total_where_none_is_known(
    capsys, monkeypatch
):
    now = 0.0
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: now))
    bar = make_bar(iter(range(1000)), "counting", unit=" texts")
    monkeypatch.setattr(bar, "_time", lambda: bar.start_t + now)
    for number in bar:
        now += 4 if number == 0 else 0.001  # the first one is slow, and the only one to be timed
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "counting: 1000 texts [00:04, 200.04 texts/s]"


def test_on_a_terminal_it_moves(monkeypatch):
    _, terminal = os.openpty()
    with open(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with make_bar(total=3) as bar:
            assert type(bar) is tqdm
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with make_bar(total=3) as bar:
        assert type(bar) is LineBar
