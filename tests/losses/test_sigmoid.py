"""The sigmoid loss: its laws, plain and blockwise, on one device and on eight."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from big_align.losses.sigmoid import blockwise_sigmoid_loss, sigmoid_loss
from big_align.parallel import meshes

D = 10


def make_mesh(data, fsdp=1):
    return meshes.make_mesh(fsdp, jax.devices()[: data * fsdp])


@pytest.fixture(params=["plain", "blockwise", "8 devices"], scope="module")
def loss(request):
    if request.param == "plain":
        return sigmoid_loss
    options = (
        {"block": 5} if request.param == "blockwise" else {"block": 2, "mesh": make_mesh(4, 2)}
    )
    return functools.partial(blockwise_sigmoid_loss, **options)


CASES = {
    "pairs": {"b": 24, "c": 24},
    "odd pairs, masked": {"b": 21, "c": 21, "masked": True},
    "labels": {"b": 24, "c": 24, "labels": 7},
    "two texts an image": {"b": 16, "c": 32, "labels": 9},
    "odd, masked labels": {"b": 13, "c": 29, "labels": 5, "masked": True},
    "fewer rows than devices": {"b": 3, "c": 3},
}


def draw(b, c, labels=0, masked=False, seed=0):
    rng = np.random.default_rng(seed)
    zimg, ztxt = (rng.normal(size=(n, D)) for n in (b, c))
    zimg, ztxt = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (zimg, ztxt))
    targets = {}
    if labels:
        targets["image_label"] = rng.integers(labels, size=b)
        targets["text_label"] = rng.integers(-1, labels, size=c)
    if masked:
        targets["image_mask"] = rng.random(b) < 0.7
        targets["text_mask"] = rng.random(c) < 0.7
    return np.float32(zimg), np.float32(ztxt), targets


@functools.cache
def compile_gradients(loss):
    """Compiles the loss and its gradients once for all calls that are alike."""
    run = jax.value_and_grad(lambda *given: loss(*given[:4], **given[4]), argnums=(0, 1, 2, 3))
    return jax.jit(run)


def differentiate(loss, zimg, ztxt, scale=7.0, bias=-2.5, **targets):
    """The value, and the gradients of images, texts, scale and bias."""
    arrays = jax.tree.map(jnp.asarray, (zimg, ztxt, np.float32(scale), np.float32(bias), targets))
    return compile_gradients(loss)(*arrays)


def compute(zimg, ztxt, scale=7.0, bias=-2.5, **targets):
    """The same in float64, pair by pair, as Algorithm 1 has it."""
    zimg, ztxt = np.float64(zimg), np.float64(ztxt)
    image_label = targets.get("image_label", np.arange(len(zimg)))
    text_label = targets.get("text_label", np.arange(len(ztxt)))
    image_mask = targets.get("image_mask", np.ones(len(zimg), bool))
    text_mask = targets.get("text_mask", np.ones(len(ztxt), bool))
    total, images = 0.0, image_mask.sum()
    grads = np.zeros_like(zimg), np.zeros_like(ztxt), np.zeros(()), np.zeros(())
    for i in np.flatnonzero(image_mask):
        for j in np.flatnonzero(text_mask):
            sign = 1 if image_label[i] == text_label[j] else -1
            logit = sign * (zimg[i] @ ztxt[j] * scale + bias)
            total -= np.log(1 / (1 + np.exp(-logit))) / images
            slope = -sign / (1 + np.exp(logit)) / images
            grads[0][i] += slope * scale * ztxt[j]
            grads[1][j] += slope * scale * zimg[i]
            grads[2][...] += slope * (zimg[i] @ ztxt[j])
            grads[3][...] += slope
    return total, grads


def assert_close(actual, desired, tolerance=1e-5):
    """Compares pytrees, each array relative to its largest element."""
    for a, d in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        np.testing.assert_allclose(a, d, rtol=0, atol=tolerance * np.abs(d).max() + 1e-9)


@pytest.mark.parametrize("case", CASES)
def test_golden(loss, case):
    zimg, ztxt, targets = draw(**CASES[case])
    expected = compute(zimg, ztxt, **targets)
    assert_close(differentiate(loss, zimg, ztxt, **targets), expected)
    # The value alone takes another way than with its gradients.
    run = jax.jit(functools.partial(loss, **{k: jnp.asarray(x) for k, x in targets.items()}))
    value = run(*map(jnp.asarray, (zimg, ztxt)), jnp.float32(7), jnp.float32(-2.5))
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)


def test_by_hand(loss):
    # Cosines of 1 on the diagonal and 0 elsewhere: one positive and two negatives an image.
    value = loss(jnp.eye(3), jnp.eye(3), jnp.float32(4), jnp.float32(-1))
    np.testing.assert_allclose(value, np.log1p(np.exp(-3)) + 2 * np.log1p(np.exp(-1)), rtol=1e-6)


def test_the_published_start_is_nearly_the_cost_of_the_positives(loss):
    """With scale 10 and bias -10 orthogonal positives cost 10, negatives next to nothing."""
    value = loss(jnp.eye(16, 32), jnp.eye(16, 32, 16), jnp.float32(10), jnp.float32(-10))
    np.testing.assert_allclose(value, np.logaddexp(0, 10) + 15 * np.logaddexp(0, -10), rtol=1e-6)
    np.testing.assert_allclose(value, 10, rtol=1e-4)


def test_permutation_permutes_gradients(loss):
    zimg, ztxt, targets = draw(14, 19, labels=4, masked=True)
    rng = np.random.default_rng(3)
    images, texts = rng.permutation(14), rng.permutation(19)
    value, (x, y, *rest) = differentiate(loss, zimg, ztxt, **targets)
    moved = {k: v[images if k.startswith("image") else texts] for k, v in targets.items()}
    permuted = differentiate(loss, zimg[images], ztxt[texts], **moved)
    assert_close(permuted, (value, (x[images], y[texts], *rest)))


def test_mask_equals_slicing_whatever_is_masked(loss):
    zimg, ztxt, targets = draw(17, 23, labels=5, masked=True)
    images, texts = targets.pop("image_mask"), targets.pop("text_mask")
    label = {"image_label": targets["image_label"][images]}
    label["text_label"] = targets["text_label"][texts]
    sliced = differentiate(loss, zimg[images], ztxt[texts], **label)
    zimg[~images], ztxt[~texts] = np.nan, np.inf
    masks = {"image_mask": images, "text_mask": texts}
    value, (x, y, *rest) = differentiate(loss, zimg, ztxt, **targets, **masks)
    assert_close((value, (x[images], y[texts], *rest)), sliced)
    assert not x[~images].any() and not y[~texts].any()


def test_the_denominator_is_the_number_of_images(loss):
    zimg, ztxt, _ = draw(6, 6)
    once = differentiate(loss, zimg, ztxt)
    labels = {"image_label": np.arange(6), "text_label": np.tile(np.arange(6), 3)}
    thrice = differentiate(loss, zimg, np.tile(ztxt, (3, 1)), **labels)
    assert_close(thrice[0], 3 * once[0])
    np.testing.assert_allclose(thrice[1][0], 3 * once[1][0], rtol=1e-4, atol=1e-6)


def test_no_image_gives_zeros(loss):
    zimg, ztxt, _ = draw(6, 6)
    masks = {"image_mask": np.zeros(6, bool), "text_mask": np.ones(6, bool)}
    for leaf in jax.tree.leaves(differentiate(loss, zimg, ztxt, **masks)):
        np.testing.assert_array_equal(leaf, 0)


def test_large_logits_are_finite_and_a_nan_is_not_hidden(loss):
    zimg, ztxt, _ = draw(12, 12)
    large = differentiate(loss, zimg, ztxt, scale=1e4, bias=-1e4)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(large))
    zimg[3, 0] = np.nan
    assert jnp.isnan(differentiate(loss, zimg, ztxt)[0])


def test_a_pair_that_is_nearly_solved_still_has_its_gradient(loss):
    _, (*_, bias_grad) = differentiate(loss, np.ones((1, 1)), np.ones((1, 1)), scale=30.0, bias=0.0)
    np.testing.assert_allclose(bias_grad, -np.exp(-30), rtol=1e-5)


@pytest.mark.slow_repeats
@pytest.mark.parametrize("called", [pytest.param("eager", marks=pytest.mark.slow), "jit"])
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("shape, axes", [((4,), ("data",)), ((2, 2), ("x", "y"))], ids=str)
@pytest.mark.parametrize("plain", [False, True], ids=["blockwise", "plain"])
def test_any_mesh(plain, shape, axes, kind, called):
    types = (AxisType[kind],) * len(shape)
    mesh = jax.make_mesh(shape, axes, axis_types=types, devices=jax.devices()[:4])
    blockwise = functools.partial(blockwise_sigmoid_loss, mesh=mesh, block=3)
    loss, (zimg, ztxt, _) = sigmoid_loss if plain else blockwise, draw(16, 16)
    split = jax.device_put((zimg, ztxt), NamedSharding(mesh, PartitionSpec(axes)))
    grad = jax.value_and_grad(loss, argnums=(0, 1, 2, 3))
    with jax.set_mesh(mesh):
        grad = jax.jit(grad) if called == "jit" else grad
        ours = grad(*split, jnp.float32(7), jnp.float32(-2.5))
    assert_close(ours, compute(zimg, ztxt))


@pytest.mark.parametrize("block", [1, 24, 1000])
def test_block_does_not_matter(block):
    zimg, ztxt, targets = draw(**CASES["labels"])
    loss = functools.partial(blockwise_sigmoid_loss, block=block, mesh=make_mesh(2))
    assert_close(
        differentiate(loss, zimg, ztxt, **targets),
        differentiate(sigmoid_loss, zimg, ztxt, **targets),
    )


def test_bfloat16_is_the_precision_of_the_embeddings_and_of_one_rounding(loss):
    zimg, ztxt, targets = draw(16, 24, labels=6)
    narrow = jnp.bfloat16(zimg), jnp.bfloat16(ztxt)
    value, grads = differentiate(loss, *narrow, **targets)
    expected, expected_grads = compute(*map(np.float32, narrow), **targets)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert [g.dtype for g in grads] == [jnp.bfloat16, jnp.bfloat16, jnp.float32, jnp.float32]
    for a, d in zip(grads, expected_grads, strict=True):
        np.testing.assert_allclose(np.float32(a), d, rtol=0, atol=0.01 * np.abs(d).max())


def test_memory_is_a_few_blocks():
    b, d, block = 2048, 16, 64

    def count_bytes(loss):
        grad = jax.grad(lambda x, y: loss(x, y, jnp.float32(1), jnp.float32(0)), argnums=(0, 1))
        x = jax.ShapeDtypeStruct((b, d), jnp.float32)
        return jax.jit(grad).lower(x, x).compile().memory_analysis().temp_size_in_bytes

    blockwise = functools.partial(blockwise_sigmoid_loss, block=block)
    assert count_bytes(blockwise) < 8 * 4 * block * b + 8 * 4 * b * d
    assert count_bytes(sigmoid_loss) >= 4 * b * b


@pytest.mark.parametrize(
    "targets, message",
    [
        ({"block": 0}, "block = 0 must be at least 1"),
        ({"image_label": jnp.arange(4)}, "must be given together"),
        ({}, "4 images and 5 texts; give image_label"),
    ],
)
def test_impossible_arguments_are_named(targets, message):
    with pytest.raises(ValueError, match=message):
        numbers = jnp.float32(1), jnp.float32(0)
        blockwise_sigmoid_loss(jnp.eye(4), jnp.eye(5, 4), *numbers, **targets)


@pytest.mark.interop
def test_open_clip_agrees(loss):
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("open_clip.loss").SigLipLoss()
    zimg, ztxt, _ = draw(20, 20)
    given = [torch.tensor(x, requires_grad=True) for x in (zimg, ztxt, 7.0, -2.5)]
    value = theirs(*given)
    value.backward()
    expected = value.item(), tuple(x.grad.numpy() for x in given)
    assert_close(differentiate(loss, zimg, ztxt), expected)
