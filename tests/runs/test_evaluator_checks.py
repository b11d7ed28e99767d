"""Mistakes in evaluators are told before a run reads anything."""

import pytest

from big_align.config.overrides import load_config
from big_align.core.errors import BrokenDataError
from big_align.evaluators.embedder import Embedder
from big_align.runs import check
from big_align.runs.evaluate import evaluate_all
from tests.run_main import TINY

KNN = (
    "--config.evaluators.near.name=knn",
    "--config.evaluators.near.source.name=digits",
    "--config.evaluators.near.source.split=test",
)
WHAT = (
    r"config.evaluators.near: what = 'feature' is unknown \(did you mean 'features'\?\); "
    "known: features, embedding"
)
FRACTION = (
    r"config.evaluators.near: max_broken_fraction = .* is not a fraction from 0 to 1; write "
    r"--config.evaluators.near.max_broken_fraction=0.01"
)
RANDOM = r"config.evaluators.near.transform = .* changes an image at random"


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        ("knn", {"transform": "resize(8)", "what": "feature"}, WHAT),
        ("linear_probe", {"transform": "resize(8)", "what": "feature"}, WHAT),
        ("knn", {"transform": "resize(8)", "max_broken_fraction": 1.5}, FRACTION),
        ("knn", {"transform": "resize(8)", "max_broken_fraction": "nan"}, FRACTION),
        ("knn", {"transform": "resize(10)|random_crop(8)"}, RANDOM),
        ("knn", {"transform": "resize(8)|flip_horizontal"}, RANDOM),
    ],
)
def test_a_mistake_is_told_before_anything_is_read(kind, flags, message):
    train = [flag.replace("source", "train_source") for flag in KNN[1:]]
    given = [f"--config.evaluators.near.{name}={value}" for name, value in flags.items()]
    config = load_config(TINY, *KNN, *train, *given, f"--config.evaluators.near.name={kind}")
    with pytest.raises(ValueError, match=message):
        check.check_config(config)


def test_broken_examples_name_the_evaluator_and_its_flag():
    def evaluate(embedder):
        raise BrokenDataError("3 of 9 examples are broken")

    told = "config.evaluators.own: 3 of 9 .*; --config.evaluators.own.max_broken_fraction=... sets"
    with pytest.raises(BrokenDataError, match=told):
        evaluate_all({"own": evaluate}, Embedder.__new__(Embedder))
