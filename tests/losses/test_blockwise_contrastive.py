"""The blockwise contrastive loss equals the plain formula in value and in every gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.losses.contrastive import contrastive_loss
from big_align.parallel.shards import Shards

CASES = {
    "pairs": {"b": 24, "c": 24},
    "pairs, odd and masked": {"b": 21, "c": 21, "masked": True, "smoothing": 0.1},
    "labels": {"b": 24, "c": 24, "labels": 7, "smoothing": 0.1},
    "two texts an image": {"b": 16, "c": 32, "labels": 9},
    "odd, masked labels": {"b": 13, "c": 29, "labels": 5, "masked": True, "smoothing": 0.1},
    "some texts are queries": {"b": 14, "c": 27, "labels": 6, "queries": True, "masked": True},
    "queries of pairs": {"b": 21, "c": 21, "queries": True, "smoothing": 0.1},
    "fewer rows than devices": {"b": 5, "c": 5, "smoothing": 0.1},
}

COTANGENTS = [(jnp.float32(1.3), jnp.float32(-0.4)), (jnp.float32(0), jnp.float32(1))]


def make_mesh(data: int, fsdp: int) -> jax.sharding.Mesh:
    return jax.make_mesh((data, fsdp), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)


def draw(b, c, labels=0, masked=False, queries=False, smoothing=0.0, seed=0):
    rng = np.random.default_rng(seed)
    zimg, ztxt = (rng.normal(size=(n, 10)).astype(np.float32) for n in (b, c))
    zimg, ztxt = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (zimg, ztxt))
    targets = {"label_smoothing": smoothing}
    if labels:
        targets["image_label"] = jnp.asarray(rng.integers(labels, size=b))
        targets["text_label"] = jnp.asarray(rng.integers(-1, labels, size=c))
    if masked:
        targets["image_mask"] = jnp.asarray(rng.random(b) < 0.7)
        targets["text_mask"] = jnp.asarray(rng.random(c) < 0.7)
    if queries:
        targets["text_queries"] = jnp.asarray(rng.random(c) < 0.3)
    return jnp.asarray(zimg), jnp.asarray(ztxt), targets


def make_pull(loss, targets):
    """Compiles the losses and their gradients, given the cotangents of both losses."""

    def pull(zimg, ztxt, scale, cotangents):
        losses, pull_back = jax.vjp(functools.partial(loss, **targets), zimg, ztxt, scale)
        return losses, pull_back(cotangents)

    return jax.jit(pull)


@functools.cache
def pull_plain(case):
    zimg, ztxt, targets = draw(**CASES[case])
    pull = make_pull(contrastive_loss, targets)
    return [pull(zimg, ztxt, jnp.float32(8), cotangents) for cotangents in COTANGENTS]


def assert_equal_to_plain(case, **options):
    zimg, ztxt, targets = draw(**CASES[case])
    pull = make_pull(functools.partial(blockwise_contrastive_loss, **options), targets)
    for cotangents, plain in zip(COTANGENTS, pull_plain(case), strict=True):
        ours = pull(zimg, ztxt, jnp.float32(8), cotangents)
        for a, d in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
            np.testing.assert_allclose(a, d, rtol=0, atol=1e-5 * np.abs(d).max())


@pytest.mark.parametrize(
    "shape, keep_logits_bytes",
    [
        ((4, 2), 2**20),
        *(
            pytest.param(*x, marks=pytest.mark.slow)
            for x in ((None, 0), (None, 2**20), ((8, 1), 0))
        ),
    ],
    ids=["4x2 devices, kept", "recomputed", "kept", "8 devices, recomputed"],
)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_plain_formula(case, shape, keep_logits_bytes):
    assert_equal_to_plain(
        case,
        mesh=make_mesh(*shape) if shape else None,
        block=2 if shape else 5,
        keep_logits_bytes=keep_logits_bytes,
    )


@pytest.mark.parametrize("block", [1, 24, 1000])
def test_block_does_not_matter(block):
    assert_equal_to_plain("labels", block=block, keep_logits_bytes=0)


def test_axes_may_be_some_of_the_mesh():
    assert_equal_to_plain("labels", mesh=Shards(make_mesh(4, 2), ("data",)))


def test_an_axis_that_the_mesh_lacks_is_named():
    with pytest.raises(ValueError, match="no axis 'model'; it has .'data', 'fsdp'."):
        Shards(make_mesh(4, 2), ("model",))


@pytest.mark.parametrize("shape", [None, (4, 2)], ids=str)
def test_bfloat16_keeps_what_rounding_each_softmax_would_lose(shape):
    # Every pair is nearly solved: 1 - P is about 1e-3, a quarter of bfloat16's step below 1.
    exact, _, _ = draw(16, 16)
    zimg = jnp.eye(16, dtype=jnp.bfloat16)
    ztxt = (jnp.eye(16) + 0.01 * exact @ exact.T).astype(jnp.bfloat16)
    loss = functools.partial(
        blockwise_contrastive_loss, mesh=make_mesh(*shape) if shape else None, block=4
    )
    rest = jnp.float32(9), (jnp.float32(1), jnp.float32(1))
    losses, grads = make_pull(loss, {})(zimg, ztxt, *rest)
    wide = zimg.astype(jnp.float32), ztxt.astype(jnp.float32)
    expected, expected_grads = make_pull(contrastive_loss, {})(*wide, *rest)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert [g.dtype for g in grads] == [jnp.bfloat16, jnp.bfloat16, jnp.float32]
    for a, d in zip(grads, expected_grads, strict=True):
        np.testing.assert_allclose(a.astype(np.float32), d, atol=0.02 * np.abs(d).max())


def test_sharded_inputs_inside_a_larger_function_compile_once():
    mesh = make_mesh(4, 2)
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    compiled = []

    @jax.jit
    def step(kernel, zimg, ztxt, mask):
        compiled.append(1)

        def total(kernel):
            x, y = zimg @ kernel, ztxt @ kernel
            return sum(
                blockwise_contrastive_loss(
                    x, y, jnp.float32(3), image_mask=mask, text_mask=mask, mesh=mesh, block=2
                )
            )

        return jax.value_and_grad(total)(kernel)

    def expected(kernel, zimg, ztxt, mask):
        x, y = zimg @ kernel, ztxt @ kernel
        return sum(contrastive_loss(x, y, jnp.float32(3), image_mask=mask, text_mask=mask))

    for seed in range(3):
        zimg, ztxt, targets = draw(32, 32, masked=True, seed=seed)
        mask = targets["image_mask"]
        kernel = jnp.eye(10)
        value, grad = step(kernel, *jax.device_put((zimg, ztxt, mask), rows))
        plain = jax.value_and_grad(expected)(kernel, zimg, ztxt, mask)
        np.testing.assert_allclose(value, plain[0], rtol=1e-5)
        np.testing.assert_allclose(grad, plain[1], rtol=0, atol=1e-5 * np.abs(plain[1]).max())
    assert len(compiled) == 1


def test_memory_is_a_few_blocks_unless_logits_are_kept():
    b, d, block = 2048, 16, 64

    def count_bytes(keep_logits_bytes):
        loss = functools.partial(
            blockwise_contrastive_loss, block=block, keep_logits_bytes=keep_logits_bytes
        )
        grad = jax.grad(lambda x, y: sum(loss(x, y, jnp.float32(1))), argnums=(0, 1))
        x = jax.ShapeDtypeStruct((b, d), jnp.float32)
        return jax.jit(grad).lower(x, x).compile().memory_analysis().temp_size_in_bytes

    logits = 4 * b * b
    assert count_bytes(0) < 4 * 4 * block * b + 8 * 4 * b * d
    assert logits <= count_bytes(logits) < 1.5 * logits
    assert count_bytes(logits - 1) == count_bytes(0)


def test_block_must_be_positive():
    zimg, ztxt, _ = draw(4, 4)
    with pytest.raises(ValueError, match="block = 0 must be at least 1"):
        blockwise_contrastive_loss(zimg, ztxt, jnp.float32(1), block=0)


def test_a_nan_is_not_hidden():
    zimg, ztxt = jnp.ones((4, 2)).at[1, 0].set(jnp.nan), jnp.ones((4, 2))
    for loss in (contrastive_loss, blockwise_contrastive_loss):
        assert jnp.isnan(jnp.stack(loss(zimg, ztxt, jnp.float32(1)))).all()
