"""Swin transformer against golden numbers, published sizes and attention written out."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applied import apply_model
from drawn_variables import draw_variables
from mapped_weights import check_published_shapes, load_mapped

from big_align.models import swin
from big_align.models.swin import Merge, Swin, SwinBlock
from big_align.parallel.devices import traced
from big_align.parallel.meshes import batch_sharding, make_mesh
from big_align.weights.tables.swin import SWIN, TIMM_SWIN

TINY = Swin(width=8, depths=(2, 2), heads=(2, 4), window=4)


def draw_image(rows=40, columns=40, batch=2):
    return jax.random.normal(jax.random.key(0), (batch, rows, columns, 3))


def test_golden_numbers(reference_dir):
    folder = reference_dir / "hf-swin"
    config, io = json.loads((folder / "config.json").read_text()), np.load(folder / "io.npz")
    model = Swin(
        width=config["embed_dim"],
        depths=tuple(config["depths"]),
        heads=tuple(config["num_heads"]),
        window=config["window_size"],
    )
    image = jnp.asarray(io["pixel_values"].transpose(0, 2, 3, 1))
    pooled, tokens = jax.jit(model.apply)(load_mapped(folder, SWIN, model, image), image)
    np.testing.assert_allclose(pooled, io["pooler_output"], atol=1e-4)
    np.testing.assert_allclose(tokens, io["last_hidden_state"], atol=1e-4)


@pytest.mark.parametrize("variant", ["tiny", pytest.param("base", marks=pytest.mark.slow)])
def test_parameters_are_the_published_ones(variant, reference_dir):
    name = f"swin_{variant}_patch4_window7_224"
    check_published_shapes(reference_dir, name, TIMM_SWIN, Swin(variant))


def attend_by_hand(params, x, grid, window, shift, heads):
    """Attention of one map's tokens, each query and key by itself, after the normalization.

    The map is laid on a torus of the padded size; two tokens see each other when they lie in the
    same shifted window and no edge of the torus is between them.
    """
    padded = [-(-size // window) * window for size in grid]
    full = np.zeros((*padded, x.shape[-1]), np.float32)
    full[: grid[0], : grid[1]] = x.reshape(*grid, -1)
    parts = {
        name: (full @ params[name]["kernel"] + params[name]["bias"]).reshape(*padded, heads, -1)
        for name in ("query", "key", "value")
    }
    places = [(r, c) for r in range(padded[0]) for c in range(padded[1])]
    out = np.zeros_like(full)
    edge = 2 * window - 1

    def window_of(place):
        return tuple((p - shift) // window for p in place)  # -1 for those before the first window

    for query in places:
        keys = [key for key in places if window_of(key) == window_of(query)]
        logits = np.stack(
            [
                (parts["query"][query] * parts["key"][key]).sum(-1) / np.sqrt(x.shape[-1] / heads)
                + params["relative_position_bias"][
                    (query[0] - key[0] + window - 1) * edge + query[1] - key[1] + window - 1
                ]
                for key in keys
            ]
        )
        weights = np.exp(logits - logits.max(0)) / np.exp(logits - logits.max(0)).sum(0)
        values = np.stack([parts["value"][key] for key in keys])
        out[query] = (weights[..., None] * values).sum(0).reshape(-1)
    out = out @ params["out"]["kernel"] + params["out"]["bias"]
    return out[: grid[0], : grid[1]].reshape(x.shape)


@pytest.mark.slow_repeats
@pytest.mark.parametrize(
    "grid", [(7, 5), *(pytest.param(g, marks=pytest.mark.slow) for g in ((6, 6), (4, 8)))]
)
@pytest.mark.parametrize("way", ["plain", "pallas", "triton"])
@pytest.mark.parametrize("shift", [0, 1])
def test_attention_equals_every_pair_by_itself(grid, shift, way):
    block = SwinBlock(grid, 2, 3, shift, "gelu", 0.0, 0.0, 1e-5, "float32", way)
    x = jax.random.normal(jax.random.key(0), (2, grid[0] * grid[1], 4))
    variables = draw_variables(block, x, False)
    # The whole of a block is attention once its perceptron is off.
    down = variables["params"]["mlp"]["down"]
    variables["params"]["mlp"]["down"] = jax.tree.map(np.zeros_like, down)
    attended = jax.jit(lambda variables: block.apply(variables, x, False) - x)(variables)

    norm, params = variables["params"]["attention_norm"], variables["params"]["attention"]
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    y = np.asarray((x - mean) / np.sqrt(var + 1e-5) * norm["scale"] + norm["bias"])
    expected = np.stack([attend_by_hand(params, row, grid, 3, shift, 2) for row in y])
    np.testing.assert_allclose(attended, expected, atol=1e-5)


@pytest.mark.parametrize("way", [pytest.param("pallas", marks=pytest.mark.slow), "triton"])
def test_gradients_with_a_kernel_are_those_of_the_formula(way):
    """Two images of two by three windows, shifted, on one device and on eight."""
    settings = (8, 12), 2, 4, 2, "gelu", 0.0, 0.0, 1e-5, "float32"
    x = jax.random.normal(jax.random.key(0), (16, 96, 16))
    variables = draw_variables(SwinBlock(*settings), x, False)

    def differentiate(way, x, mesh=None):
        def loss(variables, x):
            with traced.weights_on(mesh):
                return (SwinBlock(*settings, way).apply(variables, x, False) ** 3).sum()

        return jax.jit(jax.grad(loss, (0, 1)))(variables, x)

    exact = differentiate("plain", x)
    mesh = make_mesh(fsdp=2)
    split = jax.device_put(x, batch_sharding(mesh))
    for got in differentiate(way, x), differentiate(way, split, mesh):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(1, abs(b).max())),
            got,
            exact,
        )


def test_map_within_a_window_is_one_window_with_the_middle_of_the_biases():
    assert swin.choose_window((8, 9), 7, 3) == (7, 3)
    assert swin.choose_window((7, 9), 7, 3) == (7, 0)
    assert swin.choose_window((2, 9), 7, 3) == (2, 0)
    offsets = swin.index_offsets(2, 4).tolist()
    middle = 3 * 7 + 3  # (0, 0) in a table of offsets from -3 to 3
    assert offsets[0] == [middle, middle - 1, middle - 7, middle - 8]
    assert offsets[3] == [middle + 8, middle + 7, middle + 1, middle]

    rest = ("gelu", 0.0, 0.0, 1e-5, "float32")
    small, large = (SwinBlock((2, 2), 2, w, w // 2, *rest) for w in (2, 4))
    x = jax.random.normal(jax.random.key(0), (2, 4, 8))
    variables = draw_variables(large, x, False)
    expected = jax.jit(lambda variables: large.apply(variables, x, False))(variables)
    attention = variables["params"]["attention"]
    table = attention["relative_position_bias"].reshape(7, 7, 2)
    attention["relative_position_bias"] = table[2:5, 2:5].reshape(9, 2)
    found = jax.jit(lambda variables: small.apply(variables, x, False))(variables)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_merging_takes_columns_outside_rows_and_pads_odd_edges():
    merge, x = Merge(1e-5, "float32"), np.zeros((1, 3, 2, 1), np.float32)
    x[0, :, :, 0] = [[1, 2], [4, 8], [16, 32]]
    x = jnp.asarray(x)
    variables = draw_variables(merge, x)
    variables["params"]["norm"] = {"scale": np.ones(4), "bias": np.zeros(4)}
    variables["params"]["reduce"]["kernel"] = np.eye(4)[:, :2]  # shows the first two of the four
    merged = apply_model(merge, variables, x)
    fours = np.array([[1, 4, 2, 8], [16, 0, 32, 0]])
    expected = (fours - fours.mean(1, keepdims=True)) / fours.std(1, keepdims=True)
    np.testing.assert_allclose(merged[0, :, 0], expected[:, :2], atol=1e-5)


@functools.cache
def tiny_variables():
    return draw_variables(TINY, draw_image())


@pytest.mark.slow
@pytest.mark.parametrize("rows, columns, tokens", [(40, 40, 25), (37, 29, 20), (9, 70, 18)])
def test_any_resolution_uses_the_same_parameters(rows, columns, tokens):
    image = draw_image(rows, columns)
    pooled, spatial = jax.jit(TINY.apply)(tiny_variables(), image)
    assert spatial.shape == (2, tokens, TINY.output_dim) and pooled.shape == (2, TINY.output_dim)
    np.testing.assert_allclose(pooled, spatial.mean(1), atol=1e-6)
    # Padding to whole patches is the only thing that an edge within a patch changes.
    whole = jnp.pad(image, ((0, 0), (0, -rows % 4), (0, -columns % 4), (0, 0)))
    np.testing.assert_allclose(apply_model(TINY, tiny_variables(), whole)[0], pooled, atol=1e-5)


def test_permuting_the_batch_permutes_the_features():
    image, order = draw_image(batch=3), jnp.array([2, 0, 1])
    apply = jax.jit(TINY.apply)
    pooled, tokens = apply(tiny_variables(), image)
    permuted = apply(tiny_variables(), image[order])
    np.testing.assert_allclose(permuted[0], pooled[order], atol=1e-6)
    np.testing.assert_allclose(permuted[1], tokens[order], atol=1e-6)


@pytest.mark.slow
def test_every_parameter_gets_a_gradient_and_remat_gives_the_same():
    @functools.partial(jax.jit, static_argnums=0)
    @functools.partial(jax.grad, argnums=1)
    def gradient(model, params):
        rngs = {"dropout": jax.random.key(1)}
        pooled, _ = model.apply({"params": params}, draw_image(), True, rngs=rngs)
        return jnp.sin(pooled).sum()

    model = TINY.clone(dropout=0.1, drop_path=0.5)
    grads = gradient(model, tiny_variables()["params"])
    for path, grad in jax.tree_util.tree_leaves_with_path(grads):
        assert np.isfinite(grad).all() and np.any(grad), path
    remat = gradient(model.clone(remat="full"), tiny_variables()["params"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), remat, grads)


@pytest.mark.slow
def test_bfloat16_is_close():
    pooled, tokens = jax.jit(TINY.apply)(tiny_variables(), draw_image())
    half, _ = jax.jit(TINY.clone(dtype="bfloat16").apply)(tiny_variables(), draw_image())
    assert half.dtype == jnp.bfloat16
    error = jnp.linalg.norm(half.astype(jnp.float32) - pooled) / jnp.linalg.norm(pooled)
    assert error < 0.05


def test_settings_that_do_not_fit_are_errors():
    with pytest.raises(ValueError, match="variant = 'huge' is unknown"):
        Swin("huge").output_dim  # noqa: B018
    image = jax.ShapeDtypeStruct((1, 16, 16, 3), jnp.float32)
    with pytest.raises(ValueError, match="must have an entry for each stage"):
        jax.eval_shape(Swin(depths=(2, 2)).init, jax.random.key(0), image)
    with pytest.raises(ValueError, match="width=10 is not a multiple of heads=3"):
        jax.eval_shape(Swin(width=10).init, jax.random.key(0), image)
