"""What experiments stand on: rows, trials, intervals, drawn pairs, planted noise."""

import fnmatch
import json
import pathlib
import re

import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from big_align.data.sources.parquet_source import ParquetSource
from big_align.data.sources.tar_source import TarSource
from big_align.runs import check
from experiments import (
    align,
    class_splits,
    idea,
    layers,
    mlcd,
    noise,
    run,
    tables,
    training,
    trials,
    unicl,
)
from experiments.experiment import Experiment, Row, Table
from experiments.table import EXPERIMENTS
from experiments.training import Shared, Training
from tests.data.samples import encode_image, make_pixels, write_tar


def list_rows(name):
    """Yields the rows of an experiment that are trained."""
    for each in EXPERIMENTS[name].tables.values():
        for title, row in each.rows.items():
            for part in row.trained:
                yield title, part


def configure(name, row, split, rate=1e-3, output="folder"):
    """Returns the config of a training."""
    return training.configure(EXPERIMENTS[name], Training(row, split, rate, 0, output))


SMALL = Experiment(
    "question",
    "paper",
    "page",
    {
        "table": Table(
            {
                "a": Row("a"),
                "b": Row("b"),
                "b again": Row("b_probe", tuned_as=Row("b")),
                "both": Row("both", joined={"A": Row("a"), "B": Row("b")}),
            },
            baselines=("b",),
        )
    },
    {"X": "x"},
    seeds=2,
    rates=(0.1, 0.2, 0.4),
    join=lambda runs: {"x": runs["A"]["x"] + runs["B"]["x"]},
)
BEST = {"a": 0.2, "b": 0.4}


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Runs an experiment whose trials are counted; returns them, and what is printed."""
    monkeypatch.setitem(EXPERIMENTS, "small", SMALL)
    trained = []

    def run_trials(todo, call, output):
        trained.extend(trial.name for trial in todo)
        for trial in todo:
            _, given = trial.arguments
            x = 0.01 * given.seed + (0.3 if given.row.key == "a" else 0.1)
            if given.split == "dev":
                x = 1 - abs(given.rate - BEST[given.row.key])
            line = json.dumps({"name": trial.name, "seconds": 7, "numbers": {"x": x}})
            with (output / trials.FILE).open("a") as file:
                file.write(line + "\n")
        return trials.read_records(output / trials.FILE)

    monkeypatch.setattr(trials, "run_trials", run_trials)

    def call(*arguments):
        given = ["run.py", "small", f"--output={tmp_path}", *arguments]
        monkeypatch.setattr("sys.argv", given)
        trained.clear()
        run.main()
        return list(trained)

    return call


def test_rows_are_tuned_then_measured_and_found_again(small, capsys):
    assert small("--plan") == [] and "12 trainings" in capsys.readouterr().out
    tuning = [f"{row}-dev-{rate}-100" for row in "ab" for rate in SMALL.rates]
    test = [f"{row}-test-{rate}-{n}" for row, rate in BEST.items() for n in (0, 1)]
    test += [f"b_probe-test-0.4-{n}" for n in (0, 1)]  # its rate is that of b
    assert sorted(small()) == sorted(tuning + test)
    printed = capsys.readouterr().out
    assert printed.count("6 trainings") == 2
    lines = printed.splitlines()
    assert "| | X | learning rates |" in lines and "b: the best is at the edge" in printed
    assert "| a | 30.5 ± 6.4 | 0.2 |" in lines and "| b | 10.5 ± 6.4 | 0.4 |" in lines
    assert "| both | 41.0 ± 12.7 | 0.2, 0.4 |" in lines
    at = lines.index("table, difference from b, paired by seed")
    assert lines[at + 4 : at + 7] == [
        "| a | 20.0 ± 0.0 |",
        "| b again | 0.0 ± 0.0 |",
        "| both | 30.5 ± 6.4 |",
    ]
    assert small() == [] and small("--plan") == []
    assert "nothing is left" in capsys.readouterr().out
    assert small("--rows", "a", "--seeds=3") == ["a-test-0.2-2"]
    assert len(small("--steps=4")) == 12  # apart from the whole trainings


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["small", "--seeds=1"], "1 is not 2 or more"),
        (["small", "--rows", "c"], "--rows: there is no 'c', but 'a', 'b'"),
        (["small", "--plot=x.png"], "small has no picture"),
        ([], "--list prints all"),
    ],
)
def test_a_wrong_command_is_told(arguments, told, monkeypatch, capsys):
    monkeypatch.setitem(EXPERIMENTS, "small", SMALL)
    monkeypatch.setattr("sys.argv", ["run.py", *arguments])
    with pytest.raises(SystemExit):
        run.parse_arguments()
    assert told in capsys.readouterr().err


def test_the_interval_is_students():
    mean, half = tables.measure_interval([1.0, 2.0, 3.0])
    assert mean == 2 and half == pytest.approx(4.303 / 3**0.5, abs=1e-3)
    assert tables.format_cell([{"x": 0.5}, {"x": 0.5}], "x") == "50.0 ± 0.0"
    assert tables.format_cell([{"x": 0.5}, {"x": 0.5}], "y") == ""


def test_changes_reach_every_child_and_texts_have_what_names_stand_for():
    config = ConfigDict({"a": {"x": {"path": "", "n": 1}, "y": {"path": ""}}, "b": 0})
    source = {"path": "{data}/{train,dev}-*.tar", "names": ["{data}"]}
    changes = {"a.*.path": "{output}/{split}", "a.x.source": source, "b": 2}
    with config.unlocked():
        training.change(config, changes, dict(data="D", output="O", split="dev"))
    assert config.to_dict() == {
        "a": {
            "x": {
                "path": "O/dev",
                "n": 1,
                "source": {"path": "D/{train,dev}-*.tar", "names": ["{data}"]},
            },
            "y": {"path": "O/dev"},
        },
        "b": 2,
    }


def test_an_epoch_draws_every_photograph_once_with_one_of_its_own_texts():
    counts = np.array([1, 3, 2, 3, 1, 2])
    texts = np.arange(18).reshape(6, 3)
    pairs = layers.Pairs(np.zeros((6, 2)), np.zeros((18, 2)), texts, counts)
    rows, chosen = layers.draw_pairs(pairs, batch=3, steps=400, seed=0)
    assert (np.sort(rows.reshape(200, 6), axis=1) == np.arange(6)).all()
    assert (chosen // 3 == rows).all() and (chosen % 3 < counts[rows]).all()
    often = np.bincount(chosen.ravel(), minlength=18).reshape(6, 3)
    real = np.arange(3) < counts[:, None]
    assert (np.abs(often / (200 / counts[:, None]) - 1) < 0.4)[real].all()
    again = layers.draw_pairs(pairs, batch=3, steps=400, seed=0)
    np.testing.assert_array_equal(again, (rows, chosen))


def test_recalls_of_layers_are_those_of_their_embeddings():
    rng = np.random.default_rng(0)
    image, text = rng.normal(size=(40, 8)), rng.normal(size=(80, 6))
    pairs = layers.Pairs(image, text, np.arange(80).reshape(40, 2), np.full(40, 2))
    made = {
        name: {"kernel": rng.normal(size=(width, 5)), "bias": rng.normal(size=5)}
        for name, width in (("project_image", 8), ("project_text", 6))
    }
    found = layers.measure_layers(pairs, made)
    sides = [
        x @ made[name]["kernel"] + made[name]["bias"]
        for x, name in ((image, "project_image"), (text, "project_text"))
    ]
    zimg, ztxt = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in sides)
    near = np.argsort(-zimg @ ztxt.T, axis=1)[:, :10] // 2
    assert found["image_to_text_r10"] == pytest.approx(
        (near == np.arange(40)[:, None]).any(1).mean()
    )
    near = np.argsort(-ztxt @ zimg.T, axis=1)[:, :10]
    assert found["text_to_image_r10"] == pytest.approx(
        (near == np.arange(80)[:, None] // 2).any(1).mean()
    )


def test_half_of_the_captions_are_replaced_by_noise_of_three_kinds():
    captions = [[f"caption {row} {place}" for place in range(5)] for row in range(2000)]
    texts, kinds = noise.plant(captions)
    share = np.bincount(kinds.ravel()) / kinds.size
    np.testing.assert_allclose(share, [1 / 2, 1 / 6, 1 / 6, 1 / 6], atol=0.02)
    for row, place in np.ndindex(kinds.shape):
        text, own = texts[row][place], text_of_another(texts[row][place], row)
        assert (text == captions[row][place]) == (kinds[row, place] == 0)
        assert own == (kinds[row, place] == 1)
    assert noise.plant(captions)[0] == texts


def test_a_row_without_a_kind_of_noise_has_all_other_texts(tmp_path):
    kinds = noise.plant([["a b c"] * 5] * 50)[1]
    np.save(tmp_path / "kinds.npy", kinds)
    np.save(tmp_path / "kept.npy", kinds == 3)
    kept = {row: noise.find_kept(row, tmp_path) for row in noise.NOISY}
    np.testing.assert_array_equal(kept["raw"], kinds >= 0)
    np.testing.assert_array_equal(kept["cleaned"], kinds == 3)
    np.testing.assert_array_equal(kept["no boilerplate"], kinds < 2)
    np.testing.assert_array_equal(kept["no wrong captions"], kinds != 1)


def test_a_text_tower_learns_the_texts_of_its_row_and_shares_the_photographs(tmp_path, monkeypatch):
    monkeypatch.setattr(noise, "TRAINED", {"dev": 6, "test": 8})
    images = [encode_image(make_pixels(number)) for number in range(8)]
    captions = [[f"photograph {row} text {place}" for place in range(5)] for row in range(8)]
    monkeypatch.setattr(noise, "read_pairs", lambda: (images, captions))
    kept = np.arange(40).reshape(8, 5) % 3 > 0
    monkeypatch.setattr(noise, "mark_kept", lambda output: np.save(output / "kept.npy", kept))
    noise.write_pairs(tmp_path)
    texts, kinds = noise.plant(captions)
    stays = {"raw": kinds >= 0, "clean": kinds >= 0, "cleaned": kept}
    stays |= {"no boilerplate": kinds < 2, "no wrong captions": kinds != 1}
    for title, row in list_rows("noise_text_tower"):
        config = configure("noise_text_tower", row, "test", output=str(tmp_path))
        source = ParquetSource(config.data.source.path, caption=title)
        assert source.shard_sizes.tolist() == [6, 2]
        own = captions if title == "clean" else texts
        for number in range(8):
            shard, index = (0, number) if number < 6 else (1, number - 6)
            example = source.read(shard, index)
            assert example.image == images[number]
            expected = np.array(own[number])[stays[title][number]]
            assert list(example.captions) == expected.tolist()
        dev = configure("noise_text_tower", row, "dev", output=str(tmp_path))
        assert dev.data.source.path == str(tmp_path / "pairs-train.parquet")
        for split, each in (("dev", dev), ("test", config)):
            assert f"flickr8k/{split}-" in each.evaluators.retrieval.source.path


def text_of_another(text, row):
    words = text.split()
    return words[0] == "caption" and int(words[1]) != row


def test_classes_without_labels_in_training_are_in_no_other_part(tmp_path, monkeypatch):
    monkeypatch.setenv("BIG_ALIGN_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(class_splits, "CLASSES", {"seen": 5, "dev": 2, "test": 3})
    names = [f"class {label}" for label in range(10)]
    listed = [{"label": label, "names": name} for label, name in enumerate(names)]
    folder = tmp_path / "data/tiny_imagenet"
    folder.mkdir(parents=True)
    (folder / "classes.json").write_text(json.dumps(listed))
    for split in ("train", "val"):
        images = [(key, encode_image(make_pixels(key)), key % 10) for key in range(30)]
        members = [
            (f"{key:03d}.{ending}", content)
            for key, image, label in images
            for ending, content in (("jpg", image), ("cls", str(label).encode()))
        ]
        write_tar(folder / f"{split}-00000.tar", members)
    output = tmp_path / "classes"
    class_splits.write_classes(Shared(None, (), tmp_path, 5))
    files = {path.name for path in output.glob("*.tar")}
    assert files == {
        *("seen-train.tar", "seen_dev-val.tar", "seen_test-val.tar"),
        *(f"{part}-{split}.tar" for part in ("dev", "test") for split in ("train", "val")),
    }
    found = []
    for part, count in class_splits.CLASSES.items():
        classes = json.loads((output / f"{part}.json").read_text())
        assert [each["label"] for each in classes] == list(range(count))
        found += [each["names"] for each in classes]
        of_val = []
        for path in output.glob(f"{part}[-_]*.tar"):
            source = TarSource(str(path), caption="", label="cls")
            for index in range(source.shard_sizes.sum()):
                key = int(source.key(0, index))
                assert classes[source.read(0, index).label]["names"] == names[key % 10]
                of_val += [key] if "-val" in path.name else []
        assert len(set(of_val)) == len(of_val) == 3 * count
    assert sorted(found) == names


JUDGED = {name: each for name, each in EXPERIMENTS.items() if each.rates and name != "noise"}


@pytest.mark.parametrize("name", [name for name in JUDGED if name != "align"])
def test_nothing_that_chooses_a_setting_is_trained_on_or_looked_at_in_the_end(name):
    for _, row in list_rows(name):
        looked = {}
        for split in ("dev", "test"):
            if split == "dev" and row.tuned_as:
                continue
            config = configure(name, row, split)
            data = config.data
            parts = data.mixture.values() if data.get("mixture") else [data]
            trained = {path for part in parts for path in read_files(part.source)}
            evaluators = config.evaluators.values()
            looked[split] = {x for each in evaluators for x in read_files(each.source)}
            for each in evaluators:  # probes are fitted on labels of the others
                assert not looked[split] & read_files(each.get("train_source") or {})
            if "held_out" not in looked[split]:
                assert name == "cluster_settings" or not looked[split] & trained
            else:
                assert data.hold_out > 0
        assert not looked["test"] & looked.get("dev", set())


def read_files(source):
    """The shards that a source names, of CIFAR-10's train shards each by itself."""
    if source.get("name") in ("benchmark", "held_out"):
        return {
            f"{source.get('benchmark', '')} {source.split}" if "split" in source else "held_out"
        }
    path = source.get("path", "")
    shards = [f"train-0000{number}.tar" for number in range(5)]
    if "cifar10/train" in path:
        return {x for x in shards if fnmatch.fnmatch(x, pathlib.Path(path).name)}
    match = re.search(r"(.*)\{(.*)\}(.*)", path)
    return {match[1] + x + match[3] for x in match[2].split(",")} if match else {path} - {""}


def test_stages_of_labels_hold_out_the_same_and_probes_are_fitted_on_training_images():
    rows = dict(list_rows("labels"))
    supcon = rows["SupCon, then a linear classifier"]
    assert supcon.before.dev == supcon.dev and supcon.rate is None
    for data, table_ in EXPERIMENTS["labels"].tables.items():
        for title, row in table_.rows.items():
            if "probe" not in title:
                continue
            config = configure("labels", row, "test")
            assert list(config.evaluators) == ["linear_probe"] and row.tuned_as in (
                table_.rows.values()
            )
            probe = config.evaluators.linear_probe
            assert "validation_source" not in probe  # it would be fitted on, and by no other row
            if data == "cifar10":
                assert (probe.train_source.split, probe.source.split) == ("train", "test")
                check.check_config(config)
            else:
                names = [pathlib.Path(probe[x].path).name for x in ("train_source", "source")]
                assert names == ["train-*.tar", "test-*.tar"]


def test_classes_are_judged_without_the_photographs_of_others():
    for title, row in list_rows("unseen_classes"):
        config = configure("unseen_classes", row, "test")
        paths = [each.source.path for each in config.evaluators.values()]
        paths += [part.source.path for part in config.data.mixture.values()]
        assert "folder/classes/test-*.tar" in paths
        assert not any("tiny_imagenet" in path for path in paths)
        own = "classification" if title == "both, multi-task" else "zero_shot"
        assert config.evaluators.seen.name == own and config.evaluators.cifar10.name == "zero_shot"


def test_the_probe_is_tuned_by_a_classifier_that_has_not_learned_what_it_is_measured_on():
    numbers = {metric: 0.5 for metric in unicl.UNSEEN.values()}
    probe = {"linear_probe/accuracy": 0.9, "linear_probe/validation_accuracy": 0.7}
    for split, accuracy in (("dev", 0.7), ("test", 0.9)):
        found = unicl.measure_unseen(numbers | probe, "", split)
        assert found == numbers | {"linear_probe/accuracy": accuracy}


def test_described_classes_are_judged_by_the_texts_that_they_are_trained_with():
    for title, row in list_rows("described_classes"):
        described = "descriptions" in title
        for split in ("dev", "test"):
            config = configure("described_classes", row, split)
            labels = config.data.mixture.labels
            assert config.objective.get("template", *labels.templates) == labels.templates[0]
            assert ("{description}" in labels.templates[0]) == described
            assert labels.classes.endswith("seen_described.json") == described
            for name, evaluator in config.evaluators.items():
                if name != "retrieval":
                    assert evaluator.templates == labels.templates
                    assert evaluator.names.endswith("_described.json") == described


@pytest.mark.parametrize("split", ["dev", "test"])
def test_described_classes_are_trained_and_judged_by_what_there_is(split, tmp_path):
    (tmp_path / "classes").mkdir()
    for part in class_splits.CLASSES:
        classes = [{"names": name, "description": f"a {name}"} for name in ("dog", "cat")]
        (tmp_path / f"classes/{part}_described.json").write_text(json.dumps(classes))
    row = dict(list_rows("described_classes"))["iCLIP, descriptions"]
    check.check_config(configure("described_classes", row, split, output=str(tmp_path)))


def test_towers_of_a_table_differ_in_what_it_names():
    for title, row in align.TOWERS["sizes"].rows.items():
        config = configure("align_towers", row, "test")
        lite, depth, _, _, width = title.replace(",", "").lower().split()
        assert config.model.image.variant == lite and f"efficientnet-{lite}-" in config.init.image
        assert (config.model.text.depth, config.model.text.width) == (int(depth[0]), int(width))
    for title, row in align.TOWERS["recipe"].rows.items():
        config = configure("align_towers", row, "test", rate=2.0)
        optimizer, temperature, decay = title.lower().split(", ")
        assert config.optimizer.name == optimizer and config.schedule.decay == decay
        assert config.objective.temperature == float(temperature)
        assert config.schedule.learning_rate == (0.02 if optimizer == "lamb" else 0.002)


def test_numbers_during_training_are_means_over_windows(tmp_path):
    lines = [{"step": 10, "loss": 1.0}]
    lines += [{"step": n, "a": n / 1000, "b": -float(n == 110)} for n in range(10, 1201, 10)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = training.read_windows(tmp_path, ("a", "b"), range(100, 1301, 100), 100)
    assert len(found) == 24  # nothing was logged in the last
    assert found["a/100"] == pytest.approx(0.055)
    assert found["a/1200"] == pytest.approx(1.155)
    assert found["b/100"] == 0 and found["b/200"] == -0.1


@pytest.mark.parametrize("name, steps", [("cluster_cosines", mlcd), ("temperatures", align)])
def test_columns_are_windows_that_are_measured(name, steps):
    last = {int(measure.split("/")[1]) for measure in EXPERIMENTS[name].columns.values()}
    assert last <= set(steps.STEPS)


@pytest.mark.parametrize(
    "name, tuned", [("temperatures", "align_towers"), ("cluster_cosines", "cluster_settings")]
)
def test_numbers_during_training_are_of_the_rate_that_was_best(name, tuned):
    found = trials.read_records(run.find_recorded(tuned))
    others = [(row, configure(tuned, row, "test", rate=1.0)) for _, row in list_rows(tuned)]
    for _, row in list_rows(name):
        own = configure(name, row, "test", rate=1.0)
        same = [
            other.key
            for other, config in others
            if all(config[x] == own[x] for x in ("objective", "model", "data", "schedule"))
            and config.optimizer.name == own.optimizer.name
        ]
        form = EXPERIMENTS[tuned].name

        def score(rate, key=same[0], form=form):
            name = form.format(key=key, split="dev", rate=rate, seed=training.TUNING_SEED)
            return sum(found[name].numbers.values())

        assert row.rate == max(EXPERIMENTS[tuned].rates, key=score)


def test_tags_are_found_at_the_threshold_of_the_paper_and_seen_as_in_training():
    for name in ("found_tags", "tag_texts"):
        for title, row in list_rows(name):
            config = configure(name, row, "test")
            assert config.objective.threshold == (0.3 if "0.3" in title else 0.6)
            assert config.objective.head == "cls" and "flickr8k/train-" in config.data.source.path
            assert ("ToldIdea" in config.objective.name) == ("told" in title)
            assert ("RepeatingIdea" in config.objective.name) == ("nothing new" in title)
            rare = name == "tag_texts" and ("Retain" in title or "Top" in title)
            assert config.data.tags.path == f"folder/{'rare' if rare else 'tags'}.json"
            for evaluator in config.evaluators.values():
                assert evaluator.transform == config.data.transform
                assert evaluator.get("tags", "folder/tags.json") == "folder/tags.json"


def test_a_told_recognizer_finds_what_the_caption_misses_and_nothing_else():
    batch = {
        "tags": jnp.array([[0, -1], [2, -1], [3, -1], [0, -1]]),
        "true_tags": jnp.array([[0, 1, 3], [2, -1, -1], [0, 3, -1], [0, 1, -1]]),
        "mask": jnp.array([True, True, True, False]),
        "correcting": jnp.array([True, True, True, True]),
    }
    desired = {
        idea.ToldIdea: [{1, 3}, set(), {0}, set()],
        idea.RepeatingIdea: [{0}, {2}, {3}, set()],
    }
    for objective, missed in desired.items():
        given, found = objective.find(batch, jnp.zeros((4, 4)))
        assert [set(np.flatnonzero(row)) for row in given] == [{0}, {2}, {3}, {0}]
        assert [set(np.flatnonzero(row)) for row in found] == missed
        early = batch | {"correcting": jnp.zeros(4, bool)}
        assert not objective.find(early, jnp.zeros((4, 4)))[1].any()


def test_precision_is_that_of_all_tags_found_and_steps_without_any_do_not_count():
    steps = [
        {"found_precision": 0.5, "tags_found": 3.0, "found_recall": 0.2},
        {"found_precision": 0.0, "tags_found": 0.0, "found_recall": 0.0},
        {"found_precision": 1.0, "tags_found": 1.0, "found_recall": 0.1},
    ]
    found = idea.describe_found(steps)
    assert found["found_precision"] == 0.625 and np.isclose(found["found_recall"], 0.1)
    assert not any(idea.describe_found([{}]).values())  # contrast alone finds none
