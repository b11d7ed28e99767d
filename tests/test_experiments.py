"""What experiments in benchmarks/ stand on: trials, intervals, drawn pairs, planted noise."""

import fnmatch
import json
import multiprocessing
import os
import pathlib
import time

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import (
    align_towers,
    cluster_cosines,
    cluster_settings,
    curves,
    described_classes,
    found_tags,
    labels,
    layers,
    noise,
    noise_text_tower,
    tag_texts,
    temperatures,
    trials,
    unseen_classes,
)
from big_align.data.sources.parquet_source import ParquetSource
from big_align.data.sources.tar_source import TarSource
from big_align.runs import check
from tests.data.samples import encode_image, make_pixels, write_tar
from tests.manual import ROOT


def square(number, log):
    with open(log, "a") as file:
        file.write(f"{number} {len(os.sched_getaffinity(0))}\n")
    return {"square": float(number**2)}


@pytest.mark.slow
def test_a_trial_runs_once_on_a_core_of_its_own(tmp_path, capsys):
    log = tmp_path / "log.txt"
    some = [trials.Trial(f"n{n}", {"number": n, "log": str(log)}) for n in (3, 4, 3)]
    assert trials.run_trials(some, square, tmp_path) == {"n3": {"square": 9}, "n4": {"square": 16}}
    more = [*some, trials.Trial("n5", {"number": 5, "log": str(log)})]
    assert trials.run_trials(more, square, tmp_path)["n5"] == {"square": 25}
    assert sorted(log.read_text().splitlines()) == ["3 1", "4 1", "5 1"]
    tuning = {"a": {rate: more[at] for rate, at in ((0.1, 0), (0.2, 1))}, "b": {0.1: more[3]}}
    assert trials.choose_best(tuning, ["square"], square, tmp_path) == {"a": 0.2, "b": 0.1}
    assert "edge" not in capsys.readouterr().out  # of one or two settings, all are
    tuning = {"c": {0.3: more[0], 0.1: more[1], 0.2: more[3]}, "d": tuning["a"] | {0.3: more[0]}}
    assert trials.choose_best(tuning, ["square"], square, tmp_path) == {"c": 0.2, "d": 0.2}
    assert "edge" not in capsys.readouterr().out
    tuning = {"e": {0.2: more[0], 0.1: more[1], 0.3: more[3]}}
    assert trials.choose_best(tuning, ["square"], square, tmp_path) == {"e": 0.3}
    assert "e: the best is at the edge of what was tried, 0.3" in capsys.readouterr().out


def fail_at(number, log):
    if number == 3:
        raise ValueError("diverged")
    return square(number, log)


@pytest.mark.slow
def test_a_trial_that_fails_costs_no_other(tmp_path, capsys):
    log = tmp_path / "log.txt"
    some = [trials.Trial(f"n{n}", {"number": n, "log": str(log)}) for n in (3, 4, 5, 6)]
    with pytest.raises(ValueError, match="diverged"):
        trials.run_trials(some, fail_at, tmp_path)
    assert trials.read_trials(tmp_path / trials.FILE).keys() == {"n4", "n5", "n6"}
    assert "n3 failed: diverged" in capsys.readouterr().out


def test_an_interval_takes_two_seeds(tmp_path, capsys):
    with pytest.raises(SystemExit):
        trials.make_parser("").parse_args([f"--output={tmp_path}", "--seeds=1"])
    assert "--seeds: 1 is not 2 or more" in capsys.readouterr().err


def wait_long(number, folder):
    (pathlib.Path(folder) / f"{os.getpid()}.pid").write_text("")
    time.sleep(120)
    return {"number": float(number)}


def run_long(folder):
    some = [trials.Trial(f"n{n}", {"number": n, "folder": str(folder)}) for n in range(2)]
    trials.run_trials(some, wait_long, folder)


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_trials_end_with_the_process_that_was_killed(tmp_path):
    parent = multiprocessing.get_context("spawn").Process(target=run_long, args=(tmp_path,))
    parent.start()
    until = time.monotonic() + 60
    while not (started := list(tmp_path.glob("*.pid"))):
        assert time.monotonic() < until
        time.sleep(0.1)
    parent.kill()
    parent.join()
    while any(is_running(path.stem) for path in started):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_the_interval_is_students():
    mean, half = trials.measure_interval([1.0, 2.0, 3.0])
    assert mean == 2 and half == pytest.approx(4.303 / 3**0.5, abs=1e-3)
    assert trials.format_interval([0.5, 0.5]) == "50.0 ± 0.0"


def test_differences_are_paired_by_seed_and_tables_have_notes(capsys):
    rows = {"a": [{"x": 0.3, "y": 1.0}, {"x": 0.5, "y": 1.0}], "b": [{"x": 0.1}, {"x": 0.3}]}
    rates = {"rate": {"a": 0.5, "b": 0.7}}
    trials.print_comparison({"X": "x"}, rows, ["c", "b"], rates, "table")
    wanted = ["", "table, 2 seeds", "", "| | X | rate |", "|---|---|---|"]
    wanted += ["| a | 40.0 ± 127.1 | 0.5 |", "| b | 20.0 ± 127.1 | 0.7 |"]
    wanted += [
        "",
        "table, difference from b, paired by seed",
        "",
        "| | X |",
        "|---|---|",
        "| a | 20.0 ± 0.0 |",
    ]
    assert capsys.readouterr().out.splitlines() == wanted
    trials.print_comparison({"X": "x"}, {"b": rows["b"]}, ["b"])
    assert "less" not in capsys.readouterr().out


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
    noise_text_tower.write_pairs(tmp_path)
    texts, kinds = noise.plant(captions)
    stays = {"raw": kinds >= 0, "clean": kinds >= 0, "cleaned": kept}
    stays |= {"no boilerplate": kinds < 2, "no wrong captions": kinds != 1}
    for row in noise_text_tower.ROWS:
        config = noise_text_tower.configure(row, "test", 1e-3, 0, str(tmp_path))
        source = ParquetSource(config.data.source.path, caption=row)
        assert source.shard_sizes.tolist() == [6, 2]
        own = captions if row == "clean" else texts
        for number in range(8):
            shard, index = (0, number) if number < 6 else (1, number - 6)
            example = source.read(shard, index)
            assert example.image == images[number]
            expected = np.array(own[number])[stays[row][number]]
            assert list(example.captions) == expected.tolist()
        dev = noise_text_tower.configure(row, "dev", 1e-3, 0, str(tmp_path))
        assert dev.data.source.path == str(tmp_path / "pairs-train.parquet")
        for split, each in (("dev", dev), ("test", config)):
            assert f"flickr8k/{split}-" in each.evaluators.retrieval.source.path


def text_of_another(text, row):
    words = text.split()
    return words[0] == "caption" and int(words[1]) != row


def test_classes_without_labels_in_training_are_in_no_other_part(tmp_path, monkeypatch):
    monkeypatch.setenv("BIG_ALIGN_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(unseen_classes, "CLASSES", {"seen": 5, "dev": 2, "test": 3})
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
    unseen_classes.write_classes(output)
    files = {path.name for path in output.glob("*.tar")}
    assert files == {
        *("seen-train.tar", "seen_dev-val.tar", "seen_test-val.tar"),
        *(f"{part}-{split}.tar" for part in ("dev", "test") for split in ("train", "val")),
    }
    found = []
    for part, count in unseen_classes.CLASSES.items():
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


def test_labels_are_tuned_on_photographs_that_no_stage_trains_on():
    for method in ("unicl", "cross_entropy", "supcon", "supcon_classifier"):
        for split, shards in (("dev", "val-"), ("test", "test-")):
            config = labels.configure("unicl_grocery", method, split, 3)
            assert config.data.hold_out == 0 and "/train-" in config.data.source.path
            for evaluator in config.evaluators.values():
                assert f"grocery/{shards}" in evaluator.source.path
        dev, test = (
            labels.configure("unicl_cifar10", method, split, 3) for split in ("dev", "test")
        )
        assert (dev.data.hold_out, test.data.hold_out) == (labels.HELD_OUT, 0)
        for evaluator in dev.evaluators.values():
            assert evaluator.source.to_dict() == {"name": "held_out"}
        for evaluator in test.evaluators.values():
            assert evaluator.source.split == "test" and test.data.source.split == "train"


@pytest.mark.parametrize("probed, row", labels.PROBED.items())
def test_a_probe_has_the_rate_that_the_row_of_its_towers_chose(probed, row, tmp_path, monkeypatch):
    """Tuning trials of both rows are the same; only their tests differ."""
    makers = []
    monkeypatch.setattr(labels.trials, "tune_and_measure", lambda *given: makers.append(given[2]))
    with pytest.raises(TypeError):  # there are no numbers to print
        labels.print_tables("cifar10", [row, probed], 5, tmp_path)
    (make,) = makers
    of_both = [
        [make(each, split, 0.004, 100) for each in (row, probed)] for split in ("dev", "test")
    ]
    assert of_both[0][0] == of_both[0][1] and of_both[1][0].name != of_both[1][1].name
    assert [trial.settings["stages"] for trial in of_both[1]] == [
        labels.ROWS[row],
        labels.ROWS[row][:1],
    ]
    assert [trial.settings["probed"] for trial in of_both[1]] == [False, True]
    (method,) = labels.ROWS[probed]
    config = labels.configure("unicl_cifar10", method, "test", 0, probed=True)
    assert list(config.evaluators) == ["linear_probe"]
    probe = config.evaluators.linear_probe
    assert (probe.train_source.split, probe.source.split) == ("train", "test")
    check.check_config(config)
    probe = labels.configure("unicl_grocery", "supcon", "test", 0).evaluators.linear_probe
    names = [pathlib.Path(probe[name].path).name for name in ("train_source", "source")]
    assert names == ["train-*.tar", "test-*.tar"]
    assert "validation_source" not in probe  # it would be fitted on as well, and by no other row


def test_nothing_that_chooses_a_setting_is_looked_at_in_the_end():
    for method, batch in unseen_classes.ROWS.values():
        looked = {}
        for split in ("dev", "test"):
            config = unseen_classes.configure(method, batch, split, 1e-3, 0, "folder")
            sources = [evaluator.source for evaluator in config.evaluators.values()]
            looked[split] = {source.path for source in sources}
            trained = {part.source.path for part in config.data.mixture.values()}
            assert not looked[split] & trained
            assert all("tiny_imagenet" not in path for path in looked[split] | trained)
        assert not looked["dev"] & looked["test"]
        assert looked["dev"] >= {"folder/dev-*.tar"} and looked["test"] >= {"folder/test-*.tar"}
        own = "classification" if method == "multitask" else "zero_shot"
        assert config.evaluators.seen.name == own and config.evaluators.cifar10.name == "zero_shot"


def test_the_probe_is_tuned_by_a_classifier_that_has_not_learned_what_it_is_measured_on(
    monkeypatch,
):
    numbers = {metric: 0.5 for metric in unseen_classes.COLUMNS.values()}
    probe = {"linear_probe/accuracy": 0.9, "linear_probe/validation_accuracy": 0.7}
    monkeypatch.setattr("big_align.runs.train.run", lambda config, workdir: numbers | probe)
    for split, accuracy in (("dev", 0.7), ("test", 0.9)):
        settings = dict(method="both", batch=128, split=split, rate=1e-3, seed=0, folder="folder")
        assert unseen_classes.train(**settings) == numbers | {"linear_probe/accuracy": accuracy}


def test_described_classes_are_judged_by_the_texts_that_they_are_trained_with():
    for loss, texts in described_classes.ROWS.values():
        for split in ("dev", "test"):
            config = described_classes.configure(loss, texts, split, 1e-3, 0, "folder")
            labels = config.data.mixture.labels
            described = texts == "descriptions"
            assert labels.templates == (described_classes.TEXTS[texts],)
            assert config.objective.get("template", *labels.templates) == labels.templates[0]
            assert ("{description}" in labels.templates[0]) == described
            assert labels.classes.endswith("seen_described.json") == described
            trained = {"folder/seen-train.tar", config.data.mixture.captions.source.path}
            for name, evaluator in config.evaluators.items():
                assert evaluator.source.path not in trained and split in evaluator.source.path
                if name != "retrieval":
                    assert evaluator.templates == labels.templates
                    assert evaluator.names.endswith("_described.json") == described


@pytest.mark.parametrize("split", ["dev", "test"])
def test_described_classes_are_trained_and_judged_by_what_there_is(split, tmp_path):
    for part in described_classes.CLASSES:
        classes = [{"names": name, "description": f"a {name}"} for name in ("dog", "cat")]
        (tmp_path / f"{part}_described.json").write_text(json.dumps(classes))
    given = "iCLIP", "descriptions", split, 1e-3, 0, str(tmp_path)
    check.check_config(described_classes.configure(*given))


def test_towers_of_a_table_differ_in_what_it_names_and_are_tuned_on_other_photographs():
    rows = {name: row for table in align_towers.TABLES.values() for name, row in table.items()}
    for name, row in rows.items():
        for split, trained in (("dev", "train-*"), ("test", "{train,dev}-*")):
            config = align_towers.configure(row, split, 2.0, 0, "folder")
            assert config.data.source.path.endswith(f"/flickr8k/{trained}.tar")
            assert config.evaluators.retrieval.source.path.endswith(f"/flickr8k/{split}-*.tar")
        assert config.model.image.variant == f"lite{row.lite}"
        assert f"efficientnet-lite{row.lite}-" in config.init.image
        assert (config.optimizer.name == "lamb") == ("LAMB" in name) == row.paper
        if name in align_towers.TABLES["recipe"]:
            optimizer, temperature, decay = name.lower().split(", ")
            assert config.optimizer.name == optimizer and config.schedule.decay == decay
            assert config.objective.temperature == float(temperature)
            assert config.schedule.learning_rate == (0.02 if row.paper else 0.002)


def test_towers_of_clusters_are_judged_by_labels_that_no_probe_is_fitted_to():
    for rows in cluster_settings.TABLES.values():
        for row in rows.values():
            looked = {}
            for split in ("dev", "test"):
                config = cluster_settings.configure(row, split, 1e-3, 0, "folder")
                assert config.data.source.label == "" and not config.model.text
                for evaluator in config.evaluators.values():
                    fitted, looked[split] = (
                        set(glob(source.path))
                        for source in (evaluator.train_source, evaluator.source)
                    )
                    assert not fitted & looked[split]
            assert not looked["dev"] & looked["test"]


def test_numbers_during_training_are_means_over_windows(tmp_path):
    lines = [{"step": 10, "loss": 1.0}]
    lines += [{"step": n, "a": n / 1000, "b": -float(n == 110)} for n in range(10, 1201, 10)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = curves.read_windows(tmp_path, ("a", "b"), 1200, 100)
    assert len(found) == 24
    assert found["a/100"] == pytest.approx(0.055)
    assert found["a/1200"] == pytest.approx(1.155)
    assert found["b/100"] == 0 and found["b/200"] == -0.1


@pytest.mark.parametrize("script", [cluster_cosines, temperatures])
def test_columns_are_windows_that_are_measured(script):
    windows = {str(last) for last in curves.list_windows(script.STEPS, script.WINDOW)}
    assert {name.split("/")[1] for name in script.COLUMNS.values()} <= windows


def test_temperatures_are_those_of_recipes_at_the_rate_that_was_best():
    found = trials.read_trials(ROOT / "docs/trials/align_towers.jsonl")
    for title, factor, _ in temperatures.ROWS.values():
        row = align_towers.TABLES["recipe"][title]
        told = ("-paper" if row.paper else "") + (
            f"-t{row.temperature:g}" if row.temperature else ""
        )
        scores = {
            each: sum(found[f"lite2-1x256{told}-dev-x{each:g}-{trials.TUNING_SEED}"].values())
            for each in align_towers.FACTORS
        }
        assert factor == max(scores, key=scores.get)
    recipes = {row.recipe for row in temperatures.ROWS.values()}
    assert recipes == align_towers.TABLES["recipe"].keys()


def test_cosines_are_those_of_losses_at_the_rate_that_was_best():
    found = trials.read_trials(ROOT / "docs/trials/cluster_settings.jsonl")
    settings = cluster_settings.TABLES["losses"], cluster_settings.TABLES["scale"]
    for rows, tuned in zip(cluster_cosines.ROWS.values(), settings, strict=True):
        for row in rows.values():
            assert row in tuned.values()
            name = f"{row.loss}-k1000-l8-r0.1-s{row.scale:g}-dev"
            assert cluster_cosines.RATE == max(
                cluster_settings.RATES,
                key=lambda rate: sum(found[f"{name}-{rate:g}-{trials.TUNING_SEED}"].values()),
            )


def glob(path):
    """The shards of CIFAR-10 that a path means."""
    names = [*(f"train-0000{number}.tar" for number in range(5)), "test-00000.tar"]
    return [name for name in names if fnmatch.fnmatch(name, pathlib.Path(path).name)]


def test_tags_are_tuned_and_measured_on_photographs_that_are_not_trained_on():
    for method in found_tags.ROWS.values():
        for split in ("dev", "test"):
            config = found_tags.configure(method, split, 1e-3, 0, "folder")
            assert config.evaluators and "train-" in config.data.source.path
            assert (config.objective.threshold, config.objective.head) == (0.6, "cls")
            for evaluator in config.evaluators.values():
                assert f"flickr8k/{split}-" in evaluator.source.path
                assert evaluator.transform == config.data.transform
                assert evaluator.get("tags", config.data.tags.path) == config.data.tags.path


def test_texts_of_tags_are_tuned_and_measured_on_photographs_that_are_not_trained_on():
    looked = {}
    for title, row in tag_texts.ROWS.items():
        for split in ("dev", "test"):
            config = tag_texts.configure(tuple(row), split, 1e-3, 0, "folder")
            assert "flickr8k/train-" in config.data.source.path
            assert (config.objective.threshold == 0.3) == ("0.3" in title)
            assert ("ToldIdea" in config.objective.name) == ("told" in title)
            assert ("RepeatingIdea" in config.objective.name) == ("nothing new" in title)
            assert config.data.tags.path == f"folder/{'rare' if row[0][0] == 'r' else 'tags'}.json"
            looked.setdefault(split, set()).update(
                evaluator.source.path for evaluator in config.evaluators.values()
            )
            for evaluator in config.evaluators.values():
                assert evaluator.transform == config.data.transform
                assert evaluator.get("tags", "folder/tags.json") == "folder/tags.json"
    assert not looked["dev"] & looked["test"]
    assert all(any(f"{split}.tar" in path for path in looked[split]) for split in looked)


def test_a_told_recognizer_finds_what_the_caption_misses_and_nothing_else():
    batch = {
        "tags": jnp.array([[0, -1], [2, -1], [3, -1], [0, -1]]),
        "true_tags": jnp.array([[0, 1, 3], [2, -1, -1], [0, 3, -1], [0, 1, -1]]),
        "mask": jnp.array([True, True, True, False]),
        "correcting": jnp.array([True, True, True, True]),
    }
    desired = {
        tag_texts.ToldIdea: [{1, 3}, set(), {0}, set()],
        tag_texts.RepeatingIdea: [{0}, {2}, {3}, set()],
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
    found = tag_texts.describe_found(steps)
    assert found["found_precision"] == 0.625 and np.isclose(found["found_recall"], 0.1)
    assert not any(tag_texts.describe_found([{}]).values())  # contrast alone finds none
