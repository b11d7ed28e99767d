"""CLIP's text tower against published sizes; it is causal, pools the end and ignores padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applied import apply_model
from drawn_variables import draw_variables

from big_align.models.clip_text import ClipText

SMALL = {"width": 16, "depth": 2, "mlp_dim": 32, "heads": 2, "vocab_size": 50, "max_length": 12}


def make_texts(batch=3, length=10):
    return jax.random.randint(jax.random.key(0), (batch, length), 1, 50)


def make_model(**settings):
    model = ClipText(**SMALL | settings)
    text = make_texts()
    return model, draw_variables(model, text, jnp.ones(text.shape, bool))


# Published by OpenAI (B, L) and LAION (H), without the projection: for each block 12 width^2 + 13
# width, the tables of 49408 words and 77 positions, and the final normalization.
@pytest.mark.parametrize(
    "variant, published", [("b", 63_165_952), ("l", 123_060_480), ("h", 352_984_064)]
)
@pytest.mark.slow
def test_parameters_are_the_published_ones(variant, published):
    text = jax.ShapeDtypeStruct((1, 8), jnp.int32), jax.ShapeDtypeStruct((1, 8), bool)
    shapes = jax.eval_shape(ClipText(variant).init, jax.random.key(0), *text)
    assert sum(x.size for x in jax.tree.leaves(shapes)) == published


def test_a_later_token_changes_no_earlier_output():
    model, variables = make_model()
    text, mask = make_texts(), jnp.ones((3, 10), bool)
    _, tokens = apply_model(model, variables, text, mask)
    _, changed = apply_model(model, variables, text.at[:, 6].set(49 - text[:, 6]), mask)
    np.testing.assert_array_equal(changed[:, :6], tokens[:, :6])
    assert np.abs(changed[:, 6:] - tokens[:, 6:]).max(axis=(0, 2)).min() > 1e-3


@pytest.mark.slow
def test_every_output_is_that_of_the_text_up_to_it():
    model, variables = make_model()
    text, mask = make_texts(), jnp.ones((3, 10), bool)
    _, tokens = apply_model(model, variables, text, mask)
    for length in (1, 4, 9):
        pooled, _ = apply_model(model, variables, text[:, :length], mask[:, :length])
        np.testing.assert_allclose(pooled, tokens[:, length - 1], atol=1e-5)


def test_padding_changes_nothing():
    model, variables = make_model()
    text, mask = make_texts(), jnp.arange(10) < jnp.array([[10], [4], [1]])
    pooled, tokens = apply_model(model, variables, text, mask)
    changed, _ = apply_model(model, variables, jnp.where(mask, text, 49 - text), mask)
    np.testing.assert_array_equal(changed, pooled)
    np.testing.assert_allclose(pooled, tokens[jnp.arange(3), jnp.array([9, 3, 0])], rtol=1e-6)
    short, _ = apply_model(model, variables, text[1:2, :4], mask[1:2, :4])
    np.testing.assert_allclose(short, pooled[1:2], atol=1e-5)


def test_padding_in_front_is_not_attended_to():
    model, variables = make_model()
    text, mask = make_texts(), jnp.broadcast_to(jnp.arange(10) >= 3, (3, 10))
    pooled, _ = apply_model(model, variables, text, mask)
    changed, _ = apply_model(model, variables, jnp.where(mask, text, 49 - text), mask)
    np.testing.assert_array_equal(changed, pooled)


def test_a_text_of_nothing_but_padding_is_finite():
    model, variables = make_model()
    mask = jnp.zeros((3, 10), bool)

    def loss(variables):
        return apply_model(model, variables, make_texts(), mask)[0].sum()

    value, gradients = jax.jit(jax.value_and_grad(loss))(variables)
    assert np.isfinite(value) and all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradients))


def test_a_text_that_is_too_long_is_an_error():
    model, variables = make_model()
    text = make_texts(length=13)
    with pytest.raises(ValueError, match="13 tokens is longer than max_length=12"):
        apply_model(model, variables, text, jnp.ones(text.shape, bool))


def test_unknown_variant_is_an_error():
    with pytest.raises(ValueError, match="variant = 'giant' is unknown; known: b"):
        make_model(variant="giant")
