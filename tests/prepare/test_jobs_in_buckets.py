"""Jobs that read from and write to a bucket that fails: the bytes of a job that saw no fault."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest
from raw_pairs import SMALL

from big_align.data.remote import retries
from big_align.prepare.on_beam import job
from big_align.tools import prepare
from tests import s3_server
from tests.run_main import ROOT

pytestmark = pytest.mark.slow
PASSING = [kind for kind in s3_server.KINDS if kind != "forbidden"]
REFUSALS = [kind for kind in s3_server.REFUSALS if kind != "forbidden"]
INPUT = "--input=s3://pairs/raw/*.parquet"


@pytest.fixture(scope="module")
def right(raw):
    """The output of a job that sees no fault."""
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed (.[prepare])")
    s3_server.skip_without()
    with s3_server.serve() as bucket, pytest.MonkeyPatch.context() as patch:
        s3_server.use(bucket, patch)
        fill(bucket, raw)
        assert run("right") == 0
        found = list_output(bucket, "right")
        s3_server.forget_clients()
    assert len([name for name in found if name.endswith(".tar")]) == 3
    return found


@pytest.fixture
def filled(right, bucket, raw, monkeypatch):
    """A bucket with raw pairs; in this process nothing waits between tries."""
    monkeypatch.setattr(retries, "PAUSES", (0.0,) * 7)  # a try may be of several requests
    bucket.slowness = 0.05
    fill(bucket, raw)
    return bucket


def fill(bucket, raw):
    s3_server.make_client(bucket).put(f"{pathlib.Path(raw).parent}/", "pairs/raw/", recursive=True)


def list_output(bucket, name):
    """Returns the bytes of all that is in an output, by name."""
    found = {key: value for key, value in bucket.objects().items() if key.startswith(f"{name}/")}
    return {key.removeprefix(f"{name}/"): value for key, value in found.items()}


def run(name, *flags):
    return prepare.main([INPUT, f"--output=s3://pairs/{name}", *SMALL, *flags])


def start(name, *flags):
    command = [sys.executable, "-m", "big_align.tools.prepare", INPUT, *SMALL, *flags]
    return subprocess.Popen(
        [*command, f"--output=s3://pairs/{name}"], cwd=ROOT, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("kinds", [REFUSALS, ["cut"], ["lose"], ["close"], ["slow"]])
def test_faults_that_pass_change_no_byte(filled, right, kinds):
    filled.plan(seed=1, rate=0.1, kinds=kinds, in_a_row=1)
    assert run("out") == 0 and len(filled.taken) > 10
    assert list_output(filled, "out") == right


def test_parts_that_pass_through_a_bucket_change_no_byte(filled, right, monkeypatch):
    monkeypatch.setattr(job, "_count_parts", lambda *_: 3)
    filled.plan(seed=4, rate=0.1, kinds=REFUSALS, in_a_row=1)
    assert run("parts") == 0 and len(filled.taken) > 10
    assert list_output(filled, "parts") == right


def test_faults_of_all_kinds_in_two_processes_change_no_byte(filled, right):
    filled.plan(seed=2, rate=0.1, kinds=PASSING)
    process = start("two", "--direct_running_mode=multi_processing", "--direct_num_workers=2")
    told = process.communicate(timeout=300)[0]
    assert process.returncode == 0, told[-3000:]
    assert len(filled.taken) > 10 and list_output(filled, "two") == right


FOREVER = {
    "GET /pairs/raw/raw-00001": ("internal_error", "raw/raw-00001.parquet: the server answers 500"),
    "GET /pairs/raw/raw-00002": ("cut", "raw/raw-00002.parquet: the connection was cut"),
    "GET /pairs/raw/raw-00000": ("forbidden", "raw/raw-00000.parquet: the server answers 403 Acc"),
    "GET /pairs/out/work/.*/rows/": ("slow_down", ".jsonl: the server answers 503 SlowDown"),
    "PUT /pairs/out/pairs-00001": ("cut", "out/pairs-00001.tar cannot be written: "),
}


@pytest.mark.parametrize("pattern", FOREVER)
def test_a_fault_that_stays_is_a_line_and_the_same_command_goes_on(filled, right, pattern, capsys):
    kind, told = FOREVER[pattern]
    filled.fail(pattern, kind, times=10**6)
    capsys.readouterr()
    assert run("out") == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "s3://pairs/" in lines[0] and told in lines[0]
    assert lines[0].endswith(" s)") == (kind != "forbidden")
    left = list_output(filled, "out")
    assert {name: left[name] for name in left if name in right} == {
        name: right[name] for name in left if name in right
    }  # of what is finished, nothing is half written
    assert "settings.json" not in left
    filled.heal()
    assert run("out") == 0 and list_output(filled, "out") == right


def test_a_job_that_is_killed_again_and_again_ends_as_one_that_never_was(filled, right):
    draw, filled.slowness = random.Random(0), 0.2
    filled.plan(seed=3, rate=0.1, kinds=["slow"], in_a_row=1)  # for kills in the midst of a request
    kills = 0
    for _ in range(6):
        process, count = start("killed"), len(filled.log)
        until, most = time.monotonic() + 120, draw.randint(30, 200)
        while len(filled.log) < count + most and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.002)
        if process.poll() is not None:
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        kills += 1
        left = list_output(filled, "killed")
        assert all(left[name] == right[name] for name in left if name in right)
    assert kills >= 3
    assert run("killed") == 0 and list_output(filled, "killed") == right


def test_two_commands_at_once_write_the_same_bytes(filled, right):
    both = [start("both"), start("both")]
    for process in both:
        told = process.communicate(timeout=300)[0]
        assert process.returncode == 0 or told.splitlines()[-1].startswith("error: "), told[-3000:]
    assert 0 in {process.returncode for process in both} and list_output(filled, "both") == right


def test_a_shard_is_not_written_without_examples_that_another_job_has_removed(
    filled, right, capsys
):
    assert run("out", "--work=s3://pairs/work") == 0
    client = s3_server.make_client(filled)
    client.rm("pairs/out/pairs-00001.tar")
    gone = sorted(key for key in filled.objects() if "/rows/" in key)[0]
    client.rm(f"pairs/{gone}")
    assert run("out", "--work=s3://pairs/work") == 1
    assert "pairs-00001.tar would have " in capsys.readouterr().err
    assert filled.read("out/pairs-00001.tar") is None
