"""The kernel for short sequences on GPUs, emulated: the formula in value and in every gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import assert_like_the_formula, both_passes, draw, make_mask

from big_align import sharding
from big_align.kernels import triton_attention


def attend_with(mask=None, causal=False, mesh=None):
    return lambda q, k, v: triton_attention.attend_by_triton(q, k, v, mask, causal, mesh, True)


@pytest.mark.parametrize(
    ("tokens", "heads", "channels"),
    [(50, 3, 64), (64, 2, 64), (77, 2, 64), (128, 1, 64), (50, 1, 80), (21, 4, 32), (1, 2, 8)],
)
def test_images_are_like_the_formula(tokens, heads, channels):
    assert triton_attention.fits(tokens, tokens, channels)
    assert_like_the_formula(attend_with(), draw(tokens, heads, channels), None, False)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("tokens", "heads"), [(64, 3), (77, 2)])
def test_masked_texts_are_like_the_formula(tokens, heads, causal):
    arrays, mask = draw(tokens, heads, 64), make_mask(3, tokens)
    got = assert_like_the_formula(attend_with(mask, causal), arrays, mask, causal)
    assert not any(np.any(x[0]) for x in got)  # the first text has no key


def test_bfloat16_is_as_near_as_its_products():
    arrays, mask = draw(50, 2, 64, "bfloat16"), make_mask(3, 50)
    assert_like_the_formula(attend_with(), arrays, None, False, 2e-2)
    assert_like_the_formula(attend_with(mask, True), arrays, mask, True, 2e-2)


@pytest.mark.parametrize("keys", [5, 40])
def test_there_may_be_more_queries_than_keys_and_fewer(keys):
    arrays, mask = draw(20, 2, 64, keys=keys), make_mask(3, keys)
    assert_like_the_formula(attend_with(mask), arrays, mask, False)
    assert_like_the_formula(attend_with(causal=True), arrays, None, True)


def test_a_key_that_is_masked_has_no_influence():
    query, key, value, cotangent = draw(12, 2, 64)
    mask = jnp.broadcast_to(jnp.arange(12) < 7, (3, 12))
    masked = both_passes(attend_with(mask), [query, key, value, cotangent])
    short = both_passes(attend_with(), [query, key[:, :7], value[:, :7], cotangent])
    for x, y in zip(masked, short, strict=True):
        np.testing.assert_allclose(x[:, : y.shape[1]], y, rtol=1e-5, atol=1e-6)
    assert not np.any(masked[2][:, 7:]) and not np.any(masked[3][:, 7:])


def test_large_logits_do_not_overflow():
    query, *rest = draw(9, 2, 64)
    assert_like_the_formula(attend_with(), [query * 1e3, *rest], None, False, 1e-4)


def test_eight_devices_are_like_one():
    arrays, mask = draw(11, 2, 64, batch=16), make_mask(16, 11)
    mesh = sharding.make_mesh(fsdp=2)
    alone = both_passes(attend_with(mask, True), arrays)
    split = jax.device_put(arrays, sharding.batch_sharding(mesh))
    for x, y in zip(both_passes(attend_with(mask, True, mesh), split), alone, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
        assert x.sharding.is_equivalent_to(sharding.batch_sharding(mesh), x.ndim)


def test_what_does_not_fit_is_not_taken():
    assert not triton_attention.fits(129, 129, 64) and not triton_attention.fits(77, 77, 80)
    assert not triton_attention.fits(9, 200, 64)
