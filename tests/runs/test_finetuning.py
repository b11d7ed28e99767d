"""ALIGN's two stages of fine-tuning in small, on a benchmark of a few pictures."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from big_align.config.overrides import load_config
from big_align.configs import align_finetune
from big_align.core.errors import ConfigError
from big_align.runs import train
from big_align.runs.initial_weights import read_initial_parameters
from big_align.runs.workdir import TrainedRun, read_pretrained
from big_align.suites.catalog import read_benchmark
from tests.run_main import TINY


def write_cifar10(folder):
    """Random pictures in the layout of shards."""
    rng, names = np.random.default_rng(0), read_benchmark("cifar10").classes().names
    folder.mkdir()
    (folder / "classnames.txt").write_text("\n".join(names) + "\n")
    for split in ("train", "test"):
        with tarfile.open(folder / f"{split}-00000.tar", "w") as tar:
            for number in range(24):
                picture = io.BytesIO()
                Image.fromarray(rng.integers(0, 256, (10, 10, 3), np.uint8)).save(picture, "PNG")
                members = {"png": picture.getvalue(), "cls": str(number % 10).encode()}
                for ending, data in members.items():
                    info = tarfile.TarInfo(f"{number:04d}.{ending}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def make_stage(base, head):
    """A stage of the recipe for small data sets, with tiny towers, pictures and steps."""
    config = align_finetune.get_classification(base, "cifar10", head)
    config.batch_size = config.evaluate_batch_size = 16
    config.data.transform = "resize(10)|random_crop(8)"
    config.evaluators.cifar10.transform = "resize(10)|central_crop(8)"
    config.total_steps, config.log_every, config.checkpoint.every = 4, 1, 4
    return config


@pytest.mark.slow
def test_the_classifier_is_trained_alone_and_then_all_layers_but_no_statistics(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(align_finetune, "DATA", str(tmp_path))
    write_cifar10(tmp_path / "cifar10")
    base = load_config(TINY, "--config.evaluators={}", "--config.total_steps=2")
    train.run(base, str(tmp_path / "base"))
    config, head = make_stage(base, head=False), make_stage(base, head=True)
    head.init.image = str(tmp_path / "base")
    config.optimizer.frozen = ("classifier",)  # so that one sees where the second stage starts
    with config.unlocked():
        config.first = head
    numbers = train.run(config, str(tmp_path / "tuned"))
    assert 0 <= numbers["cifar10/top1"] <= 1

    before = read_pretrained(tmp_path / "base").tower("image").flat
    alone, tuned = (read_pretrained(tmp_path / name).flat for name in ("tuned/first", "tuned"))
    for name, array in before.items():
        np.testing.assert_array_equal(array, alone[name])
        if name.startswith("batch_stats"):
            np.testing.assert_array_equal(array, tuned[name])
        elif name.endswith("kernel"):
            assert not np.array_equal(array, tuned[name])

    started, classes = TrainedRun(tmp_path / "tuned/first").read_classifier()
    ended, _ = TrainedRun(tmp_path / "tuned").read_classifier()
    assert started["classifier/bias"].any()  # it begins with zeros
    for name, array in started.items():
        np.testing.assert_array_equal(array, ended[name])
    assert classes.names == read_benchmark("cifar10").classes().names

    config.init.classifier, config.data.classes = str(tmp_path / "tuned"), "stl10"
    params = {"classifier": {name.split("/")[1]: x for name, x in started.items()}}
    with pytest.raises(ConfigError, match="tuned is of other classes than this run's"):
        read_initial_parameters(config, params)


def test_a_classifier_comes_from_a_run_that_has_one(tmp_path):
    config = load_config(TINY)
    assert read_initial_parameters(config, {"classifier": {}}) == ({}, [])
    config.init.classifier = str(tmp_path)
    with pytest.raises(ConfigError, match="config.init.classifier: .* is no workdir of a run with"):
        read_initial_parameters(config, {"classifier": {}})
