"""Supervised contrast: its laws, and the blockwise one equals the plain one in every gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.losses.supervised_contrastive import (
    blockwise_supervised_contrastive_loss,
    supervised_contrastive_loss,
)
from big_align.parallel import meshes

LOSSES = {
    "plain": supervised_contrastive_loss,
    "blockwise": functools.partial(blockwise_supervised_contrastive_loss, block=5),
}


@pytest.fixture(params=LOSSES)
def loss(request):
    return LOSSES[request.param]


def make_mesh(data, fsdp):
    return meshes.make_mesh(fsdp, jax.devices()[: data * fsdp])


def draw(n, labels=4, masked=False, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 10)).astype(np.float32)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    mask = rng.random(n) < 0.7 if masked else np.ones(n, bool)
    return jnp.asarray(z), jnp.asarray(rng.integers(-1, labels, n)), jnp.asarray(mask)


@functools.cache
def compile_gradients(loss):
    """Compiles the loss and its gradients once for all calls that are alike."""
    return jax.jit(jax.value_and_grad(lambda z, s, label, mask: loss(z, label, s, mask), (0, 1)))


def differentiate(loss, z, label, mask, scale=8.0):
    return compile_gradients(loss)(z, jnp.float32(scale), label, mask)


def assert_close(actual, desired, tolerance=1e-5):
    """Compares pytrees, each array relative to its largest element."""
    for a, d in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        np.testing.assert_allclose(a, d, rtol=0, atol=tolerance * np.abs(d).max() + 1e-9)


def test_golden(loss, reference_dir):
    golden = np.load(reference_dir / "losses.npz")
    value = loss(
        jnp.float32(golden["supcon_views"]),
        jnp.asarray(golden["supcon_label"]),
        jnp.float32(1 / golden["supcon_temperature"]),
    )
    np.testing.assert_allclose(value, golden["supcon_loss"], rtol=1e-5)


def test_by_hand(loss):
    # Cosines of 1 with its own kind, 0 otherwise; the last row has no positive.
    z = jnp.eye(3)[jnp.array([0, 0, 1, 1, 1, 2])]
    value = loss(z, jnp.array([3, 3, 7, 7, 7, 9]), jnp.float32(2))
    twos, threes = np.log(np.exp(2) + 4) - 2, np.log(2 * np.exp(2) + 3) - 2
    np.testing.assert_allclose(value, (2 * twos + 3 * threes) / 5, rtol=1e-6)


def test_two_alone_are_certain_of_each_other(loss):
    z, _, mask = draw(2)
    value, grads = differentiate(loss, z, jnp.zeros(2, int), mask)
    for leaf in (value, *grads):
        np.testing.assert_allclose(leaf, 0, atol=1e-6)


def test_permutation_permutes_gradients(loss):
    z, label, mask = draw(14, masked=True)
    order = jax.random.permutation(jax.random.key(2), 14)
    value, (z_grad, scale_grad) = differentiate(loss, z, label, mask)
    permuted = differentiate(loss, z[order], label[order], mask[order])
    assert_close(permuted, (value, (z_grad[order], scale_grad)))


def test_mask_equals_slicing(loss):
    z, label, mask = draw(17, masked=True)
    spoiled = jnp.where(mask[:, None], z, jnp.nan)
    value, (z_grad, scale_grad) = differentiate(loss, spoiled, label, mask)
    keep = np.flatnonzero(mask)
    sliced = differentiate(loss, z[keep], label[keep], mask[keep])
    assert_close((value, (z_grad[keep], scale_grad)), sliced)
    assert not z_grad[~mask].any()


def test_a_row_without_positive_is_still_a_negative(loss):
    z, _, _ = draw(7)
    label = jnp.array([0, 0, 1, 1, 2, 2, 9])
    with_it, without = loss(z, label, jnp.float32(4)), loss(z[:6], label[:6], jnp.float32(4))
    assert with_it > without


@pytest.mark.parametrize("label, masked", [(jnp.arange(6), False), (jnp.zeros(6, int), True)])
def test_no_positive_anywhere_gives_zeros(loss, label, masked):
    z, _, _ = draw(6)
    for leaf in jax.tree.leaves(differentiate(loss, z, label, jnp.full(6, not masked))):
        np.testing.assert_array_equal(leaf, 0)


def test_large_scale_is_finite_and_a_nan_is_not_hidden(loss):
    z, label, mask = draw(12)
    large = differentiate(loss, z, label, mask, scale=1e4)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(large))
    assert jnp.isnan(loss(z.at[3, 0].set(jnp.nan), jnp.zeros(12, int), jnp.float32(1)))


def test_gradients_equal_finite_differences(loss):
    with jax.enable_x64(True):
        _, label, mask = draw(9, labels=3, masked=True)
        at = jnp.asarray(np.random.default_rng(0).normal(size=(9, 4))), jnp.asarray(1.7)
        f = jax.jit(lambda z, scale: loss(z, label, scale, mask))
        for i, grad in enumerate(jax.jit(jax.grad(f, argnums=(0, 1)))(*at)):
            way = np.random.default_rng(5 + i).normal(size=grad.shape)
            ahead, behind = (f(*at[:i], at[i] + step * way, *at[i + 1 :]) for step in (1e-5, -1e-5))
            np.testing.assert_allclose((grad * way).sum(), (ahead - behind) / 2e-5, rtol=1e-7)


CASES = {
    "even": {"n": 32},
    "odd, masked": {"n": 29, "masked": True},
    "fewer rows than devices": {"n": 5, "labels": 1},
}


@pytest.mark.parametrize(
    "shape",
    [(4, 2), *(pytest.param(x, marks=pytest.mark.slow) for x in (None, (1, 1), (8, 1)))],
    ids=str,
)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("block", [2, pytest.param(1000, marks=pytest.mark.slow)])
def test_blocks_and_devices_change_nothing(case, shape, block):
    arguments = draw(**CASES[case])
    mesh = make_mesh(*shape) if shape else None
    blockwise = functools.partial(blockwise_supervised_contrastive_loss, mesh=mesh, block=block)
    plain = differentiate(supervised_contrastive_loss, *arguments)
    assert_close(differentiate(blockwise, *arguments), plain)


@pytest.mark.parametrize("shape", [None, (4, 2)], ids=str)
def test_bfloat16_is_only_the_precision_of_the_embeddings(shape):
    z, label, mask = draw(24, masked=True)
    z = z.astype(jnp.bfloat16)
    mesh = make_mesh(*shape) if shape else None
    blockwise = functools.partial(blockwise_supervised_contrastive_loss, mesh=mesh, block=3)
    value, (z_grad, scale_grad) = differentiate(blockwise, z, label, mask)
    wide = differentiate(supervised_contrastive_loss, z.astype(jnp.float32), label, mask)
    assert_close((value, scale_grad), (wide[0], wide[1][1]))
    assert z_grad.dtype == jnp.bfloat16
    # One rounding to 8 bits, after all sums.
    np.testing.assert_allclose(z_grad.astype(np.float32), wide[1][0], rtol=2**-8, atol=1e-6)


def test_sharded_inputs_inside_a_larger_function_compile_once():
    mesh, compiled = make_mesh(4, 2), []

    def total(loss, kernel, z, label, mask):
        return loss(z @ kernel, label, jnp.float32(3), mask)

    @jax.jit
    def step(*arguments):
        compiled.append(1)
        loss = functools.partial(blockwise_supervised_contrastive_loss, mesh=mesh, block=2)
        return jax.value_and_grad(functools.partial(total, loss))(*arguments)

    for seed in range(3):
        rows = draw(32, masked=True, seed=seed)
        ours = step(jnp.eye(10), *jax.device_put(rows, meshes.batch_sharding(mesh)))
        plain = functools.partial(total, supervised_contrastive_loss)
        assert_close(ours, jax.value_and_grad(plain)(jnp.eye(10), *rows))
    assert len(compiled) == 1


def test_memory_is_a_few_blocks():
    n, d, block = 2048, 16, 64

    def count_bytes(loss):
        grad = jax.grad(lambda z, label: loss(z, label, jnp.float32(1)))
        rows = jax.ShapeDtypeStruct((n, d), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.int32)
        return jax.jit(grad).lower(*rows).compile().memory_analysis().temp_size_in_bytes

    blockwise = functools.partial(blockwise_supervised_contrastive_loss, block=block)
    assert count_bytes(blockwise) < 8 * 4 * block * n + 8 * 4 * n * d
    assert count_bytes(supervised_contrastive_loss) > 4 * n * n


def test_block_must_be_positive():
    z, label, mask = draw(4)
    with pytest.raises(ValueError, match="block = 0 must be at least 1"):
        blockwise_supervised_contrastive_loss(z, label, jnp.float32(1), mask, block=0)
