"""Dual encoders against golden numbers of ALIGN and CLIP, and their colors, sizes and lengths."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applied import apply_model
from drawn_variables import draw_variables
from mapped_weights import load_mapped
from safetensors.numpy import load_file

from big_align.models import dual_encoder
from big_align.models.bert import Bert
from big_align.models.clip_text import ClipText
from big_align.models.dual_encoder import DualEncoder
from big_align.models.efficientnet import EfficientNet
from big_align.models.embedding_table import EmbeddingTable
from big_align.models.vit import ViT
from big_align.weights.tables import dual_encoder as tables
from big_align.weights.tables.mapping import Rule


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


@pytest.mark.slow
def test_golden_numbers(reference_dir):
    folder = reference_dir / "hf-align"
    config, io = json.loads((folder / "config.json").read_text()), np.load(folder / "io.npz")
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
    image = jnp.asarray(io["pixel_values"].transpose(0, 2, 3, 1))
    words, mask = jnp.asarray(io["input_ids"], jnp.int32), jnp.asarray(io["attention_mask"] > 0)
    variables = load_mapped(folder, tables.ALIGN, model, image, words[:2], mask[:2])

    zimg = jax.jit(lambda v, x: model.apply(v, x, method="encode_image"))(variables, image)
    ztxt = apply_model(model, variables, words, mask, method="encode_text")
    np.testing.assert_allclose(zimg, io["image_embeds"], atol=1e-4)
    np.testing.assert_allclose(ztxt, io["text_embeds"], atol=1e-4)
    logits = zimg @ ztxt.T / load_file(folder / "model.safetensors")["temperature"]
    np.testing.assert_allclose(logits, io["logits_per_image"], atol=1e-4)


def make_clip(variant, words, image, text, **settings):
    """Makes a CLIP of the image variant, the text variant and more settings of both towers."""
    settings = {"image_projection": True, "projection_bias": False} | settings
    return DualEncoder(
        image=ViT(variant, input_norm=True, patch_bias=False, layer_norm_eps=1e-5, **image),
        text=ClipText(words, **text),
        **settings,
    )


def read_golden(folder):
    """Returns the config and the inputs and outputs, ours as far as inputs go."""
    config, io = json.loads((folder / "config.json").read_text()), dict(np.load(folder / "io.npz"))
    image, text = jnp.asarray(io["pixel_values"].transpose(0, 2, 3, 1)), io["input_ids"]
    # The tokenizers' end-of-text is the last real token; of the ids of a text it is the largest.
    mask = np.arange(text.shape[1]) <= text.argmax(1)[:, None]
    return config, io, (image, jnp.asarray(text, jnp.int32), jnp.asarray(mask))


def embed(model, variables, image, text, mask):
    zimg = apply_model(model, variables, image, method="encode_image")
    return zimg, apply_model(model, variables, text, mask, method="encode_text")


def test_golden_numbers_of_clip(reference_dir):
    folder = reference_dir / "hf-clip"
    config, io, (image, text, mask) = read_golden(folder)
    np.testing.assert_array_equal(mask, io["attention_mask"] > 0)
    towers = [
        {
            "width": tower["hidden_size"],
            "depth": tower["num_hidden_layers"],
            "mlp_dim": tower["intermediate_size"],
            "heads": tower["num_attention_heads"],
            "activation": tower["hidden_act"],
        }
        for tower in (config["vision_config"], config["text_config"])
    ]
    sizes = {
        "vocab_size": config["text_config"]["vocab_size"],
        "max_length": config["text_config"]["max_position_embeddings"],
    }
    variant, dim = f"b/{config['vision_config']['patch_size']}", config["projection_dim"]
    model = make_clip(variant, "b", towers[0], towers[1] | sizes, embedding_dim=dim)
    variables = load_mapped(folder, tables.CLIP, model, image, text[:2], mask[:2])
    zimg, ztxt = embed(model, variables, image, text, mask)
    np.testing.assert_allclose(zimg, io["image_embeds"], atol=1e-4)
    np.testing.assert_allclose(ztxt, io["text_embeds"], atol=1e-4)
    scale = np.exp(load_file(folder / "model.safetensors")["logit_scale"])
    np.testing.assert_allclose(scale * zimg @ ztxt.T, io["logits_per_image"], atol=1e-4)


def test_golden_numbers_of_open_clip(reference_dir):
    folder = reference_dir / "open_clip"
    config, io, (image, text, mask) = read_golden(folder)
    seen, words = config["vision_cfg"], config["text_cfg"]
    width, heads = seen["width"], seen["width"] // seen["head_width"]
    sizes = {"width": width, "depth": seen["layers"], "mlp_dim": 4 * width, "heads": heads}
    text_sizes = {
        "width": words["width"],
        "depth": words["layers"],
        "mlp_dim": 4 * words["width"],
        "heads": words["heads"],
        "vocab_size": words["vocab_size"],
        "max_length": words["context_length"],
        "activation": "gelu",
    }
    variant, dim = f"b/{seen['patch_size']}", config["embed_dim"]
    model = make_clip(variant, "b", sizes, text_sizes, embedding_dim=dim)
    # Its projection is that of the text tower, beside whose arrays it lies.
    table = [
        *(*tables.OPEN_CLIP_IMAGE, *tables.OPEN_CLIP_TEXT),
        Rule("project_text", "text_projection", "matrix"),
    ]
    variables = load_mapped(folder, table, model, image, text[:2], mask[:2])
    zimg, ztxt = embed(model, variables, image, text, mask)
    np.testing.assert_allclose(zimg, io["image_embeds"], atol=1e-4)
    np.testing.assert_allclose(ztxt, io["text_embeds"], atol=1e-4)


@pytest.mark.slow
# The published models of OpenAI (B, L) and LAION (H) with their projections, without the scale.
@pytest.mark.parametrize(
    "variant, words, dim, published",
    [
        ("b/32", "b", 512, 151_277_312),
        ("b/16", "b", 512, 149_620_736),
        ("l/14", "l", 768, 427_616_512),
        ("h/14", "h", 1024, 986_109_440),
    ],
)
def test_clip_has_the_published_number_of_parameters(variant, words, dim, published):
    model = make_clip(variant, words, {}, {}, embedding_dim=dim)
    image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    text = jax.ShapeDtypeStruct((1, 77), jnp.int32), jax.ShapeDtypeStruct((1, 77), bool)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image, *text)
    assert sum(x.size for x in jax.tree.leaves(shapes)) == published


def test_uint8_equals_standardized_floats():
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)
    model = make_model(image_mean=mean, image_std=std)
    variables, (image, *_) = make_variables(model), make_batch()
    floats = jnp.float32((np.asarray(image) / 255 - np.array(mean)) / np.array(std))
    ours = apply_model(model, variables, image, method="encode_image")
    expected = apply_model(model, variables, floats, method="encode_image")
    np.testing.assert_allclose(ours, expected, atol=1e-6)


@pytest.mark.slow
def test_pairs_equal_separate_encoding_and_have_unit_length():
    model = make_model()
    variables, (image, *texts) = make_variables(model), make_batch()
    zimg, ztxt = apply_model(model, variables, image, *texts)
    np.testing.assert_allclose(zimg, apply_model(model, variables, image, method="encode_image"))
    np.testing.assert_allclose(ztxt, apply_model(model, variables, *texts, method="encode_text"))
    np.testing.assert_allclose(jnp.linalg.norm(zimg, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(jnp.linalg.norm(ztxt, axis=1), 1, rtol=1e-6)


def test_projections_match_the_image_tower_or_the_given_size():
    default = make_variables(make_model())["params"]
    assert default["project_text"]["kernel"].shape == (8, 16) and "project_image" not in default
    both = make_variables(make_model(embedding_dim=12, image_projection=True))["params"]
    assert both["project_text"]["kernel"].shape == (8, 12)
    assert both["project_image"]["kernel"].shape == (16, 12)
    assert {*both["project_image"], *both["project_text"]} == {"kernel", "bias"}
    bare = make_model(image_projection=True, projection_bias=False)
    bare = make_variables(bare)["params"]
    assert {*bare["project_image"], *bare["project_text"]} == {"kernel"}


@pytest.mark.slow
def test_without_a_text_tower_the_image_side_is_the_same():
    whole = make_model(embedding_dim=12, image_projection=True)
    images, (image, *texts) = whole.clone(text=None), make_batch()
    rng = jax.random.key(0)
    expected = nn.meta.unbox(whole.init(rng, image, *texts)["params"])
    params = nn.meta.unbox(images.init(rng, image, method="encode_image")["params"])
    assert set(params) == {"image", "project_image"}
    jax.tree.map(np.testing.assert_array_equal, params, {k: expected[k] for k in params})
    # Features lie before the projection, so that they need none of its parameters.
    assert set(images.init(rng, image, method="image_features")["params"]) == {"image"}
    for call in (
        lambda: images.apply({"params": params}, image, *texts),
        lambda: images.apply({"params": params}, *texts, method="encode_text"),
        lambda: images.init(rng, image, *texts),
    ):
        with pytest.raises(ValueError, match="config.model.text is None"):
            call()


def test_embeddings_are_the_projected_features():
    model = make_model(embedding_dim=12, image_projection=True)
    variables, (image, *_) = make_variables(model), make_batch()
    features = apply_model(model, variables, image, method="image_features")
    normal = dual_encoder.normalize_image(image, model.image_mean, model.image_std)
    tower = apply_model(model.image, {"params": variables["params"]["image"]}, normal)
    np.testing.assert_allclose(features, tower[0], atol=1e-6)
    linear = variables["params"]["project_image"]
    zimg = dual_encoder.normalize(features @ linear["kernel"] + linear["bias"])
    expected = apply_model(model, variables, image, method="encode_image")
    np.testing.assert_allclose(zimg, expected, atol=1e-6)


class Doubled(nn.Module):
    """A tower that returns its weight, or in training mode twice that."""

    output_dim: int = 2

    @nn.compact
    def __call__(self, image, train):
        weight = self.param("weight", nn.initializers.ones, (2,))
        features = jnp.tile(weight * (1 + train), (len(image), 1))
        return features, features[:, None]


@pytest.mark.parametrize(("locked", "value", "slope"), [((), 12, 6), (("image",), 6, 0)])
def test_a_locked_tower_is_in_evaluation_mode_and_gets_no_gradient(locked, value, slope):
    model, image = DualEncoder(image=Doubled(), locked=locked), jnp.ones((3, 4, 4, 3))
    params = model.init(jax.random.key(0), image, method="image_features")["params"]

    def train(params):
        given = {"params": params}, image
        return model.apply(*given, train=True, method="image_features").sum()

    found, grads = jax.value_and_grad(train)(params)
    assert found == value
    np.testing.assert_array_equal(grads["image"]["weight"], slope)


def test_another_size_without_image_projection_is_an_error():
    with pytest.raises(ValueError, match="embedding_dim=12 .* tower, 16: set image_projection"):
        make_variables(make_model(embedding_dim=12))


def test_class_vectors_are_embeddings_themselves():
    """Without a projection of texts, a text is its row of the table, at unit length."""
    sizes = {"embedding_dim": 12, "image_projection": True, "text_projection": False}
    model = make_model(**sizes).clone(text=EmbeddingTable(vocab_size=5, width=12))
    image, _, _ = make_batch()
    classes, mask = jnp.array([[4], [0]]), jnp.ones((2, 1), bool)
    params = nn.meta.unbox(model.init(jax.random.key(0), image, classes, mask))["params"]
    assert set(params) == {"image", "project_image", "text"}
    rows = np.float64(params["text"]["token_embedding"]["embedding"])[[4, 0]]
    ztxt = model.apply({"params": params}, classes, mask, method="encode_text")
    expected = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(ztxt, expected, atol=1e-6)
    narrow = model.clone(text=EmbeddingTable(vocab_size=5, width=8))
    with pytest.raises(ValueError, match="embedding_dim=12 .* text tower, 8: set text_projection"):
        narrow.init(jax.random.key(0), image, classes, mask)


@pytest.mark.slow
def test_embeddings_are_float32_when_towers_are_not():
    towers = make_model()
    model = make_model().clone(
        image=towers.image.clone(dtype="bfloat16"), text=towers.text.clone(dtype="bfloat16")
    )
    zimg, ztxt = apply_model(model, make_variables(model), *make_batch())
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
