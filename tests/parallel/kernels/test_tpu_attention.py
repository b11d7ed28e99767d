"""The kernel for TPUs, emulated: how its work is cut, and counted."""

import jax
import jax.numpy as jnp
import pytest
from attention_cases import assert_like_the_formula, both_passes, draw, make_mask

from big_align.parallel.kernels import tpu_attention
from big_align.parallel.kernels.attention_kernels import Terms
from big_align.training import flops


def attend_with(mask=None, causal=False, mesh=None):
    terms = Terms(mask, causal=causal)
    return lambda q, k, v: tpu_attention.attend_on_tpu(q, k, v, terms, mesh, interpret=True)


@pytest.mark.parametrize("memory", [2**17, pytest.param(2**19, marks=pytest.mark.slow)])
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
