"""Spherical k-means and the nearest centers, against all of it in NumPy."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.parallel.kernels import group_maxima
from big_align.parallel.meshes import make_mesh
from big_align.use.clusters import nearest_centers
from big_align.use.clusters.kmeans import Farthest, SphericalKMeans, has_converged
from big_align.use.clusters.kmeans_init import (
    DrawnRows,
    Sample,
    draw_plus_plus,
    scale_rows,
    start_centers,
)
from big_align.use.clusters.nearest_centers import CenterLayout, NearestCenters
from tests import tiny

LAYOUTS = [(1, 1000, 1000), (1, 7, 64), (8, 1000, 1000), ((8, 2), 3, 50), ((8, 8), 3, 50)]
"""Devices, and over how many the centers are split; centers of a block, rows of a chunk."""


def make_mesh_of(devices):
    return tiny.make_mesh(*devices) if isinstance(devices, tuple) else tiny.make_mesh(devices)


def draw(count, dim=12, seed=0):
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def draw_blobs(blobs, each, dim=16, seed=0, noise=0.05):
    """Rows around directions that are far apart, in random order, and their blobs."""
    rng = np.random.default_rng(seed)
    middle = np.linalg.qr(rng.normal(size=(dim, dim)))[0][:blobs]
    label = rng.permutation(np.repeat(np.arange(blobs), each))
    return scale_rows(middle[label] + noise * rng.normal(size=(len(label), dim))), label


def run(values, centers, iterations, devices=1, block=1000, chunk=1000, candidates=None):
    """The objective, empty clusters and centers of each iteration."""
    sizes = make_mesh_of(devices), block, chunk, candidates
    means = SphericalKMeans(Sample(values), len(centers), *sizes)
    iterations = itertools.islice(means.iterate(centers), iterations)
    return [(each.objective, each.empty, each.centers()) for each in iterations]


def plain_iteration(values, centers):
    """One iteration in float64: the mean cosine, counts and the new centers."""
    x = np.float64(values) / np.linalg.norm(values, axis=1, keepdims=True)
    cosine = x @ np.float64(centers).T
    label = cosine.argmax(axis=1)
    sums = np.zeros(centers.shape)
    np.add.at(sums, label, x)
    counts = np.bincount(label, minlength=len(centers))
    length = np.linalg.norm(sums, axis=1, keepdims=True)
    moved = np.where(length > 0, sums / np.maximum(length, 1e-30), centers)
    return cosine.max(axis=1).mean(), counts, moved


@pytest.mark.slow_repeats
@pytest.mark.parametrize(("devices", "block", "chunk"), LAYOUTS)
@pytest.mark.parametrize(
    ("candidates", "count"),
    [
        pytest.param(candidates, count, marks=[pytest.mark.slow] * (count != 5 or candidates == 99))
        for candidates in (None, 21, 99)
        for count in (1, 5, 21)
    ],
)
def test_the_nearest_centers_are_those_of_a_full_comparison(
    devices, block, chunk, count, candidates
):
    """Also in bfloat16, if all centers are candidates."""
    values, centers = draw(157), scale_rows(draw(21, seed=1))
    find = NearestCenters(centers, make_mesh_of(devices), count, block, chunk, candidates)
    cosine, label = (np.concatenate(x) for x in zip(*find(Sample(values)), strict=True))
    expected = scale_rows(values) @ centers.T
    order = np.argsort(-expected, axis=1)[:, :count]
    np.testing.assert_array_equal(label, order)
    np.testing.assert_allclose(cosine, np.take_along_axis(expected, order, 1), atol=1e-6)


@pytest.mark.slow_repeats
@pytest.mark.parametrize(("devices", "block", "chunk"), LAYOUTS)
@pytest.mark.parametrize("candidates", [3, pytest.param(6, marks=pytest.mark.slow)])
def test_candidates_are_the_nearest_in_bfloat16_in_the_order_of_float32(
    devices, block, chunk, candidates
):
    values, centers = draw(500), scale_rows(draw(400, seed=1))
    find = NearestCenters(centers, make_mesh_of(devices), 3, block, chunk, candidates)
    cosine, label = (np.concatenate(x) for x in zip(*find(Sample(values)), strict=True))
    x = scale_rows(values)
    rounded = [np.float64(np.float32(jnp.bfloat16(y))) for y in (x, centers)]
    products, exact = -rounded[0] @ rounded[1].T, np.float64(x) @ np.float64(centers).T
    # Every part of the centers has so many candidates.
    parts = devices[1] if isinstance(devices, tuple) else 1
    numbers = np.array_split(np.arange(400), parts)
    kept = [part[np.argsort(products[:, part], axis=1)[:, :candidates]] for part in numbers]
    kept = np.concatenate(kept, axis=1)
    order = np.argsort(-np.take_along_axis(exact, kept, 1), axis=1)[:, :3]
    expected = np.take_along_axis(kept, order, 1)
    np.testing.assert_array_equal(label, expected)
    np.testing.assert_allclose(cosine, np.take_along_axis(exact, expected, 1), atol=1e-6)


@pytest.mark.slow_repeats
@pytest.mark.parametrize("devices", [(8, 2), pytest.param((8, 1))])
@pytest.mark.parametrize("on_tpu", [False, True])
def test_candidates_of_groups_are_nearly_always_the_nearest(devices, on_tpu, monkeypatch):
    """Only a center whose group has a nearer one is missed: here 3 of 300 at most."""
    monkeypatch.setattr(group_maxima, "UNIT", 4096)
    find = functools.partial(group_maxima.find_maxima_on_tpu, interpret=True)
    find = find if on_tpu else group_maxima.find_maxima_in_tiles
    monkeypatch.setattr(group_maxima, "choose_maxima", lambda device: find)
    values, centers = draw(100), scale_rows(draw(10_000, seed=1))
    search = NearestCenters(centers, make_mesh_of(devices), 3, candidates=8)
    cosine, label = (np.concatenate(x) for x in zip(*search(Sample(values)), strict=True))
    exact = np.float64(scale_rows(values)) @ np.float64(centers).T
    order = np.argsort(-exact, axis=1)[:, :3]
    np.testing.assert_array_equal(label[:, 0], order[:, 0])
    assert (label != order).sum() <= (30 if devices == (8, 1) else 60)
    np.testing.assert_allclose(cosine, np.take_along_axis(exact, label, 1), atol=1e-6)


@pytest.mark.parametrize("devices", [1, 8])
def test_a_second_candidate_mends_what_bfloat16_confuses(devices):
    """The centers differ by less than bfloat16 tells apart, so the first of them counts there."""
    x = scale_rows(np.float32([[1, 1, 0]]))
    centers = scale_rows(np.float32([[1, 1.002, 0], [1, 1, 0], [0, 0, 1]]))
    for candidates, expected in ((1, 0), (2, 1), (None, 1)):
        find = NearestCenters(centers, make_mesh_of(devices), 1, candidates=candidates)
        ((cosine, label),) = find(Sample(x))
        assert label.tolist() == [[expected]]
        np.testing.assert_allclose(cosine[0], x[0] @ centers[expected], atol=1e-7)


def test_of_equally_near_centers_the_first_counts():
    centers = np.eye(4, dtype=np.float32)[[0, 1, 1, 0, 2, 1]]
    for devices, block, candidates in ((1, 6, None), (1, 2, None), (8, 1, None), (8, 1, 6)):
        find = NearestCenters(centers, make_mesh_of(devices), 6, block, candidates=candidates)
        ((_, label),) = find(Sample(np.eye(4, dtype=np.float32)[1:2]))
        assert label.tolist() == [[1, 2, 5, 0, 3, 4]]


@pytest.mark.slow_repeats
@pytest.mark.parametrize("candidates", [None, pytest.param(17, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("devices", "block", "chunk"), LAYOUTS)
def test_an_iteration_is_the_plain_one_on_any_devices_in_any_pieces(
    devices, block, chunk, candidates
):
    values, centers = draw(300), scale_rows(draw(17, seed=1))
    found = run(values, centers, 4, devices, block, chunk, candidates)
    for objective, empty, moved in found:
        expected, counts, centers = plain_iteration(values, centers)
        np.testing.assert_allclose(objective, expected, atol=1e-6)
        assert empty == (counts == 0).sum() == 0
        np.testing.assert_allclose(moved, centers, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_objective_never_falls_whatever_is_reseeded(seed):
    values = draw(400, dim=6, seed=seed)
    start = np.repeat(scale_rows(draw(5, dim=6, seed=9)), 8, axis=0)  # 35 of 40 begin empty
    found = run(values, start, 12)
    assert found[0][1] == 35 and found[-1][1] == 0
    objectives = [objective for objective, *_ in found]
    assert (np.diff(objectives) > -1e-7).all() and objectives[-1] > objectives[0]


@pytest.mark.parametrize("devices", [1, 8])
def test_reseeding_leaves_no_cluster_empty(devices):
    values, _ = draw_blobs(10, 30)
    start = np.repeat(values[:1], 10, axis=0)
    found = run(values, start, 6, devices)
    assert found[0][1] == 9
    _, counts, _ = plain_iteration(values, found[-1][2])
    assert (counts > 0).all()


def test_the_farthest_rows_become_the_new_centers_and_equal_ones_once():
    values = np.float32(
        [[1, 0, 0], [1, 0.1, 0], [1, 0, 0.1], [0.6, 0.8, 0], [0.6, 0.8, 0], [-1, 0, 0]]
    )
    start = np.float32([[1, 0, 0], [1, 0, 0], [1, 0, 0]])
    ((_, empty, moved),) = run(values, start, 1)
    assert empty == 2
    np.testing.assert_array_equal(moved[1:], values[[5, 3]])


def test_no_cluster_gives_up_its_last_row():
    """The row that is farthest from its center is the only one there."""
    values = scale_rows(np.float32([[1, 0, 0], [1, 0.1, 0], [1, 0, 0.2], [0, 0.6, 0.8]]))
    start = np.float32([[1, 0, 0], [0, 1, 0], [1, 0, 0]])
    (_, empty, moved), (_, later, _) = run(values, start, 2)
    assert (empty, later) == (1, 0)
    np.testing.assert_allclose(moved[1:], values[[3, 2]], atol=1e-6)


def test_clusters_beyond_the_different_rows_stay_as_they_are():
    values = np.eye(3, dtype=np.float32)[[0, 0, 1, 1, 2]]
    start = np.eye(3, dtype=np.float32)[[0, 0, 0, 1, 2]]
    for objective, empty, moved in run(values, start, 3):
        assert (objective, empty) == (1, 2)
        np.testing.assert_array_equal(moved, start)


def test_rows_of_zeros_take_no_part():
    values, centers = draw(90), scale_rows(draw(7, seed=1))
    with_zeros = np.insert(values, [0, 40, 40, 90], 0, axis=0)
    for one, other in zip(
        run(values, centers, 3), run(with_zeros, centers, 3, 8, 2, 16), strict=True
    ):
        np.testing.assert_allclose(one[0], other[0], atol=1e-6)
        np.testing.assert_allclose(one[2], other[2], atol=1e-5)


@pytest.mark.parametrize("candidates", [None, 2])
def test_drawn_rows_are_clustered_as_if_there_were_no_others(candidates):
    values, centers = draw(200), scale_rows(draw(7, seed=1))
    values[::9] = 0
    drawn = DrawnRows(Sample(values), 60, seed=3)
    taken = drawn.take(np.arange(drawn.count))
    assert drawn.count == 60 + 23 and taken.any(axis=1).sum() >= 60
    assert len({row.tobytes() for row in taken if row.any()}) == taken.any(axis=1).sum()
    assert all((values == row).all(axis=1).any() for row in taken)
    means = SphericalKMeans(drawn, 7, tiny.make_mesh(8), 2, 16, candidates)
    for one, other in zip(
        itertools.islice(means.iterate(centers), 3), run(taken, centers, 3), strict=True
    ):
        np.testing.assert_allclose(one.objective, other[0], atol=1e-6)
        np.testing.assert_allclose(one.centers(), other[2], atol=1e-5)


def test_only_directions_count():
    values, centers = draw(90), scale_rows(draw(7, seed=1))
    longer = values * np.random.default_rng(0).uniform(0.1, 9, (90, 1)).astype(np.float32)
    for one, other in zip(run(values, centers, 3), run(longer, centers, 3), strict=True):
        np.testing.assert_allclose(one[2], other[2], atol=1e-5)


def test_permuting_the_rows_changes_nothing_and_permuting_the_centers_their_names():
    values, centers = draw(200), scale_rows(draw(9, seed=1))
    rows, names = (np.random.default_rng(2).permutation(n) for n in (200, 9))
    plain, other = run(values, centers, 5), run(values[rows], centers[names], 5)
    for one, two in zip(plain, other, strict=True):
        np.testing.assert_allclose(one[0], two[0], atol=1e-6)
        np.testing.assert_allclose(one[2][names], two[2], atol=1e-5)


def test_continuing_equals_not_stopping():
    values, centers = draw(200), scale_rows(draw(30, seed=1))
    whole = run(values, centers, 6)
    first = run(values, centers, 2)
    rest = run(values, first[-1][2], 4)
    for one, other in zip(whole[2:], rest, strict=True):
        assert one[:2] == other[:2]
        np.testing.assert_array_equal(one[2], other[2])


@pytest.mark.parametrize("start", ["kmeans++", "sampled"])
@pytest.mark.parametrize("seed", range(2))
def test_a_start_is_of_different_rows_and_the_same_on_any_devices(start, seed):
    values = draw(300, seed=seed)
    values[::7] = 0
    found = [
        start_centers(Sample(values), 40, start, tiny.make_mesh(devices), seed)
        for devices in (1, 8)
    ]
    np.testing.assert_array_equal(*found)
    which = (found[0] @ scale_rows(values).T).argmax(axis=1)
    assert len(set(which)) == 40
    np.testing.assert_allclose(scale_rows(values)[which], found[0], atol=1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_well_separated_blobs_are_found(seed):
    values, label = draw_blobs(12, 20, seed=seed)
    centers = start_centers(Sample(values), 12, "kmeans++", tiny.make_mesh(), seed)
    moved = run(values, centers, 5)[-1][2]
    found = (values @ moved.T).argmax(axis=1)
    pairs = set(zip(found.tolist(), label.tolist(), strict=True))
    assert len(pairs) == 12 and len(set(found)) == 12


@pytest.mark.slow
def test_draws_follow_k_means_plus_plus():
    """The second center is drawn with the squared distance to the first, and so is the third."""
    angle = np.array([0, 0.4, 1.1, 2.0, 3.0])
    sample = np.float32(np.stack([np.cos(angle), np.sin(angle)], 1))
    apart = np.maximum(2 - 2 * np.float64(sample) @ sample.T, 0)
    np.fill_diagonal(apart, 0)
    expected = np.zeros((5, 5, 5))
    for i in range(5):
        for j in range(5):
            one = apart[i, j] / apart[i].sum() / 5
            left = np.minimum(apart[i], apart[j])
            expected[i, j] = one * left / left.sum()
    draws, rng, mesh = 1500, np.random.default_rng(0), tiny.make_mesh()
    counts = np.zeros((5, 5, 5))
    for _ in range(draws):
        counts[tuple(draw_plus_plus(sample, 3, mesh, rng))] += 1
    # A standard deviation of a fraction is at most sqrt(p / draws).
    assert (np.abs(counts / draws - expected) <= 4 * np.sqrt(expected / draws)).all()


def test_a_sample_with_fewer_different_rows_still_gives_k():
    sample = np.eye(3, dtype=np.float32)[[0, 1, 2] * 4]
    chosen = draw_plus_plus(sample, 7, tiny.make_mesh(), np.random.default_rng(0))
    assert len(set(chosen.tolist())) == 7
    assert sample[chosen[:3]].any(axis=0).all()


def test_the_farthest_are_those_of_sorting_all():
    cosine = np.random.default_rng(0).integers(0, 50, 500).astype(np.float32) / 50
    far = Farthest(40)
    for first in range(0, 500, 60):
        part = cosine[first : first + 60]
        numbers = np.arange(first, first + len(part))
        far.see(part, numbers, numbers.astype(np.int32) % 7)
    order = np.argsort(cosine, kind="stable")[:40]
    np.testing.assert_array_equal(far.number, order)
    np.testing.assert_array_equal(far.label, order % 7)


def test_centers_come_back_as_they_were_laid_out():
    centers = draw(29)
    for split, block in ((1, 1000), (8, 2), (2, 1)):
        layout = CenterLayout(29, tiny.make_mesh(8, split), block)
        placed = layout.place(centers)
        np.testing.assert_array_equal(layout.collect(placed), centers)
        assert layout.block <= block and layout.rows < 29 + 2 * split * layout.block
        assert len({str(shard.index) for shard in placed.addressable_shards}) == split


def test_centers_are_split_no_further_than_they_need():
    """A device whose memory is not known gives a GiB: 14 bytes of 2**20 numbers fit twice."""
    for k, split in ((1, 1), (146, 2), (147, 4), (10**6, 8)):
        mesh = nearest_centers.make_center_mesh(k, 2**20, jax.devices()[:8])
        assert mesh.shape["fsdp"] == split


def test_one_program_serves_all_iterations():
    values, centers = draw(210), scale_rows(draw(9, seed=1))
    means = SphericalKMeans(Sample(values), 9, tiny.make_mesh(8), 4, 64)
    for start in (centers, centers[::-1]):
        assert len(list(itertools.islice(means.iterate(start), 3))) == 3
    assert means.programs.assign._cache_size() == 1


def test_convergence_is_a_small_gain_without_empty_clusters():
    assert not has_converged([0.5], 0, 0.1)
    assert has_converged([0.5, 0.54], 0, 0.1) and not has_converged([0.5, 0.56], 0, 0.1)
    assert not has_converged([0.5, 0.54], 1, 0.1)


def test_an_embedding_that_is_not_finite_is_named():
    values, centers = draw(70), scale_rows(draw(5, seed=1))
    values[41, 3] = np.nan
    with pytest.raises(UserError, match="the embedding of row 41 is not finite"):
        run(values, centers, 1, 8, 2, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 51}, "k = 51, but there are 50 embeddings"),
        ({"k": 0}, "k = 0, but there are 50 embeddings"),
        ({"start": "random"}, "start = 'random' is unknown; known: kmeans"),
    ],
)
def test_a_start_that_cannot_be_is_named(change, message):
    with pytest.raises(UserError, match=message):
        options = {"k": 5, "start": "sampled"} | change
        start_centers(Sample(draw(50)), mesh=tiny.make_mesh(), **options)


def test_centers_of_another_table_are_refused():
    with pytest.raises(UserError, match=r"the centers are \[5, 12\], not \[6, 12\]"):
        next(SphericalKMeans(Sample(draw(50)), 6, tiny.make_mesh()).iterate(draw(5)))


def test_more_nearest_than_centers_cannot_be():
    with pytest.raises(UserError, match="6 of 5 centers are asked for"):
        NearestCenters(draw(5), make_mesh(), 6)
