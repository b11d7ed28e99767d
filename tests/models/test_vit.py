"""Vision transformer against published sizes and golden numbers."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_variables import draw_variables
from reference_weights import VIT, channels_last, convert, read

from big_align.models.vit import ViT


def make_shapes(model, size=224):
    image = jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32)
    return jax.eval_shape(model.init, jax.random.key(0), image)


@pytest.mark.parametrize("patch", [16, 32])
def test_parameters_are_the_published_ones(patch, reference_dir):
    published = json.loads((reference_dir / "timm_shapes.json").read_text())
    shapes = make_shapes(ViT(f"b/{patch}"))["params"]
    expected = published[f"vit_base_patch{patch}_224"]["params"]
    assert sum(x.size for x in jax.tree.leaves(shapes)) == expected


def test_golden_numbers(reference_dir):
    config, weights, io = read(reference_dir / "hf-vit")
    model = ViT(
        f"s/{config['patch_size']}",
        width=config["hidden_size"],
        depth=config["num_hidden_layers"],
        mlp_dim=config["intermediate_size"],
        heads=config["num_attention_heads"],
        layer_norm_eps=config["layer_norm_eps"],
    )
    image = jnp.asarray(channels_last(io["pixel_values"]))
    variables, expected = convert(weights, VIT, model, image), io["last_hidden_state"]
    pooled, tokens = model.apply(variables, image)
    np.testing.assert_allclose(pooled, expected[:, 0], atol=1e-4)
    np.testing.assert_allclose(tokens, expected[:, 1:], atol=1e-4)


def test_mean_pooling_is_the_mean_of_patches_and_has_no_class_token():
    model = ViT("ti/8", width=16, depth=1, mlp_dim=16, heads=2, pool="mean")
    image = jax.random.normal(jax.random.key(0), (2, 16, 24, 3))
    variables = draw_variables(model, image)
    pooled, tokens = model.apply(variables, image)
    assert tokens.shape == (2, 6, 16) and "cls_token" not in variables["params"]
    np.testing.assert_allclose(pooled, tokens.mean(1), rtol=1e-6)


def test_image_that_does_not_fit_is_an_error():
    model = ViT("ti/8", width=16, depth=1, mlp_dim=16, heads=2)
    with pytest.raises(ValueError, match="20 x 20 does not divide into patches of 8"):
        make_shapes(model, 20)
    variables = draw_variables(model, jnp.zeros((1, 16, 16, 3)))
    with pytest.raises(ValueError, match="position_embedding holds 5 positions.* 24 x 24 has 10"):
        model.apply(variables, jnp.zeros((1, 24, 24, 3)))


@pytest.mark.parametrize("variant", ["b16", "q/16"])
def test_unknown_variant_is_an_error(variant):
    with pytest.raises(ValueError, match="variant="):
        make_shapes(ViT(variant))
