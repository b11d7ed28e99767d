"""Exported programs compute what the model does, of any number of rows, where there is only JAX."""

import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import big_align
from big_align import weights
from big_align.use.inference.loaded_model import LoadedModel
from big_align.weights import jax_export_format
from big_align.weights.encoders import ModelVerbs
from tests.weights.test_native_format import NODES, SIZE, make_pretrained, make_tokenizer

ROWS = 5
LONE = """
import sys
sys.modules |= dict.fromkeys(["big_align", "flax", "optax", "tensorflow"])  # cannot be imported
import jax
import numpy as np
from safetensors.numpy import load_file
folder, name = sys.argv[1:]
with open(f"{folder}/{name}.jax_export", "rb") as file:
    program = jax.export.deserialize(file.read())
inputs = np.load(f"{folder}/inputs.npz")
weights = load_file(f"{folder}/model.safetensors")
found = jax.jit(program.call)(weights, *[inputs[key] for key in sorted(inputs)])
np.save(f"{folder}/found.npy", found)
"""


def draw_inputs(name: str, pretrained: weights.Pretrained) -> tuple[np.ndarray, ...]:
    """Draws rows of images, or of token ids with their mask."""
    generator = np.random.default_rng(0)
    if name == "encode_image":
        size = pretrained.image_size
        return (generator.integers(0, 256, (ROWS, size, size, 3), dtype=np.uint8),)
    text = pretrained.tower("text").model
    length = (pretrained.tokenizer or {}).get("length") or text.max_length
    ids = generator.integers(1, text.vocab_size, (ROWS, length)).astype(np.int32)
    return ids, np.arange(length) < generator.integers(1, length + 1, (ROWS, 1))


def embed(name: str, pretrained: weights.Pretrained, *inputs: np.ndarray) -> np.ndarray:
    """Embeds by the model itself."""
    verbs, variables = ModelVerbs(pretrained), dict(pretrained.variables)
    encode, fields = verbs.embed_text, ("text", "text_mask")
    if name == "encode_image":
        encode, fields = verbs.embed_image, ("image",)
    batch = dict(zip(fields, map(jnp.asarray, inputs), strict=True))
    return np.asarray(jax.jit(encode)(variables.pop("params"), variables, batch))


def read_programs(folder: pathlib.Path) -> dict[str, jax.export.Exported]:
    """Reads the programs of a folder, by name."""
    found = sorted(folder.glob("*.jax_export"))
    return {path.stem: jax.export.deserialize(bytearray(path.read_bytes())) for path in found}


def check_folder(folder: pathlib.Path, pretrained: weights.Pretrained, names: list[str]) -> None:
    """Checks that the programs of a folder are these, and compute what the model does."""
    programs, arrays = read_programs(folder), load_file(folder / "model.safetensors")
    assert sorted(programs) == names
    for name, program in programs.items():
        assert program.platforms == ("cpu", "cuda", "rocm", "tpu")
        inputs = draw_inputs(name, pretrained)
        wanted, call = embed(name, pretrained, *inputs), jax.jit(program.call)
        np.testing.assert_allclose(call(arrays, *inputs), wanted, atol=2e-6)
        alone = call(arrays, *(array[:1] for array in inputs))  # a row knows nothing of others
        np.testing.assert_allclose(alone, wanted[:1], atol=2e-6)


@pytest.mark.slow_repeats
@pytest.mark.parametrize("name", NODES)
def test_programs_compute_what_the_model_does(tmp_path, name):
    pretrained = make_pretrained(name)
    if pretrained.kind != "image":
        tokenizer = make_tokenizer(tmp_path / "vocabulary") | {"length": 7}
        tokenizer |= {"length": 1} if name == "embedding_table" else {}
        pretrained = make_pretrained(name, tokenizer=tokenizer)
    big_align.save(tmp_path / "out", pretrained, format="jax_export")
    parts = {"dual": ["image", "text"]}.get(pretrained.kind, [pretrained.kind])
    check_folder(tmp_path / "out", pretrained, [f"encode_{part}" for part in parts])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["align", "clip", "mlcd-vision", "vit", "resnet", "bert"])
def test_programs_of_published_kinds(reference_dir, tmp_path, name):
    pretrained = weights.read(reference_dir / f"hf-{name}")
    big_align.save(tmp_path / "out", pretrained, format="jax_export")
    check_folder(tmp_path / "out", pretrained, sorted(read_programs(tmp_path / "out")))


@pytest.mark.parametrize(
    "name", [pytest.param("encode_image", marks=pytest.mark.slow), "encode_text"]
)
def test_jax_alone_runs_a_program(tmp_path, name):
    pretrained = make_pretrained("resnet and bert")
    big_align.save(tmp_path / "out", pretrained, format="jax_export")
    inputs = draw_inputs(name, pretrained)
    np.savez(tmp_path / "out" / "inputs.npz", *inputs)
    command = [sys.executable, "-c", LONE, str(tmp_path / "out"), name]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    found = np.load(tmp_path / "out" / "found.npy")
    np.testing.assert_allclose(found, embed(name, pretrained, *inputs), atol=2e-6)


def test_a_program_takes_images_as_the_folder_prepares_them(tmp_path):
    pretrained = make_pretrained("swin").with_transform("resize_small(64)|central_crop(48)")
    big_align.save(tmp_path / "out", pretrained, format="jax_export")
    program = read_programs(tmp_path / "out")["encode_image"]
    assert program.in_avals[-1].shape[1:] == (48, 48, 3)
    image = np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8)
    pixels = pretrained.preprocessing(image)[None]
    zimg = LoadedModel.of(pretrained, progress=False).embed_images([image])
    arrays = load_file(tmp_path / "out" / "model.safetensors")
    np.testing.assert_allclose(program.call(arrays, pixels), zimg, atol=2e-6)
    again = big_align.load(tmp_path / "out")  # it is a folder of ours, too
    np.testing.assert_array_equal(again.embed_images([image]), zimg)


def test_a_program_runs_on_rows_that_lie_on_several_devices(tmp_path):
    pretrained = make_pretrained("resnet")
    big_align.save(tmp_path / "out", pretrained, format="jax_export")
    call = jax.jit(read_programs(tmp_path / "out")["encode_image"].call)
    arrays = load_file(tmp_path / "out" / "model.safetensors")
    image = np.random.default_rng(0).integers(0, 256, (16, SIZE, SIZE, 3), dtype=np.uint8)
    mesh = jax.make_mesh((8,), ("rows",))
    split, whole = (jax.sharding.NamedSharding(mesh, spec) for spec in (jax.P("rows"), jax.P()))
    found = call(jax.device_put(arrays, whole), jax.device_put(image, split))
    assert {shard.data.shape[0] for shard in found.addressable_shards} == {2}
    np.testing.assert_allclose(found, call(arrays, image), atol=2e-6)


def test_a_tower_that_was_not_stored_has_no_program(tmp_path):
    pretrained = make_pretrained("resnet and bert")
    params = {k: v for k, v in pretrained.variables["params"].items() if k != "text"}
    variables = dict(pretrained.variables) | {"params": params}
    node, size = pretrained.node, pretrained.image_size
    files = jax_export_format.write(weights.Pretrained(node, variables, size))
    assert [name for name in files if name.endswith(".jax_export")] == ["encode_image.jax_export"]
