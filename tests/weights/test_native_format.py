"""Our own folders hold any model; what a run has trained scores the same after every way out."""

import json
import shutil

import fsspec
import jax.numpy as jnp
import numpy as np
import pytest

import big_align
from big_align import weights
from big_align.config.overrides import load_config
from big_align.core.errors import UserError, WeightFileError, WeightsMismatch
from big_align.runs import evaluate
from big_align.weights.formats import architecture, native_format
from tests.models.drawn_variables import draw_variables
from tests.run_main import TINY, Run

TEXT = dict(width=16, depth=1, mlp_dim=32, heads=2, vocab_size=20, max_length=8)
RESNET = dict(name="resnet", variant="18", width=8, depths=(1, 1), stem="patch4", drop_path=0.1)
NODES = {
    "resnet and bert": dict(
        image=RESNET,
        text=dict(name="bert", variant="mini", pool="mean") | TEXT,
        embedding_dim=12,
        image_projection=True,
        image_mean=(0.1, 0.2, 0.3),
    ),
    "resnet": RESNET,
    "swin": dict(name="swin", width=8, depths=(1, 1), heads=(1, 2), window=2),
    "roberta": dict(name="roberta") | TEXT,
    "embedding_table": dict(name="embedding_table", vocab_size=20, width=16),
}
PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] a dog".split()
SIZE = 32


def make_pretrained(name, **more):
    node = NODES[name]
    image = jnp.zeros((1, SIZE, SIZE, 3))
    text = jnp.ones((1, 1), jnp.int32), jnp.ones((1, 1), bool)
    kind = architecture.kind_of(node)
    inputs = {"dual": (image, *text), "image": (image,), "text": text}[kind]
    variables = draw_variables(architecture.make_model(node), *inputs)
    return weights.Pretrained(node, variables, None if kind == "text" else SIZE, **more)


@pytest.mark.parametrize("bias", [None, np.ones(3, np.float32)])
def test_a_classifier_goes_out_and_comes_in(tmp_path, bias):
    kernel = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    first = make_pretrained(
        "resnet", classifier=weights.Classifier(("cat", "dog", "crane"), kernel, bias)
    )
    weights.save(tmp_path / "out", first, format="big_align")
    again = weights.read(tmp_path / "out").classifier
    assert again.names == ("cat", "dog", "crane")
    np.testing.assert_array_equal(again.kernel, kernel)
    np.testing.assert_array_equal(again.bias, bias)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(json.dumps(config | {"classes": ["cat"]}))
    with pytest.raises(WeightsMismatch, match=r"a classifier of 1 classes has a kernel \[16, 3\]"):
        weights.read(tmp_path / "out")
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    (tmp_path / "out" / "classifier.safetensors").unlink()
    with pytest.raises(UserError, match="classifier.safetensors"):
        weights.read(tmp_path / "out")


def test_a_classifier_by_hand():
    kernel, features = np.float32([[1, 0], [0, 2]]), np.float32([[3, 4], [0, 5]])
    linear = weights.Classifier(("a", "b"), kernel, np.float32([0.5, 0]))
    np.testing.assert_allclose(linear.compute_logits(features), [[3.5, 8], [0.5, 10]])
    unit = weights.Classifier(("a", "b"), kernel)
    np.testing.assert_allclose(unit.compute_logits(features), [[0.6, 1.6], [0, 2]], rtol=1e-6)


def make_tokenizer(folder):
    folder.mkdir()
    (folder / "pieces.txt").write_text("\n".join(PIECES) + "\n")
    vocabulary = str(folder / "pieces.txt")
    return {"name": "wordpiece", "vocabulary": vocabulary, "length": 8, "lowercase": False}


@pytest.mark.parametrize("name", NODES)
def test_what_goes_out_comes_in_bit_by_bit(tmp_path, monkeypatch, name):
    tokenizer = make_tokenizer(tmp_path / "vocabulary")
    seen = weights.Preprocessing(SIZE, 40, False, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bilinear")
    scale = dict(temperature=0.07, bias=-9.5)
    first = make_pretrained(name, tokenizer=tokenizer, preprocessing=seen, **scale)
    weights.save(tmp_path / "out", first, format="big_align")
    shutil.rmtree(tmp_path / "vocabulary")  # the folder has all that is needed
    again = weights.read(tmp_path / "out")
    assert again.node == first.node and again.image_size == first.image_size
    assert again.preprocessing == seen and again.temperature == 0.07 and again.bias == -9.5
    assert again.tokenizer == tokenizer | {"vocabulary": str(tmp_path / "out" / "pieces.txt")}
    assert (tmp_path / "out" / "pieces.txt").read_text().split() == PIECES
    assert again.flat.keys() == first.flat.keys()
    for path, array in first.flat.items():
        np.testing.assert_array_equal(again.flat[path], array, err_msg=path)

    shutil.move(tmp_path / "out", tmp_path / "elsewhere")
    moved = weights.read(tmp_path / "elsewhere").tokenizer
    assert moved["vocabulary"] == str(tmp_path / "elsewhere" / "pieces.txt")
    monkeypatch.chdir(tmp_path)
    assert weights.read("elsewhere").tokenizer["vocabulary"] == "elsewhere/pieces.txt"


def test_reading_and_writing_name_a_missing_vocabulary(tmp_path):
    tokenizer = make_tokenizer(tmp_path / "vocabulary")
    first = make_pretrained("resnet and bert", tokenizer=tokenizer)
    weights.save(tmp_path / "out", first, format="big_align")
    (tmp_path / "out" / "pieces.txt").unlink()
    with pytest.raises(WeightFileError, match="tokenizer's file .*pieces.txt is missing"):
        weights.read(tmp_path / "out")
    shutil.rmtree(tmp_path / "vocabulary")
    with pytest.raises(UserError, match="its vocabulary in .*pieces.txt, which is missing"):
        weights.save(tmp_path / "again", first, format="big_align")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ('"stem":', '"stern":', "stern is unknown .did you mean 'stem'"),
        ('"patch4"', '"path4"', "stem = 'path4' is unknown .did you mean 'patch4'"),
        ('"variant": "18"', '"variant": "19"', "variant = '19' is unknown"),
    ],
)
def test_a_value_that_a_config_cannot_have_is_told_with_the_folder(tmp_path, before, after, told):
    weights.save(tmp_path / "out", make_pretrained("resnet"), format="big_align")
    config = tmp_path / "out" / "config.json"
    assert before in config.read_text()
    config.write_text(config.read_text().replace(before, after))
    with pytest.raises(WeightsMismatch, match=f"{tmp_path}/out.*: .*{told}"):
        weights.read(tmp_path / "out")


@pytest.mark.usefixtures("without_type_checks")
def test_the_order_of_torch_is_told(tmp_path):
    with pytest.raises(UserError, match=r"save\(path, model\): the model is a str; the path comes"):
        weights.save(make_pretrained("resnet"), str(tmp_path / "out"))


@pytest.mark.parametrize("damage", [lambda text: text[:-5], lambda text: text + b"cat\n"])
def test_a_vocabulary_that_is_not_the_exported_one_is_refused(tmp_path, damage):
    tokenizer = make_tokenizer(tmp_path / "vocabulary")
    first = make_pretrained("resnet and bert", tokenizer=tokenizer)
    weights.save(tmp_path / "out", first, format="big_align")
    file, config = tmp_path / "out" / "pieces.txt", tmp_path / "out" / "config.json"
    weights.save(tmp_path / "again", weights.read(tmp_path / "out"), format="big_align")
    assert (tmp_path / "again" / "config.json").read_text() == config.read_text()
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(WeightFileError, match="out/pieces.txt is not the one that was exported"):
        weights.read(tmp_path / "out")
    former = json.loads(config.read_text())
    del former["vocabulary_sha256"]  # as earlier versions wrote it
    config.write_text(json.dumps(former))
    assert weights.read(tmp_path / "out").tokenizer["vocabulary"] == str(file)


@pytest.mark.parametrize("file", ["model.safetensors", "classifier.safetensors"])
def test_weights_that_are_not_the_exported_ones_are_refused(tmp_path, file):
    kernel = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    classifier = weights.Classifier(("cat", "dog", "crane"), kernel)
    out = tmp_path / "out"
    weights.save(out, make_pretrained("resnet", classifier=classifier), format="big_align")
    content = (out / file).read_bytes()
    first = 8 + int.from_bytes(content[:8], "little")
    for place in (first, (first + len(content)) // 2, len(content) - 1):
        for bit in (1, 0x40):  # of a float, the smallest and a large one
            damaged = bytearray(content)
            damaged[place] ^= bit
            (out / file).write_bytes(damaged)
            with pytest.raises(WeightFileError, match=f"{file} is not the file that was exported"):
                weights.read(out)
    config = json.loads((out / "config.json").read_text())
    sums = config.pop("weights_crc32")
    assert sorted(sums) == ["classifier.safetensors", "model.safetensors"]
    (out / "config.json").write_text(json.dumps(config))
    weights.read(out)  # as of an earlier version, or changed on purpose
    (out / "config.json").write_text(json.dumps(config | {"weights_crc32": 3}))
    with pytest.raises(WeightFileError, match="weights_crc32 is no object"):
        weights.read(out)


def test_the_checksum_of_weights_is_of_names_types_shapes_and_numbers():
    sum_up, zeros = native_format._sum_up, np.zeros((2, 3), np.float32)
    arrays = {"a": zeros, "b": np.ones((), np.float32), "c": np.ones((2, 0), jnp.bfloat16)}
    told = sum_up(arrays)
    assert told == sum_up(dict(reversed(arrays.items())))
    assert told == sum_up(arrays | {"a": np.zeros((3, 2), np.float32).T})
    others = [
        arrays | {"a": zeros.T},
        arrays | {"a": zeros.astype(np.int32)},
        arrays | {"a": -zeros},
        arrays | {"b": np.float32(2)},
        {"a": zeros, "b": arrays["c"], "c": arrays["b"]},
        {"a": zeros, "b": arrays["b"]},
    ]
    assert len({told, *map(sum_up, others)}) == 7


def test_a_vocabulary_in_a_bucket_goes_out_too(tmp_path):
    tokenizer = make_tokenizer(tmp_path / "vocabulary")
    local, path = tokenizer["vocabulary"], f"memory://{tmp_path.name}/pieces.txt"
    fsspec.filesystem("memory").put(local, path)
    first = make_pretrained("resnet and bert", tokenizer=tokenizer | {"vocabulary": path})
    weights.save(tmp_path / "out", first, format="big_align")
    assert (tmp_path / "out" / "pieces.txt").read_text().split() == PIECES


def test_a_vocabulary_in_a_package_goes_out_too(tmp_path, monkeypatch):
    tokenizer = make_tokenizer(tmp_path / "a_vocabulary")
    (tmp_path / "a_vocabulary" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    packaged = tokenizer | {"vocabulary": "package:a_vocabulary/pieces.*"}
    first = make_pretrained("resnet and bert", tokenizer=packaged)
    weights.save(tmp_path / "out", first, format="big_align")
    assert (tmp_path / "out" / "pieces.txt").read_text().split() == PIECES


def test_all_that_differs_from_the_config_is_listed(tmp_path):
    weights.save(tmp_path / "out", make_pretrained("resnet and bert"), format="big_align")
    path = tmp_path / "out" / "config.json"
    config = json.loads(path.read_text())
    config["model"]["image_projection"] = False
    config["model"]["text"] |= {"vocab_size": 21, "depth": 2}
    config["model"]["embedding_dim"] = None
    path.write_text(json.dumps(config))
    with pytest.raises(WeightsMismatch) as caught:
        weights.read(tmp_path / "out")
    message = str(caught.value)
    assert "no place for: " in message and "params/project_image/kernel" in message
    assert "text/block_01/attention/key/kernel is missing" in message
    assert "embedding has shape [20, 16], which gives [20, 16] where the model has [21" in message
    del config["image_size"]
    path.write_text(json.dumps(config))
    with pytest.raises(WeightFileError, match="config.json lacks image_size"):
        weights.read(tmp_path / "out")


def test_a_tower_is_taken_out_of_a_dual_encoder(tmp_path):
    both = make_pretrained("resnet and bert", tokenizer=make_tokenizer(tmp_path / "vocabulary"))
    image, text = both.tower("image"), both.tower("text")
    assert (image.kind, image.image_size, image.tokenizer) == ("image", SIZE, None)
    assert (text.kind, text.image_size, text.tokenizer) == ("text", None, both.tokenizer)
    for part, tower in (("image", image), ("text", text)):
        below = {k: v for k, v in both.flat.items() if k.split("/")[1] == part}
        assert {k.replace(f"/{part}/", "/", 1) for k in below} == tower.flat.keys()
        for path, array in below.items():
            np.testing.assert_array_equal(tower.flat[path.replace(f"/{part}/", "/", 1)], array)
    assert image.tower("image") is image
    with pytest.raises(UserError, match="a tower for images, it has none for texts"):
        image.tower("text")


def score(config, workdir, *flags):
    return evaluate.run(load_config(config, *flags), str(workdir))


def check_exports(tmp_path, workdir, config, formats, *flags):
    """Exports what a run has trained; read back, it must score the same to the last digit."""
    expected = score(config, workdir, *flags)
    assert len(expected) >= 4
    for name in formats:
        weights.save(tmp_path / name, big_align.load(workdir), format=name)
        exported = f"--config.init.all={tmp_path / name}"
        assert score(config, tmp_path / "new", *flags, exported) == expected, name
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["evaluations.jsonl"]


@pytest.mark.slow
def test_an_exported_run_scores_the_same_to_the_last_digit(tmp_path):
    flags = ("--config.average_decay=0.9", "--config.evaluate_batch_size=64")
    run = Run(tmp_path / "run", *flags, devices=1)
    assert run.wait() == 0, run.err
    check_exports(tmp_path, tmp_path / "run", TINY, ["big_align"], *flags)


@pytest.mark.slow
def test_a_run_of_clip_scores_the_same_through_every_format(tmp_path):
    tokenizer = make_tokenizer(tmp_path / "vocabulary")
    config = "tests/weights/tiny_pairs.py:clip"
    flags = (f"--config.tokenizer.vocabulary={tokenizer['vocabulary']}",)
    run = Run(tmp_path / "run", *flags, config=config, devices=1)
    assert run.wait() == 0, run.err
    formats = ["big_align", "transformers", "open_clip"]
    check_exports(tmp_path, tmp_path / "run", config, formats, *flags)


def test_evaluating_weights_that_are_not_all_is_an_error(tmp_path):
    weights.save(tmp_path / "out", make_pretrained("resnet"), format="big_align")
    flags = ("--config.model.image.stem=patch4", f"--config.init.image={tmp_path / 'out'}")
    with pytest.raises(WeightsMismatch, match="no checkpoint, and config.init leaves .* params/"):
        score(TINY, tmp_path / "new", *flags)
