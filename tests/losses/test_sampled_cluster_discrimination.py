"""The sharded loss on drawn rows equals the plain formulas in value and in every gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.losses.cluster_discrimination import mlc_loss, mlcd_loss, unicom_loss
from big_align.losses.sampled_cluster_discrimination import sampled_cluster_loss
from big_align.parallel import meshes
from big_align.training.row_tables import draw_rows, pad_rows

PLAIN = {"mlcd": mlcd_loss, "mlc": mlc_loss, "unicom": unicom_loss}
OPTIONS = {"scale": 6.0, "margin": 0.3}
D = 10

CASES = {
    "even": {"b": 16, "k": 64},
    "odd": {"b": 13, "k": 61},
    "masked": {"b": 16, "k": 61, "masked": True},
    "repeated": {"b": 13, "k": 61, "repeated": True, "masked": True},
    "more positives than the quota": {"b": 24, "k": 40, "l": 8, "ratio": 0.1},
    "only positives": {"b": 9, "k": 40, "ratio": 0.0},
    "everything": {"b": 9, "k": 37, "ratio": 1.0},
    "all positive": {"b": 4, "k": 5, "l": 5},
    "no labels": {"b": 8, "k": 20, "unlabeled": True},
    "fewer classes than devices": {"b": 8, "k": 3, "l": 2, "ratio": 0.5},
}


def make_mesh(data, fsdp):
    return meshes.make_mesh(fsdp, jax.devices()[: data * fsdp])


def make_batch(b, k, l=3, masked=False, repeated=False, unlabeled=False, seed=0):  # noqa: E741
    rng = np.random.default_rng(seed)
    zimg, centers = rng.normal(size=(b, D)), rng.normal(size=(k, D))
    zimg /= np.linalg.norm(zimg, axis=1, keepdims=True)
    labels = np.stack([rng.choice(k, l, replace=False) for _ in range(b)])
    if repeated:
        labels[:, 1] = labels[:, rng.integers(l)]
    if masked:  # As an objective hides them; some have fewer labels, some a wrong one.
        labels[rng.random(b) < 0.3] = -1
        labels[rng.random((b, l)) < 0.3] = -1
        labels[0, 0] = k
    if unlabeled:
        labels[:] = -1
    return jnp.float32(zimg), jnp.float32(centers), jnp.asarray(labels, jnp.int32)


@functools.cache
def draw(case, shape, seed=0):
    """A batch, the table's values, and what is drawn of it."""
    options = dict(CASES[case])
    ratio = options.pop("ratio", 0.3)
    zimg, centers, labels = make_batch(**options, seed=seed)
    mesh, k = make_mesh(*shape), len(centers)
    values = jnp.pad(centers, ((0, pad_rows(k, mesh) - k), (0, 0)), constant_values=7)
    drawing = functools.partial(draw_rows, num_rows=k, ratio=ratio, mesh=mesh)
    drawn = jax.jit(drawing)(values, labels, jax.random.key(seed))
    return zimg, centers, labels, drawn, jnp.asarray(np.asarray(drawn.ids)), mesh


def differentiate_plain(name, zimg, centers, labels, numbers):
    """The plain loss on the whole table; negatives are all rows that were drawn."""
    loss = functools.partial(
        PLAIN[name], labels=labels, sampled=numbers, negatives="drawn", **OPTIONS
    )
    value, grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(zimg, centers)
    return value, *grads


def differentiate_ours(name, zimg, centers, drawn, numbers, **options):
    """The loss on drawn rows; the rows' gradients are laid back into the whole table."""
    run = functools.partial(sampled_cluster_loss, name, **OPTIONS, **options)

    def loss(zimg, rows):
        return run(zimg, rows, drawn.mask, drawn.columns)

    (value, metrics), (zimg_grad, row_grads) = jax.jit(
        jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    )(zimg, drawn.rows)
    assert not row_grads[~drawn.mask].any()
    whole = jnp.zeros_like(centers).at[jnp.where(numbers < 0, len(centers), numbers)]
    return (value, zimg_grad, whole.add(row_grads, mode="drop")), metrics


def assert_close(actual, desired, tolerance=1e-5):
    """Compares arrays relative to the largest element of each."""
    for a, d in zip(actual, desired, strict=True):
        np.testing.assert_allclose(a, d, rtol=0, atol=tolerance * np.abs(d).max() + 1e-9)


# The losses differ but in what they make of the same sums, so not each needs every mesh.
@pytest.mark.slow
@pytest.mark.parametrize("name, shape", [("mlcd", (8, 1)), ("mlc", (4, 2)), ("unicom", (1, 1))])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_plain_formula(case, name, shape):
    zimg, centers, labels, drawn, numbers, mesh = draw(case, shape)
    ours, _ = differentiate_ours(name, zimg, centers, drawn, numbers, mesh=mesh, block=4)
    assert_close(ours, differentiate_plain(name, zimg, centers, labels, numbers))
    assert all(np.isfinite(x).all() for x in ours)


def test_eight_devices_equal_one_for_the_same_draw():
    zimg, centers, _, drawn, numbers, mesh = draw("repeated", (8, 1))
    eight, _ = differentiate_ours("mlcd", zimg, centers, drawn, numbers, mesh=mesh)
    drawn = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), drawn)  # Onto one device.
    for options in ({}, {"mesh": make_mesh(1, 1)}):
        one, _ = differentiate_ours("mlcd", zimg, centers, drawn, numbers, **options)
        assert_close(eight, one)


@pytest.mark.parametrize(
    "block", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (5, 1000))]
)
def test_block_does_not_matter(block):
    zimg, centers, labels, drawn, numbers, mesh = draw("odd", (8, 1))
    ours, _ = differentiate_ours("mlcd", zimg, centers, drawn, numbers, mesh=mesh, block=block)
    assert_close(ours, differentiate_plain("mlcd", zimg, centers, labels, numbers))


@pytest.mark.slow
def test_bfloat16_is_only_the_precision_of_the_embeddings():
    zimg, centers, labels, drawn, numbers, mesh = draw("masked", (4, 2))
    narrow = zimg.astype(jnp.bfloat16)
    (value, zimg_grad, grads), _ = differentiate_ours(
        "mlcd", narrow, centers, drawn, numbers, mesh=mesh, block=4
    )
    wide = differentiate_plain("mlcd", narrow.astype(jnp.float32), centers, labels, numbers)
    assert_close((value, grads), (wide[0], wide[2]))
    assert zimg_grad.dtype == jnp.bfloat16
    # One rounding to 8 bits, after all sums.
    np.testing.assert_allclose(zimg_grad.astype(np.float32), wide[1], rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize(
    "case",
    ["repeated", *(pytest.param(x, marks=pytest.mark.slow) for x in ("all positive", "no labels"))],
)
def test_mean_cosines(case):
    zimg, centers, labels, drawn, numbers, mesh = draw(case, (8, 1))
    _, metrics = differentiate_ours("mlcd", zimg, centers, drawn, numbers, mesh=mesh)
    cosine = np.asarray(zimg @ (centers / np.linalg.norm(centers, axis=1, keepdims=True)).T)
    candidates = set(np.asarray(numbers).tolist()) - {-1}
    positive, negative = [], []
    for row, own in zip(cosine, np.asarray(labels).tolist(), strict=True):
        own = {i for i in own if 0 <= i < len(centers)}
        positive += [row[i] for i in own]
        negative += [row[j] for j in candidates - own if own]
    for name, expected in (("positive", positive), ("negative", negative)):
        mean = np.mean(expected) if expected else 0
        np.testing.assert_allclose(metrics[f"{name}_cosine"], mean, atol=1e-6)


@pytest.mark.slow
def test_masked_rows_may_be_nan():
    zimg, centers, _, drawn, numbers, mesh = draw("masked", (8, 1))
    left_out = ~np.asarray(drawn.columns >= 0).any(1)
    assert left_out.any() and not drawn.mask.all()
    expected, _ = differentiate_ours("mlcd", zimg, centers, drawn, numbers, mesh=mesh)
    zimg = jnp.where(left_out[:, None], jnp.nan, zimg)
    drawn = drawn._replace(rows=jnp.where(drawn.mask[:, None], drawn.rows, jnp.nan))
    actual, _ = differentiate_ours("mlcd", zimg, centers, drawn, numbers, mesh=mesh)
    assert_close(actual, expected)
    rest = drawn.rows, drawn.mask, drawn.columns
    assert np.isnan(sampled_cluster_loss("mlcd", jnp.full_like(zimg, jnp.nan), *rest, mesh=mesh)[0])


def test_large_scale_is_finite():
    zimg, centers, _, drawn, _, mesh = draw("repeated", (8, 1))
    centers_like = drawn.rows.at[drawn.columns[3, 0]].set(zimg[3])

    def loss(zimg, rows):
        rest = drawn.mask, drawn.columns
        return sampled_cluster_loss("mlcd", zimg, rows, *rest, scale=1e4, mesh=mesh)[0]

    results = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(zimg, centers_like)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(results))


def test_memory_is_a_few_blocks_beside_the_gradients():
    b, n, d, block = 512, 16384, 16, 128
    shapes = [((b, d), "float32"), ((n, d), "float32"), ((n,), "bool"), ((b, 4), "int32")]
    arguments = [jax.ShapeDtypeStruct(*x) for x in shapes]

    def loss(*arguments):
        return sampled_cluster_loss("mlcd", *arguments, block=block)[0]

    grad = jax.jit(jax.grad(loss, argnums=(0, 1)))
    used = grad.lower(*arguments).compile().memory_analysis().temp_size_in_bytes
    assert used < 4 * (8 * b * block + 3 * n * d)
    assert used < 4 * b * n / 4


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"loss": "arcface"}, "loss = 'arcface' is unknown; known: mlcd, mlc, unicom"),
        ({"block": 0}, "block = 0 must be at least 1"),
        ({"n": 9}, "9 rows do not divide over 8 devices"),
        ({"scale": 0.0}, "scale = 0.0 must be positive"),
        ({"margin": -0.1}, "margin = -0.1 radians is not in"),
    ],
)
def test_impossible_arguments_are_named(wrong, message):
    options = {"loss": "mlcd", "n": 8, "block": 4} | wrong
    n = options.pop("n")
    arguments = jnp.ones((8, D)), jnp.ones((n, D)), jnp.ones(n, bool), jnp.zeros((8, 1), jnp.int32)
    with pytest.raises(ValueError, match=message):
        sampled_cluster_loss(options.pop("loss"), *arguments, mesh=make_mesh(8, 1), **options)


def test_a_positive_that_is_not_real_is_none():
    zimg, rows, _ = make_batch(b=6, k=6)
    real = jnp.arange(6) < 4
    columns = jnp.stack([jnp.arange(6), jnp.array([0, 5, 1, 4, 4, 2])], axis=1)
    for name in PLAIN:
        loss = functools.partial(sampled_cluster_loss, name, **OPTIONS)
        found = loss(zimg, rows, real, columns)
        dropped = loss(zimg, rows, real, jnp.where(columns < 4, columns, -1))
        sliced = loss(zimg, rows[:4], real[:4], columns)
        for other in (dropped, sliced):
            for ours, theirs in zip(*map(jax.tree.leaves, (found, other)), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_positive_beyond_the_rows_is_none():
    rng = np.random.default_rng(0)
    zimg, rows = (jnp.asarray(rng.normal(size=(n, D)), jnp.float32) for n in (4, 8))
    columns = jnp.array([[0, 8], [3, -1], [99, 2], [1000, -1]])
    kept = jnp.where(columns < 8, columns, -1)
    losses = [
        sampled_cluster_loss("mlcd", zimg, rows, jnp.ones(8, bool), each)[0]
        for each in (columns, kept)
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    np.testing.assert_allclose(losses[0], mlcd_loss(zimg, rows, columns), rtol=1e-5)
