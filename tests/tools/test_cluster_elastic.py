"""A clustering that was killed goes on with another number of processes."""

import os
import subprocess
import sys

import numpy as np
import pytest

from big_align.data.precomputed.embedding_files import ClusterFolder
from tests.embedding_folder import write_embeddings
from tests.run_main import ROOT, environment, find_port
from tests.tools.test_cluster import read_labels

COUNTS = (90, 3, 107)
KILL_AT = 3
CODE = f"""
import itertools, os, signal, sys
from big_align.tools import cluster
from big_align.use.clusters import cluster_embeddings

write, count = cluster_embeddings._write_progress, itertools.count(1)

def write_and_die(*arguments):
    write(*arguments)
    if next(count) == {KILL_AT}:
        os.kill(os.getpid(), signal.SIGKILL)

if os.environ.get("KILLED"):
    cluster_embeddings._write_progress = write_and_die
sys.exit(cluster.main())
"""


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory):
    rows = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float16)
    return write_embeddings(tmp_path_factory.mktemp("rows") / "embeddings", rows, COUNTS)


def run(embeddings, output, processes, killed=False):
    flags = [f"--embeddings={embeddings}", f"--output={output}", "--k=10", "--labels_per_image=3"]
    command = [sys.executable, "-c", CODE, *flags, "--tolerance=0", "--iterations=7", "--chunk=48"]
    if processes > 1:
        command = ["launch/local.sh", str(processes), "--", *command, "--distributed"]
    variables = environment(8 // processes) | {"PORT": str(find_port())}
    variables |= {"KILLED": "1"} if killed else {}
    return subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(embeddings, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "out"
    assert run(embeddings, output, 1).returncode == 0
    return output


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_iterations_go_on_with_another_number_of_processes(
    embeddings, whole, tmp_path, before, after
):
    output = tmp_path / "out"
    assert run(embeddings, output, before, killed=True).returncode != 0
    with np.load(output / "progress.npz") as there:
        assert len(there["objective"]) == KILL_AT
    done = run(embeddings, output, after)
    assert done.returncode == 0, done.stderr
    assert f"iteration {KILL_AT + 1}: " in done.stdout
    assert f"iteration {KILL_AT}: " not in done.stdout
    assert sorted(os.listdir(output)) == sorted(os.listdir(whole))
    one, other = ClusterFolder(whole), ClusterFolder(output)
    np.testing.assert_allclose(other.centers, one.centers, atol=1e-6)
    np.testing.assert_array_equal(read_labels(output), read_labels(whole))
    objective = [each.index["objective"] for each in (one, other)]
    np.testing.assert_allclose(*objective, rtol=1e-6)
