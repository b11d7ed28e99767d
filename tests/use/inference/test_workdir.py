"""A workdir that has been trained in is loaded and used; docs/use.md does so as it stands."""

import json
import pathlib
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from PIL import Image

import big_align
from big_align.config.defaults import complete_config
from big_align.config.overrides import load_config
from big_align.core.errors import CheckpointMismatch, UserError
from big_align.data.sources.digits import DIGIT_TEMPLATES, DIGIT_WORDS, digits_source
from big_align.data.text.tokenizers import SPECIAL_TOKENS
from big_align.evaluators import zero_shot
from big_align.evaluators.retrieval import Retrieval
from big_align.losses.sigmoid import sigmoid_loss
from big_align.runs import build, evaluate, train, workdir
from tests import labeled_digits
from tests.manual import ROOT, read_blocks

PAGE = "docs/use.md"
STEPS = 12


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The config of a small run, and the folder that holds its workdir."""
    folder = tmp_path_factory.mktemp("trained")
    config = load_config("configs/quickstart.py")
    with config.unlocked():
        words = [*config.tokenizer.words, *"a dog cat on grass of photo".split()]
        config.tokenizer.words = tuple(dict.fromkeys(words))
    config.total_steps = config.checkpoint.every = STEPS
    config.schedule.warmup_steps = 2
    train.run(config, str(folder / "workdirs" / "flickr8k"))
    return config, folder


@pytest.mark.slow
def test_a_workdir_embeds_and_classifies_as_its_evaluators_do(trained):
    config, folder = trained
    path = folder / "workdirs" / "flickr8k"
    tokenizer = build.build_tokenizer(config)
    embedder, _ = evaluate.load_embedder(config, str(path), tokenizer)
    judge = build.build_evaluators(config, tokenizer)["digits"]
    pairs = Retrieval(judge.source, judge.transform, tokenizer).embed(embedder)
    classes = zero_shot.embed_classes(embedder, tokenizer, judge.texts)

    model, source = big_align.load(path), digits_source("test")
    examples = [source.read(0, number) for number in range(int(source.shard_sizes.sum()))]
    images = [example.image for example in examples]
    np.testing.assert_allclose(model.embed_images(images)[pairs.number], pairs.zimg, atol=1e-6)
    np.testing.assert_allclose(model.embed_texts(pairs.captions), pairs.ztxt, atol=1e-6)
    found = model.classify([images[n] for n in pairs.number], judge.names, DIGIT_TEMPLATES)
    expected = scipy.special.softmax(pairs.zimg @ classes.T / model.temperature, axis=1)
    assert np.ptp(expected, axis=1).max() > 1e-3
    assert model.classify([images[n] for n in pairs.number], judge.names) == found
    for row, named in zip(expected, found, strict=True):
        known = dict(zip(judge.names, row.tolist(), strict=True))
        assert dict(named) == pytest.approx(known, abs=2e-5)


@pytest.mark.slow
def test_the_page_runs_as_it_stands(trained, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for name in ("a.jpg", "b.jpg"):
        pixels = rng.integers(0, 256, (60, 80, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / name, quality=95)
    (tmp_path / "workdirs").symlink_to(trained[1] / "workdirs")
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in read_blocks(PAGE) if block.language == "python"]
    assert len(blocks) == 3
    names, seen = {}, []
    for block in blocks:
        code = "\n" * block.line + block.text  # line numbers are those of the page
        exec(compile(code, str(ROOT / PAGE), "exec"), names)
        seen.append(dict(names))
    first, last = seen[0], seen[-1]
    images, texts = first["images"], first["texts"]
    assert images.dtype == np.float32 and texts.shape == (1, images.shape[1])
    np.testing.assert_allclose(np.linalg.norm(images, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(images[1], images[2], atol=1e-6)
    model = first["model"]
    (name, most), (other, least) = model.classify("a.jpg", ["dog", "cat"])
    assert {name, other} == {"dog", "cat"} and most > least and most + least == pytest.approx(1)
    assert sorted(model.rank(texts, images).order[0]) == [0, 1, 2]
    by_names = model.rank("a dog on grass", ["a.jpg", "b.jpg"])
    assert by_names.order[0, 0] == np.argmax(texts @ images[:2].T)
    assert last["found"].tolist() == [True, False]


@pytest.mark.slow
def test_preprocessing_makes_what_the_evaluator_sees(trained):
    model = big_align.load(trained[1] / "workdirs" / "flickr8k")
    image = digits_source("test").read(0, 0).image
    pixels = model.preprocessing(image)
    assert pixels.shape == (16, 16, 3)
    zimg = model.model.apply(model.variables, jnp.array(pixels[None]), method="encode_image")
    np.testing.assert_allclose(zimg, model.embed_images([image]), atol=1e-6)


@pytest.mark.slow
def test_images_are_prepared_as_the_evaluators_say_or_a_guess_is_told(trained, tmp_path, caplog):
    shutil.copytree(trained[1] / "workdirs" / "flickr8k", tmp_path / "copy")
    path = tmp_path / "copy" / "config.json"
    config = json.loads(path.read_text())
    odd, plain = "resize(20)|central_crop(16)|grayscale(1.0)", "resize(height=20)|central_crop(16)"
    for transforms, seen in (
        ([odd], odd),
        ([plain], "resize(20)|central_crop(16)"),
        ([odd, plain], "resize(20)|central_crop(16)"),
        ([None], "resize_small(16)|central_crop(16)"),
    ):
        nodes = [{"name": "own:Judge"} | ({"transform": x} if x else {}) for x in transforms]
        evaluators = {f"judge{number}": node for number, node in enumerate(nodes)}
        path.write_text(json.dumps(config | {"evaluators": evaluators}))
        caplog.clear()
        assert big_align.load(tmp_path / "copy").preprocessing.transform == seen
        told = any("this guess is used" in record.getMessage() for record in caplog.records)
        assert told == (transforms == [None])


@pytest.mark.slow
def test_a_model_of_siglip_has_the_probabilities_that_it_was_trained_by(tmp_path):
    config = load_config("tests/tiny_config.py")
    with config.unlocked():
        config.objective = dict(name="siglip", bias=-3.0)
        config.evaluators = {}
    config.total_steps = config.checkpoint.every = 3
    train.run(config, str(tmp_path / "run"))
    model = big_align.load(tmp_path / "run")
    assert model.bias != -3 and abs(model.bias + 3) < 0.1
    source = digits_source("train")
    zimg = model.embed_images([source.read(0, number).image for number in range(3)])
    ztxt = model.embed_texts(DIGIT_WORDS[:3])
    logits = zimg @ ztxt.T / model.temperature + model.bias
    probability = scipy.special.expit(logits)
    sign = 2 * np.eye(3) - 1
    embedded = map(jnp.asarray, (zimg, ztxt))
    expected = sigmoid_loss(*embedded, 1 / model.temperature, model.bias)
    told = -np.log(np.where(sign > 0, probability, 1 - probability)).sum() / 3
    np.testing.assert_allclose(told, expected, rtol=1e-5)


@pytest.mark.slow
def test_a_workdir_that_is_moved_brings_its_files(tmp_path, monkeypatch):
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    monkeypatch.chdir(tmp_path / "before")
    pieces = [*SPECIAL_TOKENS, *DIGIT_WORDS]
    pathlib.Path("v.txt").write_text("\n".join(pieces) + "\n")
    shard = labeled_digits.write_shard(pathlib.Path("digits.tar"))
    labels = {"source": shard, "classes": labeled_digits.write_names(pathlib.Path("names.json"))}
    pairs = {"source": {"name": "digits", "split": "train"}}
    parts = {"a": labels, "b": labels, "pairs": pairs}  # a and b share their labels
    data = {"mixture": {name: part | {"weight": 0.25} for name, part in parts.items()}}
    data["mixture"]["pairs"]["weight"] = 0.5
    tokenizer = {"name": "wordpiece", "vocabulary": "v.txt", "length": 12}
    config = labeled_digits.get_config(
        "multitask", data, **{"total_steps": 2, "objective.temperature": 0.1}
    )
    config.tokenizer = tokenizer
    train.run(complete_config(config), "trained")
    texts = ["a photo of a three", "zero"]
    expected = big_align.load("trained").embed_texts(texts)
    _, classes = workdir.TrainedRun(pathlib.Path("trained")).read_classifier()
    assert len(classes) == 10

    moved = pathlib.Path("trained").rename(tmp_path / "after" / "trained")
    for name in ("v.txt", "names.json", "digits.tar"):
        pathlib.Path(name).unlink()
    monkeypatch.chdir(tmp_path / "after")
    other = "\n".join([*pieces[:4], *pieces[:3:-1]]) + "\n"
    pathlib.Path("v.txt").write_text(other)  # which is not the vocabulary of the run
    np.testing.assert_array_equal(big_align.load(moved).embed_texts(texts), expected)
    assert workdir.TrainedRun(moved).read_classifier()[1] == classes

    kept = (moved / "files" / "tokenizer.vocabulary.txt").rename("kept.txt")
    with pytest.raises(CheckpointMismatch, match="whose files have changed since"):
        big_align.load(moved)
    pathlib.Path("v.txt").unlink()
    with pytest.raises(UserError, match="no file v.txt; it has to be the one that .* trained with"):
        big_align.load(moved)
    given = big_align.load(moved, tokenizer=tokenizer | {"vocabulary": str(kept)})
    np.testing.assert_array_equal(given.embed_texts(texts), expected)
    with pytest.raises(CheckpointMismatch, match="was trained with the tokenizer"):
        big_align.load(moved, tokenizer={"name": "words", "words": ("a",), "length": 12})
