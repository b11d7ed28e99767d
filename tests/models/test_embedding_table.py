"""The embedding table: a text is its row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applied import apply_model
from drawn_variables import draw_variables

from big_align.models.embedding_table import EmbeddingTable


def make_case():
    model, text = EmbeddingTable(vocab_size=7, width=4), jnp.array([[6], [0], [6]])
    return model, draw_variables(model, text, jnp.ones((3, 1), bool)), text


def test_a_text_is_its_row_and_its_gradient_reaches_no_other():
    model, variables, text = make_case()
    mask = jnp.ones((3, 1), bool)
    table = variables["params"]["token_embedding"]["embedding"]
    pooled, tokens = apply_model(model, variables, text, mask)
    np.testing.assert_array_equal(pooled, table[[6, 0, 6]])
    np.testing.assert_array_equal(tokens[:, 0], pooled)
    assert model.output_dim == 4 and model.max_length == 1

    gradient = jax.grad(lambda v: model.apply(v, text, mask)[0].sum())(variables)
    rows = gradient["params"]["token_embedding"]["embedding"].sum(1)
    np.testing.assert_allclose(rows, [4, 0, 0, 0, 0, 0, 8])


def test_a_text_of_several_tokens_is_an_error():
    model, variables, _ = make_case()
    with pytest.raises(ValueError, match="2 tokens is longer than max_length=1"):
        apply_model(model, variables, jnp.ones((3, 2), int), jnp.ones((3, 2), bool))
