"""launch/tpu_vm.sh against a recorded gcloud, and launch/worker.sh as it runs on a worker."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tarfile
import time

import pytest

LAUNCH = pathlib.Path(__file__).resolve().parents[2] / "launch"

# Records its arguments; `ssh` runs the command in the home directory of a worker.
GCLOUD = """#!/usr/bin/env python3
import json, os, shutil, subprocess, sys
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
verb, worker = sys.argv[4], os.environ["WORKER"]
if verb == "describe":
    print(os.environ.get("STATE", "ACTIVE"))
elif verb == "scp":
    source, (_, target) = sys.argv[5], sys.argv[6].split(":")
    shutil.copy(source, os.path.join(worker, target))
elif verb == "ssh":
    (command,) = [a[len("--command="):] for a in sys.argv if a.startswith("--command=")]
    environment = os.environ | {"HOME": worker}
    sys.exit(subprocess.run(["bash", "-c", command], cwd=worker, env=environment).returncode)
"""

# Stands for pip, uv and the Python that uv brings.
PYTHON = """#!/bin/bash
echo "$@" >> "$HOME/installed"
[[ "$*" == *venv* ]] || exit 0
mkdir .venv .venv/bin; touch .venv/bin/activate; cp "$0" .venv/bin/pip
"""


class Tpu:
    """The launcher, a gcloud that records, and the home directory of one worker."""

    def __init__(self, folder: pathlib.Path):
        self.worker = folder / "worker"
        self.checkout = self.worker / "big_align"
        (self.checkout / "launch").mkdir(parents=True)
        (self.checkout / "launch/worker.sh").write_bytes((LAUNCH / "worker.sh").read_bytes())
        (self.checkout / "launch/worker.sh").chmod(0o755)
        self._calls = folder / "calls"
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.add_program("gcloud", GCLOUD)

    def add_program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def run(
        self, *arguments: str, checkout: pathlib.Path = LAUNCH.parent, **variables: str
    ) -> subprocess.CompletedProcess:
        return subprocess.run(
            [checkout / "launch/tpu_vm.sh", *arguments],
            env={
                "PATH": f"{self.programs}:/usr/local/bin:/usr/bin:/bin",
                "CALLS": str(self._calls),
                "WORKER": str(self.worker),
                "TPU": "pod",
                "ZONE": "here",
                **variables,
            },
            capture_output=True,
            text=True,
            timeout=60,
        )

    @property
    def calls(self) -> list[list[str]]:
        """The calls so far, without the words that all share."""
        calls = [json.loads(line) for line in self._calls.read_text().splitlines()]
        assert all(call[:3] == ["compute", "tpus", "queued-resources"] for call in calls)
        assert all(call[4] == "pod" or call[3] == "scp" for call in calls)
        assert all("--zone=here" in call for call in calls)
        return [call[3:] for call in calls]

    def wait_for_log(self, text: str) -> str:
        end = time.monotonic() + 20
        log = self.checkout / "run.log"
        while text not in (log.read_text() if log.exists() else ""):
            assert time.monotonic() < end, f"no {text!r} in {log.read_text()}"
            time.sleep(0.02)
        return log.read_text()


@pytest.fixture
def tpu(tmp_path):
    tpu = Tpu(tmp_path)
    yield tpu
    subprocess.run(["launch/worker.sh", "stop"], cwd=tpu.checkout, timeout=60)


def test_create_asks_for_one_slice_or_several(tpu):
    flags = ["--accelerator-type=v5litepod-256", "--runtime-version=v2-alpha-tpuv5-lite", "--spot"]
    tpu.run("create", *flags)
    tpu.run("create", *flags, SLICES="2")
    one, two = tpu.calls
    assert one == ["create", "pod", "--node-id=pod", *flags, "--zone=here"]
    nodes = ["--node-count=2", "--node-prefix=pod"]
    assert two == ["create", "pod", *nodes, *flags, "--zone=here"]


def test_install_needs_git_to_know_what_to_copy(tmp_path):
    copy = tmp_path / "unpacked/launch/tpu_vm.sh"
    copy.parent.mkdir(parents=True)
    shutil.copy(LAUNCH / "tpu_vm.sh", copy)
    variables = {**os.environ, "TPU": "pod", "ZONE": "here"}
    done = subprocess.run([copy, "install"], env=variables, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: {copy.parent.parent} is not a Git clone, and Git lists the files to copy; "
        "use git clone\n"
    )


@pytest.mark.skipif(not (LAUNCH.parent / ".git").exists(), reason="this is not a Git clone")
def test_install_copies_the_checkout_to_every_worker_and_installs_the_locked_versions(tpu):
    (tpu.checkout / ".venv/bin").mkdir(parents=True)  # of an install that was interrupted
    tpu.add_program("python3", PYTHON)
    tpu.add_program("gcloud", GCLOUD.replace("/usr/bin/env python3", "/usr/bin/python3"))
    done = tpu.run("install", BATCH_SIZE="100")
    assert done.returncode == 0, done.stderr
    everywhere = {"--node=all", "--worker=all", "--batch-size=100"}
    assert [call[0] for call in tpu.calls] == ["scp", "ssh"]
    assert all(everywhere <= set(call) for call in tpu.calls)
    with tarfile.open(tpu.worker / "big_align.tar.gz") as archive:
        names = set(archive.getnames())
    assert {"main.py", "requirements.lock", "big_align/runs/train.py", "launch/worker.sh"} <= names
    assert not any(name.startswith((".git/", ".venv")) for name in names)
    assert (tpu.checkout / "main.py").exists()
    assert (tpu.worker / "installed").read_text().splitlines() == [
        "-m pip install --quiet --user uv",
        "-m uv venv --seed --python 3.11 .venv",
        "install --quiet -e .[tpu] -c requirements.lock",
    ]


def test_install_takes_what_is_there_with_the_tools_of_a_mac(tpu, tmp_path):
    checkout = tmp_path / "checkout"
    shutil.copytree(LAUNCH, checkout / "launch")
    for name in ("kept", "with space", "deleted"):
        (checkout / name).touch()
    subprocess.run(["git", "init", "--quiet"], cwd=checkout, check=True)
    subprocess.run(["git", "add", "."], cwd=checkout, check=True)
    (checkout / "deleted").unlink()
    tpu.add_program("python3", PYTHON)
    tpu.add_program("gcloud", GCLOUD.replace("/usr/bin/env python3", "/usr/bin/python3"))
    for name, unknown in {"tar": "--ignore-failed-read", "mktemp": "--suffix"}.items():
        script = f'#!/bin/bash\n[[ "$*" != *{unknown}* ]] && exec /usr/bin/{name} "$@"\n'
        tpu.add_program(name, script)
    done = tpu.run("install", checkout=checkout)
    assert done.returncode == 0, done.stderr
    with tarfile.open(tpu.worker / "big_align.tar.gz") as archive:
        names = {name for name in archive.getnames() if not name.startswith("launch/")}
    assert names == {"kept", "with space"}


def test_the_number_of_a_worker_may_be_that_of_another_program_after_a_reboot(tpu):
    with subprocess.Popen(["sleep", "60"]) as other:
        (tpu.checkout / "run.pid").write_text(f"{other.pid}\n")
        assert "not running" in tpu.run("status").stdout
        tpu.run("stop")
        assert other.poll() is None
        assert "started as process" in tpu.run("start", "true").stdout
        other.kill()
    tpu.wait_for_log("ended with status 0")


def test_a_command_arrives_on_every_worker_as_it_was_written(tpu):
    words = ["a b", "--config.model.image={'a': 1}", "$HOME;`ls`", 'say "x"', "*"]
    done = tpu.run("start", "printf", "%s\\n", *words, RESTARTS="0")
    assert done.returncode == 0, done.stderr
    assert {"--node=all", "--worker=all", "--batch-size=64"} <= set(tpu.calls[0])
    assert tpu.wait_for_log("ended with status 0").splitlines()[: len(words)] == words


def test_a_run_on_workers_outlives_the_login_and_is_followed_and_stopped(tpu):
    script = "trap 'echo saved; exit 75' TERM; echo up; while :; do sleep 0.05; done"
    assert "started as process" in tpu.run("start", "bash", "-c", script).stdout
    tpu.wait_for_log("up")  # the ssh that started it has returned
    again = tpu.run("start", "bash", "-c", script)
    assert again.returncode == 1 and "already running" in again.stdout
    status = tpu.run("status").stdout
    assert status.startswith("pod: ACTIVE\n") and ": up\n" in status and "running" in status

    stopped = tpu.run("stop")
    assert "ended with status 75" in stopped.stdout
    log = tpu.wait_for_log("ended with status 75")
    assert log.count("up") == 1 and log.count("saved") == 1
    assert not list(tpu.checkout.glob("run.log.*"))
    commands = [call[-2].rpartition("worker.sh ")[2].strip() for call in tpu.calls[-2:]]
    assert commands == ["once", "stop"]


def test_status_asks_no_worker_before_there_is_one(tpu):
    assert tpu.run("status", STATE="WAITING_FOR_RESOURCES").stdout == "pod: WAITING_FOR_RESOURCES\n"
    assert [call[0] for call in tpu.calls] == ["describe"]


def test_logs_are_those_of_one_worker_of_one_slice(tpu):
    tpu.add_program("tail", '#!/bin/bash\nprintf "%s " "$@"\n')
    assert tpu.run("logs", "3", "1").stdout == "-n 100 -F run.log "
    assert {"--node=1", "--worker=3"} <= set(tpu.calls[0])


def test_delete_gives_the_nodes_back_too(tpu):
    tpu.run("delete")
    assert tpu.calls == [["delete", "pod", "--force", "--quiet", "--zone=here"]]


@pytest.mark.parametrize(
    "ending, runs, status",
    [("exit 0", 1, 0), ("exit 2", 1, 2), ("exit 1", 3, 1), ("exit 75", 3, 75)],
)
def test_how_often_a_worker_starts_its_command_again(tpu, ending, runs, status):
    command = ["launch/worker.sh", "start", "bash", "-c", f"echo run; {ending}"]
    variables = os.environ | {"RESTARTS": "2", "PAUSE": "0"}
    subprocess.run(command, cwd=tpu.checkout, env=variables, check=True)
    end = time.monotonic() + 20
    while not (tpu.checkout / "run.status").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    lines = (tpu.checkout / "run.log").read_text().splitlines()
    assert lines.count("run") == runs
    assert lines[-1].endswith(f"ended with status {status}")
    assert (tpu.checkout / "run.status").read_text() == f"{status}\n"


def test_a_worker_that_was_told_once_lets_the_run_end_and_leaves_it(tpu):
    """As when another worker is stopped first: this one's run ends with 75 by agreement."""
    script = "echo up; while [[ ! -e agreed ]]; do sleep 0.05; done; exit 75"
    tpu.run("start", "bash", "-c", script)
    tpu.wait_for_log("up")
    subprocess.run(["launch/worker.sh", "once"], cwd=tpu.checkout, check=True)
    (tpu.checkout / "agreed").touch()
    assert tpu.wait_for_log("ended with status 75").count("up") == 1


def test_a_worker_is_stopped_while_it_waits_to_start_again(tpu):
    variables = os.environ | {"PAUSE": "60"}
    command = ["launch/worker.sh", "start", "bash", "-c", "exit 1"]
    subprocess.run(command, cwd=tpu.checkout, env=variables, check=True)
    tpu.wait_for_log("starts again in 60 s")
    start = time.monotonic()
    os.kill(int((tpu.checkout / "run.pid").read_text()), signal.SIGTERM)
    tpu.wait_for_log("ended with status 1\n")
    assert time.monotonic() - start < 20
