"""transformers itself opens what we write and computes the same, and we read what it writes."""

import json
import os
import random

import jax.numpy as jnp
import numpy as np
import pytest

import big_align
from big_align import weights
from big_align.data.images.image_ops import Transform
from big_align.data.text.tokenizers import ClipTokenizer, WordPieceTokenizer
from big_align.models.dual_encoder import normalize_image
from big_align.weights.arrays.weight_files import open_weights, write_safetensors
from big_align.weights.formats import preprocessing, text_files
from tests.run_main import Run

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.interop

SIZE, LENGTH = 32, 12
TOLERANCE = dict(atol=1e-4, rtol=1e-4)
PIECES = """[PAD] [UNK] [CLS] [SEP] [MASK] a an the of image photo picture drawing digit number
handwritten zero one two three four five six seven eight nine s ##s ##n ##git hand ##written , .
!""".split()
CAPTIONS = ["A handwritten digit, seven!", "the PHOTO of an eight", "unknown words: cafés"]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return path


@pytest.fixture(scope="module")
def train(vocabulary, tmp_path_factory):
    """Trains a pair once and gives its model."""
    trained = {}

    def train(name):
        if name not in trained:
            workdir = tmp_path_factory.mktemp(name)
            tokenizer = f"--config.tokenizer.vocabulary={vocabulary}"
            config = f"tests/weights/tiny_pairs.py:{name}"
            run = Run(workdir, tokenizer, config=config, devices=1)
            assert run.wait() == 0, run.err
            trained[name] = big_align.load(workdir)
        return trained[name]

    return train


def make_images():
    return np.random.default_rng(0).normal(size=(3, SIZE, SIZE, 3)).astype(np.float32)


def make_texts(end=3, padding=0):
    """Draws token ids; each text stops at `end`, and what follows is padding."""
    text = np.random.default_rng(0).integers(4, len(PIECES), (3, LENGTH)).astype(np.int32)
    last = np.array([LENGTH - 1, 5, 2])
    mask = np.arange(LENGTH) <= last[:, None]
    text[np.arange(3), last] = end
    return np.where(mask, text, padding).astype(np.int32), mask


def open_model(name, folder):
    """Opens a folder with a class of transformers; every key must find its place."""
    model, report = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    faults = {key: list(report[key]) for key in report if "keys" in key or "errors" in key}
    assert not any(faults.values()), faults
    return model.eval()


def run_theirs(model, images=None, texts=None):
    inputs = {}
    if images is not None:
        inputs["pixel_values"] = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    if texts is not None:
        inputs["input_ids"] = torch.from_numpy(texts[0]).long()
        inputs["attention_mask"] = torch.from_numpy(texts[1]).long()
    with torch.no_grad():
        return model(**inputs)


@pytest.mark.parametrize(("name", "architecture"), [("align", "AlignModel"), ("clip", "CLIPModel")])
def test_dual_encoders_that_were_trained_are_opened(train, tmp_path, name, architecture):
    trained, images, texts = train(name), make_images(), make_texts()
    weights.save(tmp_path / "out", trained)
    theirs = run_theirs(open_model(architecture, tmp_path / "out"), images, texts)
    zimg, ztxt = trained.model.apply(trained.variables, *map(jnp.asarray, (images, *texts)))
    np.testing.assert_allclose(theirs.image_embeds, zimg, **TOLERANCE)
    np.testing.assert_allclose(theirs.text_embeds, ztxt, **TOLERANCE)
    logits = zimg @ ztxt.T / trained.temperature
    np.testing.assert_allclose(theirs.logits_per_image, logits, **TOLERANCE)
    again = weights.read(tmp_path / "out")
    for path, array in trained.flat.items():
        np.testing.assert_array_equal(again.flat[path], array, err_msg=path)
    np.testing.assert_allclose(again.temperature, trained.temperature, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("clip", "CLIPVisionModel"),
        ("mlcd", "MLCDVisionModel"),
        ("vit", "ViTModel"),
        ("swin", "SwinModel"),
        ("resnet", "ResNetModel"),
        ("efficientnet", "EfficientNetModel"),
    ],
)
def test_image_towers_that_were_trained_are_opened(train, tmp_path, name, architecture):
    tower, images = train(name).tower("image"), make_images()
    weights.save(tmp_path / "out", tower)
    theirs = run_theirs(open_model(architecture, tmp_path / "out"), images)
    pooled, tokens = tower.model.apply(tower.variables, jnp.asarray(images))
    hidden = theirs.last_hidden_state.numpy()
    if hidden.ndim == 4:
        hidden = hidden.transpose(0, 2, 3, 1).reshape(tokens.shape)
    if name == "vit":  # its pooler passes the class token on, through a tanh
        np.testing.assert_allclose(hidden[:, 0], pooled, **TOLERANCE)
        np.testing.assert_allclose(theirs.pooler_output, np.tanh(pooled), **TOLERANCE)
    else:
        np.testing.assert_allclose(theirs.pooler_output.reshape(pooled.shape), pooled, **TOLERANCE)
    if name not in ("clip", "mlcd"):  # their tokens are those before the last normalization
        np.testing.assert_allclose(hidden[:, -tokens.shape[1] :], tokens, **TOLERANCE)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("align", "BertModel"), ("mlcd", "RobertaModel"), ("clip", "CLIPTextModel")],
)
def test_text_towers_that_were_trained_are_opened(train, tmp_path, name, architecture):
    tower = train(name).tower("text")
    text, mask = make_texts(padding=1 if architecture == "RobertaModel" else 0)
    weights.save(tmp_path / "out", tower)
    theirs = run_theirs(open_model(architecture, tmp_path / "out"), texts=(text, mask))
    pooled, tokens = tower.model.apply(tower.variables, jnp.asarray(text), jnp.asarray(mask))
    np.testing.assert_allclose(theirs.last_hidden_state[mask], tokens[mask], **TOLERANCE)
    if name == "clip":
        np.testing.assert_allclose(theirs.pooler_output, pooled, **TOLERANCE)


def test_old_files_are_read_and_written_as_new_ones(train, tmp_path):
    """Of BERT's norms in TensorFlow's names, and of tables that are computed now."""
    trained = train("align")
    weights.save(tmp_path / "new", trained)
    arrays = dict(open_weights(tmp_path / "new"))
    for name in list(arrays):
        for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
            if "LayerNorm" in name and name.endswith(new):
                arrays[name.removesuffix(new) + old] = arrays.pop(name)
    arrays["text_model.embeddings.position_ids"] = np.arange(14)[None]
    write_safetensors(tmp_path / "new" / "model.safetensors", arrays)
    old = weights.read(tmp_path / "new")
    for path, array in trained.flat.items():
        np.testing.assert_array_equal(old.flat[path], array, err_msg=path)
    weights.save(tmp_path / "again", old)
    open_model("AlignModel", tmp_path / "again")


def make_picture():
    """Draws a smooth picture, 90 high and 70 wide."""
    y, x = np.mgrid[:90, :70] / 20.0
    waves = [np.sin(x + k) * np.cos(y * (1 + k / 3)) for k in range(3)]
    return np.uint8(127 + 120 * np.stack(waves, -1))


def prepare(seen, picture):
    pixels = Transform(seen.transform)(picture, random.Random(0))
    return np.asarray(normalize_image(jnp.asarray(pixels[None]), seen.mean, seen.std))[0]


def check_pixels(theirs, seen, picture):
    """Theirs resize with other rounding: few pixels differ, by few of 255 levels."""
    pixels = np.asarray(theirs["pixel_values"][0]).transpose(1, 2, 0)
    difference = np.abs(prepare(seen, picture) - pixels) * np.array(seen.std) * 255
    assert pixels.shape == (seen.size, seen.size, 3)
    assert difference.max() < 8 and difference.mean() < 1


@pytest.mark.parametrize("name", ["align", "clip"])
def test_processors_prepare_as_our_pipeline_does(train, tmp_path, vocabulary, name):
    trained, picture = train(name), make_picture()
    weights.save(tmp_path / "out", trained)
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "out")
    assert type(processor).__name__ == {"align": "AlignProcessor", "clip": "CLIPProcessor"}[name]
    assert tuple(processor.image_processor.image_mean) == (0.1, 0.2, 0.3)
    assert tuple(processor.image_processor.image_std) == (0.4, 0.5, 0.6)
    assert dict(processor.image_processor.size) == {"shortest_edge": 40}
    assert dict(processor.image_processor.crop_size) == {"height": 32, "width": 32}
    assert trained.preprocessing.transform == "resize_small(40)|central_crop(32)"
    theirs = processor(
        text=CAPTIONS, images=[picture], padding="max_length", truncation=True, return_tensors="np"
    )
    check_pixels(theirs, trained.preprocessing, picture)
    ids, mask = WordPieceTokenizer(str(vocabulary), LENGTH)(CAPTIONS)
    np.testing.assert_array_equal(theirs["input_ids"], ids)
    np.testing.assert_array_equal(theirs["attention_mask"], mask)
    assert weights.read(tmp_path / "out").preprocessing == trained.preprocessing


def test_a_tower_has_its_image_processor_and_its_tokenizer(train, tmp_path, vocabulary):
    trained, picture = train("swin"), make_picture()
    weights.save(tmp_path / "image", trained.tower("image"))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "image")
    check_pixels(processor(picture, return_tensors="np"), trained.preprocessing, picture)
    weights.save(tmp_path / "text", trained.tower("text"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "text")
    theirs = tokenizer(CAPTIONS, padding="max_length", truncation=True, return_tensors="np")
    ids, mask = WordPieceTokenizer(str(vocabulary), LENGTH)(CAPTIONS)
    np.testing.assert_array_equal(theirs["input_ids"], ids)
    np.testing.assert_array_equal(theirs["attention_mask"], mask)
    assert weights.read(tmp_path / "text").tokenizer["length"] == LENGTH


def test_the_tokenizer_of_clip_gives_the_same_ids(train, tmp_path, data_dir):
    merges = str(data_dir / "text" / "clip_bpe_simple_vocab_16e6.txt.gz")
    node = {"name": "clip", "merges": merges, "length": LENGTH}
    trained = train("clip")
    model = weights.Pretrained(trained.node, trained.variables, SIZE, tokenizer=node)
    weights.save(tmp_path / "out", model)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["text_config"]["eos_token_id"] == 49407
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    captions = [*CAPTIONS, "don't   stop 123 \N{GRINNING FACE} " * 4]
    ids, mask = ClipTokenizer(merges, LENGTH)(captions)
    theirs = theirs(captions, padding="max_length", truncation=True, return_tensors="np")
    np.testing.assert_array_equal(theirs["attention_mask"], mask)
    np.testing.assert_array_equal(theirs["input_ids"][mask], ids[mask])
    read = weights.read(tmp_path / "out").tokenizer
    assert read == node | {"merges": str(tmp_path / "out" / "merges.txt")}

    transformers.AutoTokenizer.from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "v5")
    read = text_files.read(tmp_path / "v5", LENGTH)
    np.testing.assert_array_equal(ClipTokenizer(read["merges"], read["length"])(captions)[0], ids)


PROCESSORS = {
    "ALIGN as published": (
        "EfficientNetImageProcessor",
        dict(do_normalize=False, rescale_factor=1 / 127.5, rescale_offset=True, include_top=False)
        | dict(do_center_crop=True, size=dict(height=40, width=40))
        | dict(crop_size=dict(height=32, width=32)),
    ),
    "EfficientNet": ("EfficientNetImageProcessor", dict(size=dict(height=32, width=32))),
    "CLIP": ("CLIPImageProcessor", {}),
    "ViT": ("ViTImageProcessor", dict(size=dict(height=48, width=48))),
    "ConvNext, for ResNet": ("ConvNextImageProcessor", dict(size=dict(shortest_edge=56))),
    "ConvNext of large images": ("ConvNextImageProcessor", {}),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_what_processors_of_transformers_save_is_read(train, tmp_path, name):
    kind, arguments = PROCESSORS[name]
    processor, picture = getattr(transformers, kind)(**arguments), make_picture()
    weights.save(tmp_path / "out", train("align").tower("image"), format="big_align")
    for old in (tmp_path / "out").glob("*processor*"):
        old.unlink()
    processor.save_pretrained(tmp_path / "processor")
    config = json.loads((tmp_path / "processor" / "preprocessor_config.json").read_text())
    seen = preprocessing.read_processor(config, "a folder")
    check_pixels(processor(picture, return_tensors="np"), seen, picture)


@pytest.mark.parametrize("name", ["align", "clip"])
def test_what_a_processor_of_transformers_saves_is_read(train, tmp_path, name):
    """Version 5 has the image processor in `processor_config.json`."""
    weights.save(tmp_path / "out", train(name))
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "out")
    for file in ("preprocessor_config.json", "tokenizer_config.json", "vocab.txt"):
        (tmp_path / "out" / file).unlink()
    processor.image_processor.image_mean = [0.7, 0.8, 0.9]
    processor.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out" / "vocab.txt").exists()
    loaded = weights.read(tmp_path / "out")
    assert loaded.preprocessing.mean == loaded.model.image_mean == (0.7, 0.8, 0.9)
    assert (loaded.preprocessing.resize, loaded.preprocessing.size) == (40, 32)
    tokenizer = WordPieceTokenizer(loaded.tokenizer["vocabulary"], loaded.tokenizer["length"])
    assert tokenizer.vocab_size == len(PIECES) and tokenizer.length == LENGTH
