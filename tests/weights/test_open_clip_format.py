"""open_clip: golden numbers, files that come back as they went in, and the library itself."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from big_align import weights
from big_align.core.errors import WeightsMismatch
from big_align.weights import open_clip_format
from big_align.weights.arrays.weight_files import write_safetensors
from big_align.weights.formats import architecture
from big_align.weights.formats.open_clip_configs import find_ratio
from tests.models.applied import apply_model
from tests.models.drawn_variables import draw_variables

TOWER = {"width": 64, "depth": 2, "mlp_dim": 100, "heads": 4, "layer_norm_eps": 1e-5}
IMAGE = TOWER | {"name": "vit", "variant": "b/8", "input_norm": True, "patch_bias": False}
TEXT = TOWER | {"name": "clip_text", "vocab_size": 50, "max_length": 12}
NODE = {
    "image": IMAGE,
    "text": TEXT,
    "embedding_dim": 24,
    "image_projection": True,
    "projection_bias": False,
    "image_mean": (0.1, 0.2, 0.3),
    "image_std": (0.4, 0.5, 0.6),
}
SIZE = 32


def make_inputs(vocab_size, length):
    """Draws images and texts; texts end with the largest id, as open_clip wants it."""
    rng = np.random.default_rng(0)
    image = rng.normal(size=(3, SIZE, SIZE, 3)).astype(np.float32)
    text = rng.integers(1, vocab_size - 1, (3, length), dtype=np.int32)
    ends = np.array([length - 1, 4, 1])
    mask = np.arange(length) <= ends[:, None]
    text = np.where(mask, text, 0)
    text[np.arange(3), ends] = vocab_size - 1
    return tuple(map(jnp.asarray, (image, text, mask)))


def make_pretrained(activation="gelu", **more):
    towers = {part: NODE[part] | {"activation": activation} for part in ("image", "text")}
    node = NODE | towers
    variables = draw_variables(architecture.make_model(node), *make_inputs(50, 12))
    seen = weights.Preprocessing(
        SIZE, SIZE, True, NODE["image_mean"], NODE["image_std"], half_to_even=True
    )
    return weights.Pretrained(
        node, variables, SIZE, **{"preprocessing": seen, "temperature": 0.07} | more
    )


def check_equal(again, first):
    assert again.node == first.node and again.temperature == first.temperature
    assert again.preprocessing == first.preprocessing
    assert again.flat.keys() == first.flat.keys() and again.kept.keys() == first.kept.keys()
    for arrays in ("flat", "kept"):
        for name, array in getattr(first, arrays).items():
            np.testing.assert_array_equal(getattr(again, arrays)[name], array, err_msg=name)


@pytest.mark.slow
def test_outputs_are_those_of_the_reference(reference_dir):
    loaded = weights.read(reference_dir / "open_clip")
    io = np.load(reference_dir / "open_clip" / "io.npz")
    text = jnp.asarray(io["input_ids"], jnp.int32)
    mask = jnp.arange(text.shape[1]) <= text.argmax(1)[:, None]
    image = jnp.asarray(io["pixel_values"].transpose(0, 2, 3, 1))
    zimg = loaded.model.apply(loaded.variables, image, method="encode_image")
    ztxt = loaded.model.apply(loaded.variables, text, mask, method="encode_text")
    np.testing.assert_allclose(zimg, io["image_embeds"], atol=1e-4)
    np.testing.assert_allclose(ztxt, io["text_embeds"], atol=1e-4)


def test_what_goes_in_comes_out_and_goes_in_bit_by_bit(reference_dir, tmp_path):
    first = weights.read(reference_dir / "open_clip")
    weights.save(tmp_path / "out", first, format="open_clip")
    check_equal(weights.read(tmp_path / "out"), first)

    theirs = load_file(reference_dir / "open_clip" / "model.safetensors")
    ours = load_file(tmp_path / "out" / "open_clip_model.safetensors")
    assert theirs.keys() == ours.keys()
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array, err_msg=name)

    config = json.loads((tmp_path / "out" / "open_clip_config.json").read_text())["model_cfg"]
    given = json.loads((reference_dir / "open_clip" / "config.json").read_text())
    assert config["embed_dim"] == given["embed_dim"]
    for part in ("vision_cfg", "text_cfg"):
        assert config[part].items() >= given[part].items()


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "quick_gelu"])
def test_a_model_of_ours_comes_back(tmp_path, activation):
    first = make_pretrained(activation)
    weights.save(tmp_path / "out", first, format="open_clip")
    again = weights.read(tmp_path / "out")
    assert again.preprocessing == first.preprocessing
    np.testing.assert_allclose(again.temperature, first.temperature, rtol=1e-6)
    inputs = make_inputs(50, 12)
    for new, old in zip(
        again.model.apply(again.variables, *inputs),
        first.model.apply(first.variables, *inputs),
        strict=True,
    ):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize("format", ["open_clip", "transformers", "big_align"])
def test_fixed_positions_are_written_as_the_tables_that_others_have(tmp_path, format):
    drawn = make_pretrained()
    tables = ("class_position", "position_embedding")
    image = {k: v for k, v in drawn.variables["params"]["image"].items() if k not in tables}
    node = drawn.node | {"image": drawn.node["image"] | {"positions": "sincos", "keep": 0.5}}
    variables = {"params": drawn.variables["params"] | {"image": image}}
    first = dataclasses.replace(drawn, node=node, variables=variables)
    weights.save(tmp_path / "out", first, format=format)
    again = weights.read(tmp_path / "out")
    kept = format == "big_align"
    assert again.node["image"]["positions"] == ("sincos" if kept else "learned")
    inputs = make_inputs(50, 12)
    embedded = [apply_model(x.model, x.variables, *inputs) for x in (again, first)]
    jax.tree.map(np.testing.assert_array_equal, *embedded)


@pytest.mark.parametrize("text", ["", "text."])
def test_a_bare_state_dict_tells_the_model(tmp_path, text):
    """Sizes come from shapes and heads are 64 wide; one of two classes puts texts below `text.`."""
    drawn = make_pretrained()
    node = drawn.node | {part: drawn.node[part] | {"heads": 1} for part in ("image", "text")}
    first = weights.Pretrained(node, drawn.variables, SIZE, temperature=0.07)
    arrays = {
        name if name.startswith(("visual.", "logit")) else text + name: array
        for name, array in open_clip_format.write(first)["open_clip_model.safetensors"].items()
    }
    write_safetensors(tmp_path / "weights.safetensors", arrays)
    bare = weights.read(tmp_path / "weights.safetensors")
    assert bare.image_size == SIZE
    for part in ("image", "text"):
        settings = [architecture.settings(getattr(x.model, part)) for x in (bare, first)]
        assert settings[0] == settings[1]
    assert bare.flat.keys() == first.flat.keys()
    for name, array in first.flat.items():
        np.testing.assert_array_equal(bare.flat[name], array, err_msg=name)


def test_the_bias_of_a_decision_per_pair_goes_out_and_comes_in(tmp_path):
    for bias in (-9.5, None):
        weights.save(tmp_path / f"{bias}", make_pretrained(bias=bias), format="open_clip")
        stored = load_file(tmp_path / f"{bias}" / "open_clip_model.safetensors")
        assert ("logit_bias" in stored) == (bias is not None)
        assert weights.read(tmp_path / f"{bias}").bias == bias


def test_a_bias_of_logits_and_a_scale_in_a_row_are_kept(tmp_path):
    kept = {"logit_scale": np.float32([2.5]), "logit_bias": np.float32([-10.0])}
    kept["vision_model.embeddings.position_ids"] = np.arange(5)  # of another format
    first = make_pretrained(kept=kept, source="open_clip", bias=-9.5)  # trained since
    weights.save(tmp_path / "out", first, format="open_clip")
    config = json.loads((tmp_path / "out" / "open_clip_config.json").read_text())["model_cfg"]
    assert config["nonscalar_logit_scale"] is True and config["init_logit_bias"] == -9.5
    again = weights.read(tmp_path / "out")
    assert again.kept.keys() == {"logit_scale", "logit_bias"}
    np.testing.assert_array_equal(again.kept["logit_scale"], np.float32([-np.log(0.07)]))
    np.testing.assert_array_equal(again.kept["logit_bias"], np.float32([-9.5]))


def test_ratios_give_back_every_width_of_a_perceptron():
    for width in (96, 768, 1152, 1664):
        for mlp_dim in range(width, 5 * width, 7):
            assert int(width * find_ratio(width, mlp_dim)) == mlp_dim


def write_config(folder, reference_dir, part=None, **values):
    """Makes a folder with the reference's config, changed, and its weights."""
    folder.mkdir()
    config = json.loads((reference_dir / "open_clip" / "config.json").read_text())
    (config[part] if part else config).update(values)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    (folder / "open_clip_model.safetensors").symlink_to(
        reference_dir / "open_clip" / "model.safetensors"
    )
    return folder


@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        ("vision_cfg", "layers", [3, 4, 6, 3], "open_clip's ResNets cannot be read"),
        ("vision_cfg", "pool_type", "avg", "pool_type = 'avg' is not supported, only 'tok'"),
        ("text_cfg", "no_causal_mask", True, "no_causal_mask = True is not supported, only False"),
        ("text_cfg", "newer", 1, "text_cfg.newer = 1 is not supported"),
        ("vision_cfg", "image_size", [32, 64], "only square ones"),
        ("vision_cfg", "act_kwargs", {"inplace": True}, "act_kwargs"),
        (None, "multimodal_cfg", {}, "CoCa"),
        ("vision_cfg", "layers", 1, r"no place for: visual.transformer.resblocks.1"),
        ("text_cfg", "vocab_size", 98, r"token_embedding.weight has shape \[99, 32\]"),
    ],
)
def test_what_does_not_fit_is_named(reference_dir, tmp_path, part, name, value, message):
    folder = write_config(tmp_path / "in", reference_dir, part, **{name: value})
    with pytest.raises(WeightsMismatch, match=message):
        weights.read(folder)


def test_a_model_that_open_clip_does_not_have_writes_nothing(tmp_path):
    first = make_pretrained()
    node = NODE | {"image": IMAGE | {"pool": "mean", "positions": "rotary"}}
    other = weights.Pretrained(node, first.variables, SIZE)
    with pytest.raises(WeightsMismatch, match="(?s)needs pool='cls'.*needs positions='learned'"):
        weights.save(tmp_path / "out", other, format="open_clip")
    tower = weights.Pretrained(IMAGE, first.variables, SIZE)
    with pytest.raises(WeightsMismatch, match="dual encoders only, and this is a tower for images"):
        weights.save(tmp_path / "out", tower, format="open_clip")
    assert not list(tmp_path.iterdir())


@pytest.mark.interop
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "quick_gelu"])
def test_open_clip_opens_what_we_write(tmp_path, activation):
    torch, open_clip = pytest.importorskip("torch"), pytest.importorskip("open_clip")
    seen = weights.Preprocessing(SIZE, SIZE, False, NODE["image_mean"], NODE["image_std"])
    pretrained = make_pretrained(activation, preprocessing=seen, bias=-9.5)
    weights.save(tmp_path / "out", pretrained, format="open_clip")
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'out'}")

    image, text, mask = make_inputs(50, 12)
    zimg, ztxt = pretrained.model.apply(pretrained.variables, image, text, mask)
    with torch.no_grad():
        theirs = model.eval()(
            torch.from_numpy(np.array(image.transpose(0, 3, 1, 2))),
            torch.from_numpy(np.array(text)).long(),
        )
    np.testing.assert_allclose(theirs[0], zimg, atol=1e-5)
    np.testing.assert_allclose(theirs[1], ztxt, atol=1e-5)
    np.testing.assert_allclose(theirs[2], 1 / pretrained.temperature, rtol=1e-5)
    assert theirs[3] == pretrained.bias

    assert model.visual.preprocess_cfg["mean"] == [0.1, 0.2, 0.3]
    assert model.visual.preprocess_cfg["resize_mode"] == "squash"
    resize, *_, normalize = preprocess.transforms
    assert tuple(resize.size) == (SIZE, SIZE)
    assert list(normalize.std) == [0.4, 0.5, 0.6]

    torch.save({"epoch": 3, "state_dict": model.state_dict()}, tmp_path / "epoch_3.pt")
    bare = weights.read(tmp_path / "epoch_3.pt")
    for path, array in pretrained.flat.items():
        np.testing.assert_array_equal(bare.flat[path], array, err_msg=path)


@pytest.mark.interop
def test_open_clip_opens_a_tokenizer_of_wordpieces(tmp_path):
    """Its end is not the largest id, so the tower must pool elsewhere than CLIP's."""
    torch, open_clip = pytest.importorskip("torch"), pytest.importorskip("open_clip")
    pytest.importorskip("transformers")
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] a the dog cat ##s , !".split()
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    tokenizer = {"name": "wordpiece", "vocabulary": str(tmp_path / "vocab.txt")}
    tokenizer |= {"lowercase": True, "length": 12}
    pretrained = make_pretrained(tokenizer=tokenizer)
    weights.save(tmp_path / "out", pretrained, format="open_clip")
    source, captions = f"local-dir:{tmp_path / 'out'}", ["A dog!", "the cats, the cats"]
    theirs = open_clip.get_tokenizer(source)(captions)
    ids = [[2, 5, 7, 11, 3], [2, 6, 8, 9, 10, 6, 8, 9, 3]]
    assert theirs.tolist() == [row + [0] * (12 - len(row)) for row in ids]

    text = jnp.asarray(theirs.numpy(), jnp.int32)
    ztxt = pretrained.model.apply(pretrained.variables, text, text != 0, method="encode_text")
    model, *_ = open_clip.create_model_and_transforms(source)
    with torch.no_grad():
        theirs = model.eval().encode_text(theirs, normalize=True)
    np.testing.assert_allclose(theirs, ztxt, atol=1e-5)
    loaded = weights.read(tmp_path / "out").tokenizer
    assert loaded == tokenizer | {"vocabulary": str(tmp_path / "out" / "vocab.txt")}
