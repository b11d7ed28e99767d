"""BERT against published sizes and golden numbers; padding changes nothing."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applied import apply_model
from drawn_variables import draw_variables
from mapped_weights import load_mapped

from big_align.models.bert import Bert
from big_align.weights.tables.bert import BERT

SMALL = {"width": 16, "depth": 2, "mlp_dim": 32, "heads": 2, "vocab_size": 50, "max_length": 12}


def make_texts(batch=3, length=10):
    return jax.random.randint(jax.random.key(0), (batch, length), 1, 50)


def make_model(**settings):
    model = Bert(**SMALL | settings)
    text = make_texts()
    return model, draw_variables(model, text, jnp.ones(text.shape, bool))


# Sizes of Turc et al. (2019) and Devlin et al. (2019), 512 positions, 30522 words: the released
# checkpoints' parameters without the pooler (width * (width + 1)) and the second segment (width).
@pytest.mark.parametrize(
    "variant, width, published",
    [
        ("mini", 256, 11_170_560),
        ("medium", 512, 41_373_184),
        ("base", 768, 109_482_240),
        ("large", 1024, 335_141_888),
    ],
)
@pytest.mark.slow
def test_parameters_are_the_published_ones(variant, width, published):
    text = jax.ShapeDtypeStruct((1, 8), jnp.int32), jax.ShapeDtypeStruct((1, 8), bool)
    shapes = jax.eval_shape(Bert(variant).init, jax.random.key(0), *text)
    count = sum(x.size for x in jax.tree.leaves(shapes))
    assert count == published - width * (width + 1) - width


def test_golden_numbers(reference_dir):
    folder = reference_dir / "hf-bert"
    config, io = json.loads((folder / "config.json").read_text()), np.load(folder / "io.npz")
    model = Bert(
        width=config["hidden_size"],
        depth=config["num_hidden_layers"],
        mlp_dim=config["intermediate_size"],
        heads=config["num_attention_heads"],
        vocab_size=config["vocab_size"],
        max_length=config["max_position_embeddings"],
    )
    text, mask = jnp.asarray(io["input_ids"], jnp.int32), jnp.asarray(io["attention_mask"] > 0)
    pooled, tokens = apply_model(model, load_mapped(folder, BERT, model, text, mask), text, mask)
    np.testing.assert_allclose(pooled, io["last_hidden_state"][:, 0], atol=1e-4)
    np.testing.assert_allclose(tokens[mask], io["last_hidden_state"][mask], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_mask_equals_slicing(pool):
    model, variables = make_model(pool=pool)
    text = make_texts()
    mask = jnp.broadcast_to(jnp.arange(10) < 7, text.shape)
    pooled, tokens = apply_model(model, variables, text, mask)
    expected_pooled, expected = apply_model(model, variables, text[:, :7], mask[:, :7])
    np.testing.assert_allclose(pooled, expected_pooled, atol=1e-6)
    np.testing.assert_allclose(tokens[:, :7], expected, atol=1e-6)


def test_the_words_of_the_padding_change_nothing():
    model, variables = make_model()
    text, mask = make_texts(), jnp.arange(10) < jnp.array([[10], [4], [1]])
    pooled, _ = apply_model(model, variables, text, mask)
    changed, _ = apply_model(model, variables, jnp.where(mask, text, 49 - text), mask)
    np.testing.assert_array_equal(pooled, changed)


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_a_text_of_nothing_but_padding_is_finite(pool):
    model, variables = make_model(pool=pool)
    mask = jnp.zeros((3, 10), bool)

    def loss(variables):
        return apply_model(model, variables, make_texts(), mask)[0].sum()

    value, gradients = jax.jit(jax.value_and_grad(loss))(variables)
    assert np.isfinite(value) and all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradients))


def test_the_mean_of_many_tokens_is_rounded_once():
    model = Bert(**SMALL | {"max_length": 260, "depth": 1, "dtype": "bfloat16"}, pool="mean")
    text = make_texts(length=257)
    mask = jnp.ones(text.shape, bool)
    pooled, tokens = apply_model(model, draw_variables(model, text, mask), text, mask)
    assert pooled.dtype == jnp.bfloat16
    mean = np.asarray(tokens, np.float64).mean(1)
    np.testing.assert_allclose(np.float64(pooled), mean, rtol=1.01 * 2**-8, atol=1e-6)


def test_word_order_matters_and_other_texts_do_not():
    model, variables = make_model()
    text = make_texts()
    mask = jnp.ones(text.shape, bool)
    pooled, _ = apply_model(model, variables, text, mask)
    turned, _ = apply_model(model, variables, text[:, ::-1].at[:, 0].set(text[:, 0]), mask)
    assert np.abs(turned - pooled).max() > 1e-3
    alone, _ = apply_model(model, variables, text[1:2], mask[1:2])
    np.testing.assert_allclose(alone, pooled[1:2], atol=1e-6)


def test_a_text_that_is_too_long_is_an_error():
    model, variables = make_model()
    text = make_texts(length=13)
    with pytest.raises(ValueError, match="13 tokens is longer than max_length=12"):
        apply_model(model, variables, text, jnp.ones(text.shape, bool))


def test_unknown_variant_is_an_error():
    with pytest.raises(ValueError, match="variant = 'giant' is unknown; known: mini"):
        make_model(variant="giant")
