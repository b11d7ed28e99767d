"""ML-Decoder against golden numbers and its laws."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applied import apply_model
from drawn_variables import draw_variables
from mapped_weights import load_mapped

from big_align.models.ml_decoder import CrossAttention, MLDecoder
from big_align.models.parts.layers import MlpBlock
from big_align.weights.tables.mapping import Rule

pytestmark = pytest.mark.slow

AUTHORS = [
    Rule("embed", "decoder.embed_standart", "linear"),
    Rule("queries", "decoder.query_embed.weight", "array"),
    Rule("query_norm", "decoder.layers.0.norm1", "norm"),
    Rule("attention/(query,key,value)", "decoder.layers.0.multihead_attn", "fused linear"),
    Rule("attention/out", "decoder.layers.0.multihead_attn.out_proj", "linear"),
    Rule("attention_norm", "decoder.layers.0.norm2", "norm"),
    Rule("mlp/up", "decoder.layers.0.linear1", "linear"),
    Rule("mlp/down", "decoder.layers.0.linear2", "linear"),
    Rule("mlp_norm", "decoder.layers.0.norm3", "norm"),
    Rule("group_kernel", "decoder.duplicate_pooling", "array"),
    Rule("group_bias", "decoder.duplicate_pooling_bias", "array"),
]
"""Names in the code of its authors."""
SMALL = MLDecoder(classes=5, groups=2, width=16, heads=4, mlp_dim=8)


def draw_tokens(batch=3):
    return jax.random.normal(jax.random.key(0), (batch, 9, 6))


def test_golden_numbers(reference_dir):
    folder = reference_dir / "ml_decoder"
    config, io = json.loads((folder / "config.json").read_text()), np.load(folder / "io.npz")
    model = MLDecoder(
        classes=config["num_classes"],
        groups=config["num_of_groups"],
        width=config["decoder_embedding"],
    )
    features = jnp.asarray(io["features"])
    logits = jax.jit(model.apply)(load_mapped(folder, AUTHORS, model, features), features)
    np.testing.assert_allclose(logits, io["logits"], atol=1e-4)


@pytest.mark.parametrize("classes, groups", [(5, 2), (6, 3), (10, 7), (4, 100)])
def test_each_class_is_read_by_the_query_of_its_group(classes, groups):
    model = SMALL.clone(classes=classes, groups=groups)
    variables = draw_variables(model, draw_tokens())
    params, groups = variables["params"], min(groups, classes)
    size = -(-classes // groups)
    assert params["group_kernel"].shape == (groups, 16, size)

    logits = apply_model(model, variables, draw_tokens())
    for i in range(-(-classes // size)):
        queries = params["queries"].copy()
        queries[i] += np.arange(16)
        params["queries"] = queries
        changed = apply_model(model, variables, draw_tokens())
        differs = np.abs(changed - logits).max(0) > 1e-6
        assert differs.tolist() == [c // size == i for c in range(classes)]
        logits = changed


def test_fixed_queries_get_no_gradient_and_learned_ones_do():
    variables, tokens = draw_variables(SMALL, draw_tokens()), draw_tokens()

    def gradient(model):
        return jax.jit(jax.grad(lambda p: jnp.sin(model.apply({"params": p}, tokens)).sum()))(
            variables["params"]
        )

    fixed, learned = gradient(SMALL), gradient(SMALL.clone(learned_queries=True))
    assert not np.any(fixed.pop("queries")) and np.all(learned.pop("queries"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), fixed, learned)
    assert all(np.isfinite(g).all() and np.any(g) for g in jax.tree.leaves(fixed))


def test_order_of_tokens_does_not_matter_and_order_of_examples_is_kept():
    variables, tokens = draw_variables(SMALL, draw_tokens()), draw_tokens()
    logits = apply_model(SMALL, variables, tokens)
    np.testing.assert_allclose(apply_model(SMALL, variables, tokens[:, ::-1]), logits, atol=1e-5)
    np.testing.assert_allclose(apply_model(SMALL, variables, tokens[::-1]), logits[::-1], atol=1e-5)


def test_dropout_depends_on_the_seed_alone():
    variables, tokens = draw_variables(SMALL, draw_tokens()), draw_tokens()

    def apply(seed):
        return SMALL.apply(variables, tokens, True, rngs={"dropout": jax.random.key(seed)})

    np.testing.assert_array_equal(apply(0), apply(0))
    assert np.abs(apply(0) - apply(1)).max() > 1e-3


@pytest.mark.parametrize(
    "part", [CrossAttention(4, "float32", 0.5), MlpBlock(64, "relu", "float32", 0.5)]
)
def test_dropout_inside_changes_the_output_and_not_its_mean(part):
    """Both are linear in what is dropped: weights of attention, and hidden units."""
    x = jax.random.normal(jax.random.key(0), (2, 9, 16))
    inputs = (x[:, :3], x) if isinstance(part, CrossAttention) else (x,)
    variables = draw_variables(part, *inputs)
    desired = apply_model(part, variables, *inputs)

    def apply(key):
        return part.apply(variables, *inputs, True, rngs={"dropout": key})

    outputs = jax.jit(jax.vmap(apply))(jax.random.split(jax.random.key(1), 4000))
    spread = outputs.std(axis=0)
    assert spread.min() > 0.01 * np.abs(desired).max()
    np.testing.assert_array_less(np.abs(outputs.mean(axis=0) - desired), 5 * spread / 4000**0.5)


def test_bfloat16_is_close_and_gives_float32_logits():
    variables, tokens = draw_variables(SMALL, draw_tokens()), draw_tokens()
    half = SMALL.clone(dtype="bfloat16").apply(variables, tokens)
    assert half.dtype == jnp.float32
    np.testing.assert_allclose(half, apply_model(SMALL, variables, tokens), atol=0.05)


def test_bfloat16_of_full_size_runs_on_cpus():
    """XLA computes small products elsewhere than large ones, of which it refuses some."""
    model = MLDecoder(classes=500, width=256, mlp_dim=32, dropout=0.0, dtype="bfloat16")
    tokens = jnp.asarray(np.random.default_rng(0).normal(size=(8, 4, 256)), jnp.bfloat16)
    variables = draw_variables(model, tokens)

    def total(model):
        return jax.jit(jax.value_and_grad(lambda v: jnp.square(model.apply(v, tokens)).mean()))

    value, gradient = total(model)(variables)
    expected, kernel = total(model.clone(dtype="float32"))(variables)
    np.testing.assert_allclose(value, expected, rtol=0.02)
    found, kernel = (tree["params"]["group_kernel"] for tree in (gradient, kernel))
    assert np.linalg.norm(found - kernel) < 0.02 * np.linalg.norm(kernel)


def test_settings_that_do_not_fit_are_errors():
    with pytest.raises(ValueError, match="width=20 is not a multiple of heads=8"):
        MLDecoder(classes=5, width=20).init(jax.random.key(0), draw_tokens())
    with pytest.raises(ValueError, match="groups = 0 must be at least 1"):
        MLDecoder(classes=5, groups=0).init(jax.random.key(0), draw_tokens())
