"""What a loaded model does with files and texts in a line, and what it says when it cannot."""

import contextlib
import dataclasses
import functools
import http.server
import io
import pickle
import random
import threading
import time

import flax.linen as nn
import fsspec
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from PIL import Image

import big_align
from big_align import weights
from big_align.core import progress
from big_align.core.errors import UserError
from big_align.data.images import image_ops
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.sources.array_source import ArraySource
from big_align.data.sources.folder_source import FolderSource
from big_align.data.text.tokenizers import WordTokenizer
from big_align.evaluators import zero_shot
from big_align.evaluators.embedder import Embedder
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.align import Align
from big_align.parallel.meshes import make_mesh
from big_align.use.inference import batched_model, loaded_model
from big_align.weights.formats import architecture
from tests.models.drawn_variables import draw_variables

SIZE = 16
WORDS = ("a", "photo", "of", "dog", "cat", "on", "grass", "red")
RESNET = dict(name="resnet", variant="18", width=8, depths=(1, 1), stem="small")
BERT = dict(
    name="bert", variant="mini", width=16, depth=1, heads=2, mlp_dim=32, vocab_size=16, max_length=8
)
COLORS = dict(image_mean=(0.1, 0.2, 0.3), image_std=(0.4, 0.5, 0.6))
DUAL = dict(image=RESNET, text=BERT, **COLORS)
TOKENIZER = dict(name="words", words=WORDS, length=8)
SEEN = weights.Preprocessing(SIZE, 20, True, *COLORS.values())


def make_pretrained(node, **more):
    image = jnp.zeros((1, SIZE, SIZE, 3))
    text = jnp.ones((1, 1), jnp.int32), jnp.ones((1, 1), bool)
    kind = architecture.kind_of(node)
    inputs = {"dual": (image, *text), "image": (image,), "text": text}[kind]
    variables = draw_variables(architecture.make_model(node), *inputs)
    return weights.Pretrained(node, variables, None if kind == "text" else SIZE, **more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of weights of a small dual encoder."""
    path = tmp_path_factory.mktemp("weights") / "dual"
    pretrained = make_pretrained(DUAL, preprocessing=SEEN, tokenizer=TOKENIZER, temperature=0.1)
    weights.save(path, pretrained, format="big_align")
    return path


@pytest.fixture(scope="module")
def model(folder):
    return big_align.load(folder, batch_size=16)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Paths of images of several sizes, formats and modes; one lies on its side."""
    path, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    (path / "all").mkdir()
    for number, mode in enumerate(["RGB", "RGB", "L", "RGBA", "P", "RGB", "RGB"] * 3):
        shape = (int(rng.integers(20, 50)), int(rng.integers(20, 50)), 3)
        image = Image.fromarray(rng.integers(0, 256, shape).astype(np.uint8)).convert(mode)
        image.save(path / "all" / f"{number:02d}.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    image.convert("RGB").save(path / "all" / "side.jpg", exif=exif, quality=95)
    return sorted(str(file) for file in (path / "all").iterdir())


def test_a_model_tells_in_two_lines_what_it_is_and_where_it_is_from(model, folder):
    told = f"resnet and bert, embeddings of {model.embed_texts('a').shape[1]}; "
    told += f"images of {SIZE} x {SIZE} px; tokenizer words\n from {folder}>"
    assert repr(model) == f"<LoadedModel: {told}" and repr(pickle.loads(pickle.dumps(model))) == (
        repr(model)
    )
    text = model.tower("text")
    assert repr(text) == f"<LoadedModel: bert, embeddings of 16; tokenizer words\n from {folder}>"
    assert text.embed_texts("a").shape == (1, text.embedding_dim)
    made = make_pretrained(RESNET)
    assert repr(made) == f"<Pretrained: resnet, embeddings of 16; images of {SIZE} x {SIZE} px>"
    wide = dataclasses.replace(model, image_size=(32, 16))
    assert "; images of 32 x 16 px; " in repr(wide)
    layer = weights.formats.pretrained.Classifier(("a", "b"), np.zeros((16, 2), np.float32))
    assert "; a classifier of 2 classes" in repr(dataclasses.replace(made, classifier=layer))


def make_evaluator(model, devices):
    """The embedder of an evaluation of the same weights."""
    mesh = make_mesh(devices=jax.devices()[:devices])
    objective = Align(architecture.make_model(model.node), mesh)
    variables = dict(model.variables)
    return Embedder(objective, mesh, 8).use({"model": variables.pop("params")}, variables)


@pytest.mark.slow_repeats
@pytest.mark.parametrize("devices", [8, 1])
def test_embeddings_are_those_of_an_evaluator(model, pictures, devices):
    embedder = make_evaluator(model, devices)
    source = FolderSource(pictures[0].rpartition("/all/")[0])
    with EvalLoader(source, SEEN.transform, 8) as loader:
        expected, readable = embedder.embed_images(loader.images(), loader.num_examples)
    assert readable.all() and len(expected) == len(pictures)
    found = model.embed_images(pictures)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert np.abs(found[0] - found[1]).max() > 1e-3

    texts = ["a dog on grass", "a cat", "a photo of a red cat", "dog"] * 5
    expected = embedder.embed_texts(*model.tokenize(texts))
    found = model.embed_texts(texts)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_an_embedding_depends_neither_on_its_batch_nor_on_the_order(model, pictures):
    together = model.embed_images(pictures)
    order = np.random.default_rng(1).permutation(len(pictures))
    again = model.embed_images([pictures[n] for n in order])
    np.testing.assert_allclose(again, together[order], atol=1e-6)
    for number in (0, 7):
        alone = model.embed_images(pictures[number])
        np.testing.assert_allclose(alone, together[[number]], atol=1e-6)
    texts = [f"a {word}" for word in WORDS] * 3
    together = model.embed_texts(texts)
    np.testing.assert_allclose(model.embed_texts(texts[5:6]), together[5:6], atol=1e-6)


def test_an_image_is_the_same_in_whatever_form_it_is_given(model, pictures):
    for path in (pictures[0], pictures[2], pictures[3], pictures[4], pictures[-1]):
        with open(path, "rb") as file:
            data = file.read()
        fsspec.filesystem("memory").pipe("/given/" + path.rpartition("/")[2], data)
        upright = image_ops.Transform("")(data, random.Random(0))
        forms = [path, "memory://given/" + path.rpartition("/")[2], data]
        forms += [Image.open(path), Image.open(io.BytesIO(data)), upright, jnp.array(upright)]
        forms += [io.BytesIO(data), bytearray(data), memoryview(data)]
        lazy = Image.open(path)
        found = model.embed_images([*forms, lazy, lazy])
        np.testing.assert_allclose(found, found[[0] * len(found)], atol=1e-6)
        with open(path, "rb") as file:  # one image, and not its lines
            np.testing.assert_allclose(model.embed_images(file), found[:1], atol=1e-6)
    stack = np.stack([upright] * 3)
    np.testing.assert_allclose(model.embed_images(stack), found[:3], atol=1e-6)


def test_images_are_read_over_http(model, pictures):
    pytest.importorskip("aiohttp")
    directory = pictures[0].rpartition("/")[0]
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=directory)
    handler.func.log_message = lambda *_: None
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with contextlib.closing(server.socket):
        url = f"http://127.0.0.1:{server.server_port}/"
        names = [path.rpartition("/")[2] for path in pictures[:3]]
        found = model.embed_images([url + name for name in names])
        np.testing.assert_allclose(found, model.embed_images(pictures[:3]), atol=1e-6)
        with pytest.raises(UserError, match=f"{url}none.png: there is no such file"):
            model.embed_images([url + "none.png"])
        server.shutdown()


@pytest.mark.slow_repeats
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
@pytest.mark.parametrize("count", [8, 2, 1])
def test_a_model_works_under_any_mesh_of_its_caller(folder, model, pictures, count, kind):
    expected = model.embed_images(pictures[:3]), model.embed_texts(["a dog", "a cat"])
    named = model.classify(pictures[0], ["dog", "cat"])
    mesh = jax.make_mesh((count,), ("x",), axis_types=(kind,), devices=jax.devices()[:count])
    with jax.set_mesh(mesh):
        for one in (model, big_align.load(folder, batch_size=16)):
            np.testing.assert_allclose(one.embed_images(pictures[:3]), expected[0], atol=1e-6)
            found = one.embed_texts(["a dog", "a cat"])
            np.testing.assert_allclose(found, expected[1], atol=1e-6)
            assert dict(one.classify(pictures[0], ["dog", "cat"])) == pytest.approx(dict(named))
        assert jax.sharding.get_mesh() == mesh


def test_few_programs_are_compiled_for_many_sizes(folder, pictures, monkeypatch):
    traced, embed = [], batched_model.ModelVerbs.embed_image

    def watch(self, params, model_state, batch):
        traced.append(len(batch["image"]))
        return embed(self, params, model_state, batch)

    monkeypatch.setattr(batched_model.ModelVerbs, "embed_image", watch)
    model = big_align.load(folder, batch_size=31)  # 16 is the largest power of two on 8 devices
    for count in (1, 2, 5, 8, 9, 15, 16, 17, 22):
        model.embed_images(pictures[:count])
    assert sorted(traced) == [1, 8, 16]  # 1 is the check of the shape


@pytest.mark.parametrize("size", [1, 8, 100])
def test_broken_images_are_rows_of_nan_or_an_error(folder, pictures, tmp_path, caplog, size):
    model = big_align.load(folder, batch_size=size)
    (tmp_path / "text.jpg").write_text("no image")
    with open(pictures[0], "rb") as file:
        (tmp_path / "cut.png").write_bytes(file.read()[:300])
    given = [pictures[0], f"{tmp_path}/text.jpg", *pictures[1:9], f"{tmp_path}/cut.png"]
    given += [f"{tmp_path}/none.png", b"bytes", *pictures[9:12]]
    found = model.embed_images(given, broken="nan")
    lost = [1, 10, 11, 12]
    assert np.flatnonzero(np.isnan(found).any(axis=1)).tolist() == lost
    assert np.isnan(found[lost]).all()
    expected = model.embed_images(pictures[:12])
    np.testing.assert_allclose(np.delete(found, lost, axis=0), expected, atol=1e-6)
    for number in lost:
        name = given[number] if isinstance(given[number], str) else f"image {number}"
        assert sum(name in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(UserError, match=r"text.jpg: the image cannot be opened .*broken='nan'"):
        model.embed_images(given)
    assert np.isnan(model.embed_images(b"bytes", broken="nan")).all()


FLOATS = np.zeros((8, 8, 3), np.float32)
WRONG = {
    "no such file": (["{tmp}/none.jpg"], "{tmp}/none.jpg: there is no such file; embed_images"),
    "a pattern": ("{tmp}/*.jpg", "there is no such file; glob.glob lists"),
    "not an image": (
        ["{tmp}/text.jpg"],
        r"{tmp}/text.jpg: the image cannot be opened \(none of the formats that are read: JPEG",
    ),
    "a folder": (["{tmp}"], "{tmp} is a folder, not a file"),
    "an empty list": ([], "images is empty; give at least one"),
    "floats": ([FLOATS], r"image 0 is an array of float32, .*uint8 from 0 to 255.*x \* 255"),
    "a stack of floats": (FLOATS[None], "image 0 is an array of float32, whose range is not clear"),
    "wide integers": ([FLOATS.astype(int)], "array of int64, whose range is not clear; give uint8"),
    "gray": ([FLOATS.astype(np.uint8)[..., 0]], r"image 0 is an array \[8, 8\]; .*fromarray"),
    "no pixels": ([np.zeros((0, 8, 3), np.uint8)], r"\[0, 8, 3\]"),
    "an array of text": (np.array("a.jpg"), r"image 0 is an array \[\] of <U5; it must be a path"),
    "a table of paths": (np.full((2, 1), "a.jpg"), r"image 0 is an array \[1\] of <U5; it must be"),
    "a number": ([3], "image 0 is a int; it must be a path"),
    "nothing": (None, "images is a NoneType; give a list"),
}


@pytest.mark.slow  # whether TensorFlow knows the protocol is asked last, and it takes seconds
def test_an_unknown_protocol_is_told_in_a_line(model):
    with pytest.raises(UserError, match="^nowhere://a.jpg: .*nowhere") as caught:
        model.embed_images(["nowhere://a.jpg"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given, message", WRONG.values(), ids=list(WRONG))
def test_what_is_no_image_is_told_in_a_line(model, tmp_path, given, message):
    (tmp_path / "text.jpg").write_text("no image")

    def fill(value):
        return value.replace("{tmp}", str(tmp_path)) if isinstance(value, str) else value

    given = [fill(value) for value in given] if isinstance(given, list) else fill(given)
    with pytest.raises(UserError, match=fill(message)) as caught:
        model.embed_images(given)
    assert "\n" not in str(caught.value)
    if "image 0" in message and "array" in message or message.startswith("image"):
        with pytest.raises(UserError):  # this is no matter of a broken file
            model.embed_images(given, broken="nan")


@pytest.mark.parametrize(
    "given, message",
    [
        ([], "texts is empty; give at least one text"),
        ([b"a"], "text 0 is a bytes; it must be a text"),
        (["a", None], "text 1 is a NoneType"),
        (3, "texts is a int; give a list of texts"),
        (np.array("a dog"), "texts is a ndarray; give a list of texts"),
    ],
)
def test_what_is_no_text_is_told_in_a_line(model, given, message):
    for use in (model.embed_texts, model.tokenize):
        with pytest.raises(UserError, match=message):
            use(given)


def test_one_text_is_one_row(model):
    np.testing.assert_array_equal(model.embed_texts("a dog"), model.embed_texts(["a dog"]))
    for one, several in zip(model.tokenize("a dog"), model.tokenize(["a dog"]), strict=True):
        np.testing.assert_array_equal(one, several)


def test_a_model_in_use_may_be_sent_to_another_process_and_be_a_key(model, pictures):
    zimg, ztxt = model.embed_images(pictures[:2]), model.embed_texts(["a dog"])
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.embed_images(pictures[:2]), zimg)
    np.testing.assert_array_equal(copy.embed_texts(["a dog"]), ztxt)
    assert {model: 1}[model] == 1 and model != copy


def test_gray_that_was_converted_to_32_bits_stays_as_it_is(model):
    gray = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 30), dtype=np.uint8))
    found = model.embed_images([gray, gray.convert("I"), gray.convert("F")])
    np.testing.assert_allclose(found, found[[0, 0, 0]], atol=1e-6)


def test_classes_are_named_by_averaged_templates_and_the_temperature(model, pictures):
    names, templates = ["dog", "red cat", "grass"], ["a photo of a {}.", "{}", "a {} on grass"]
    embedder = make_evaluator(model, 8)
    for given in (None, templates):
        filled = given or ["a photo of a {}."]
        texts = [[template.format(name) for template in filled] for name in names]
        ztxt = zero_shot.embed_classes(embedder, WordTokenizer(WORDS, 8), texts)
        logits = np.float64(model.embed_images(pictures[:3]) @ ztxt.T) / 0.1
        expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        found = model.classify(pictures[:3], names, given)
        for row, pairs in zip(expected, found, strict=True):
            assert [name for name, _ in pairs] == [names[n] for n in np.argsort(-row)]
            assert [p for _, p in pairs] == pytest.approx(sorted(row, reverse=True), abs=1e-5)
    alone = model.classify(pictures[0], names, templates)
    assert dict(alone) == pytest.approx(dict(found[0]), abs=1e-5)
    zimg = model.embed_images(pictures[:3])
    for row, pairs in zip(model.classify(zimg, names, templates), found, strict=True):
        assert dict(row) == pytest.approx(dict(pairs), abs=1e-5)
    assert model.classify(pictures[0], names, "{}") == model.classify(pictures[0], names, ["{}"])
    some = model.classify([pictures[0], "none.jpg"], names, templates, broken="nan")
    assert dict(some[0]) == pytest.approx(dict(found[0]), abs=1e-5) and some[1] == []
    even = model.classify(pictures[0], names, temperature=1e6)
    assert [p for _, p in even] == pytest.approx([1 / 3] * 3, abs=1e-5)


@pytest.mark.slow
def test_names_without_templates_get_those_of_the_run(model, pictures, tmp_path):
    run = dataclasses.replace(model, templates=("a {} on grass", "{}"))
    weights.save(tmp_path / "run", run, format="big_align")
    for each in (run, big_align.load(tmp_path / "run")):
        found = each.classify(pictures[0], ["dog", "cat"])
        assert found == model.classify(pictures[0], ["dog", "cat"], ["a {} on grass", "{}"])
        assert each.classify(pictures[0], ["dog", "cat"], "{}") == model.classify(
            pictures[0], ["dog", "cat"], "{}"
        )
    (tmp_path / "list.json").write_text('{"classes": ["dog", "cat"], "templates": ["red {}"]}')
    found = run.classify(pictures[0], f"{tmp_path}/list.json")
    assert found == model.classify(pictures[0], ["dog", "cat"], ["red {}"])
    # What class texts were trained in comes before what a list has for models that know many.
    trained = dataclasses.replace(run, trained_templates=("a photo of a {}",))
    weights.save(tmp_path / "trained", trained, format="big_align")
    for each in (trained, big_align.load(tmp_path / "trained")):
        found = each.classify(pictures[0], f"{tmp_path}/list.json")
        assert found == model.classify(pictures[0], ["dog", "cat"], ["a photo of a {}"])


def test_what_reads_alike_or_is_unknown_is_told_once(model, pictures, caplog):
    names = ["zebra", "dog", "wolf"]
    for _ in range(2):
        found = dict(model.classify(pictures[0], names))
    assert found["zebra"] == pytest.approx(found["wolf"], abs=1e-6)
    told = "classify: 2 of 3 texts have the same embedding as another one"
    assert caplog.text.count(told) == 1 and "'a photo of a wolf.' among them" in caplog.text
    caplog.clear()
    model.rank(["a dog", "a dog", "a cat"], pictures)  # asked twice, on purpose
    assert not caplog.text
    model.rank(["striped zebra", "a dog", "wild wolf"], pictures)
    assert "queries: 2 of 3 texts have the same" in caplog.text
    assert "queries: of 2 of 3 texts, the tokenizer knows less than half" in caplog.text


def test_the_texts_of_classes_are_embedded_once_for_all_images(model, pictures, monkeypatch):
    model, embedded = loaded_model.LoadedModel.of(model), []
    embed = loaded_model.LoadedModel.embed_texts

    def watch(self, texts):
        embedded.append(len(texts))
        return embed(self, texts)

    monkeypatch.setattr(loaded_model.LoadedModel, "embed_texts", watch)
    first = model.classify(pictures[0], ["dog", "grass"], "{}")
    assert model.classify(pictures[0], ("dog", "grass"), ["{}"]) == first and embedded == [2]
    assert model.classify(pictures[1], ["dog", "grass"], "{}") != first and embedded == [2]
    model.classify(pictures[0], ["grass", "dog"], ["{}", "a {}"])
    assert embedded == [2, 4]
    turned = model.classify(pictures[0], ["grass", "dog"], "{}")
    assert dict(turned) == pytest.approx(dict(first)) and embedded == [2, 4, 2]
    assert len(set(dict(turned).values())) == 2


@pytest.mark.slow
def test_a_classifier_of_its_own_names_classes(model, pictures, tmp_path):
    kernel = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    bias, names = np.float32([0.1, -0.2, 0]), ("cat", "dog", "crane")
    image = jnp.asarray(np.stack([SEEN(path) for path in pictures[:3]]))
    features = model.model.apply(model.variables, image, method="image_features")
    unit = features / jnp.linalg.norm(features, axis=1, keepdims=True)
    for classifier, logits in (
        (weights.Classifier(names, kernel, bias), features @ kernel + bias),
        (weights.Classifier(names, 9 * kernel), 9 * unit @ kernel),
    ):
        trained = loaded_model.LoadedModel.of(model, classifier=classifier)
        found, lone = trained.classify(pictures[:3]), trained.classify(pictures[0])
        tower = trained.tower("image").classify(pictures[:3])
        for row, one, alone in zip(np.asarray(jax.nn.softmax(logits)), found, tower, strict=True):
            np.testing.assert_allclose([dict(one)[name] for name in names], row, atol=1e-5)
            np.testing.assert_allclose([dict(alone)[name] for name in names], row, atol=1e-5)
        assert dict(lone) == pytest.approx(dict(found[0]))
        broken = trained.classify([pictures[0], f"{tmp_path}/none.jpg"], broken="nan")
        assert dict(broken[0]) == pytest.approx(dict(found[0])) and broken[1] == []
    with pytest.raises(UserError, match="no text tower: classify.images. names its own classes"):
        trained.tower("image").classify(pictures[0], ["cat"])
    with pytest.raises(UserError, match="no classifier of its own; give the names of classes"):
        model.classify(pictures[0])


def test_a_class_list_brings_its_templates(model, pictures, tmp_path):
    (tmp_path / "list.json").write_text('{"classes": ["dog", "cat"], "templates": ["a red {}"]}')
    found = model.classify(pictures[0], f"{tmp_path}/list.json")
    assert found == model.classify(pictures[0], ["dog", "cat"], ["a red {}"])
    assert dict(found) != dict(model.classify(pictures[0], ["dog", "cat"]))


@pytest.mark.parametrize(
    "names, templates, message",
    [
        ([], None, "names must be a list of at least one class name"),
        (["dog", ""], None, "names must be a list"),
        (7, None, "names must be a list"),
        ("dogs", None, "class list 'dogs' is neither a file nor a list of the package"),
        (["dog"], ["a photo"], "template 'a photo' needs one {}"),
        (["dog"], [], "no template; '{}' alone"),
    ],
)
def test_classes_that_cannot_be_named_are_told(model, pictures, names, templates, message):
    with pytest.raises(UserError, match=message):
        model.classify(pictures[0], names, templates)


def test_ranking_is_the_order_of_cosines(model, pictures):
    texts = ["a dog", "a red cat on grass"]
    ztxt, zimg = model.embed_texts(texts), model.embed_images(pictures)
    cosine = ztxt @ zimg.T
    order, found = model.rank(texts, pictures)
    np.testing.assert_array_equal(order, np.argsort(-cosine, axis=1))
    np.testing.assert_allclose(found, -np.sort(-cosine, axis=1), atol=1e-6)
    given = model.rank(3 * ztxt, zimg, k=2)  # of any length
    np.testing.assert_array_equal(given.order, order[:, :2])
    np.testing.assert_allclose(given.cosine, found[:, :2], atol=1e-6)
    np.testing.assert_array_equal(model.rank(ztxt[0], pictures).order, order[:1])
    np.testing.assert_array_equal(model.rank(zimg, zimg, k=1).order[:, 0], np.arange(len(zimg)))
    zimg[order[0, 0]] = np.nan
    assert model.rank(texts[0], zimg).order[0].tolist() == [*order[0, 1:], order[0, 0]]


def test_embeddings_that_cannot_be_compared_are_told_in_a_line(model):
    with pytest.raises(UserError, match="embeddings of 16 and of 5 numbers cannot be compared"):
        model.rank("a dog", np.ones((2, 5)))
    with pytest.raises(UserError, match="embeddings of 5 and of 16 numbers cannot be compared"):
        model.classify(np.ones((2, 5)), ["dog"])


@pytest.mark.usefixtures("without_type_checks")
def test_how_many_are_ranked_is_a_whole_number(model):
    rows = np.eye(3, 16, dtype=np.float32)
    assert model.rank("a dog", rows, k=np.int64(2)).order.shape == (1, 2)
    for k in (0, -1, 1.0, np.float32(1), "1"):
        with pytest.raises(UserError, match=r"k is .+; it must be a whole number from 1 on"):
            model.rank("a dog", rows, k=k)
    with pytest.raises(UserError, match="k is 0"):  # before anything is read
        model.rank("a dog", ["missing.jpg"], k=0)


@pytest.mark.parametrize("size", [0, -4])
def test_a_batch_without_rows_is_told(folder, size):
    with pytest.raises(UserError, match=f"batch_size = {size} must be at least 1"):
        big_align.load(folder, batch_size=size).embed_texts("a dog")


@pytest.mark.slow
def test_a_tower_by_itself_embeds_what_it_pools(model, pictures, tmp_path):
    image, text = model.tower("image"), model.tower("text")
    assert isinstance(image, big_align.LoadedModel) and image.tower("image") is image
    # Here the image tower has no projection, so it is all there is of `encode_image`.
    both = model.embed_images(pictures[:3])
    np.testing.assert_allclose(image.embed_images(pictures[:3]), both, atol=1e-6)
    features, _ = text.model.apply(text.variables, *map(jnp.array, model.tokenize(["a dog"])))
    length = np.linalg.norm(features)
    np.testing.assert_allclose(text.embed_texts("a dog"), features / length, atol=1e-6)
    for call, message in (
        (lambda: image.embed_texts(["a dog"]), "no text tower, only resnet for images"),
        (lambda: image.classify(pictures[0], ["dog"]), "no text tower"),
        (lambda: image.rank("a dog", pictures), "no text tower"),
        (lambda: text.embed_images(pictures), "no image tower, only bert for texts"),
    ):
        with pytest.raises(UserError, match=message):
            call()


def test_a_dual_encoder_may_lack_its_texts(pictures):
    node = dict(image=RESNET, text={}, embedding_dim=12, image_projection=True, **COLORS)
    built = architecture.make_model(node)
    assert isinstance(built, DualEncoder)
    image = jnp.zeros((1, SIZE, SIZE, 3))
    variables = jax.jit(functools.partial(built.init, method="encode_image"))(
        jax.random.key(0), image
    )
    variables = jax.tree.map(np.asarray, nn.meta.unbox(variables))
    model = loaded_model.LoadedModel.of(weights.Pretrained(node, variables, SIZE, SEEN))
    assert model.embed_images(pictures[:2]).shape == (2, 12)
    with pytest.raises(UserError, match="the model has no text tower, only resnet for images"):
        model.embed_texts("a dog")


@pytest.mark.slow
def test_what_the_files_do_not_tell_can_be_given(pictures, tmp_path):
    weights.save(tmp_path / "bare", make_pretrained(DUAL), format="big_align")
    bare = big_align.load(tmp_path / "bare")
    with pytest.raises(UserError, match=r"images are preprocessed; give load\(\) the operations"):
        bare.embed_images(pictures)
    with pytest.raises(UserError, match=r"do not say which tokenizer it uses; give load\(\) one"):
        bare.embed_texts("a dog")
    told = big_align.load(tmp_path / "bare", transform=SEEN.transform, tokenizer=TOKENIZER)
    with pytest.raises(UserError, match="the temperature is unknown to the model"):
        told.classify(pictures[0], ["dog", "cat"])
    expected = told.with_transform("resize(4)").with_transform(SEEN.transform)
    np.testing.assert_array_equal(
        told.embed_images(pictures[:2]), expected.embed_images(pictures[:2])
    )
    assert told.classify(pictures[0], ["dog"], temperature=1.0) == [("dog", 1.0)]
    for transform, message in (
        ("resise(8)", "transform: unknown operation 'resise'"),
        ("", "how its images are preprocessed"),
        ("resize(16)|flip_horizontal()", "transform = .* changes an image at random"),
    ):
        with pytest.raises(UserError, match=message):
            big_align.load(tmp_path / "bare", transform=transform).embed_images(pictures)
    for transform in (SEEN.transform, "resize(20)|central_crop(16)|grayscale(1.0)"):
        given = big_align.load(tmp_path / "bare", transform=transform)
        weights.save(tmp_path / transform, given, format="big_align")
        again = big_align.load(tmp_path / transform)
        assert given.preprocessing.transform == again.preprocessing.transform == transform
        assert (again.preprocessing.mean, again.preprocessing.std) == tuple(COLORS.values())
        np.testing.assert_array_equal(
            again.embed_images(pictures[:2]), given.embed_images(pictures[:2])
        )
    uneven = big_align.load(tmp_path / "bare", transform="resize_small(16)")
    with pytest.raises(UserError, match=r"png: the transform makes images of \(16, 16, 3\) and"):
        uneven.embed_images(pictures)
    large = dict(TOKENIZER, words=tuple(f"word{n}" for n in range(40)))
    with pytest.raises(UserError, match="needs a text tower of vocab_size = 43, .* has 16"):
        big_align.load(tmp_path / "bare", tokenizer=large).embed_texts("a dog")


def test_what_cannot_be_loaded_is_told_in_a_line(tmp_path):
    with pytest.raises(FileNotFoundError, match="none: there is no such file or folder"):
        big_align.load(tmp_path / "none")
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "weights.xyz").write_bytes(b"?")
    with pytest.raises(UserError, match="strange is not a workdir, a folder with a config.json"):
        big_align.load(tmp_path / "strange")


def test_damaged_weights_are_told(model, pictures):
    nan = jax.tree.map(lambda x: np.full_like(x, np.nan), dict(model.variables))
    damaged = loaded_model.LoadedModel.of(model, variables=nan)
    for embed, given in ((damaged.embed_images, pictures[:2]), (damaged.embed_texts, "a dog")):
        with pytest.raises(UserError, match="an embedding is not finite"):
            embed(given)


def test_only_long_work_shows_a_bar(model, pictures, monkeypatch, capfd):
    model.embed_images(pictures)
    model.embed_texts(["a dog"])
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(loaded_model, "BAR", loaded_model.BAR | {"delay": 0.05})
    monkeypatch.setattr(progress, "FIRST", 0)  # second between lines
    read = image_ops.Transform.__call__
    monkeypatch.setattr(
        image_ops.Transform, "__call__", lambda *given: (time.sleep(0.05), read(*given))[1]
    )
    model.embed_images(pictures)
    assert f"16/{len(pictures)}" in capfd.readouterr().err
    loaded_model.LoadedModel.of(model, progress=False).embed_images(pictures)
    assert capfd.readouterr().err == ""


def test_an_array_source_and_arrays_embed_alike(model):
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (5, 24, 30, 3)).astype(np.uint8)
    with EvalLoader(ArraySource(images, [["a"]] * 5), SEEN.transform, 8) as loader:
        expected, _ = make_evaluator(model, 8).embed_images(loader.images(), 5)
    np.testing.assert_allclose(model.embed_images(images), expected, atol=1e-6)
