"""Processes that read other files under the same paths are told, before they mix or wait."""

import copy
import json
import shutil

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from big_align.config.overrides import load_config
from big_align.core.errors import UserError
from big_align.data.sources.digits import DIGIT_CLASSES, DIGIT_WORDS
from big_align.runs import build, initial_weights, train
from big_align.training.row_tables import Table
from big_align.weights.formats import architecture
from tests.run_main import TINY
from tests.two_processes import run_both
from tests.weights.test_initialize import BERT, VIT, make_dual, save

DIFFERENT = "; all hosts must read the same files"


def find_complaint(monkeypatch, act):
    """Returns what process 1 is told; process 0 waits for no one, and ends with the run."""
    first, second = run_both(monkeypatch, act)
    assert not isinstance(first, Exception), first
    assert isinstance(second, UserError), second
    return str(second)


def make_configs(**changes):
    """The tiny config, and one that stands for the same with other files."""
    config = load_config(TINY)
    other = copy.deepcopy(config)
    other.update_from_flattened_dict({k.replace("__", "."): v for k, v in changes.items()})
    return config, other


def test_the_class_of_an_evaluator_whose_texts_differ_is_named(monkeypatch):
    names = (*DIGIT_CLASSES[:3], "tree", *DIGIT_CLASSES[4:])
    configs = make_configs(evaluators__digits__names=names)

    def act(process):
        words = build.build_tokenizer(configs[0])
        return build.build_evaluators(configs[process], words)

    complaint = find_complaint(monkeypatch, act)
    assert complaint.startswith("process 1 has config.evaluators.digits, texts of class 3 = ")
    assert "tree" in complaint.partition("process 0 has")[0] and complaint.endswith(DIFFERENT)


def test_the_shard_of_an_evaluator_that_differs_is_named(monkeypatch):
    configs = make_configs(evaluators__pairs__source__split="train")

    def act(process):
        return build.build_evaluators(configs[process], build.build_tokenizer(configs[0]))

    complaint = find_complaint(monkeypatch, act)
    assert complaint.startswith("process 1 has config.evaluators.pairs.source, shard 0 = ")


def test_another_tokenizer_is_told_by_its_fingerprint(monkeypatch):
    configs = make_configs(tokenizer__words=(*DIGIT_WORDS[1:], DIGIT_WORDS[0]))

    def act(process):
        train._build(configs[process], configs[process])

    complaint = find_complaint(monkeypatch, act)
    assert complaint.startswith("process 1 has fingerprint of tokenizer = ")


@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16])
def test_initial_weights_that_differ_are_named(monkeypatch, tmp_path, dtype):
    save(tmp_path / "0", VIT)
    config = json.loads((tmp_path / "0/config.json").read_text())
    del config["weights_crc32"]  # the weights are changed on purpose
    (tmp_path / "0/config.json").write_text(json.dumps(config))
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    (file,) = (tmp_path / "1").glob("*.safetensors")
    arrays = safetensors.numpy.load_file(file)
    name = next(name for name in arrays if name.endswith("block_00/mlp/up/bias"))
    arrays = {name: array.astype(dtype) for name, array in arrays.items()}
    safetensors.numpy.save_file(arrays, tmp_path / "0" / file.name)
    safetensors.numpy.save_file(arrays | {name: arrays[name] + arrays[name].dtype.type(1)}, file)
    shapes = architecture.expected_shapes(make_dual(VIT, BERT), 32)

    def act(process):
        initial_weights.read_initial_weights(shapes, {"image": str(tmp_path / str(process))})

    complaint = find_complaint(monkeypatch, act)
    place = "params/image/block_00/mlp/up/bias"
    assert complaint.startswith(f"process 1 has {place} = {np.dtype(dtype)} [32] of SHA-256 ")


def test_centers_of_another_clustering_are_told(monkeypatch, tmp_path):
    centers = np.eye(4, dtype=np.float32)
    for process in range(2):
        folder = tmp_path / str(process)
        folder.mkdir()
        index = {"format": 1, "k": 4, "dim": 4, "objective": [0.5 + process / 10]}
        (folder / "index.json").write_text(json.dumps(index))
        np.save(folder / "centers.npy", centers)
    tables = {"centers": Table(jnp.zeros((4, 4)), ())}

    def act(process):
        folders = {"centers": str(tmp_path / str(process))}
        return initial_weights.start_tables(folders, tables, {"centers": 4})

    complaint = find_complaint(monkeypatch, act)
    assert complaint.startswith("process 1 has config.init.centers = one made as {")
    assert '"objective": [0.6]' in complaint.partition("process 0 has")[0]


@pytest.mark.parametrize("what", ["evaluators", "record"])
def test_processes_that_read_the_same_are_told_nothing(monkeypatch, what):
    config = load_config(TINY)

    def act(process):
        if what == "record":
            return train._build(config, config).record
        return sorted(build.build_evaluators(config, build.build_tokenizer(config)))

    first, second = run_both(monkeypatch, act)
    assert first == second and first
