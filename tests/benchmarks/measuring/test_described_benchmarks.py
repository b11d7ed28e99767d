"""A model that was trained with descriptions is measured with them, by every way of measuring."""

import json
import pathlib

import numpy as np
import pytest

from big_align import load
from big_align.benchmarks import catalog
from big_align.benchmarks.measuring.evaluator import NamedBenchmark
from big_align.benchmarks.opening import open_split
from big_align.configuration.class_templates import find_trained
from big_align.configuration.defaults import complete_config
from big_align.data.derived.relabeled_source import RelabeledSource
from big_align.evaluators.few_shot import FewShot
from big_align.evaluators.text_tuning import FewShotText
from big_align.evaluators.zero_shot import ZeroShot
from big_align.runs import train
from big_align.training.logs.evaluations import read_evaluations
from tests.benchmarks.measuring import small
from tests.benchmarks.measuring.test_runner import make_embedder
from tests.benchmarks.measuring.test_workdirs import make_config

TEMPLATE = "{description} {}."
MEANINGS = {name: f"a photo number {number}." for number, name in enumerate(small.CLASSES.names)}
SHOTS = dict(shots=(1, 2), draws=1)


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    """A model whose run trained class texts in a template with descriptions."""
    path = tmp_path_factory.mktemp("described") / "dual"
    return small.save_model(path, trained_templates=(TEMPLATE,))


@pytest.fixture
def data(tmp_path):
    small.write_cifar(tmp_path / "data")
    return tmp_path / "data"


def write_descriptions(data, meanings=MEANINGS):
    path = data / "descriptions" / "cifar10.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(meanings))


def write_list(path, names):
    classes = [{"name": name, "description": MEANINGS[name]} for name in names]
    path.write_text(json.dumps({"classes": classes, "templates": ["{} of grass"]}))
    return str(path)


@pytest.mark.slow
def test_the_command_measures_what_evaluators_do(described, data, tmp_path):
    write_descriptions(data)
    out, tasks = tmp_path / "r.csv", "zero_shot,few_shot,few_shot_text"
    given = dict(benchmarks="cifar10", tasks=tasks, shots="1,2", draws=1)
    assert small.run(described, data, out, **given) == 0
    found = {task: row["metrics"] for (_, task), row in small.read_rows(out).items()}

    embedder, tokenizer = make_embedder(described)
    cifar, transform = catalog.read_benchmark("cifar10"), small.SEEN.transform
    test, drawn = (open_split(cifar, split, str(data)) for split in ("test", "train"))
    numbers = []
    for order in (np.random.default_rng(0).permutation(10), np.arange(10)):
        names = [small.CLASSES.names[n] for n in order]
        asked = dict(names=write_list(tmp_path / "list.json", names), templates=(TEMPLATE,))
        source = RelabeledSource(test, np.argsort(order).tolist(), "the list")
        shown = ZeroShot(source, transform, tokenizer, **asked)
        assert shown.texts == [[f"{MEANINGS[name][:-1]} {name}."] for name in names]
        numbers.append(shown(embedder))
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-6)
    assert found["zero_shot"]["acc1"] == pytest.approx(numbers[0]["top1"], abs=1e-6)
    assert found["zero_shot"]["acc5"] == pytest.approx(numbers[0]["top5"], abs=1e-6)
    few = FewShot(test, transform, tokenizer, drawn, **asked, **SHOTS, temperature=0.01)
    assert few(embedder) == pytest.approx(found["few_shot"], abs=1e-6)
    tuned = FewShotText(test, transform, tokenizer, drawn, **asked, **SHOTS)
    assert tuned(embedder) == pytest.approx(found["few_shot_text"], abs=1e-6)
    for task in ("zero_shot", "few_shot_text"):
        named = NamedBenchmark(
            "cifar10", str(data), transform, tokenizer, task, **SHOTS, templates=(TEMPLATE,)
        )
        embedder._objective.scale = lambda params: 1 / 0.1  # as the saved model says
        assert named(embedder) == pytest.approx(found[task], abs=1e-6)
        assert set(found[task]) == set(named.numbers)


@pytest.mark.slow
def test_descriptions_are_part_of_what_was_measured(described, data, tmp_path):
    out = tmp_path / "r.csv"
    scores = []
    for meanings in (MEANINGS, MEANINGS, MEANINGS | {"dog": "the dog runs."}):
        write_descriptions(data, meanings)
        assert small.run(described, data, out, benchmarks="cifar10", tasks="zero_shot,knn") == 0
        rows = json.loads(out.with_suffix(".json").read_text())
        scores.append([row["settings"]["task"] for row in rows])
    assert scores == [["zero_shot", "knn"], ["zero_shot", "knn"], ["zero_shot", "knn", "zero_shot"]]
    assert rows[-1]["settings"]["descriptions"][5] == "the dog runs."


@pytest.mark.slow
def test_missing_descriptions_are_a_line_and_other_tasks_go_on(described, data, tmp_path, capsys):
    out = tmp_path / "r.csv"
    given = dict(benchmarks="cifar10", tasks="zero_shot,few_shot_text,knn", shots="1", draws=1)
    assert small.run(described, data, out, **given) == 0
    assert [task for _, task in small.read_rows(out)] == ["knn"]
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("cifar10:")]
    assert "class list cifar10: 10 of 10 classes have no description" in line
    assert f"--classes=cifar10 --output={data}/descriptions/cifar10.json" in line
    # By names alone, or with what the line says.
    assert small.run(described, data, out, benchmarks="cifar10", template="a {name}") == 0
    assert small.read_rows(out)["cifar10", "zero_shot"]["settings"]["templates"] == ["a {}"]
    write_descriptions(data)
    assert small.run(described, data, out, **given) == 0
    assert small.read_rows(out)["cifar10", "zero_shot"]["settings"]["templates"] == [TEMPLATE]


@pytest.mark.slow
def test_a_run_is_evaluated_and_used_by_the_texts_that_it_trains(data, tmp_path):
    write_descriptions(data)
    listed = write_list(tmp_path / "list.json", small.CLASSES.names)
    config = make_config(data, "train")
    config.data.classes = listed
    config.objective = dict(name="iclip", template=TEMPLATE)
    seen = dict(transform=f"resize({small.SIZE})")
    source = dict(name="tar", path=f"{data}/cifar10/test-*.tar", caption="", label="cls")
    zero_shot = dict(name="zero_shot", source=source, names=listed, **seen)
    benchmark = dict(name="benchmark", benchmark="cifar10", data=str(data), **seen)
    config.evaluators = dict(plain=zero_shot, named=benchmark)
    path = tmp_path / "run"
    train.run(complete_config(config), str(path))
    assert small.run(path, data, tmp_path / "r.csv", benchmarks="cifar10", **seen) == 0
    reported, measured = (each["numbers"] for each in read_evaluations(path))
    assert reported["plain/top1"] == pytest.approx(reported["named/acc1"], abs=1e-6)
    assert measured["cifar10_zero_shot/acc5"] == pytest.approx(reported["plain/top5"], abs=1e-6)
    assert measured["cifar10_zero_shot/ece"] == pytest.approx(reported["named/ece"], abs=1e-6)

    model = load(path)
    assert model.trained_templates == (TEMPLATE,)
    image = np.random.default_rng(1).integers(0, 256, (small.SIZE, small.SIZE, 3), np.uint8)
    backward = write_list(tmp_path / "back.json", small.CLASSES.names[::-1])
    asked, turned = (dict(model.classify(image, names)) for names in (listed, backward))
    texts = [f"{meaning[:-1]} {name}." for name, meaning in MEANINGS.items()]
    by_text = dict(model.classify(image, texts, "{}"))
    expected = {name: by_text[text] for name, text in zip(MEANINGS, texts, strict=True)}
    assert asked == pytest.approx(expected, abs=1e-6) and len(set(asked.values())) == 10
    assert turned == pytest.approx(asked, abs=1e-6)
    with pytest.raises(ValueError, match="the given names: 2 of 2 classes have no description"):
        model.classify(image, ["dog", "cat"])


def test_data_that_describe_their_classes_say_how_a_model_is_asked():
    config = make_config(pathlib.Path("data"), "train")
    assert find_trained(config) is None
    config.data.templates = ("a {}", "a photo of a {}, {description}")
    assert find_trained(config) == ("a {}", "a photo of a {}, {description}")
    config.data.mixture = dict(one=dict(templates=("{}: {description}",)))
    assert find_trained(config) is None  # there are two ways
    config.objective = dict(name="iclip", template="a {}")
    assert find_trained(config) == ("a {}",)
