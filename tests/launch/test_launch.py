"""Launchers set the environment that JAX reads, pass on signals and failures, and start again."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

LAUNCH = pathlib.Path(__file__).resolve().parents[2] / "launch"
SCRIPTS = sorted(path.name for path in LAUNCH.glob("*.sh"))


def local(number: int, script: str, **variables: str) -> subprocess.Popen:
    """Starts a script on local processes; what is left after 30 s is killed."""
    process = subprocess.Popen(
        [LAUNCH / "local.sh", str(number), "--", "bash", "-c", script],
        env={"PATH": "/usr/bin:/bin", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    timer = threading.Timer(30, os.killpg, (process.pid, signal.SIGKILL))
    timer.daemon = True
    timer.start()
    process.cancel = timer.cancel
    return process


def finish(process: subprocess.Popen) -> tuple[str, list[str]]:
    """Returns what it printed, and what the launcher itself said."""
    out, err = process.communicate()
    process.cancel()
    return out, [line for line in err.splitlines() if line.startswith("local.sh:")]


def read_lines(process: subprocess.Popen, number: int) -> list[str]:
    return [process.stdout.readline().strip() for _ in range(number)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_launcher_without_arguments_says_how_it_is_used(name):
    done = subprocess.run([LAUNCH / name], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: ") and name in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["local.sh", "tpu_vm.sh"])
def test_a_launcher_on_ones_own_machine_says_that_its_bash_is_too_old(name, tmp_path):
    copy = tmp_path / name
    copy.write_text((LAUNCH / name).read_text().replace("BASH_VERSINFO[0]", "3"))
    done = subprocess.run(["bash", copy], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"{name} needs bash 5: brew install bash\n"


@pytest.mark.parametrize("name", ["local.sh", "slurm.sh", "tpu_vm.sh", "worker.sh"])
def test_launchers_are_clean_to_shellcheck(name):
    beside = str(pathlib.Path(sys.executable).parent)
    program = shutil.which("shellcheck", path=f"{beside}:{os.environ['PATH']}")
    if not program:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([program, LAUNCH / name], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_each_local_process_has_its_number_and_all_one_coordinator():
    script = 'echo "$JAX_PROCESS_ID $JAX_LOCAL_DEVICE_IDS $JAX_NUM_PROCESSES"'
    script += ' "$BIG_ALIGN_LOCAL_PROCESSES $JAX_COORDINATOR_ADDRESS $XLA_FLAGS"'
    process = local(3, script, DEVICES_PER_PROCESS="4", XLA_FLAGS="--a", PORT="1234")
    out, _ = finish(process)
    rest = "3 127.0.0.1:1234 --a --xla_force_host_platform_device_count=4"
    assert sorted(out.splitlines()) == [f"{i} {i} 3 {rest}" for i in range(3)]
    assert process.returncode == 0


def test_when_one_local_process_fails_the_others_may_say_why_and_leave():
    script = "trap '' TERM; [[ $JAX_PROCESS_ID = 1 ]] && exit 7; sleep 0.5; echo lost it; exit 1"
    process = local(3, script, GRACE="60")
    start = time.monotonic()
    out, _ = finish(process)
    assert process.returncode == 7 and out.split() == ["lost", "it"] * 2
    assert time.monotonic() - start < 20


def test_a_local_process_that_does_not_leave_after_anothers_failure_is_killed():
    process = local(3, "[[ $JAX_PROCESS_ID = 1 ]] && exit 7; exec sleep 60", GRACE="0.5")
    start = time.monotonic()
    _, err = finish(process)
    assert process.returncode == 7
    assert len(err) == 1 and err[0].endswith("did not end within 0.5 s and are killed")
    assert set(err[0].split()) >= {"0", "2"}
    assert time.monotonic() - start < 20


STOPS = "trap 'echo saved; exit 75' TERM; echo up; while :; do sleep 0.05; done"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_every_local_process_and_their_status_is_passed_on(number):
    process = local(2, STOPS, RESTARTS="5")  # asked for, a stop is no reason to start again
    assert read_lines(process, 2) == ["up"] * 2
    process.send_signal(number)
    out, _ = finish(process)
    assert out.split() == ["saved"] * 2
    assert process.returncode == 75


def test_one_local_process_that_is_told_to_stop_stops_all_and_none_is_left_out():
    """The others may wait for it: it was not there yet. That they fail without it is no failure."""
    script = "echo $JAX_NUM_PROCESSES; [[ $JAX_PROCESS_ID = 1 ]] && sleep 1 && kill -TERM $$"
    script += "; trap 'exit 75' TERM; [[ $JAX_PROCESS_ID = 2 ]] && exit 1"
    process = local(3, f"{script}; while :; do sleep 0.05; done", RESTARTS="1")
    out, err = finish(process)
    assert (out.split(), process.returncode) == (["3"] * 6, 75)
    assert err == [
        "local.sh: the run stopped without being asked here; starts again on 3 processes "
        "(restart 1 of 1)"
    ]


def test_a_local_process_that_is_killed_is_named_at_once():
    script = "[[ $JAX_PROCESS_ID = 1 ]] && kill -KILL $$; sleep 1; exit 1"
    process = local(2, script)
    assert finish(process)[1] == ["local.sh: process 1 was killed by SIGKILL"]
    assert process.returncode == 137


@pytest.mark.slow
def test_a_killed_local_process_is_left_out_and_sighup_brings_it_back(tmp_path):
    """Three runs: process 1 of three is killed; then two, until SIGHUP; then three again."""
    script = f"""
      runs=({tmp_path}/$JAX_PROCESS_ID.*); touch {tmp_path}/$JAX_PROCESS_ID.${{#runs[@]}}
      [[ $JAX_NUM_PROCESSES = 2 ]] && trap 'exit 75' TERM
      echo $JAX_NUM_PROCESSES $JAX_PROCESS_ID $JAX_LOCAL_DEVICE_IDS
      while [[ $JAX_NUM_PROCESSES = 2 ]]; do sleep 0.05; done
      if [[ $JAX_PROCESS_ID = 1 && ! -e {tmp_path}/killed ]]; then
        touch {tmp_path}/killed; kill -KILL $$
      fi
      [[ -e {tmp_path}/back ]] || exec sleep 60"""
    process = local(3, script, RESTARTS="1", GRACE="0.5")
    assert sorted(read_lines(process, 3)) == ["3 0 0", "3 1 1", "3 2 2"]
    assert sorted(read_lines(process, 2)) == ["2 0 0", "2 1 2"]
    (tmp_path / "back").touch()
    process.send_signal(signal.SIGHUP)
    out, err = finish(process)
    assert sorted(out.splitlines()) == ["3 0 0", "3 1 1", "3 2 2"]
    assert process.returncode == 0
    assert err[-2:] == [
        "local.sh: process 1 was killed by SIGKILL; starts again on 2 processes (restart 1 of 1)",
        "local.sh: starts again on 3 processes",
    ]


@pytest.mark.parametrize(
    "ending, restarts, runs, status",
    [
        ("kill -KILL $$", "0", 1, 137),
        ("kill -KILL $$", "1", 2, 137),
        ("kill -KILL $$", "9", 3, 137),  # nobody is left
        ("kill -TERM $$", "0", 1, 75),  # asked to stop before it could say so
        ("kill -TERM $$", "2", 3, 75),
        ("exit 75", "0", 1, 75),
        ("exit 75", "2", 3, 75),
        ("exit 1", "2", 1, 1),
        ("exit 0", "2", 1, 0),
    ],
)
def test_how_often_a_local_run_starts_again(ending, restarts, runs, status):
    script = f"[[ $JAX_PROCESS_ID = 0 ]] || exit 0; echo run; {ending}"
    process = local(3, script, RESTARTS=restarts, GRACE="5")
    out, _ = finish(process)
    assert (out.split(), process.returncode) == (["run"] * runs, status)


@pytest.mark.parametrize(
    "cores, flag", [({"SLURM_CPUS_PER_TASK": "8"}, " --cpus-per-task=8"), ({}, "")]
)
@pytest.mark.parametrize(
    "status, requeued", [(75, True), (143, True), (0, False), (1, False), (2, False), (137, False)]
)
def test_a_slurm_job_goes_back_to_the_queue_if_its_run_stopped(
    tmp_path, status, requeued, cores, flag
):
    programs = {
        "srun": 'o=(); while [[ $1 == --* ]]; do o+=("$1"); shift; done; echo srun "${o[@]}"; "$@"',
        "python": f'echo python "$@"; exit {status}',
        "scontrol": 'echo scontrol "$@"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [LAUNCH / "slurm.sh", "python", "main.py", "--a b"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "12"} | cores,
        capture_output=True,
        text=True,
    )
    told = [f"srun --kill-on-bad-exit=1{flag}", "python main.py --a b"]
    assert done.stdout.splitlines() == told + ["scontrol requeue 12"] * requeued
    assert done.returncode == (75 if requeued else status)
