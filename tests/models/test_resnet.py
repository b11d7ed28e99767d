"""ResNet against golden numbers and published sizes; EfficientNet's names in timm with it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_variables import draw_variables
from mapped_weights import check_published_shapes, load_mapped

from big_align.models.efficientnet import EfficientNet
from big_align.models.resnet import ResNet
from big_align.weights.tables.efficientnet import EFFICIENTNET, TIMM_EFFICIENTNET
from big_align.weights.tables.resnet import RESNET, TIMM_RESNET


def test_golden_numbers(reference_dir):
    folder = reference_dir / "hf-resnet"
    config, io = json.loads((folder / "config.json").read_text()), np.load(folder / "io.npz")
    model = ResNet(
        "50",
        width=config["hidden_sizes"][0] // 4,
        depths=tuple(config["depths"]),
        stem_width=config["embedding_size"],
    )
    image = jnp.asarray(io["pixel_values"].transpose(0, 2, 3, 1))
    pooled, tokens = jax.jit(model.apply)(load_mapped(folder, RESNET, model, image), image)
    expected = io["pooler_output"].reshape(pooled.shape)
    np.testing.assert_allclose(pooled, expected, atol=1e-4)
    np.testing.assert_allclose(tokens.mean(1), expected, atol=1e-4)


@pytest.mark.parametrize("variant", ["50", "101"])
@pytest.mark.slow
def test_parameters_are_the_published_ones(variant, reference_dir):
    check_published_shapes(reference_dir, f"resnet{variant}", TIMM_RESNET, ResNet(variant))


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["b0", "b7"])
def test_efficientnet_has_timms_arrays(variant, reference_dir):
    model = EfficientNet(variant, head=True)
    check_published_shapes(reference_dir, f"tf_efficientnet_{variant}", TIMM_EFFICIENTNET, model)


@pytest.mark.slow
def test_efficientnet_reads_the_reference(reference_dir):
    folder = reference_dir / "hf-efficientnet"
    config, io = json.loads((folder / "config.json").read_text()), np.load(folder / "io.npz")
    width, depth = config["width_coefficient"], config["depth_coefficient"]
    model = EfficientNet(width=width, depth=depth, head=True)
    image = jnp.asarray(io["pixel_values"].transpose(0, 2, 3, 1))
    variables = load_mapped(folder, EFFICIENTNET, model, image)
    pooled, _ = jax.jit(model.apply)(variables, image)
    np.testing.assert_allclose(pooled, io["pooler_output"], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["18", "50"])
def test_odd_resolutions_permutation_gradients_and_bfloat16(variant):
    model = ResNet(variant, width=4, depths=(1, 1))
    image = jax.random.normal(jax.random.key(0), (3, 37, 29, 3))
    variables = jax.tree.map(jnp.asarray, draw_variables(model, image))
    order = jnp.array([2, 0, 1])
    pooled, tokens = jax.jit(model.apply)(variables, image)
    assert tokens.shape == (3, 5 * 4, model.output_dim)
    permuted, _ = jax.jit(model.apply)(variables, image[order])
    np.testing.assert_allclose(permuted, pooled[order], atol=1e-6)

    half, _ = jax.jit(model.clone(dtype="bfloat16").apply)(variables, image)
    error = jnp.linalg.norm(half.astype(jnp.float32) - pooled) / jnp.linalg.norm(pooled)
    assert half.dtype == jnp.bfloat16 and error < 0.03

    def loss(params):
        full = variables | {"params": params}
        (pooled, _), _ = model.apply(full, image, True, mutable=["batch_stats"])
        return jnp.sin(pooled).sum()

    grads = jax.jit(jax.grad(loss))(variables["params"])
    assert all(np.isfinite(g).all() and np.any(g) for g in jax.tree.leaves(grads))
