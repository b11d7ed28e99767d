"""Cluster discrimination: eq. 3, 4 and 5 of MLCD by hand, golden numbers, and their laws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.losses.cluster_discrimination import (
    add_margin,
    combine,
    mlc_loss,
    mlcd_loss,
    unicom_loss,
)

LOSSES = {"mlcd": mlcd_loss, "mlc": mlc_loss, "unicom": unicom_loss}
K, D = 11, 6


@pytest.fixture(params=LOSSES)
def loss(request):
    return functools.partial(LOSSES[request.param], scale=5.0)


def draw(b=7, k=K, labels=3, seed=0, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    zimg, centers = rng.normal(size=(b, D)), rng.normal(size=(k, D))
    zimg /= np.linalg.norm(zimg, axis=1, keepdims=True)
    label = np.stack([rng.choice(k, labels, replace=False) for _ in range(b)])
    return jnp.asarray(zimg, dtype), jnp.asarray(centers, dtype), jnp.asarray(label)


def differentiate(loss, zimg, centers, labels, mask=None, **options):
    function = functools.partial(loss, **options)
    return jax.jit(jax.value_and_grad(lambda z, c: function(z, c, labels, mask), argnums=(0, 1)))(
        zimg, centers
    )


def assert_finite(tree):
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    "loss, key, options",
    [
        (mlcd_loss, "mlcd_loss_full", {}),
        (mlcd_loss, "mlcd_loss_no_margin", {"margin": 0.0}),
        (mlcd_loss, "mlcd_loss_sampled", {"sampled": "mlcd_sampled", "negatives": "drawn"}),
        (mlcd_loss, "mlcd_loss_sampled_own", {"sampled": "mlcd_sampled"}),
        (mlc_loss, "mlc_loss_full", {"margin": 0.0}),
    ],
)
def test_golden(loss, key, options, reference_dir):
    golden = np.load(reference_dir / "losses.npz")
    options = {"margin": float(golden["mlcd_margin"])} | options
    if "sampled" in options:
        options["sampled"] = jnp.asarray(golden[options["sampled"]])
    value = loss(
        jnp.float32(golden["mlcd_embedding"]),
        jnp.float32(golden["mlcd_centers"]),
        jnp.asarray(golden["mlcd_labels"]),
        scale=float(golden["mlcd_scale"]),
        **options,
    )
    np.testing.assert_allclose(value, golden[key], rtol=1e-5)


def by_hand(name, zimg, centers, positives, negatives, scale, margin):
    """One example, in a loop, by arccosine."""
    angle = np.arccos(centers @ zimg / np.linalg.norm(centers, axis=1))
    s_p = [scale * np.cos(angle[i] + margin) for i in positives]
    s_n = [scale * np.cos(angle[j]) for j in negatives]
    if name == "mlcd":
        return np.log(1 + np.exp(s_n).sum()) + np.log(1 + np.exp(np.negative(s_p)).sum())
    if name == "mlc":
        return np.log(1 + sum(np.exp(j - i) for i in s_p for j in s_n))
    return -np.log(np.exp(s_p[0]) / (np.exp(s_p[0]) + np.exp(s_n).sum()))


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("negatives", ["sampled", "drawn"])
def test_by_hand(name, negatives):
    zimg, centers, _ = draw(3)
    labels = jnp.array([[4, 4, 0], [2, -1, -1], [-1, -1, -1]])
    sampled = jnp.array([4, 7, 8, -1])
    options = {"sampled": sampled, "negatives": negatives, "scale": 3.0, "margin": 0.2}
    value = LOSSES[name](zimg, centers, labels, **options)
    own = [[4] if name == "unicom" else [4, 0], [2]]
    cases = [(own[0], [7, 8]), (own[1], [4, 7, 8])]
    if negatives == "drawn":  # UNICOM knows but the first label, so 0 is nobody's positive.
        cases = [(own[0], [2, 7, 8]), (own[1], [4, 7, 8] if name == "unicom" else [0, 4, 7, 8])]
    expected = [
        by_hand(name, np.asarray(z), np.asarray(centers), *case, 3.0, 0.2)
        for z, case in zip(zimg, cases, strict=False)
    ]
    np.testing.assert_allclose(value, np.mean(expected), rtol=1e-5)


def test_gradients_equal_finite_differences(loss):
    with jax.enable_x64(True):
        *at, labels = draw(dtype=jnp.float64)
        labels = labels.at[0, 1].set(labels[0, 0]).at[1].set(-1).at[2, 2].set(-1)
        mask = jnp.arange(7) != 5
        options = {"sampled": jnp.array([1, 5, 9]), "margin": 0.3}
        f = jax.jit(lambda zimg, centers: loss(zimg, centers, labels, mask, **options))
        grads = jax.jit(jax.grad(f, argnums=(0, 1)))(*at)
        for i, grad in enumerate(grads):
            way = np.random.default_rng(i).normal(size=grad.shape)
            ahead, behind = (f(*at[:i], at[i] + step * way, *at[i + 1 :]) for step in (1e-6, -1e-6))
            np.testing.assert_allclose((grad * way).sum(), (ahead - behind) / 2e-6, rtol=1e-6)


@pytest.mark.slow
def test_length_of_centers_and_repeated_labels_do_not_count(loss):
    zimg, centers, labels = draw()
    longer = centers * jnp.arange(1.0, K + 1)[:, None]
    np.testing.assert_allclose(loss(zimg, longer, labels), loss(zimg, centers, labels), rtol=1e-5)
    twice = jnp.concatenate([labels, labels[:, ::-1]], axis=1)
    np.testing.assert_allclose(loss(zimg, centers, twice), loss(zimg, centers, labels), rtol=1e-6)


def test_order_of_labels_and_padding_do_not_count():
    zimg, centers, labels = draw()
    padded = jnp.pad(labels[:, ::-1], ((0, 0), (1, 2)), constant_values=-1).at[:, 0].set(K)
    for loss in (mlcd_loss, mlc_loss):
        expected = loss(zimg, centers, labels)
        np.testing.assert_allclose(loss(zimg, centers, padded), expected, rtol=1e-6)


def test_mask_and_no_label_equal_slicing(loss):
    zimg, centers, labels = draw()
    labels, mask = labels.at[4].set(-1), jnp.arange(7) != 2
    zimg = zimg.at[2].set(jnp.nan)
    keep = np.array([0, 1, 3, 5, 6])
    options = {"sampled": jnp.array([0, 3])}
    value, (z_grad, c_grad) = differentiate(loss, zimg, centers, labels, mask, **options)
    sliced = differentiate(loss, zimg[keep], centers, labels[keep], **options)
    for actual, desired in zip((value, z_grad[keep], c_grad), jax.tree.leaves(sliced), strict=True):
        np.testing.assert_allclose(actual, desired, rtol=1e-5, atol=1e-7)
    assert not z_grad[np.array([2, 4])].any()


def test_an_unknown_choice_of_negatives_is_named(loss):
    with pytest.raises(ValueError, match="negatives = 'all' is unknown; known: sampled, drawn"):
        loss(*draw(), negatives="all")


@pytest.mark.parametrize("wrong", [{"scale": -64.0}, {"margin": 9.0}, {"scale": float("nan")}])
def test_a_scale_or_margin_out_of_range_is_named(loss, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        loss(*draw(), **wrong)


def test_all_sampled_equals_not_sampled(loss):
    zimg, centers, labels = draw()
    everything = loss(zimg, centers, labels, sampled=jnp.arange(K))
    np.testing.assert_allclose(everything, loss(zimg, centers, labels), rtol=1e-6)


def test_nothing_positive_gives_zeros(loss):
    zimg, centers, labels = draw()
    for leaf in jax.tree.leaves(differentiate(loss, zimg, centers, jnp.full_like(labels, -1))):
        np.testing.assert_array_equal(leaf, 0)


def test_all_positive_or_no_negative_is_finite():
    zimg, centers, _ = draw(k=3)
    everything = jnp.tile(jnp.arange(3), (7, 1))
    for loss in (mlcd_loss, mlc_loss):
        results = differentiate(loss, zimg, centers, everything)
        assert_finite(results)
        value, grads = results
        assert (value > 0) == (loss is mlcd_loss)  # Eq. 4 has nothing to compare with.
        assert np.any(grads[0]) == (loss is mlcd_loss)
    alone = differentiate(unicom_loss, zimg[:1], centers, jnp.array([[1]]), sampled=jnp.array([-1]))
    assert_finite(alone)
    assert alone[0] == 0


def test_extremes_are_finite_and_a_nan_is_not_hidden(loss):
    zimg, centers, labels = draw()
    # Angles of exactly 0 and pi, where the slope of an arccosine is infinite; a center of zeros.
    centers = centers.at[labels[0, 0]].set(zimg[0]).at[labels[1, 0]].set(-zimg[1])
    centers = centers.at[labels[2, 0]].set(0)
    assert_finite(differentiate(loss, zimg, centers, labels, scale=1e4))
    assert jnp.isnan(loss(zimg.at[3, 0].set(jnp.nan), centers, labels))


@pytest.mark.parametrize("margin", [0.0, 0.3, 1.2])
def test_margin_is_added_to_the_angle_and_falls_everywhere(margin):
    angle = np.linspace(0.01, np.pi - 0.01, 500)
    moved = add_margin(jnp.cos(angle), margin)
    below = angle + margin < np.pi
    np.testing.assert_allclose(moved[below], np.cos(angle + margin)[below], atol=1e-4)
    assert (np.diff(moved) < 0).all()
    assert np.abs(np.diff(moved)).max() < 0.02  # No jump.
    slope = jax.vmap(jax.grad(lambda c: add_margin(c, margin)))(jnp.cos(angle))
    expected = np.where(below, np.sin(angle + margin) / np.sin(angle), 1)
    np.testing.assert_allclose(slope, expected, rtol=2e-3, atol=1e-4)


def test_eq_4_pulls_positives_harder_unless_negatives_are_far():
    negatives, positives = jnp.meshgrid(jnp.linspace(-6, 6, 25), jnp.linspace(-6, 6, 25))
    flat = negatives.ravel(), positives.ravel()
    # The slope of P is the pull on all positives together, and that of N the push on all negatives.
    push, pull = {}, {}
    for name in ("mlc", "mlcd"):
        slopes = jax.grad(lambda n, p: combine(name, n, p).sum(), argnums=(0, 1))(*flat)  # noqa: B023
        push[name], pull[name] = slopes
    np.testing.assert_allclose(pull["mlc"], jax.nn.sigmoid(flat[0] + flat[1]), rtol=1e-5)
    np.testing.assert_allclose(pull["mlcd"], jax.nn.sigmoid(flat[1]), rtol=1e-5)
    np.testing.assert_array_equal(jnp.sign(pull["mlc"] - pull["mlcd"]), jnp.sign(flat[0]))
    np.testing.assert_array_equal(jnp.sign(push["mlc"] - push["mlcd"]), jnp.sign(flat[1]))
