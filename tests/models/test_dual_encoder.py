"""The dual encoder against ALIGN's golden numbers, and its colours, sizes and lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_variables import draw_variables
from reference_weights import ALIGN, channels_last, convert, read

from big_align.models import dual_encoder
from big_align.models.bert import Bert
from big_align.models.dual_encoder import DualEncoder
from big_align.models.efficientnet import EfficientNet
from big_align.models.vit import ViT


def make_model(**settings):
    return DualEncoder(
        image=ViT("ti/8", width=16, depth=1, mlp_dim=16, heads=2),
        text=Bert(width=8, depth=1, mlp_dim=16, heads=2, vocab_size=20, max_length=6),
        **settings,
    )


def make_batch():
    image = jax.random.randint(jax.random.key(0), (4, 16, 16, 3), 0, 256).astype(jnp.uint8)
    text = jax.random.randint(jax.random.key(1), (4, 6), 1, 20)
    return image, text, jnp.arange(6) < jnp.array([[6], [3], [1], [5]])


def make_variables(model):
    return draw_variables(model, *make_batch())


def test_golden_numbers(reference_dir):
    config, weights, io = read(reference_dir / "hf-align")
    text, vision = config["text_config"], config["vision_config"]
    model = DualEncoder(
        image=EfficientNet(
            "b0", width=vision["width_coefficient"], depth=vision["depth_coefficient"]
        ),
        text=Bert(
            width=text["hidden_size"],
            depth=text["num_hidden_layers"],
            mlp_dim=text["intermediate_size"],
            heads=text["num_attention_heads"],
            vocab_size=text["vocab_size"],
            max_length=text["max_position_embeddings"],
        ),
    )
    image = jnp.asarray(channels_last(io["pixel_values"]))
    words, mask = jnp.asarray(io["input_ids"], jnp.int32), jnp.asarray(io["attention_mask"] > 0)
    variables = convert(weights, ALIGN, model, image, words[:2], mask[:2])

    zimg = jax.jit(lambda v, x: model.apply(v, x, method="encode_image"))(variables, image)
    ztxt = model.apply(variables, words, mask, method="encode_text")
    np.testing.assert_allclose(zimg, io["image_embeds"], atol=1e-4)
    np.testing.assert_allclose(ztxt, io["text_embeds"], atol=1e-4)
    logits = zimg @ ztxt.T / weights["temperature"]
    np.testing.assert_allclose(logits, io["logits_per_image"], atol=1e-4)


def test_uint8_equals_standardised_floats():
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)
    model = make_model(image_mean=mean, image_std=std)
    variables, (image, *_) = make_variables(model), make_batch()
    floats = (np.asarray(image) / 255 - np.array(mean)) / np.array(std)
    ours = model.apply(variables, image, method="encode_image")
    expected = model.apply(variables, jnp.asarray(floats, jnp.float32), method="encode_image")
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_pairs_equal_separate_encoding_and_have_unit_length():
    model = make_model()
    variables, (image, *texts) = make_variables(model), make_batch()
    zimg, ztxt = model.apply(variables, image, *texts)
    np.testing.assert_allclose(zimg, model.apply(variables, image, method="encode_image"))
    np.testing.assert_allclose(ztxt, model.apply(variables, *texts, method="encode_text"))
    np.testing.assert_allclose(jnp.linalg.norm(zimg, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(jnp.linalg.norm(ztxt, axis=1), 1, rtol=1e-6)


def test_projections_match_the_image_tower_or_the_given_size():
    default = make_variables(make_model())["params"]
    assert default["project_text"]["kernel"].shape == (8, 16) and "project_image" not in default
    both = make_variables(make_model(embedding_dim=12, image_projection=True))["params"]
    assert both["project_text"]["kernel"].shape == (8, 12)
    assert both["project_image"]["kernel"].shape == (16, 12)


def test_another_size_without_image_projection_is_an_error():
    with pytest.raises(ValueError, match="embedding_dim=12 .* tower, 16: set image_projection"):
        make_variables(make_model(embedding_dim=12))


def test_embeddings_are_float32_when_towers_are_not():
    towers = make_model()
    model = make_model().clone(
        image=towers.image.clone(dtype="bfloat16"), text=towers.text.clone(dtype="bfloat16")
    )
    zimg, ztxt = model.apply(make_variables(model), *make_batch())
    assert zimg.dtype == ztxt.dtype == jnp.float32


def test_normalize_is_safe_at_zero():
    x = jnp.array([[0.0, 0.0], [3.0, 4.0], [3e-6, 4e-6]])
    np.testing.assert_allclose(dual_encoder.normalize(x), [[0, 0], [0.6, 0.8], [0.6, 0.8]])
    gradient = jax.grad(lambda x: dual_encoder.normalize(x)[:, 0].sum())(x)
    np.testing.assert_allclose(gradient[0], 0)
    # d/dx of x / |x| at (3, 4): (y^2, -x y) / |x|^3
    np.testing.assert_allclose(gradient[1], [16 / 125, -12 / 125], rtol=1e-5)


def test_normalize_does_not_hide_what_is_not_finite():
    x = jnp.array([[jnp.nan, 1.0], [jnp.inf, 1.0], [3.0, 4.0]])
    assert jnp.isnan(dual_encoder.normalize(x)).any(axis=1).tolist() == [True, True, False]
