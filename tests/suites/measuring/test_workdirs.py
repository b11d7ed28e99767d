"""A workdir keeps what was measured of it, and is not measured on what it was trained on."""

import pytest

from big_align.config.config_files import CONFIG_JSON
from big_align.config.defaults import complete_config
from big_align.data.sources.tar_source import TarSource
from big_align.runs import train
from big_align.suites.measuring.trained_on import TrainedExamples
from big_align.training.logs.evaluations import read_evaluations
from tests import tiny_config
from tests.data.samples import write_tar
from tests.suites.measuring import small

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    small.write_cifar(root, test=40)
    return root


def make_config(data, split):
    config = tiny_config.get_config()
    config.total_steps, config.checkpoint.every = 2, 2
    path = str(data / "cifar10" / f"{split}-*.tar")
    config.data.source = dict(name="tar", path=path, caption="", label="cls")
    config.data.classes = "cifar10"
    config.data.transform = f"resize({small.SIZE})"
    config.tokenizer = small.TOKENIZER
    config.model.text.vocab_size = len(small.SPOKEN) + 3
    config.schedule.warmup_steps = 0
    config.evaluators = dict(
        named=dict(
            name="benchmark", benchmark="cifar10", data=str(data),
            transform=f"resize({small.SIZE})",
        ),
    )  # fmt: skip
    return complete_config(config)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "trained"
    train.run(make_config(data, "train"), str(workdir))
    return workdir


def test_a_run_reports_a_named_benchmark_as_the_command_does(trained, data, tmp_path):
    transform = f"resize({small.SIZE})"
    given = dict(benchmarks="cifar10", transform=transform)
    assert small.run(trained, data, tmp_path / "r.csv", **given) == 0
    reported, measured = read_evaluations(trained)
    assert (reported["mode"], measured["mode"]) == ("train", "eval")
    assert measured["step"] == 2 and measured["checkpoint"].endswith("checkpoints/2")
    numbers = {name.partition("/")[2]: x for name, x in measured["numbers"].items()}
    assert set(measured["numbers"]) == {f"cifar10_zero_shot/{name}" for name in numbers}
    expected = {name.removeprefix("named/"): x for name, x in reported["numbers"].items()}
    assert numbers == pytest.approx(expected, abs=1e-6)
    # What is there already is neither measured nor written again.
    assert small.run(trained, data, tmp_path / "r.csv", **given) == 0
    assert len(list(read_evaluations(trained))) == 2


def test_a_split_that_was_trained_on_is_refused(data, tmp_path, capsys):
    config, workdir = make_config(data, "test"), tmp_path / "cheat"
    config.evaluators = {}
    train.run(complete_config(config), str(workdir))
    given = dict(benchmarks="cifar10", transform=f"resize({small.SIZE})")
    assert small.run(workdir, data, tmp_path / "r.csv", **given) == 1
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("cifar10:")]
    assert "was trained on its test split: 40 of" in line
    assert "test-00000.tar: 10000 the first" in line and "--allow_trained" in line
    assert small.run(workdir, data, tmp_path / "r.csv", **given, allow_trained=True) == 0
    # The same names and keys, but other images, are no overlap.
    small.write_cifar(tmp_path / "other", test=40, drawn=1)
    assert small.run(workdir, tmp_path / "other", tmp_path / "o.csv", **given) == 0


def test_two_models_share_an_output_and_a_page(trained, data, tmp_path):
    model, page = small.save_model(tmp_path / "dual"), tmp_path / "page.html"
    given = dict(benchmarks="cifar10", transform=f"resize({small.SIZE})", page=page)
    for path in (trained, model):
        assert small.run(path, data, tmp_path / "r.csv", **given) == 0
    rows = (tmp_path / "r.csv").read_text().splitlines()
    assert len(rows) == 3 and str(trained) in rows[1] and str(model) in rows[2]
    text = page.read_text()
    assert "2 models" in text and text.count('class="track own"') == 2


def write_config(workdir, config):
    workdir.mkdir()
    (workdir / CONFIG_JSON).write_text(config.to_json())
    return TrainedExamples(workdir)


def test_shards_of_one_name_are_told_apart_and_first_runs_count(data, tmp_path):
    shards = {part: tmp_path / "wds_x" / part / "0.tar" for part in ("test", "train")}
    for (part, path), labels in zip(shards.items(), ([0, 1], [1, 2, 3]), strict=True):
        path.parent.mkdir(parents=True)
        write_tar(path, small.list_members(labels, 0, drawn=len(part)))
    config = make_config(data, "train")
    config.data.source.path = str(tmp_path / "wds_x" / "*" / "0.tar")
    both = write_config(tmp_path / "both", config)
    for path in shards.values():
        source = TarSource(str(path), "", "cls")
        assert len(both.find(source)) == source.shard_sizes.sum()
    config.data.source.path = str(shards["train"])
    with config.unlocked():
        config.first = make_config(data, "train").copy_and_resolve_references()
        config.first.data.source.path = str(shards["test"])
    two_runs = write_config(tmp_path / "two_runs", config)
    assert len(two_runs.find(TarSource(str(shards["test"]), "", "cls"))) == 2
    config.first = {}
    one_run = write_config(tmp_path / "one_run", config)
    assert one_run.find(TarSource(str(shards["test"]), "", "cls")) == []
