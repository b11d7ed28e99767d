"""Traces hold the steps that were asked for, and no others."""

import jax
import jax.numpy as jnp
import pytest

from big_align.core.errors import UserError
from big_align.training.profiling import Profiler, parse_steps


def traced_steps(folder):
    """The numbers of the steps in the only trace of a folder."""
    (path,) = folder.glob("plugins/profile/*/*.xplane.pb")
    events = (
        event
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes
        for line in plane.lines
        for event in line.events
        if event.name == "train"
    )
    return sorted(dict(event.stats)["step_num"] for event in events)


def run(profiler, steps):
    step = jax.jit(lambda x: (x @ x).sum())
    for number in steps:
        profiler.run_step(number, step, jnp.ones((64, 64)))


def test_a_trace_names_its_steps(tmp_path):
    profiler = Profiler(str(tmp_path), (4, 6), done=2, total=10)
    run(profiler, range(3, 6))
    assert not list((tmp_path / "profile").rglob("*.pb"))
    run(profiler, range(6, 11))
    assert traced_steps(tmp_path / "profile") == [4, 5, 6]


def test_an_interrupted_run_keeps_its_finished_parts(tmp_path):
    profiler = Profiler(str(tmp_path), (1, 6), done=0, total=10)
    run(profiler, (1, 2))
    profiler.close()
    assert traced_steps(tmp_path / "profile") == [1, 2]


def test_nothing_is_traced_unasked(tmp_path):
    profiler = Profiler(str(tmp_path), None, done=0, total=10)
    run(profiler, (1, 2))
    profiler.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "5", "6:5", "0:3", "a:b", "1:2:3", "-1:4"])
def test_values_that_are_no_steps_are_named(text):
    with pytest.raises(UserError, match=f"--profile={text} is not FIRST:LAST"):
        parse_steps(text)


def test_profiled_steps_beyond_the_run_are_named():
    with pytest.raises(UserError, match="--profile=18:21: the last step is 20"):
        Profiler("workdir", (18, 21), done=5, total=20)


@pytest.mark.parametrize("steps", [(5, 7), (1, 3)])
def test_the_same_command_continues_after_steps_that_it_has_traced(tmp_path, capsys, steps):
    profiler = Profiler(str(tmp_path), steps, done=5, total=10)
    assert "nothing is traced, since the run continues after step 5" in capsys.readouterr().out
    run(profiler, (6, 7, 8))
    profiler.close()
    assert not list(tmp_path.iterdir())
