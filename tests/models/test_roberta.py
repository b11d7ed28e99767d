"""RoBERTa against published sizes and golden numbers; its positions count real tokens."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applied import apply_model
from drawn_variables import draw_variables
from mapped_weights import load_mapped

from big_align.models.bert import Roberta
from big_align.weights.tables.bert import ROBERTA

SMALL = {"width": 16, "depth": 2, "mlp_dim": 32, "heads": 2, "vocab_size": 50, "max_length": 12}


def make_case():
    model = Roberta(**SMALL)
    text = jax.random.randint(jax.random.key(0), (3, 10), 2, 50)
    return model, draw_variables(model, text, jnp.ones(text.shape, bool)), text


def test_parameters_are_the_published_ones():
    text = jax.ShapeDtypeStruct((1, 8), jnp.int32), jax.ShapeDtypeStruct((1, 8), bool)
    shapes = jax.eval_shape(Roberta().init, jax.random.key(0), *text)
    count = sum(x.size for x in jax.tree.leaves(shapes))
    assert count == 124_645_632 - 768 * 769  # roberta-base (Liu et al., 2019) without the pooler


def test_golden_numbers(reference_dir):
    folder = reference_dir / "hf-roberta"
    config, io = json.loads((folder / "config.json").read_text()), np.load(folder / "io.npz")
    model = Roberta(
        width=config["hidden_size"],
        depth=config["num_hidden_layers"],
        mlp_dim=config["intermediate_size"],
        heads=config["num_attention_heads"],
        vocab_size=config["vocab_size"],
        max_length=config["max_position_embeddings"] - 2,
        layer_norm_eps=config["layer_norm_eps"],
    )
    text, mask = jnp.asarray(io["input_ids"], jnp.int32), jnp.asarray(io["attention_mask"] > 0)
    pooled, tokens = apply_model(model, load_mapped(folder, ROBERTA, model, text, mask), text, mask)
    expected = io["last_hidden_state"]
    np.testing.assert_allclose(pooled, expected[:, 0], atol=1e-4)
    np.testing.assert_allclose(tokens, expected, atol=1e-4)  # those of padding too


@pytest.mark.slow
def test_padding_changes_nothing_wherever_it_is():
    model, variables, text = make_case()
    alone, _ = apply_model(model, variables, text[:, :7], jnp.ones((3, 7), bool))
    behind = jnp.broadcast_to(jnp.arange(10) < 7, text.shape)
    padded, _ = apply_model(model, variables, jnp.where(behind, text, 1), behind)
    np.testing.assert_allclose(padded, alone, atol=1e-5)
    # Positions count real tokens, so padding in front shifts nothing either.
    front = jnp.concatenate([jnp.ones((3, 3), jnp.int32), text[:, :7]], axis=1)
    behind = jnp.broadcast_to(jnp.arange(10) >= 3, front.shape)
    _, tokens = apply_model(model, variables, front, behind)
    np.testing.assert_allclose(tokens[:, 3], alone, atol=1e-5)


@pytest.mark.slow
def test_a_text_of_full_length_has_positions_and_a_longer_one_is_an_error():
    model, variables, _ = make_case()
    text, mask = jnp.full((1, 12), 5), jnp.ones((1, 12), bool)

    def loss(variables):
        return jnp.sin(apply_model(model, variables, text, mask)[1]).sum()

    rows = jax.jit(jax.grad(loss))(variables)["params"]["position_embedding"]
    assert np.any(rows != 0, axis=1).tolist() == [False, False] + [True] * 12
    with pytest.raises(ValueError, match="13 tokens is longer than max_length=12"):
        apply_model(model, variables, jnp.ones((1, 13), int), jnp.ones((1, 13), bool))


def test_unknown_variant_is_an_error():
    with pytest.raises(ValueError, match="variant = 'giant' is unknown; known: mini"):
        jax.eval_shape(
            Roberta("giant").init, jax.random.key(0), jnp.ones((1, 2), int), jnp.ones((1, 2), bool)
        )
