"""Vision transformers against published sizes and golden numbers; rotary positions by their law."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applied import apply_model
from drawn_variables import draw_variables
from mapped_weights import check_published_shapes, load_mapped

from big_align.models.parts import attention
from big_align.models.parts.transformer import TransformerBlock
from big_align.models.vit import ViT, fixed_positions, grid_angles
from big_align.weights.tables import vit as tables

CLIP = {"input_norm": True, "patch_bias": False, "layer_norm_eps": 1e-5}
SMALL = {"variant": "ti/8", "width": 16, "depth": 1, "mlp_dim": 16, "heads": 2}


def make_shapes(model, size=224):
    image = jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32)
    return jax.eval_shape(model.init, jax.random.key(0), image)


def make_golden(folder, table, **settings):
    """Returns the output of the last block and of the tower, and the reference's."""
    config, io = json.loads((folder / "config.json").read_text()), np.load(folder / "io.npz")
    model = ViT(
        f"s/{config['patch_size']}",
        width=config["hidden_size"],
        depth=config["num_hidden_layers"],
        mlp_dim=config["intermediate_size"],
        heads=config["num_attention_heads"],
        activation=config["hidden_act"],
        layer_norm_eps=config["layer_norm_eps"],
        **settings,
    )
    image = jnp.asarray(io["pixel_values"].transpose(0, 2, 3, 1))
    variables = load_mapped(folder, table, model, image)

    def is_block(module, _):
        return isinstance(module, TransformerBlock)

    outputs, seen = model.apply(variables, image, capture_intermediates=is_block)
    last = seen["intermediates"][f"block_{config['num_hidden_layers'] - 1:02d}"]["__call__"][0]
    return last, *outputs, variables["params"]["final_norm"], io


@pytest.mark.parametrize(
    "name, settings",
    [
        ("vit_base_patch16_224", {"variant": "b/16"}),
        ("vit_base_patch32_224", {"variant": "b/32"}),
        ("vit_large_patch14_clip_224", CLIP | {"variant": "l/14"}),
    ],
)
@pytest.mark.slow
def test_parameters_are_the_published_ones(name, settings, reference_dir):
    check_published_shapes(reference_dir, name, tables.TIMM_VIT, ViT(**settings))


@pytest.mark.slow
def test_huge_has_the_published_size():
    # ViT-H/14 of Dosovitskiy et al. (2021) without the classifier.
    shapes = make_shapes(ViT("h/14"))["params"]
    assert sum(x.size for x in jax.tree.leaves(shapes)) == 630_764_800


def test_golden_numbers(reference_dir):
    _, pooled, tokens, _, io = make_golden(reference_dir / "hf-vit", tables.VIT)
    expected = io["last_hidden_state"]
    np.testing.assert_allclose(pooled, expected[:, 0], atol=1e-4)
    np.testing.assert_allclose(tokens, expected[:, 1:], atol=1e-4)


@pytest.mark.slow
def test_golden_numbers_of_mlcd(reference_dir):
    settings = {"positions": "rotary", "input_norm": True, "patch_bias": False}
    folder = reference_dir / "hf-mlcd-vision"
    last, pooled, tokens, norm, io = make_golden(folder, tables.MLCD, **settings)
    np.testing.assert_allclose(last, io["last_hidden_state"], atol=1e-4)
    np.testing.assert_allclose(pooled, io["pooler_output"], atol=1e-4)
    # The reference normalizes the class token alone; ours are all normalized.
    patches = io["last_hidden_state"][:, 1:]
    mean, var = patches.mean(-1, keepdims=True), patches.var(-1, keepdims=True)
    expected = (patches - mean) / np.sqrt(var + 1e-5) * norm["scale"] + norm["bias"]
    np.testing.assert_allclose(tokens, expected, atol=1e-4)


def test_mean_pooling_is_the_mean_of_patches_and_has_no_class_token():
    image = jax.random.normal(jax.random.key(0), (2, 16, 24, 3))
    for positions in ("learned", "rotary"):
        model = ViT(**SMALL, pool="mean", positions=positions)
        variables = draw_variables(model, image)
        pooled, tokens = apply_model(model, variables, image)
        assert tokens.shape == (2, 6, 16)
        assert not {"cls_token", "class_angles"} & set(variables["params"])
        np.testing.assert_allclose(pooled, tokens.mean(1), rtol=1e-5, atol=1e-6)


def test_input_norm_makes_the_scale_of_the_embedding_irrelevant():
    model = ViT(**SMALL, **CLIP | {"layer_norm_eps": 0.0})
    image = jax.random.normal(jax.random.key(0), (2, 16, 16, 3))
    variables = draw_variables(model, image)
    names = "patch_embedding", "cls_token", "class_position", "position_embedding"
    scaled = {k: jax.tree.map(lambda x: 3 * x, variables["params"][k]) for k in names}
    changed, _ = apply_model(model, {"params": variables["params"] | scaled}, image)
    expected, _ = apply_model(model, variables, image)
    np.testing.assert_allclose(changed, expected, rtol=1e-4, atol=1e-5)


def test_angles_by_hand():
    angles = grid_angles(2, 3, 8)
    # Heads of 8 channels: two frequencies for the row, 1 and 1 / 100, and two for the column.
    np.testing.assert_allclose(angles[5], [1, 0.01, 2, 0.02], rtol=1e-6)
    np.testing.assert_array_equal(angles[0], 0)


def test_rotation_by_hand():
    x = jnp.array([1.0, 10.0, 2.0, 20.0]).reshape(1, 1, 1, 4)
    turned = attention.rotate(x, jnp.array([[np.pi / 2, np.pi]]))
    np.testing.assert_allclose(turned.ravel(), [-2, -10, 1, -20], atol=1e-5)


def test_rotary_attention_depends_on_relative_positions_only():
    x = jax.random.normal(jax.random.key(0), (2, 6, 16))
    attend = attention.SelfAttention(heads=2)
    angles = jnp.asarray(grid_angles(2, 3, 8))
    variables = draw_variables(attend, x, None, False, angles)
    variables = jax.tree.map(lambda w: 5 * w, variables)
    y = attend.apply(variables, x, None, False, angles)
    # One and the same shift, rows by 4 and columns by -7.
    shift = 4 * angles[3] - 7 * angles[1]
    shifted = attend.apply(variables, x, None, False, angles + shift)
    np.testing.assert_allclose(shifted, y, atol=1e-4)
    swapped = attend.apply(variables, x, None, False, angles[::-1])
    assert np.abs(swapped - y).max() > 1e-2
    # Permuting tokens together with their angles permutes the outputs.
    order = np.array([3, 1, 5, 0, 2, 4])
    permuted = attend.apply(variables, x[:, order], None, False, angles[order])
    np.testing.assert_allclose(permuted, y[:, order], atol=1e-4)


def test_rotary_positions_take_any_image():
    model = ViT(**SMALL, positions="rotary")
    variables = draw_variables(model, jnp.zeros((1, 16, 16, 3)))
    assert "position_embedding" not in variables["params"]
    image = jax.random.normal(jax.random.key(0), (2, 24, 40, 3))
    pooled, tokens = apply_model(model, variables, image)
    assert tokens.shape == (2, 15, 16)
    turned, _ = apply_model(model, variables, jnp.flip(image, 2))
    assert np.abs(turned - pooled).max() > 1e-4


def test_fixed_positions_by_hand():
    table = fixed_positions(2, 3, 8)
    # Patch 5 is in row 1 and column 2; two frequencies each, 1 and 1 / 100.
    column = [np.sin(2), np.sin(0.02), np.cos(2), np.cos(0.02)]
    row = [np.sin(1), np.sin(0.01), np.cos(1), np.cos(0.01)]
    np.testing.assert_allclose(table[5], [*column, *row], rtol=1e-6)
    np.testing.assert_array_equal(table[0], [0, 0, 1, 1, 0, 0, 1, 1])


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_fixed_positions_are_a_table_that_nobody_has_to_learn(pool):
    fixed = ViT(**SMALL, positions="sincos", pool=pool)
    image = jax.random.normal(jax.random.key(0), (2, 16, 16, 3))
    variables = jax.tree.map(jnp.asarray, dict(draw_variables(fixed, image)))
    assert not {"position_embedding", "class_position"} & set(variables["params"])
    fields, tables = fixed.list_positions(16)
    learned = {"params": variables["params"] | tables}
    expected, _ = apply_model(fixed.clone(**fields), learned, image)
    np.testing.assert_array_equal(apply_model(fixed, variables, image)[0], expected)
    turned, _ = apply_model(fixed, variables, jnp.flip(image, 2))
    assert np.abs(turned - expected).max() > 1e-4
    larger, _ = apply_model(fixed, variables, jnp.zeros((1, 24, 40, 3)))
    assert larger.shape == (1, 16)


def test_image_that_does_not_fit_is_an_error():
    model = ViT(**SMALL)
    with pytest.raises(ValueError, match="20 x 20 does not divide into patches of 8"):
        make_shapes(model, 20)
    variables = draw_variables(model, jnp.zeros((1, 16, 16, 3)))
    with pytest.raises(ValueError, match="is for 2 x 2 patches, .* 24 x 24 has 3 x 3"):
        apply_model(model, variables, jnp.zeros((1, 24, 24, 3)))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"variant": "b16"}, "variant='b16' is not of the form"),
        ({"variant": "q/16"}, "variant = 'q' is unknown"),
        ({"positions": "sine"}, "positions = 'sine' is unknown"),
        ({"pool": "max"}, "pool = 'max' is unknown"),
        ({"positions": "rotary", "width": 12, "heads": 2}, "multiple of 4 channels, not 6"),
        ({"positions": "sincos", "width": 6, "heads": 2}, "width of a multiple of 4, not 6"),
        (
            {"keep": 0},
            r"keep=0 must be a fraction above 0, at most 1, or a whole number of the 196",
        ),
        ({"keep": 197}, "keep=197 must be .* of the 196 patches of 14 x 14"),
        ({"keep": 48.5}, "keep=48.5 must be"),
        ({"keep": 0.5, "keep_by": "rows"}, "keep_by = 'rows' is unknown; known: random, block"),
        ({"keep": 47, "keep_by": "block"}, "47 patches are no rectangle in 14 x 14; the nearest"),
    ],
)
def test_wrong_settings_are_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        make_shapes(ViT(**settings))
