"""A suite as an evaluator: the numbers of each data set, and the mean that its paper reports."""

import json

import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.suites import catalog
from big_align.suites.measuring.evaluator import NamedBenchmark, NamedSuite
from big_align.suites.measuring.outcomes import Outcome
from tests.data.samples import write_tar
from tests.suites.measuring import small
from tests.suites.measuring.test_runner import make_embedder

LABELS = [0, 1, 1, 1, 3, 4, 8, 8, 9, 9, 5, 6]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """CIFAR-10, and STL-10 as CLIP_benchmark has it."""
    root = tmp_path_factory.mktemp("data")
    small.write_cifar(root)
    (layout,) = [x for x in catalog.read_benchmark("stl10").layouts if x.kind == "clip_benchmark"]
    folder = root / f"wds_{layout.name}"
    (folder / layout.splits["test"]).mkdir(parents=True)
    (folder / "classnames.txt").write_text("".join(f"{name}\n" for name in layout.own_names))
    (folder / layout.splits["test"] / "nshards.txt").write_text("1\n")
    write_tar(folder / layout.splits["test"] / "0.tar", small.list_members(LABELS, 0))
    return root


@pytest.fixture
def pair(monkeypatch):
    """A suite of the two, with templates of its own."""
    suites = dict(catalog._read_suites())
    templates = {"": ["the {}"], "stl10": ["a photo of {}"]}
    suites["pair"] = dict(
        about="Two", tables=[], benchmarks=["cifar10", "stl10"], measure="accuracy",
        templates=templates,
    )  # fmt: skip
    monkeypatch.setattr(catalog, "_read_suites", lambda: suites)
    catalog.read_suite.cache_clear()
    yield "pair"
    catalog.read_suite.cache_clear()


def test_the_mean_is_that_of_the_data_sets_and_of_the_command(model, data, pair, tmp_path):
    embedder, tokenizer = make_embedder(model)
    embedder._objective.scale = lambda params: 1 / 0.1  # as the saved model says
    given = str(data), small.SEEN.transform, tokenizer
    evaluate = NamedSuite(pair, *given)
    found = evaluate(embedder)
    assert set(found) == set(evaluate.numbers)
    assert set(evaluate.lower_is_better) == {"ece", "cifar10/ece", "stl10/ece"}
    first = NamedBenchmark("cifar10", *given, templates=("the {}",))(embedder)
    second = NamedBenchmark("stl10", *given, templates=("a photo of {}",))(embedder)
    for name in ("acc1", "acc5"):
        assert found[name] == pytest.approx((first[name] + second[name]) / 2)
        assert found[f"stl10/{name}"] == second[name]
    assert found["score"] == found["acc1"] and first["acc1"] != second["acc1"]

    output = tmp_path / "r.csv"
    assert small.run(model, data, output, benchmarks=pair) == 0
    rows = json.loads(output.with_suffix(".json").read_text())
    assert [row["settings"]["templates"] for row in rows] == [["the {}"], ["a photo of {}"]]
    assert np.mean([row["metrics"]["acc1"] for row in rows]) == pytest.approx(found["score"])


def test_idea_averages_top_1_and_top_5_by_hand(model, monkeypatch):
    """Not the means per class that are the scores of three of its data sets (§4.2)."""
    top1, top5 = np.arange(1, 10) / 100, np.arange(11, 20) / 100
    outcomes = [
        Outcome({"acc1": float(a), "acc5": float(b)}, 0.9, {})
        for a, b in zip(top1, top5, strict=True)
    ]
    places = {name: place for place, name in enumerate(catalog.read_suite("idea9").names)}

    def open_nothing(self, benchmark, *given):
        self.benchmark, self.task = catalog.read_benchmark(benchmark), given[3]

    monkeypatch.setattr(NamedBenchmark, "__init__", open_nothing)
    find = lambda self, embedder: (outcomes[places[self.benchmark.name]], list)  # noqa: E731
    monkeypatch.setattr(NamedBenchmark, "find", find)
    embedder, tokenizer = make_embedder(model)
    found = NamedSuite("idea9", "data", "resize(2)", tokenizer)(embedder)
    assert found["score"] == found["acc1"] == pytest.approx(0.05)
    assert found["acc5"] == pytest.approx(0.15)
    assert found["pets/acc1"] == 0.08 and found["imagenet/acc5"] == 0.19


def test_what_a_suite_needs_is_known_before_it_is_opened():
    assert NamedSuite.needs({"suite": "idea9"}) == ("embed_image", "embed_text")
    probed = NamedSuite.needs({"suite": "unicl18", "task": "linear_probe"})
    assert probed == ("embed_image", "image_features")
    with pytest.raises(UserError, match="no suite 'idea8'.*did you mean 'idea9'"):
        NamedSuite.needs({"suite": "idea8"})
