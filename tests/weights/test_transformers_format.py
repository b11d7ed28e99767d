"""Folders of transformers: golden numbers, and files that come back as they went in."""

import ast
import dataclasses
import json
import re
import shutil
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from big_align import weights
from big_align.core.errors import WeightsMismatch
from big_align.weights.formats import architecture, open_clip_configs, transformers_format
from big_align.weights.formats.transformers_families import FAMILIES
from tests.models.drawn_variables import draw_variables
from tests.run_main import ROOT
from tests.weights.weight_checks import PEAK

TOLERANCE = dict(atol=1e-4, rtol=1e-4)
TOWERS = ("bert", "efficientnet", "mlcd-vision", "resnet", "roberta", "swin", "vit")
DUALS = ("align", "clip")


def read_io(folder):
    """Returns inputs and outputs of a reference, images with channels last."""
    io = dict(np.load(folder / "io.npz"))
    if "pixel_values" in io:
        io["pixel_values"] = io["pixel_values"].transpose(0, 2, 3, 1)
    return io


def apply(loaded, *inputs, **more):
    return loaded.model.apply(loaded.variables, *inputs, **more)


def texts_of(io):
    mask = io.get("attention_mask", np.ones_like(io["input_ids"]))
    return jnp.asarray(io["input_ids"], jnp.int32), jnp.asarray(mask, bool)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOWERS)
def test_towers_give_the_outputs_of_the_reference(reference_dir, name):
    folder = reference_dir / f"hf-{name}"
    io = read_io(folder)
    loaded = weights.read(folder)
    inputs = (jnp.asarray(io["pixel_values"]),) if loaded.kind == "image" else texts_of(io)
    pooled, tokens = apply(loaded, *inputs)
    if name in ("mlcd-vision", "resnet"):  # MLCD's tokens are those before the last normalization
        np.testing.assert_allclose(pooled, io["pooler_output"], **TOLERANCE)
        return
    expected = io["last_hidden_state"]
    if expected.ndim == 4:
        expected = expected.transpose(0, 2, 3, 1).reshape(tokens.shape)
    if name in ("bert", "roberta"):
        real = io["attention_mask"].astype(bool)
        np.testing.assert_allclose(tokens[real], expected[real], **TOLERANCE)
    elif name == "vit":
        np.testing.assert_allclose(pooled, expected[:, 0], **TOLERANCE)
        np.testing.assert_allclose(tokens, expected[:, 1:], **TOLERANCE)
    else:
        np.testing.assert_allclose(tokens, expected, **TOLERANCE)
        np.testing.assert_allclose(pooled, io["pooler_output"].reshape(pooled.shape), **TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("name", DUALS)
def test_dual_encoders_give_the_outputs_of_the_reference(reference_dir, name):
    folder = reference_dir / f"hf-{name}"
    io, loaded = read_io(folder), weights.read(folder)
    zimg = apply(loaded, jnp.asarray(io["pixel_values"]), method="encode_image")
    ztxt = apply(loaded, *texts_of(io), method="encode_text")
    np.testing.assert_allclose(zimg, io["image_embeds"], **TOLERANCE)
    np.testing.assert_allclose(ztxt, io["text_embeds"], **TOLERANCE)
    logits = zimg @ ztxt.T / loaded.temperature
    np.testing.assert_allclose(logits, io["logits_per_image"], **TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOWERS + DUALS)
def test_what_goes_in_comes_out_and_goes_in_bit_by_bit(reference_dir, tmp_path, name):
    folder = reference_dir / f"hf-{name}"
    first = weights.read(folder)
    weights.save(tmp_path / "out", first)
    again = weights.read(tmp_path / "out")
    assert again.node == first.node and again.temperature == first.temperature
    assert again.flat.keys() == first.flat.keys()
    for path, array in first.flat.items():
        np.testing.assert_array_equal(again.flat[path], array, err_msg=path)

    theirs, ours = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "out"))
    if name == "mlcd-vision":  # 5.23 wrote it without the prefix that 5.0 needs and 5.23 removes
        assert all(key.startswith("vision_model.") for key in ours)
        ours = {key.removeprefix("vision_model."): array for key, array in ours.items()}
    assert theirs.keys() == ours.keys()
    for key, array in theirs.items():
        if "token_type_embeddings" in key:  # texts have one segment: the second is not kept
            array, ours[key] = array[:1], ours[key][:1]
        np.testing.assert_array_equal(ours[key], array, err_msg=key)

    configs = [json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "out")]
    for key in configs[1].keys() & configs[0].keys() - {"architectures"}:
        if not isinstance(configs[1][key], dict):
            assert configs[1][key] == configs[0][key], key


@pytest.fixture
def bert(reference_dir, tmp_path):
    """A copy of a reference that a test may damage."""
    folder = tmp_path / "bert"
    shutil.copytree(reference_dir / "hf-bert", folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    return folder


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_all_arrays_that_do_not_fit_are_listed(bert):
    change_config(bert, hidden_size=64, vocab_size=111)
    with pytest.raises(WeightsMismatch) as caught:
        weights.read(bert)
    assert "word_embeddings.weight has shape [110, 32]" in str(caught.value)
    assert "query.weight has shape [32, 32]" in str(caught.value)


def test_a_deeper_model_than_the_config_is_an_error(bert):
    change_config(bert, num_hidden_layers=1)
    with pytest.raises(WeightsMismatch, match=r"no place for: encoder\.layer\.1"):
        weights.read(bert)


def test_what_is_not_supported_is_named(bert):
    change_config(bert, hidden_act="silu")
    with pytest.raises(WeightsMismatch, match="hidden_act = 'silu' has no counterpart"):
        weights.read(bert)
    change_config(bert, hidden_act="gelu", model_type="t5")
    with pytest.raises(WeightsMismatch, match="model_type = 't5'; known: align, .*vit"):
        weights.read(bert)


def test_a_model_with_a_head_is_read_without_it(bert):
    path = bert / "model.safetensors"
    arrays = {f"bert.{name}": array for name, array in load_file(path).items()}
    save_file(arrays | {"cls.predictions.bias": np.zeros(110, np.float32)}, path)
    with_head = weights.read(bert)
    assert "cls.predictions.bias" not in with_head.flat


def test_a_model_that_transformers_does_not_have_writes_nothing(reference_dir, tmp_path):
    loaded = weights.read(reference_dir / "hf-vit")
    node = dict(loaded.node) | {"pool": "mean"}
    mean = weights.Pretrained(node, loaded.variables, loaded.image_size)
    with pytest.raises(WeightsMismatch, match="ViTModel needs pool='cls'"):
        weights.save(tmp_path / "out", mean)
    assert not list(tmp_path.iterdir())


def test_all_that_a_class_of_transformers_does_not_have_is_told_at_once(reference_dir, tmp_path):
    loaded = weights.read(reference_dir / "hf-clip")
    image = dict(loaded.node["image"]) | {"pool": "mean", "positions": "rotary"}
    node = dict(loaded.node) | {"image": image, "projection_bias": True}
    with pytest.raises(WeightsMismatch) as caught:
        weights.save(tmp_path / "out", dataclasses.replace(loaded, node=node))
    told = next(line for line in str(caught.value).splitlines() if "CLIPModel" in line)
    assert "it needs projection_bias=False, not True" in told
    assert (
        "CLIPVisionModel needs pool='cls', not 'mean' and positions='learned', not 'rotary'" in told
    )
    assert str(caught.value).endswith("--format=big_align keeps every model")
    assert not list(tmp_path.iterdir())


def read_settings(cell: str) -> dict:
    """Returns the settings that a cell of a table names, as in `pool="cls"`."""
    return {name: ast.literal_eval(value) for name, value in re.findall(r"`(\w+)=([^`]+)`", cell)}


def list_needs(model_type: str) -> dict:
    """Returns what a tower must be to fit a model type of transformers."""
    family = FAMILIES[model_type]
    needed = {"name": family.tower} | dict(family.always)
    return {name: value for name, value in needed.items() if name != "variant"}


def test_the_page_lists_what_a_class_needs():
    page = (ROOT / "docs/weights.md").read_text()
    rows = [row.split(" | ") for row in re.findall(r"^\| (`\w+Model`.*) \|$", page, re.M)]
    settings = [[read_settings(cell) for cell in cells] for _, *cells in rows]
    duals = transformers_format.DUALS.values()
    for (title, *_), found, dual in zip(rows, settings, duals, strict=True):
        assert f"`{dual.architecture}`" in title
        assert found == [list_needs(dual.image), list_needs(dual.text), dual.always]
    assert "open_clip" in rows[1][0]
    outside = open_clip_configs.DUAL
    assert settings[1] == [open_clip_configs.IMAGE_TOWER, open_clip_configs.TEXT_TOWER, outside]


@pytest.mark.parametrize("name", ["align", "clip"])
def test_a_bias_that_transformers_does_not_have_is_told(reference_dir, tmp_path, caplog, name):
    loaded = weights.read(reference_dir / f"hf-{name}")
    weights.save(tmp_path / "plain", loaded)
    assert not caplog.text
    weights.save(tmp_path / "out", dataclasses.replace(loaded, bias=-9.5))
    assert "Model has no bias for pairs: -9.5 is left out" in caplog.text
    assert weights.read(tmp_path / "out").bias is None


def test_a_swin_with_maps_smaller_than_a_window_writes_nothing(tmp_path):
    node = dict(name="swin", variant="tiny", width=8, depths=(1, 1), heads=(1, 2), window=4)
    for size in (24, 32):  # the last maps have 3 and 4 positions along an edge
        variables = draw_variables(architecture.make_model(node), jnp.zeros((1, size, size, 3)))
        pretrained = weights.Pretrained(node, variables, size)
        if size == 32:
            weights.save(tmp_path / "out", pretrained, format="transformers")
            continue
        with pytest.raises(WeightsMismatch, match="window=4 needs images of 25 pixels or more"):
            weights.save(tmp_path / "out", pretrained, format="transformers")
        assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_reading_two_gigabytes_takes_less_than_two_and_a_half(tmp_path):
    """The whole process counts, in a fresh interpreter: what is read and all libraries."""
    node = {"name": "bert", "variant": "large", "depth": 37}
    shapes = architecture.expected_shapes(node, None)
    empty = {path: np.broadcast_to(np.float32(0.5), shape) for path, shape in shapes.items()}
    weights.save(tmp_path / "big", weights.Pretrained(node, architecture.unflatten(empty)))
    assert (tmp_path / "big" / "model.safetensors").stat().st_size > 1.99e9
    code = f"""
from big_align import weights
loaded = weights.read({str(tmp_path / "big")!r})
assert sum(array.nbytes for array in loaded.flat.values()) > 1.99e9
{PEAK}"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    shutil.rmtree(tmp_path / "big")
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 2.5e9
