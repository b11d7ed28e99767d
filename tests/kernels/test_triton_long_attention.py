"""The kernel for long sequences on GPUs, emulated: the formula in value and in every gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import assert_like_the_formula, both_passes, draw, make_mask

from big_align import sharding
from big_align.devices import rematerialization
from big_align.kernels import triton_attention
from big_align.kernels.triton_attention import fits

SLOW = pytest.mark.slow


def attend_with(mask=None, causal=False, mesh=None):
    return lambda q, k, v: triton_attention.attend_by_triton(q, k, v, mask, causal, mesh, True)


@pytest.mark.parametrize(
    ("tokens", "heads", "channels"),
    [
        (129, 2, 32),
        (197, 1, 64),
        *(pytest.param(*sizes, marks=SLOW) for sizes in ((257, 2, 64), (577, 1, 32))),
        *(pytest.param(*sizes, marks=SLOW) for sizes in ((128, 1, 80), (239, 1, 128))),
    ],
)
def test_images_are_like_the_formula(tokens, heads, channels):
    assert not fits(tokens, tokens, channels)
    assert_like_the_formula(attend_with(), draw(tokens, heads, channels, batch=2), None, False)


@pytest.mark.parametrize("causal", [pytest.param(False, marks=SLOW), True])
def test_masked_texts_are_like_the_formula(causal):
    arrays, mask = draw(150, 1, 32), make_mask(3, 150)
    got = assert_like_the_formula(attend_with(mask, causal), arrays, mask, causal)
    assert not any(np.any(x[0]) for x in got)  # the first text has no key


@SLOW
def test_causal_texts_without_a_mask_are_like_the_formula():
    assert_like_the_formula(attend_with(None, True), draw(257, 1, 32, batch=1), None, True)


def test_bfloat16_is_as_near_as_its_products():
    arrays, mask = draw(140, 1, 64, "bfloat16"), make_mask(3, 140)
    assert_like_the_formula(attend_with(mask), arrays, mask, False, 2e-2)


@pytest.mark.parametrize(("queries", "keys"), [(200, 5), (20, 150)])
def test_there_may_be_more_queries_than_keys_and_fewer(queries, keys):
    arrays, mask = draw(queries, 1, 32, keys=keys), make_mask(3, keys)
    assert not fits(queries, keys, 32)
    assert_like_the_formula(attend_with(mask, True), arrays, mask, True)


def test_large_logits_do_not_overflow():
    query, *rest = draw(131, 1, 32)
    assert_like_the_formula(attend_with(), [query * 1e2, *rest], None, False, 1e-4)


@SLOW
def test_a_key_that_is_masked_has_no_influence():
    query, key, value, cotangent = draw(150, 1, 32)
    mask = jnp.broadcast_to(jnp.arange(150) < 130, (3, 150))
    masked = both_passes(attend_with(mask), [query, key, value, cotangent])
    short = both_passes(attend_with(), [query, key[:, :130], value[:, :130], cotangent])
    for x, y in zip(masked, short, strict=True):
        np.testing.assert_allclose(x[:, : y.shape[1]], y, rtol=1e-5, atol=1e-6)
    assert not np.any(masked[2][:, 130:]) and not np.any(masked[3][:, 130:])


@SLOW
def test_eight_devices_are_like_one():
    arrays, mask = draw(129, 1, 16, batch=8), make_mask(8, 129)
    mesh = sharding.make_mesh(fsdp=2)
    alone = both_passes(attend_with(mask, True), arrays)
    split = jax.device_put(arrays, sharding.batch_sharding(mesh))
    for x, y in zip(both_passes(attend_with(mask, True, mesh), split), alone, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
        assert x.sharding.is_equivalent_to(sharding.batch_sharding(mesh), x.ndim)


def kernels_of(jaxpr):
    """Returns the names of the kernels on whose results those of a program depend, once a call.

    JAX leaves it to compilers to drop the others.
    """
    used, names = {id(x) for x in jaxpr.outvars}, []
    for equation in reversed(jaxpr.eqns):
        if used.isdisjoint(map(id, equation.outvars)):
            continue
        used |= {id(x) for x in equation.invars}
        if equation.primitive.name == "pallas_call":
            names.append(equation.params["name"])
            continue
        for parameter in jax.tree.leaves(equation.params):
            inner = getattr(parameter, "jaxpr", parameter)
            names += kernels_of(inner) if hasattr(inner, "eqns") else []
    return names


@pytest.mark.parametrize(
    ("tokens", "level", "times"), [(50, "dots", 1), (257, "dots", 1), (257, "full", 2)]
)
def test_what_dots_stores_is_all_that_the_backward_pass_needs(tokens, level, times):
    def loss(*arrays):
        return jnp.sin(rematerialization.remat_body(attend_with(), level)(*arrays)).sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(*draw(tokens, 2, 64)[:3])
    backward = {"attention_backward"} if tokens == 50 else {"attention_queries", "attention_keys"}
    names = kernels_of(jaxpr.jaxpr)
    assert names.count("attention_forward") == times
    assert len(names) == times + len(backward) and set(names) == backward | {"attention_forward"}
