"""Launchers set the environment that JAX reads, and pass on signals and failures."""

import pathlib
import signal
import subprocess
import time

import pytest
import yaml

LAUNCH = pathlib.Path(__file__).resolve().parent.parent / "launch"


def local(number: int, script: str, **variables: str) -> subprocess.Popen:
    return subprocess.Popen(
        [LAUNCH / "local.sh", str(number), "--", "bash", "-c", script],
        env={"PATH": "/usr/bin:/bin", **variables},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_each_local_process_has_its_number_and_all_one_coordinator():
    script = 'echo "$JAX_PROCESS_ID $JAX_NUM_PROCESSES $JAX_COORDINATOR_ADDRESS $XLA_FLAGS"'
    process = local(3, script, DEVICES_PER_PROCESS="4", XLA_FLAGS="--a", PORT="1234")
    out, _ = process.communicate(timeout=30)
    flags = "--a --xla_force_host_platform_device_count=4"
    assert sorted(out.splitlines()) == [f"{i} 3 127.0.0.1:1234 {flags}" for i in range(3)]
    assert process.returncode == 0


def test_when_one_local_process_fails_the_others_end_with_its_status():
    start = time.monotonic()
    process = local(3, "[[ $JAX_PROCESS_ID = 1 ]] && exit 7; exec sleep 60")
    assert process.wait(30) == 7
    assert time.monotonic() - start < 30


def test_sigterm_reaches_every_local_process_and_waits_for_them():
    script = "trap 'sleep 0.2; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    process = local(2, script)
    assert [process.stdout.readline() for _ in range(2)] == ["up\n"] * 2
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert out.split() == ["saved"] * 2
    assert process.returncode == 0


@pytest.mark.parametrize("name", ["local.sh", "slurm.sh", "tpu_vm.sh"])
def test_a_launcher_without_arguments_says_how_it_is_used(name):
    done = subprocess.run([LAUNCH / name], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: ") and "python main.py --distributed" in done.stderr


def test_the_tpu_launcher_quotes_the_command(tmp_path):
    (tmp_path / "gcloud").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    (tmp_path / "gcloud").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TPU": "pod", "ZONE": "here"}
    command = [LAUNCH / "tpu_vm.sh", "python", "main.py", "--config.model.image={'a': 1}"]
    sent = subprocess.check_output(command, env=env, text=True).splitlines()[-1]
    _, _, remote = sent.removeprefix("--command=").partition(" && ")
    words = subprocess.check_output(["bash", "-c", f"printf '%s\\n' {remote}"], text=True)
    assert words.splitlines() == ["python", "main.py", "--config.model.image={'a': 1}"]


def test_the_kubernetes_job_counts_its_processes_once():
    service, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    env = {e["name"]: e.get("value") for e in pod["containers"][0]["env"]}
    assert job["spec"]["completionMode"] == "Indexed"
    assert int(env["JAX_NUM_PROCESSES"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    # Pod 0 of an Indexed Job is called JOB-0, and found under its subdomain, the Service.
    host = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert env["JAX_COORDINATOR_ADDRESS"].split(":")[0] == host
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
