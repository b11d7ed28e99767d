"""Jobs in processes of their own: two at once, killed, and without Beam."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from raw_pairs import read_output

from big_align.core.whole_files import name_partial
from tests.run_main import ROOT


def start(flags, output, *more):
    command = [sys.executable, "-m", "big_align.tools.prepare", *flags, *more]
    return subprocess.Popen(
        [*command, f"--output={output}"], cwd=ROOT, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def wait(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output[-3000:]


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(done, tmp_path):
    flags = [flag for flag in done.flags if not flag.startswith("--work")]
    workers = "--direct_running_mode=multi_processing", "--direct_num_workers=2"
    wait(start(flags, tmp_path / "two", *workers))
    assert read_output(tmp_path / "two") == read_output(done.output)


@pytest.mark.slow
def test_a_job_that_was_killed_twice_ends_as_one_that_never_was(done, tmp_path):
    flags = [flag for flag in done.flags if not flag.startswith("--work")]
    for mark in ("work/facts-*/facts/*-0*", "pairs-*.tar"):
        process = start(flags, tmp_path / "killed")
        until = time.monotonic() + 120
        while not list((tmp_path / "killed").glob(mark)) and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.002)
        assert process.poll() is None, "it ended before it was killed"
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert not (tmp_path / "killed" / "settings.json").exists()
    half = name_partial(
        tmp_path / "killed" / "pairs-00000.tar"
    )  # as a kill in the midst of it leaves
    half.write_bytes(b"half")
    wait(start(flags, tmp_path / "killed"))
    assert read_output(tmp_path / "killed") == read_output(done.output)
    assert not half.exists() and not (tmp_path / "killed" / "work").exists()


@pytest.mark.slow
def test_two_workers_of_dask_write_the_same_bytes(done, tmp_path):
    pytest.importorskip("dask", reason="apache-beam[dask] is not installed")
    distributed = pytest.importorskip("dask.distributed")
    flags = [flag for flag in done.flags if not flag.startswith("--work")]
    runner = "--runner=apache_beam.runners.dask.dask_runner.DaskRunner"
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        address = f"--dask_client_address={cluster.scheduler_address}"
        wait(start(flags, tmp_path / "dask", runner, address))
    assert read_output(tmp_path / "dask") == read_output(done.output)


HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "apache_beam":
            raise ImportError(name)
sys.meta_path.insert(0, Hidden())
"""


def run_python(text):
    found = subprocess.run(
        [sys.executable, "-c", HIDE + text], cwd=ROOT, capture_output=True, text=True
    )
    return found.returncode, found.stdout, found.stderr


def test_without_beam_the_tool_says_what_to_install(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"")
    flags = [f"--input={tmp_path}/x.parquet", f"--output={tmp_path}/out"]
    call = f"from big_align.tools import prepare; sys.exit(prepare.main({flags}))"
    status, _, error = run_python(call)
    assert status == 1 and error.startswith("error: ") and error.count("\n") == 1
    assert "pip install '.[prepare]'" in error and not (tmp_path / "out").exists()


def test_nothing_but_what_is_on_beam_imports_beam():
    room = sorted(pathlib.Path(ROOT, "big_align", "prepare").glob("*.py"))
    names = [path.stem for path in room if path.stem != "__init__"]
    assert len(names) > 8
    names += ["on_beam.job"]  # which says what to install
    imports = ", ".join(f"big_align.prepare.{name}" for name in names)
    status, out, error = run_python(
        f"import big_align, {imports}\n"
        "print([n for n in ('apache_beam', 'jax', 'tensorflow') if n in sys.modules])"
    )
    assert (status, out.strip()) == (0, "[]"), error
    help_text = "from big_align.tools import prepare; prepare.main(['--help'])"
    status, out, _ = run_python(help_text)
    assert status == 0 and "--dry_run" in out
