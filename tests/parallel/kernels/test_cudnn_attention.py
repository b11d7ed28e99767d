"""What is done around cuDNN's kernel, with JAX's own formula in the kernel's place."""

import functools

import jax
import numpy as np
import pytest
from attention_cases import assert_like_the_formula, both_passes, draw, make_mask

from big_align.parallel.kernels import cudnn_attention
from big_align.parallel.meshes import batch_sharding, make_mesh


@pytest.fixture(autouse=True)
def formula_in_place_of_the_kernel(monkeypatch):
    formula = jax.nn.dot_product_attention

    @functools.wraps(formula)
    def compute(query, key, value, *, implementation, **settings):
        assert implementation == "cudnn"
        assert query.shape[1] % 2 == key.shape[1] % 2 == 0  # the kernel takes no odd numbers
        return formula(query, key, value, implementation="xla", **settings)

    monkeypatch.setattr(jax.nn, "dot_product_attention", compute)


def attend_with(mask=None, causal=False, mesh=None):
    return lambda q, k, v: cudnn_attention.attend_by_cudnn(q, k, v, mask, causal, mesh)


@pytest.mark.slow_repeats
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [50, 257])
def test_even_and_odd_numbers_of_tokens_are_like_the_formula(tokens, causal):
    assert_like_the_formula(attend_with(causal=causal), draw(tokens, 2, 16), None, causal)


@pytest.mark.slow_repeats
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [64, 77])
def test_masked_texts_are_like_the_formula(tokens, causal):
    arrays, mask = draw(tokens, 2, 16), make_mask(3, tokens)
    got = assert_like_the_formula(attend_with(mask, causal), arrays, mask, causal)
    assert not any(np.any(x[0]) for x in got)  # the first text has no key


@pytest.mark.slow_repeats
@pytest.mark.parametrize("keys", [5, 8])
def test_queries_and_keys_are_padded_by_themselves(keys):
    arrays, mask = draw(6, 2, 16, keys=keys), make_mask(3, keys)
    assert_like_the_formula(attend_with(), arrays, None, False)
    assert_like_the_formula(attend_with(mask, True), arrays, mask, True)


def test_the_kernel_is_given_a_key_for_every_query():
    """A softmax over nothing need not be finite, and neither need be its gradient."""
    visible = cudnn_attention._find_visible(make_mask(3, 7), 7, True)
    assert visible.shape == (3, 8, 8) and not visible[0].any() and not visible[:, :, 7].any()
    filled = cudnn_attention._fill_rows(visible)
    assert filled.any(-1).all()
    np.testing.assert_array_equal(filled[-1, 0], visible[-1])


def test_eight_devices_are_like_one():
    arrays, mask = draw(11, 2, 16, batch=16), make_mask(16, 11)
    mesh = make_mesh()
    alone = both_passes(attend_with(mask, True), arrays)
    split = jax.device_put(arrays, batch_sharding(mesh))
    for x, y in zip(both_passes(attend_with(mask, True, mesh), split), alone, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
        assert x.sharding.is_equivalent_to(batch_sharding(mesh), x.ndim)
