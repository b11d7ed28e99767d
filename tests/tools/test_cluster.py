"""Clustering on the command line: labels against NumPy, and it continues where it stopped."""

import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.data.precomputed import shard_files
from big_align.data.precomputed.embedding_files import ClusterFolder, EmbeddingFolder
from big_align.parallel.meshes import make_mesh
from big_align.tools import cluster
from big_align.use.clusters import cluster_embeddings, kmeans
from big_align.use.clusters.kmeans_init import scale_rows
from tests.embedding_folder import write_embeddings
from tests.run_main import ROOT, environment, find_port
from tests.two_processes import run_both

COUNTS = (40, 0, 3, 77)
ABSENT = [0, 41, 119]


@pytest.fixture
def values():
    values = np.random.default_rng(0).normal(size=(120, 6)).astype(np.float16)
    values[ABSENT] = 0
    return values


@pytest.fixture
def embeddings(tmp_path, values):
    return write_embeddings(tmp_path / "embeddings", values, COUNTS)


def run(embeddings, output, **more):
    options = {"embeddings": embeddings, "output": output, "k": 10, "labels_per_image": 3} | more
    return cluster.main([f"--{name}={value}" for name, value in options.items()])


def read_labels(folder):
    found = ClusterFolder(folder)
    return np.concatenate([found.array(shard) for shard in found.shards if shard.count])


def read_bytes(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def nearest(values, centers, count):
    cosine = scale_rows(values) @ centers.T
    order = np.argsort(-cosine, axis=1, kind="stable")[:, :count]
    return order, np.take_along_axis(cosine, order, 1)


@pytest.mark.parametrize("search", ["exact", "scann"])
def test_every_image_has_its_nearest_centers_under_its_key(
    embeddings, values, tmp_path, capsys, search
):
    assert run(embeddings, tmp_path / "out", search=search, chunk=50, block=4) == 0
    printed = capsys.readouterr().out
    assert "iteration 1: mean cosine 0." in printed
    assert f"120 images in 10 clusters; {3 * 117 / 120:.2f} labels an image" in printed
    found, rows = ClusterFolder(tmp_path / "out"), EmbeddingFolder(embeddings)
    np.testing.assert_allclose(np.linalg.norm(found.centers, axis=1), 1, atol=1e-6)
    order, _ = nearest(values, np.array(found.centers), 3)
    order[ABSENT] = -1
    np.testing.assert_array_equal(read_labels(tmp_path / "out"), order)
    assert found.shards == rows.shards
    assert all(found.keys(s) == rows.keys(s) for s in found.shards if s.count)
    objective = np.diff(found.index["objective"])
    assert (objective > -1e-7).all() and len(objective) > 0


def test_a_threshold_keeps_centers_that_are_near_enough(embeddings, values, tmp_path):
    assert run(embeddings, tmp_path / "out", min_similarity=0.5, labels_per_image=10) == 0
    order, cosine = nearest(values, np.array(ClusterFolder(tmp_path / "out").centers), 10)
    order[cosine < 0.5] = -1
    order[ABSENT] = -1
    labels = read_labels(tmp_path / "out")
    np.testing.assert_array_equal(labels, order)
    counts = (labels >= 0).sum(axis=1)
    assert len(set(counts.tolist())) > 2


def test_a_sample_of_all_embeddings_changes_nothing(embeddings, tmp_path):
    for name, more in (("all", {}), ("sample", {"sample": 117})):
        assert run(embeddings, tmp_path / name, **more) == 0
    found = [read_bytes(tmp_path / name) for name in ("all", "sample")]
    assert found[0].pop("index.json") != found[1].pop("index.json")
    assert found[0] == found[1]


def test_a_sample_makes_centers_and_all_images_are_labeled(embeddings, values, tmp_path, capsys):
    assert run(embeddings, tmp_path / "out", sample=30, candidates=10) == 0
    assert f"120 images in 10 clusters; {3 * 117 / 120:.2f} labels" in capsys.readouterr().out
    found = ClusterFolder(tmp_path / "out")
    order, cosine = nearest(values, np.array(found.centers), 3)
    order[ABSENT] = -1
    np.testing.assert_array_equal(read_labels(tmp_path / "out"), order)
    *drawn, every = found.index["objective"]
    before, after = every, cosine[:, 0].sum() / 117
    assert max(drawn) > 1.05 * before  # of the 30 alone
    assert after > before  # the last iteration is over all


def test_after_a_sample_one_iteration_is_over_all(embeddings, tmp_path):
    """The same as k-means of one iteration that starts where the sample's ends."""
    assert run(embeddings, tmp_path / "sample", sample=60) == 0
    wanted = np.array(ClusterFolder(tmp_path / "sample").centers)
    rows, plan = EmbeddingFolder(embeddings), cluster_embeddings.Plan(k=10, sample=60)
    drawn = cluster_embeddings.kmeans_init.DrawnRows(rows, 60, plan.seed)
    mesh = make_mesh()
    centers = cluster_embeddings.kmeans_init.start_centers(drawn, 10, plan.start, mesh, plan.seed)
    objective = []
    for done in kmeans.SphericalKMeans(drawn, 10, mesh).iterate(centers):
        objective.append(done.objective)
        if len(objective) == 20 or kmeans.has_converged(objective, done.empty, plan.tolerance):
            break
    (last,) = itertools.islice(kmeans.SphericalKMeans(rows, 10, mesh).iterate(done.centers()), 1)
    np.testing.assert_allclose(wanted, last.centers(), atol=1e-6)


@pytest.mark.slow_repeats
@pytest.mark.parametrize("more", [{}, {"sample": 60, "candidates": 2}])
def test_an_interrupted_k_means_continues_as_if_it_had_not_stopped(
    embeddings, tmp_path, monkeypatch, capsys, more
):
    more |= {"tolerance": 0, "iterations": 6}
    assert run(embeddings, tmp_path / "whole", **more) == 0
    plain, passes = kmeans.SphericalKMeans._pass, []

    def stop(means):
        passes.append(1)
        if len(passes) == 4:
            raise KeyboardInterrupt
        return plain(means)

    monkeypatch.setattr(kmeans.SphericalKMeans, "_pass", stop)
    assert run(embeddings, tmp_path / "out", **more) == 130
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["progress.npz"]
    assert run(embeddings, tmp_path / "out", **more, k=11) == 1
    assert "k is 10 there and 11 now" in capsys.readouterr().err
    assert run(embeddings, tmp_path / "out", **more) == 0
    printed = capsys.readouterr().out
    assert "iteration 4: " in printed and "iteration 3: " not in printed
    assert read_bytes(tmp_path / "out") == read_bytes(tmp_path / "whole")


def test_shards_that_are_labeled_are_kept(embeddings, tmp_path, monkeypatch, capsys):
    output = tmp_path / "out"
    assert run(embeddings, output) == 0
    whole = read_bytes(output)
    (output / "f2.clusters.npy").unlink()
    kept = (output / "f0.clusters.npy").stat().st_mtime_ns
    monkeypatch.setattr(kmeans.SphericalKMeans, "_pass", None)  # would fail
    assert run(embeddings, output) == 0
    assert read_bytes(output) == whole
    assert (output / "f0.clusters.npy").stat().st_mtime_ns == kept
    capsys.readouterr()
    assert run(embeddings, output) == 0
    assert "labels were there" in capsys.readouterr().out


@pytest.mark.slow
def test_two_processes_write_what_one_does(embeddings, tmp_path):
    assert run(embeddings, tmp_path / "one", chunk=48) == 0
    command = [sys.executable, "-m", "big_align.tools.cluster", f"--embeddings={embeddings}"]
    command += ["--k=10", "--labels_per_image=3", "--chunk=48", f"--output={tmp_path / 'two'}"]
    variables = environment(2) | {"PORT": str(find_port())}
    done = subprocess.run(
        ["launch/local.sh", "2", "--", *command, "--distributed"],
        cwd=ROOT, env=variables, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("iteration 1: ") == 1
    np.testing.assert_array_equal(read_labels(tmp_path / "two"), read_labels(tmp_path / "one"))
    assert sorted(os.listdir(tmp_path / "two")) == sorted(os.listdir(tmp_path / "one"))


def test_processes_that_find_different_clusters_are_told(embeddings, tmp_path, monkeypatch):
    """They would wait for each other: one in k-means, one in the search that comes after it."""
    assert run(embeddings, tmp_path / "0") == 0
    rows, plan = EmbeddingFolder(embeddings), cluster_embeddings.Plan(k=10, labels_per_image=3)
    monkeypatch.setattr(cluster_embeddings.kmeans_init, "start_centers", None)  # would fail

    def find(process):
        folder = tmp_path / str(process)
        return cluster_embeddings.find_centers(rows, plan, folder, make_mesh())

    for outcome in run_both(monkeypatch, find):
        assert isinstance(outcome, UserError)
        assert "process 1 does not see the clusters that process 0 sees there" in str(outcome)


def test_a_process_with_other_settings_is_told(embeddings, tmp_path, monkeypatch):
    rows, plans = EmbeddingFolder(embeddings), [cluster_embeddings.Plan(k=k) for k in (10, 11)]

    def find(process):
        given = tmp_path / "out", make_mesh()
        return cluster_embeddings.find_centers(rows, plans[process], *given)

    monkeypatch.setattr(cluster_embeddings.kmeans_init, "start_centers", None)  # would fail
    told = run_both(monkeypatch, find)[1]
    assert str(told) == "process 1 has index.k = 11, process 0 has 10"


def cut_embeddings(folder):
    with open(folder / "f3.npy", "r+b") as file:
        file.truncate(200)


def put_nan(folder):
    rows = np.load(folder / "f2.npy")
    rows[2, 1] = np.nan
    np.save(folder / "f2.npy", rows)


def change_format(folder):
    index = json.loads((folder / "index.json").read_text()) | {"format": 7}
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "changed", "message"),
    [
        (None, {"k": 118}, "k = 118 is more than the 117 embeddings in "),
        (None, {"labels_per_image": 11}, "labels_per_image = 11 is more than the k = 10 clusters"),
        (None, {"labels_per_image": 0}, "labels_per_image = 0 must be at least 1"),
        (None, {"min_similarity": 1.5}, "min_similarity = 1.5 is no cosine"),
        (None, {"chunk": 0}, "chunk = 0 must be at least 1"),
        (None, {"block": 0}, "block = 0 must be at least 1"),
        (None, {"iterations": 0}, "iterations = 0 must be at least 1"),
        (None, {"candidates": 0}, "candidates = 0 must be at least 1"),
        (None, {"sample": 9}, "sample = 9 must be at least 10"),
        (None, {"seed": -1}, "seed = -1 must be at least 0"),
        (None, {"tolerance": float("nan")}, "tolerance = nan must be at least 0"),
        (None, {"embeddings": "nowhere"}, "nowhere has no index.json"),
        (cut_embeddings, {}, "f3.npy is missing, cut short or no array"),
        (put_nan, {}, "f2.npy: row 2 is not finite"),
        (change_format, {}, "has format 7 of a folder of embeddings or clusters"),
    ],
)
def test_bad_input_is_one_line(embeddings, tmp_path, capsys, damage, changed, message):
    if damage:
        damage(embeddings)
    assert run(**{"embeddings": embeddings, "output": tmp_path / "out"} | changed) in (1, 2)
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ") and message in line
    assert not (tmp_path / "out" / shard_files.INDEX).exists()


@pytest.mark.slow
def test_help_explains_without_loading_anything():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "big_align.tools.cluster", "--help"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert "--labels_per_image" in done.stdout and "| jax" not in done.stderr
