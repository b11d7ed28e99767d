"""The kernel for TPUs, emulated: the formula in value and in every gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import assert_like_the_formula, both_passes, draw, make_mask

from big_align import sharding
from big_align.devices import traced
from big_align.kernels import tpu_attention
from big_align.models.parts import attention
from big_align.training import flops

BFLOAT16 = 2e-2
"""Products of bfloat16 weights, relative to the largest number."""


def attend_with(mask=None, causal=False, mesh=None):
    return lambda q, k, v: tpu_attention.attend_on_tpu(q, k, v, mask, causal, mesh, interpret=True)


@pytest.mark.parametrize(
    ("tokens", "heads", "channels"),
    [(50, 3, 64), (197, 3, 64), (257, 2, 64), (21, 4, 32), (19, 8, 80), (20, 3, 88), (33, 4, 96)]
    + [(9, 2, 104), (17, 2, 128), (1, 2, 64), (7, 1, 8), (5, 2, 192)],
)
def test_images_are_like_the_formula(tokens, heads, channels):
    assert_like_the_formula(attend_with(), draw(tokens, heads, channels), None, False)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("tokens", "heads"), [(64, 3), (77, 8)])
def test_masked_texts_are_like_the_formula(tokens, heads, causal):
    arrays, mask = draw(tokens, heads, 64), make_mask(3, tokens)
    got = assert_like_the_formula(attend_with(mask, causal), arrays, mask, causal)
    assert not any(np.any(x[0]) for x in got)  # the first text has no key


@pytest.mark.parametrize("tokens", [50, 257])
def test_bfloat16_is_as_near_as_its_products(tokens):
    arrays = draw(tokens, 2, 64, "bfloat16")
    assert_like_the_formula(attend_with(), arrays, None, False, BFLOAT16)
    mask = make_mask(3, tokens)
    assert_like_the_formula(attend_with(mask, True), arrays, mask, True, BFLOAT16)


@pytest.mark.parametrize("keys", [5, 40])
def test_there_may_be_more_queries_than_keys_and_fewer(keys):
    arrays, mask = draw(20, 2, 64, keys=keys), make_mask(3, keys)
    assert_like_the_formula(attend_with(mask), arrays, mask, False)
    assert_like_the_formula(attend_with(causal=True), arrays, None, True)


@pytest.mark.parametrize("memory", [2**17, 2**19])
def test_parts_of_the_work_make_no_difference(monkeypatch, memory):
    """Queries in several parts and a rest, heads and examples in several programs."""
    arrays, mask = draw(37, 8, 64, batch=4), make_mask(4, 37)
    whole = tpu_attention.choose_share((4, 37, 8, 64), 37, 4)
    assert (whole.examples, whole.lanes, whole.rows) == (4, 512, 37)
    monkeypatch.setattr(tpu_attention, "LOGITS", 16 * 128 * 4)
    monkeypatch.setattr(tpu_attention, "VECTOR_MEMORY", 2**19 + memory)
    share = tpu_attention.choose_share((4, 37, 8, 64), 37, 4)
    assert share.rows == 16 and share.examples * share.lanes < 4 * 512
    assert_like_the_formula(attend_with(mask, True), arrays, mask, True)


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


def count_kernels(policy):
    """Counts the forward kernels of a recomputed layer and its gradient."""

    def layer(x, weight):
        with traced.weights_on(sharding.make_mesh()):
            y = attention.attend(x, x, x, None, way="pallas")
        return jnp.sin(y.reshape(*x.shape[:2], -1) @ weight)

    def loss(x, weight):
        return jax.checkpoint(layer, policy=policy)(x, weight).sum()

    program = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(jnp.ones((8, 4, 2, 64)), jnp.eye(128))
    return str(program).count("name=attention_forward")


def test_a_policy_can_keep_the_output():
    policies = jax.checkpoint_policies
    assert count_kernels(policies.save_only_these_names("attention")) == 1
    assert count_kernels(policies.nothing_saveable) == 2


def test_the_traced_products_are_those_of_the_estimate():
    """Two heads share their lanes, so that each of 7 products costs what 128 channels do."""
    arrays = draw(20, 2, 64)
    traced_flops = flops.count(lambda *x: both_passes(attend_with(), x), *arrays)
    assert traced_flops == 7 * 2 * 3 * 2 * 20 * 20 * 128


@pytest.mark.parametrize("item", [2, 4])
@pytest.mark.parametrize(("tokens", "width"), [(50, 768), (197, 768), (577, 1024), (1025, 1024)])
def test_parts_cover_the_work(tokens, width, item):
    share = tpu_attention.choose_share((24, tokens, width // 64, 64), tokens, item)
    assert 24 % share.examples == 0 and width % share.lanes == 0 == share.lanes % share.period
    assert share.rows == tokens or share.rows % (32 // item) == 0


def test_what_does_not_fit_is_an_error():
    assert tpu_attention.choose_share((1, 257, 16, 104), 257, 2) is None
    arrays = [jax.ShapeDtypeStruct((1, 257, 16, 104), jnp.bfloat16)] * 3
    with pytest.raises(ValueError, match="257 keys with 1664 channels does not fit"):
        jax.eval_shape(lambda *x: jax.vjp(attend_with(), *x)[1](x[0]), *arrays)
