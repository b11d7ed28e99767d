"""A workdir that has been trained in is loaded and used; docs/use.md does so as it stands."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from PIL import Image

import big_align
from big_align.data.sources.digits import DIGIT_TEMPLATES, digits_source
from big_align.evaluators import zero_shot
from big_align.evaluators.retrieval import Retrieval
from big_align.runs import build, command_line, evaluate, train
from tests.pages import ROOT, read_blocks

PAGE = "docs/use.md"
STEPS = 12


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The config of a small run, and the folder that holds its workdir."""
    folder = tmp_path_factory.mktemp("trained")
    config = command_line.load_config("configs/quickstart.py")
    with config.unlocked():
        words = [*config.tokenizer.words, *"a dog on grass dog. cat. of photo".split()]
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
