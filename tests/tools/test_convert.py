"""Conversion on the command line: any direction, and one line for whatever is wrong."""

import json
import pickle
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from big_align import weights
from big_align.config.overrides import load_config
from big_align.tools import convert
from big_align.weights import api
from big_align.weights.arrays.weight_files import write_safetensors
from tests.run_main import ROOT, TINY

pytestmark = pytest.mark.slow


@pytest.fixture
def source(reference_dir, tmp_path):
    """Copies a reference, which a test may damage."""

    def copy(name):
        shutil.copytree(reference_dir / name, tmp_path / name, copy_function=shutil.copyfile)
        (tmp_path / name).chmod(0o755)
        return tmp_path / name

    return copy


def run(path, output, *more):
    return convert.main([f"--input={path}", f"--output={output}", *more])


CHAINS = [  # a reference and the formats that it goes through
    ("hf-clip", "", ["open_clip", "big_align", "transformers"]),
    ("open_clip", "", ["transformers", "big_align", "open_clip"]),
    ("hf-clip", "image", ["timm", "big_align", "transformers"]),
    ("hf-vit", "", ["big_align", "transformers"]),
    ("hf-swin", "", ["timm", "big_align", "transformers"]),
    ("hf-align", "text", ["transformers", "big_align"]),
]


@pytest.mark.parametrize(("name", "part", "formats"), CHAINS)
def test_any_direction_keeps_every_bit(reference_dir, tmp_path, capsys, name, part, formats):
    path = reference_dir / name
    first = weights.read(path)
    for number, format in enumerate(formats):
        output = tmp_path / f"{number}_{format}"
        more = [f"--part={part}"] if part and not number else []
        assert run(path, output, f"--format={format}", *more) == 0
        printed = capsys.readouterr()
        assert printed.out.startswith(f"{output}, for {format}: ") and "parameters" in printed.out
        path = output
    first, last = first.tower(part) if part else first, weights.read(path)
    assert last.flat.keys() == first.flat.keys()
    for key, array in first.flat.items():
        np.testing.assert_array_equal(last.flat[key], array, err_msg=key)
    if first.temperature is not None:
        np.testing.assert_allclose(last.temperature, first.temperature, rtol=1e-6)


def truncate(folder):
    with open(folder / "model.safetensors", "r+b") as file:
        file.truncate(5000)


def mislabel(folder):
    np.savez(folder / "model.npz", a=np.zeros(3))
    shutil.move(folder / "model.npz", folder / "model.safetensors")


def pickle_code(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(print))


def take_from_another(folder):
    arrays = {f"encoder.{n}.weight": np.zeros((99, 99), np.float32) for n in range(9)}
    write_safetensors(folder / "model.safetensors", arrays)


def damage_config(folder):
    (folder / "config.json").write_text('{"model_type": "bert", ')


def change_config(**values):
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def remove(name):
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "model.safetensors .*truncated"),
        (mislabel, "model.safetensors is not a safetensors file .*: it is a zip archive"),
        (pickle_code, "pytorch_model.bin .*pickle"),
        (take_from_another, r"does not hold the model that its config describes:[\s\S]*is missing"),
        (damage_config, "config.json is not JSON: Expecting property name"),
        (remove("model.safetensors"), "has no weights; looked for model.safetensors"),
        (remove("config.json"), "is not a workdir, a folder with a config.json"),
        (change_config(model_type="vit"), "does not hold the model that its config describes"),
        (change_config(model_type="llama"), "model_type = 'llama'; known: align"),
        (change_config(hidden_size="wide"), "width = 'wide' is not of type"),
        (change_config(hidden_size=-1), "hf-bert: text.width = -1 must be above 0"),
        (change_config(num_attention_heads=5), "does not describe a model that can be built.*5"),
        (change_config(vocab_size=[3]), "vocab_size = .* is not of type int"),
    ],
)
def test_a_damaged_file_is_reported_and_nothing_is_written(
    source, tmp_path, capsys, damage, message
):
    folder = source("hf-bert")
    damage(folder)
    check_error(capsys, folder, tmp_path / "out", message)


def check_error(capsys, path, output, message, *more):
    assert run(path, output, *more) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: ")
    assert "Traceback" not in printed.err
    text = " ".join(printed.err.split())
    assert re.search(message, text), text
    assert not output.exists() and not list(output.parent.glob(".*partial*"))


def test_arrays_that_a_format_lacks_are_reported(source, tmp_path, capsys):
    clip, bert = source("hf-clip"), source("hf-bert")
    out = tmp_path / "out"
    check_error(capsys, clip, out, "timm has image towers only.* --part=image,", "--format=timm")
    check_error(capsys, bert, out, "timm has image towers.*none for texts", "--format=timm")
    check_error(capsys, bert, out, "open_clip has dual encoders only", "--format=open_clip")
    check_error(capsys, bert, out, "tower for texts, it has none for images", "--part=image")
    check_error(capsys, tmp_path / "nowhere", out, "nowhere: there is no such file or folder")


def test_a_tokenizer_without_its_file_is_an_error(source, tmp_path, capsys):
    clip = source("hf-clip")
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] a".split()
    (clip / "vocab.txt").write_text("\n".join(pieces) + "\n")
    assert run(clip, tmp_path / "ours", "--format=big_align") == 0
    capsys.readouterr()
    (tmp_path / "ours" / "vocab.txt").unlink()
    check_error(capsys, tmp_path / "ours", tmp_path / "out", "tokenizer's file .*vocab.txt is miss")
    (clip / "vocab.txt").write_text("a\n")
    check_error(capsys, clip, tmp_path / "out", "the model's tokenizer: .*lacks .PAD.")


def test_a_workdir_without_a_checkpoint_is_an_error(tmp_path, capsys):
    workdir = tmp_path / "run"
    workdir.mkdir()
    config = load_config(str(ROOT / TINY))
    (workdir / "config.json").write_text(config.to_json_best_effort())
    check_error(capsys, workdir, tmp_path / "out", "no checkpoints in .*run: train with")
    (workdir / "config.json").write_text('{"objective": {}}')
    check_error(capsys, workdir, tmp_path / "out", "config.json lacks average_decay, ")


def test_existing_files_are_not_overwritten(source, tmp_path, capsys):
    bert, output = source("hf-bert"), tmp_path / "out"
    output.mkdir()
    (output / "notes.txt").write_text("mine")
    assert run(bert, output) == 1
    assert "exists; give a folder that is empty or does not exist" in capsys.readouterr().err
    assert [path.name for path in output.iterdir()] == ["notes.txt"]


def test_help_names_all_formats():
    command = [sys.executable, "-m", "big_align.tools.convert", "--help"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for word in ("--input", "--output", "--part", *api.FORMATS):
        assert word in text
    assert max(map(len, text.splitlines())) <= 100
