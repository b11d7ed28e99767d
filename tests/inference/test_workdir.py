"""A workdir that has been trained in is loaded and used; docs/use.md does so as it stands."""

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import big_align
from big_align.data.sources.digits import DIGIT_CLASSES, DIGIT_TEMPLATES, DIGIT_WORDS, digits_source
from big_align.runs import build, evaluate, train
from tests import tiny_config
from tests.pages import ROOT, read_blocks

PAGE = "docs/use.md"
STEPS = 100


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The config of a small run, and the folder that holds its workdir."""
    folder = tmp_path_factory.mktemp("trained")
    config = tiny_config.get_config()
    with config.unlocked():
        words = dict.fromkeys([*DIGIT_WORDS, *"a dog on grass dog. cat. of photo".split()])
        config.tokenizer = dict(name="words", words=tuple(words), length=12)
    config.batch_size, config.schedule.learning_rate, config.model.text.dropout = 64, 3e-3, 0.0
    config.total_steps = config.checkpoint.every = STEPS
    train.run(config, str(folder / "workdirs" / "flickr8k"))
    return config, folder


@pytest.mark.slow
def test_what_is_named_first_is_what_zero_shot_counts(trained):
    config, folder = trained
    path = folder / "workdirs" / "flickr8k"
    measured = evaluate.run(config, str(path))["digits/top1"]
    assert 0.15 < measured < 1  # chance is a tenth

    model, source = big_align.load(path), digits_source("test")
    examples = [source.read(0, number) for number in range(int(source.shard_sizes.sum()))]
    images = [example.image for example in examples]
    found = model.classify(images, DIGIT_CLASSES, DIGIT_TEMPLATES)
    right = [
        pairs[0][0] == DIGIT_CLASSES[example.labels[0]]
        for pairs, example in zip(found, examples, strict=True)
    ]
    # Two classes whose cosines agree to the last digit may come in either order.
    close = sum(pairs[0][1] - pairs[1][1] < 1e-5 for pairs in found)
    assert close <= 3
    assert np.sum(right) == pytest.approx(measured * len(found), abs=close + 1e-6)

    embedder, _ = evaluate.load_embedder(config, str(path), build.build_tokenizer(config))
    evaluator = build.build_evaluators(config, build.build_tokenizer(config))["pairs"]
    pairs = evaluator.embed(embedder)
    zimg = model.embed_images(images)[pairs.number]
    np.testing.assert_allclose(zimg, pairs.zimg, atol=1e-6)
    np.testing.assert_allclose(model.embed_texts(pairs.captions), pairs.ztxt, atol=1e-6)


@pytest.mark.slow
def test_the_page_runs_as_it_stands(trained, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for name in ("a.jpg", "b.jpg"):
        pixels = rng.integers(0, 256, (60, 80, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / name, quality=95)
    (tmp_path / "workdirs").symlink_to(trained[1] / "workdirs")
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in read_blocks(PAGE) if block.language == "python"]
    assert len(blocks) == 4
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
    assert pixels.shape == (8, 8, 3)
    zimg = model.model.apply(model.variables, jnp.array(pixels[None]), method="encode_image")
    np.testing.assert_allclose(zimg, model.embed_images([image]), atol=1e-6)
