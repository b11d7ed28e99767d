"""Laws of the contrastive loss that hold for the plain formula and for the blockwise one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.losses.contrastive import contrastive_loss

BLOCKWISE = functools.partial(blockwise_contrastive_loss, block=5, keep_logits_bytes=0)
# Compiled as one: each operation that runs by itself is compiled by itself, which takes longer.
LOSSES = {
    name: jax.jit(loss, static_argnames="label_smoothing")
    for name, loss in (("plain", contrastive_loss), ("blockwise", BLOCKWISE))
}


@pytest.fixture(params=LOSSES)
def loss(request):
    return LOSSES[request.param]


def draw_unit(seed: int, *shape: int) -> jax.Array:
    x = np.random.default_rng(seed).normal(size=shape)
    return jnp.float32(x / np.linalg.norm(x, axis=-1, keepdims=True))


@functools.cache
def compile_weighted(loss, label_smoothing):
    """Compiles the loss and its gradients once for all calls that are alike."""

    def weighted(zimg, ztxt, scale, targets):
        i2t, t2i = loss(zimg, ztxt, scale, label_smoothing=label_smoothing, **targets)
        return 1.3 * i2t + 0.7 * t2i

    return jax.jit(jax.value_and_grad(weighted, argnums=(0, 1, 2)))


def differentiate(loss, zimg, ztxt, scale=8.0, label_smoothing=0.0, **targets):
    return compile_weighted(loss, label_smoothing)(zimg, ztxt, jnp.float32(scale), targets)


def assert_close(actual, desired, rtol=1e-5):
    """Compares pytrees, each array relative to its largest element."""
    for a, d in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        np.testing.assert_allclose(a, d, rtol=0, atol=rtol * np.abs(d).max() + 1e-9)


@pytest.mark.parametrize("smoothing, name", [(0.0, "align_sum"), (0.1, "align_sum_smoothing_0_1")])
def test_align_golden(loss, reference_dir, smoothing, name):
    golden = np.load(reference_dir / "losses.npz")
    zimg, ztxt = jnp.float32(golden["align_image"]), jnp.float32(golden["align_text"])
    scale = jnp.float32(1 / golden["align_temperature"])
    total = sum(loss(zimg, ztxt, scale, label_smoothing=smoothing))
    np.testing.assert_allclose(total, golden[name], rtol=1e-5)


def test_unicl_golden(loss, reference_dir):
    golden = np.load(reference_dir / "losses.npz")
    label = golden["unicl_label"].copy()
    label[label == 0] = label.max() + 1 + np.arange((label == 0).sum())
    zimg, ztxt = jnp.float32(golden["align_image"]), jnp.float32(golden["align_text"])
    i2t, t2i = loss(
        zimg,
        ztxt,
        jnp.float32(golden["unicl_scale"]),
        image_label=jnp.asarray(label),
        text_label=jnp.asarray(label),
    )
    np.testing.assert_allclose(i2t, golden["unicl_i2t"], rtol=1e-5)
    np.testing.assert_allclose(t2i, golden["unicl_t2i"], rtol=1e-5)


def test_two_positives_by_hand(loss):
    # Logits [[1, 1, 0], [0, 0, 1]]; image 0 owns texts 0 and 1, nothing owns text 2.
    zimg, ztxt = jnp.eye(2), jnp.eye(2)[jnp.array([0, 0, 1])]
    i2t, t2i = loss(
        zimg,
        ztxt,
        jnp.float32(1),
        image_label=jnp.array([4, 5]),
        text_label=jnp.array([4, 4, 6]),
    )
    np.testing.assert_allclose(i2t, np.log(2 * np.e + 1) - 1, rtol=1e-6)
    np.testing.assert_allclose(t2i, np.log(np.e + 1) - 1, rtol=1e-6)


def test_uniform_logits_give_the_logarithm_of_the_batch(loss):
    same = jnp.ones((11, 1))
    for smoothing in (0.0, 0.3):
        losses = loss(same, same, jnp.float32(3), label_smoothing=smoothing)
        np.testing.assert_allclose(losses, np.log(11), rtol=1e-5)


def test_permutation_permutes_gradients(loss):
    zimg, ztxt, label = draw_unit(0, 12, 6), draw_unit(1, 12, 6), jnp.arange(12) % 5
    order = jax.random.permutation(jax.random.key(2), 12)
    value, (gimg, gtxt, gscale) = differentiate(
        loss, zimg, ztxt, image_label=label, text_label=label, label_smoothing=0.1
    )
    label = label[order]
    permuted = differentiate(
        loss, zimg[order], ztxt[order], image_label=label, text_label=label, label_smoothing=0.1
    )
    assert_close(permuted, (value, (gimg[order], gtxt[order], gscale)))


def test_exchange_of_sides_exchanges_directions(loss):
    zimg, ztxt = draw_unit(0, 9, 6), draw_unit(1, 14, 6)
    image, text = jnp.arange(9) % 4, jnp.arange(14) % 6
    scale = jnp.float32(5)
    forth = loss(zimg, ztxt, scale, image_label=image, text_label=text, label_smoothing=0.2)
    back = loss(ztxt, zimg, scale, image_label=text, text_label=image, label_smoothing=0.2)
    assert_close(back, forth[::-1])


@pytest.mark.parametrize("with_labels", [False, True])
def test_mask_equals_slicing(loss, with_labels):
    zimg, ztxt = draw_unit(0, 13, 6), draw_unit(1, 13, 6)
    keep = np.array([0, 2, 3, 7, 8, 12])
    mask = jnp.zeros(13, bool).at[keep].set(True)
    label = jnp.arange(13) % 4
    targets = {"image_label": label, "text_label": label} if with_labels else {}
    spoiled = jnp.where(mask[:, None], zimg, jnp.nan), jnp.where(mask[:, None], ztxt, jnp.inf)
    value, (gimg, gtxt, gscale) = differentiate(
        loss, *spoiled, image_mask=mask, text_mask=mask, label_smoothing=0.1, **targets
    )
    sliced = differentiate(
        loss,
        zimg[keep],
        ztxt[keep],
        label_smoothing=0.1,
        **{name: label[keep] for name in targets},
    )
    assert_close((value, (gimg[keep], gtxt[keep], gscale)), sliced)
    assert not gimg[~mask].any() and not gtxt[~mask].any()


def test_image_without_positive_is_still_a_negative(loss):
    zimg, ztxt = draw_unit(0, 4, 6), draw_unit(1, 3, 6)
    image, text = jnp.array([0, 1, 2, 9]), jnp.arange(3)
    scale = jnp.float32(4)
    with_it = loss(zimg, ztxt, scale, image_label=image, text_label=text)
    without = loss(zimg[:3], ztxt, scale)
    np.testing.assert_allclose(with_it[0], without[0], rtol=1e-6)
    assert with_it[1] > without[1]


def test_texts_that_are_no_queries_are_still_candidates(loss):
    zimg, ztxt = draw_unit(0, 9, 6), draw_unit(1, 14, 6)
    image, text = jnp.arange(9) % 5, jnp.arange(14) % 7
    queries, mask = text % 3 == 1, jnp.arange(14) != 4
    labels = {"image_label": image, "text_label": text, "text_mask": mask}
    sliced = {k: v[queries] if k.startswith("text") else v for k, v in labels.items()}

    def each(index, ztxt, **targets):
        direction = lambda *x: loss(*x, label_smoothing=0.1, **targets)[index]  # noqa: E731
        run = jax.value_and_grad(direction, argnums=(0, 1, 2))
        return jax.jit(run)(zimg, ztxt, jnp.float32(6))

    chosen = functools.partial(each, ztxt=ztxt, text_queries=queries, **labels)
    assert_close(chosen(0), each(0, ztxt, **labels))  # Images are classified as before.
    value, (gimg, gtxt, gscale) = chosen(1)
    assert_close((value, (gimg, gtxt[queries], gscale)), each(1, ztxt[queries], **sliced))
    assert not gtxt[~queries].any()


def test_texts_of_a_label_are_queries_if_any_is(loss):
    zimg, ztxt = draw_unit(0, 6, 5), draw_unit(1, 8, 5)
    labels = {"image_label": jnp.arange(6) % 4, "text_label": jnp.arange(8) % 4}
    some = differentiate(loss, zimg, ztxt, text_queries=jnp.arange(8) == 6, **labels)
    whole = differentiate(loss, zimg, ztxt, text_queries=jnp.arange(8) % 4 == 2, **labels)
    assert_close(some, whole)
    hidden = differentiate(
        loss, zimg, ztxt, text_queries=jnp.arange(8) == 6, text_mask=jnp.arange(8) != 6, **labels
    )
    none = differentiate(
        loss, zimg, ztxt, text_queries=jnp.zeros(8, bool), text_mask=jnp.arange(8) != 6, **labels
    )
    assert_close(hidden, none)  # A masked text asks nothing.


def test_all_texts_are_queries_by_default_and_none_gives_zero(loss):
    zimg, ztxt, label = draw_unit(0, 11, 6), draw_unit(1, 11, 6), jnp.arange(11) % 4
    targets = {"image_label": label, "text_label": label}
    for given in ({}, targets):
        default = differentiate(loss, zimg, ztxt, **given)
        everyone = differentiate(loss, zimg, ztxt, text_queries=jnp.ones(11, bool), **given)
        assert_close(everyone, default)
        nobody = loss(zimg, ztxt, jnp.float32(3), text_queries=jnp.zeros(11, bool), **given)
        np.testing.assert_array_equal(nobody[1], 0)
        np.testing.assert_allclose(nobody[0], loss(zimg, ztxt, jnp.float32(3), **given)[0])


@pytest.mark.parametrize("masked", ["image_mask", "text_mask"])
def test_fully_masked_side_gives_zeros(loss, masked):
    mask = {masked: jnp.zeros(7, bool)}
    zimg, ztxt = draw_unit(0, 7, 3), draw_unit(1, 7, 3)
    for leaf in jax.tree.leaves(differentiate(loss, zimg, ztxt, label_smoothing=0.1, **mask)):
        np.testing.assert_array_equal(leaf, 0)


def test_no_common_label_gives_zeros(loss):
    zimg, ztxt = draw_unit(0, 7, 3), draw_unit(1, 6, 3)
    targets = {"image_label": jnp.arange(7), "text_label": jnp.arange(6) + 100}
    for leaf in jax.tree.leaves(differentiate(loss, zimg, ztxt, **targets)):
        np.testing.assert_array_equal(leaf, 0)


@pytest.mark.parametrize("scale", [100.0, 1e4])
def test_large_scale_is_finite(loss, scale):
    zimg, ztxt = draw_unit(0, 16, 8), draw_unit(1, 16, 8)
    result = differentiate(loss, zimg, ztxt, scale)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(result))
    assert_close(result, differentiate(contrastive_loss, zimg, ztxt, scale), rtol=1e-4)


def test_gradients_equal_finite_differences(loss):
    with jax.enable_x64(True):
        zimg, ztxt = (np.random.default_rng(s).normal(size=(7, 4)) for s in (0, 1))
        label, mask = jnp.arange(7) % 3, jnp.arange(7) != 4
        targets = {"image_label": label, "text_label": label[::-1], "text_mask": mask}

        def weighted(zimg, ztxt, scale):
            i2t, t2i = loss(zimg, ztxt, scale, label_smoothing=0.1, **targets)
            return 1.3 * i2t - 0.4 * t2i

        at = jnp.asarray(zimg), jnp.asarray(ztxt), jnp.asarray(1.7)
        grads = jax.jit(jax.grad(weighted, argnums=(0, 1, 2)))(*at)
        f = jax.jit(weighted)
        for i, grad in enumerate(grads):
            way = np.random.default_rng(5 + i).normal(size=grad.shape)
            ahead, behind = (f(*at[:i], at[i] + step * way, *at[i + 1 :]) for step in (1e-5, -1e-5))
            np.testing.assert_allclose((grad * way).sum(), (ahead - behind) / 2e-5, rtol=1e-7)


def test_bad_arguments_say_what_would_be_right(loss):
    x, y, scale = draw_unit(0, 4, 3), draw_unit(1, 5, 3), jnp.float32(1)
    with pytest.raises(ValueError, match="4 images and 5 texts; give image_label and text_label"):
        loss(x, y, scale)
    with pytest.raises(ValueError, match="image_label and text_label must be given together"):
        loss(x, x, scale, image_label=jnp.arange(4))
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\], got 1.5"):
        loss(x, x, scale, label_smoothing=1.5)
