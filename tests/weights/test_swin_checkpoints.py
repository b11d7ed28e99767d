"""Checkpoints as UniCL and MoBY released them, in the files that their training scripts write."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from big_align import weights
from big_align.core.errors import WeightsMismatch
from big_align.weights.arrays.weight_files import write_safetensors
from big_align.weights.formats import architecture
from big_align.weights.tables.swin import ORIGINAL_SWIN
from big_align.weights.tables.unicl import UNICL
from tests.models.applied import apply_model
from tests.models.drawn_variables import draw_variables
from tests.weights.torch_archives import encode, tensor, write_archive

SWIN = {"name": "swin", "variant": "tiny", "width": 8, "depths": (2, 2), "heads": (2, 4)}
SWIN = SWIN | {"window": 4}
SIZE, WIDTH, LENGTH = 32, 128, 6
NODE = {
    "image": SWIN,
    "text": {
        "name": "clip_text",
        "variant": "b",
        "width": WIDTH,
        "depth": 2,
        "mlp_dim": 192,
        "heads": 2,
        "vocab_size": 40,
        "max_length": LENGTH,
        "activation": "quick_gelu",
        "layer_norm_eps": 1e-12,
    },
    "embedding_dim": 12,
    "image_projection": True,
    "projection_bias": False,
}
PREPROCESSING = weights.Preprocessing(SIZE, 36, half_to_even=True)


def make_inputs():
    """Draws an image and texts that end in the largest id, behind which it is repeated."""
    rng = np.random.default_rng(0)
    text = rng.integers(1, 39, (3, LENGTH), dtype=np.int32)
    ends = np.array([5, 3, 1])
    text[np.arange(LENGTH) >= ends[:, None]] = 39
    mask = np.arange(LENGTH) <= ends[:, None]
    image = rng.normal(size=(3, SIZE, SIZE, 3)).astype(np.float32)
    return jnp.asarray(image), jnp.asarray(text), jnp.asarray(mask)


def make_weights(pretrained, table):
    given = architecture.give(pretrained.entries(table), pretrained.flat)
    return {name: make() for name, make in given.items()}


@pytest.fixture(scope="module")
def dual():
    variables = draw_variables(architecture.make_model(NODE), *make_inputs())
    return weights.Pretrained(NODE, variables, SIZE)


@pytest.fixture(scope="module")
def arrays(dual):
    """The arrays of a release: the towers and projections, the scale, a head, and buffers."""
    return make_weights(dual, UNICL) | {
        "logit_scale": np.asarray(math.log(20.0), np.float32),
        "image_encoder.head.weight": np.zeros((3, 16), np.float32),
        "image_encoder.layers.0.blocks.1.attn_mask": np.zeros((4, 16, 16), np.float32),
        "image_encoder.layers.0.blocks.0.attn.relative_position_index": np.zeros((16, 16), int),
    }


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(actual[path], array, err_msg=path)


def encode_texts(arrays, text):
    """Is UniCL's text side in plain NumPy, over whole rows: padding is seen by no earlier token."""

    def normalize(x, name):
        deviation = x - x.mean(-1, keepdims=True)
        x = deviation / np.sqrt((deviation**2).mean(-1, keepdims=True) + 1e-12)
        return x * at[f"{name}.weight"] + at[f"{name}.bias"]

    def linear(x, name):
        return x @ at[f"{name}.weight"].T + at[f"{name}.bias"]

    start = "text_encoder."
    at = {k.removeprefix(start): v.astype(np.float64) for k, v in arrays.items()}
    x = at["token_embedding.weight"][text] + at["positional_embedding"]
    future = np.triu(np.full((LENGTH, LENGTH), -np.inf), 1)
    for block in ("resblocks.0", "resblocks.1"):
        inputs = normalize(x, f"{block}.ln_1")
        qkv = inputs @ at[f"{block}.attn.in_proj_weight"].T + at[f"{block}.attn.in_proj_bias"]
        q, k, v = (part.reshape(len(text), LENGTH, 2, 64) for part in np.split(qkv, 3, -1))
        logits = np.einsum("bqhd,bkhd->bhqk", q, k) / 8 + future
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape)
        x = x + linear(mixed, f"{block}.attn.out_proj")
        hidden = linear(normalize(x, f"{block}.ln_2"), f"{block}.mlp.c_fc")
        x = x + linear(hidden / (1 + np.exp(-1.702 * hidden)), f"{block}.mlp.c_proj")
    pooled = normalize(x, "ln_final")[np.arange(len(text)), text.argmax(-1)]
    z = pooled @ arrays["text_projection"]
    return z / np.linalg.norm(z, axis=-1, keepdims=True)


def test_a_release_is_the_model_that_its_names_say(dual, arrays, tmp_path):
    write_safetensors(tmp_path / "unicl.safetensors", arrays)
    loaded = weights.read(tmp_path / "unicl.safetensors")
    assert loaded.node == NODE and loaded.source == "unicl"
    assert loaded.preprocessing == PREPROCESSING
    np.testing.assert_allclose(loaded.temperature, 1 / 20, rtol=1e-6)
    assert_same(loaded.flat, dual.flat)


def test_texts_are_embedded_as_by_its_authors(arrays, tmp_path):
    write_safetensors(tmp_path / "unicl.safetensors", arrays)
    loaded = weights.read(tmp_path / "unicl.safetensors")
    _, text, mask = make_inputs()
    ztxt = apply_model(loaded.model, loaded.variables, text, mask, method="encode_text")
    np.testing.assert_allclose(ztxt, encode_texts(arrays, np.asarray(text)), atol=1e-5)


def test_images_are_projected_as_by_its_authors(arrays, tmp_path):
    """By a matrix on the mean of Swin's last tokens; the tower is held to timm elsewhere."""
    write_safetensors(tmp_path / "unicl.safetensors", arrays)
    loaded = weights.read(tmp_path / "unicl.safetensors")
    image, *_ = make_inputs()
    zimg = apply_model(loaded.model, loaded.variables, image, method="encode_image")
    tower = loaded.tower("image")
    _, tokens = apply_model(tower.model, tower.variables, image)
    z = np.asarray(tokens).mean(1) @ arrays["image_projection"]
    np.testing.assert_allclose(zimg, z / np.linalg.norm(z, axis=-1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("text", ["text.", "lang_encoder."])
def test_names_before_the_release_are_known(dual, arrays, tmp_path, text):
    former = {
        name.replace("image_encoder.", "visual.")
        .replace("text_encoder.", text)
        .replace("image_projection", "vision_projection"): array
        for name, array in arrays.items()
    }
    write_safetensors(tmp_path / "unicl.safetensors", former)
    assert_same(weights.read(tmp_path / "unicl.safetensors").flat, dual.flat)


def write_checkpoint(path, arrays):
    """Writes what Swin's training scripts save: beside the model its optimizer and its config.

    The config is a `CfgNode` of yacs, as protocol 2 of pickle has subclasses of dict: made by
    NEWOBJ, then filled, then given attributes.
    """
    config = b"cyacs.config\nCfgNode\n)\x81(X\x04\x00\x00\x00SEEDK\x00u}b"
    model = {name: tensor(name, str(a.dtype), a.shape) for name, a in arrays.items()}
    optimizer = {"state": {0: {"step": 3}}, "param_groups": [{"lr": 0.1}]}
    tree = {"model": model, "optimizer": optimizer, "epoch": 3}
    body = b"".join(encode(key) + encode(value) for key, value in tree.items())
    program = b"\x80\x02}(" + body + encode("config") + config + b"u."
    write_archive(path, program, arrays)


def test_a_checkpoint_with_its_config_runs_nothing_and_is_read(dual, arrays, tmp_path):
    write_checkpoint(tmp_path / "in21k.pth", arrays)
    assert_same(weights.read(tmp_path / "in21k.pth").flat, dual.flat)


def test_it_goes_on_to_where_any_model_goes(dual, arrays, tmp_path):
    write_safetensors(tmp_path / "unicl.safetensors", arrays)
    loaded = weights.read(tmp_path / "unicl.safetensors")
    weights.save(tmp_path / "own", loaded, format="big_align")
    again = weights.read(tmp_path / "own")
    assert_same(again.flat, dual.flat)
    assert again.preprocessing == PREPROCESSING
    weights.save(tmp_path / "tower", loaded.tower("image"), format="timm")
    assert_same(weights.read(tmp_path / "tower").flat, dual.tower("image").flat)


def test_what_a_release_lacks_is_named(arrays, tmp_path):
    path = tmp_path / "unicl.safetensors"
    write_safetensors(path, {k: v for k, v in arrays.items() if "positional" not in k})
    with pytest.raises(WeightsMismatch, match="UniCL.*lacks positional_embedding"):
        weights.read(path)
    write_safetensors(path, arrays | {"text_encoder.layer.0.bias": np.zeros(3, np.float32)})
    with pytest.raises(WeightsMismatch, match=r"no place for: text_encoder\.layer\.0\.bias"):
        weights.read(path)


def test_the_encoder_of_moby_is_read_alone(dual, tmp_path):
    tower = dual.tower("image")
    swin = make_weights(tower, ORIGINAL_SWIN)
    arrays = {f"encoder.{name}": array for name, array in swin.items()}
    arrays |= {f"encoder_k.{name}": array + 1 for name, array in swin.items()}
    arrays |= {"projector.linear_out.weight": np.ones((4, 4), np.float32)}
    arrays |= {"queue1": np.ones((4, 8), np.float32)}
    write_checkpoint(tmp_path / "moby.pth", arrays)
    loaded = weights.read(tmp_path / "moby.pth")
    assert loaded.node == SWIN and loaded.image_size == SIZE and not loaded.kept
    assert loaded.preprocessing == PREPROCESSING
    assert_same(loaded.flat, tower.flat)
    del arrays["encoder.patch_embed.proj.weight"]
    write_checkpoint(tmp_path / "moby.pth", arrays)
    with pytest.raises(WeightsMismatch, match=r"moby.pth.*patch_embed.proj.weight is missing"):
        weights.read(tmp_path / "moby.pth")
