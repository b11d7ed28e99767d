"""Labels from data to evaluation: whole runs of every objective on small files of digits."""

import functools
import json
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import big_align
from big_align import interop
from big_align.components.signatures import make_named
from big_align.components.tables import SOURCES
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.sources.digits import DIGIT_CLASSES, DIGIT_TEMPLATES
from big_align.errors import CheckpointMismatch
from big_align.models.dual_encoder import normalize_image
from big_align.parallel.batches import place_batch
from big_align.parallel.meshes import make_mesh
from big_align.runs import build, evaluate, program, train
from big_align.runs.evaluate import load_embedder
from big_align.training.state import describe_state
from big_align.training.step import compile_step, make_train_step
from tests import labeled_digits
from tests.training.test_step import close

TEST = {"source": {"name": "digits", "split": "test"}, "transform": "resize(10)|central_crop(8)"}
TRAIN = {"name": "digits", "split": "train"}
TEXTS = {"names": DIGIT_CLASSES, "templates": DIGIT_TEMPLATES}
EVALUATORS = {
    "zero_shot": TEST | TEXTS,
    "retrieval": TEST,
    "classification": TEST,
    "linear_probe": TEST | {"train_source": TRAIN, "max_iterations": 20},
    "knn": TEST | {"train_source": TRAIN, "what": "features"},
    "few_shot": TEST | TEXTS | {"train_source": TRAIN, "shots": (1, 2), "draws": 1},
}
MEASURED = {
    "unicl": ("zero_shot", "few_shot"),
    "iclip": ("zero_shot", "classification"),
    "multitask": ("classification", "retrieval"),
    "cross_entropy": ("classification", "knn"),
    "supcon": ("knn", "linear_probe"),
}
LEAST = {
    "zero_shot/top1": 0,
    "retrieval/image_to_text_r1": 0,
    "classification/top1": 0,
    "linear_probe/accuracy": 0.5,
    "knn/r1": 0.5,
    "few_shot/linear_2shot": 0.2,
    "few_shot/text_2shot": 0.2,
}
"""What so short a run must reach; features of ten digits are good long before texts are."""
STEPS = 80


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A shard of labeled digits, the same digits in folders, and the names of the labels."""
    root = tmp_path_factory.mktemp("files")
    return types.SimpleNamespace(
        shard=labeled_digits.write_shard(root / "digits.tar", 400),
        folders=labeled_digits.write_folders(root / "folders"),
        names=labeled_digits.write_names(root / "names.json"),
    )


def mixture_of(files, **more):
    """Half of each batch has captions, the other half labels."""
    labels = {"source": files.shard, "classes": files.names, "weight": 0.5} | more
    return {"mixture": {"labels": labels, "pairs": {"source": TRAIN, "weight": 0.5}}}


def config_of(files, objective, **fields):
    """The config of a short run of an objective, with its evaluators at the end."""
    data = mixture_of(files)
    if objective in ("cross_entropy", "supcon"):
        data = {"source": files.shard, "classes": files.names}
    if objective == "supcon":
        data["views_per_image"] = 2
    temperature = {} if objective == "cross_entropy" else {"objective.temperature": 0.1}
    evaluators = {name: {"name": name} | EVALUATORS[name] for name in MEASURED[objective]}
    defaults = {
        "evaluators": evaluators,
        "total_steps": STEPS,
        "checkpoint.every": STEPS // 2,
        "optimizer.name": "adamw",
        "evaluate_batch_size": 64,
    }
    return labeled_digits.get_config(objective, data, **defaults | temperature | fields)


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    """Trains an objective once, and returns its config, workdir and results."""

    @functools.cache
    def run(objective):
        workdir, config = tmp_path_factory.mktemp(objective), config_of(files, objective)
        return config, workdir, train.run(config, str(workdir))

    return run


def read_metrics(workdir):
    """The numbers of every training step, without those that measure time."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    timed = ("second", "time", "wait", "flop", "goodput")
    return [
        {k: v for k, v in line.items() if not any(word in k.lower() for word in timed)}
        for line in lines
        if "loss" in line
    ]


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["cross_entropy", "multitask"])
def test_a_trained_classifier_names_what_its_evaluation_counts(objective, trained, tmp_path):
    _, workdir, results = trained(objective)
    source = make_named(SOURCES, TEST["source"], "source")
    count = int(source.shard_sizes.sum())
    images = [source.read(0, number).image for number in range(count)]
    labels = [source.read(0, number).labels[0] for number in range(count)]
    model = big_align.load(workdir, progress=False)
    names = model.classifier.names
    hits = [
        found[0][0] == names[k] for found, k in zip(model.classify(images), labels, strict=True)
    ]
    assert np.mean(hits) == pytest.approx(results["classification/top1"], abs=1.5 / count)
    big_align.save(tmp_path / "out", model, format="big_align")
    again = big_align.load(tmp_path / "out", progress=False)
    assert again.classify(images[:5]) == model.classify(images[:5])


@pytest.mark.slow
@pytest.mark.parametrize("classifier", ["linear", "cosine"])
def test_classes_of_folders_are_named_when_the_folders_are_gone(classifier, files, tmp_path):
    folders = shutil.copytree(files.folders["path"], tmp_path / "folders")
    data = {"source": {"name": "folder", "path": str(folders)}, "classes": "source"}
    steps = {"total_steps": 2, "checkpoint.every": 2, "objective.classifier": classifier}
    config = labeled_digits.get_config("cross_entropy", data, **steps)
    config.evaluators = {}
    train.run(config, str(tmp_path / "run"))
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    embedder, _ = load_embedder(config, str(tmp_path / "run"), build.build_tokenizer(config))
    rows = np.resize(images, (embedder.batch_size, 8, 8, 3))
    batch = {"image": rows, "mask": np.ones(len(rows), bool)}
    logits, _ = embedder.classify_images([batch], 3)
    shutil.rmtree(folders)
    after = big_align.load(tmp_path / "run", transform="resize(8)", progress=False)
    assert set(after.classifier.names) == set(DIGIT_CLASSES)
    for found, row in zip(after.classify(images), jax.nn.softmax(logits), strict=True):
        probabilities = [dict(found)[name] for name in after.classifier.names]
        np.testing.assert_allclose(probabilities, row, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["cross_entropy", "supcon"])
def test_what_labels_alone_have_trained_is_used_and_exported(objective, files, tmp_path):
    """The config may have a text tower and a projection, as that of the run it starts from has."""
    config = config_of(files, objective, **{"total_steps": 2, "checkpoint.every": 2})
    config.evaluators = {}
    with config.unlocked():
        config.model.image_projection, config.model.embedding_dim = True, 12
        config.model.text = config_of(files, "unicl").model.text
    workdir = tmp_path / "run"
    train.run(config, str(workdir))
    model = big_align.load(workdir, transform="resize(8)", progress=False)
    assert model.checkpoint == str(workdir / "checkpoints" / "2")
    images = np.random.default_rng(0).integers(0, 256, (2, 9, 9, 3), dtype=np.uint8)
    zimg = model.embed_images(images)
    np.testing.assert_allclose(np.linalg.norm(zimg, axis=1), 1, rtol=1e-5)
    big_align.save(tmp_path / "out", model, format="big_align")
    again = big_align.load(tmp_path / "out", progress=False)
    np.testing.assert_array_equal(again.embed_images(images), zimg)


@pytest.mark.slow
@pytest.mark.parametrize("objective", MEASURED)
def test_an_objective_trains_and_is_measured(objective, trained):
    _, workdir, results = trained(objective)
    losses = [line["loss"] for line in read_metrics(workdir)]
    assert len(losses) == STEPS
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.05
    assert {name.split("/")[0] for name in results} == set(MEASURED[objective])
    for name, least in LEAST.items():
        assert least <= results.get(name, least) <= 1, results


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["iclip", "supcon"])
def test_evaluating_a_workdir_gives_the_numbers_of_its_run(objective, trained):
    config, workdir, results = trained(objective)
    assert evaluate.run(config, str(workdir)) == pytest.approx(results, abs=1e-6)


@pytest.mark.slow
def test_a_mixture_resumes_as_if_never_stopped(files, trained, tmp_path):
    config, workdir, _ = trained("unicl")
    shutil.copytree(workdir, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "checkpoints" / str(STEPS))
    train.run(config, str(tmp_path))
    assert read_metrics(tmp_path) == read_metrics(workdir)
    epochs = read_metrics(workdir)[-1]
    assert epochs["epoch/labels"] == pytest.approx(STEPS * 8 / 400)
    assert epochs["epoch/pairs"] == pytest.approx(STEPS * 8 / 1437)


@pytest.mark.slow
def test_another_mixture_does_not_continue_a_workdir(files, trained):
    _, workdir, _ = trained("unicl")
    config = config_of(files, "unicl", **{"data.mixture.labels.weight": 0.25})
    config.data.mixture.pairs.weight = 0.75
    before = (workdir / "config.json").read_text()
    with pytest.raises(CheckpointMismatch, match="parts = .*labels': 0.5.* the config has .*0.25"):
        train.run(config, str(workdir))
    assert (workdir / "config.json").read_text() == before


def run_steps(config, devices, microbatches=1, steps=2):
    """Trains on so many devices; returns the metrics of each step and the last state."""
    mesh = make_mesh(1, jax.devices()[:devices])
    tokenizer = build.build_tokenizer(config)
    objective = build.build_objective(config, mesh, tokenizer)
    optimizer, _ = build.build_optimizer(config)
    example = build.example_batch(config, tokenizer)
    _, create = describe_state(objective, optimizer, example, mesh)
    step, state = make_train_step(objective, optimizer, mesh, microbatches=microbatches), create()
    with build.build_train_loader(config, tokenizer) as loader:
        batches = [place_batch(loader.batch(number), mesh) for number in range(steps)]
    compiled, seen = compile_step(step, state, batches[0], mesh), []
    for batch in batches:
        state, metrics = compiled(state, batch)
        seen.append({name: float(value) for name, value in metrics.items()})
    return seen, state


@pytest.mark.parametrize(
    "objective",
    ["unicl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("iclip", "multitask"))],
)
@pytest.mark.slow
def test_devices_and_microbatches_change_nothing(objective, files):
    """Also where images of different devices are mixed."""
    fields = {
        "model.image.group_size": 2,
        "model.text.dropout": 0.0,
        "mixing.mixup_alpha": 0.8,
        "mixing.cutmix_alpha": 1.0,
        "schedule.warmup_steps": 0,
    }
    config = config_of(files, objective, **fields)
    one, state_one = run_steps(config, 1)
    for devices, microbatches in ((8, 1), (2, 2)):
        many, state_many = run_steps(config, devices, microbatches)
        for left, right in zip(many, one, strict=True):
            assert left == pytest.approx(right, rel=1e-4, abs=1e-5)
        close(state_many.params, state_one.params, 2e-3)


@pytest.mark.slow
def test_a_classifier_is_tuned_on_the_tower_of_a_first_stage(files, trained, tmp_path):
    stage_one, first, expected = trained("supcon")
    fields = {
        "model.locked": ("image",),
        "optimizer.weight_decay": 0.1,
        "init.image": str(first),
    }
    config = config_of(files, "cross_entropy", **fields)
    config.evaluators.update(stage_one.evaluators)
    results = train.run(config, str(tmp_path))
    losses = [line["loss"] for line in read_metrics(tmp_path)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.1
    assert {name: results[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    towers = [big_align.load(workdir).flat for workdir in (first, tmp_path)]
    assert towers[0].keys() == towers[1].keys()
    for name, array in towers[0].items():
        np.testing.assert_array_equal(towers[1][name], array, err_msg=name)


def embed(config, path, what):
    embedder, _ = load_embedder(config, str(path), build.build_tokenizer(config))
    source = make_named(SOURCES, TEST["source"], "test")
    with EvalLoader(source, TEST["transform"], embedder.batch_size, embedder.rows) as loader:
        return getattr(embedder, what)(loader.images(), loader.num_examples)[0]


@pytest.mark.slow
def test_an_exported_dual_encoder_embeds_alike(trained, tmp_path):
    config, workdir, _ = trained("unicl")
    pretrained = big_align.load(workdir)
    interop.save(tmp_path / "exported", pretrained, format="big_align")
    config = config.copy_and_resolve_references()
    config.init.all = str(tmp_path / "exported")
    found = embed(config, tmp_path / "no_workdir", "embed_images")
    np.testing.assert_allclose(found, embed(config, workdir, "embed_images"), atol=1e-6)
    assert pretrained.temperature == pytest.approx(
        read_metrics(workdir)[-1]["temperature"], rel=0.05
    )


@pytest.mark.slow
def test_an_exported_image_tower_gives_the_same_features(trained, tmp_path):
    config, workdir, _ = trained("cross_entropy")
    pretrained = big_align.load(workdir)
    assert pretrained.kind == "image"
    interop.save(tmp_path / "exported", pretrained, format="big_align")
    read = interop.read(tmp_path / "exported")
    source = make_named(SOURCES, TEST["source"], "test")
    with EvalLoader(source, TEST["transform"], 64) as loader:
        image = jnp.asarray(next(iter(loader.images()))["image"])
    colors = read.preprocessing.mean, read.preprocessing.std
    features, _ = read.model.apply(read.variables, normalize_image(image, *colors))
    wanted = embed(config, workdir, "image_features")[:64]
    np.testing.assert_allclose(features, wanted, atol=1e-5)


@pytest.mark.slow
def test_mixing_is_one_program_for_all_its_draws(files, tmp_path, monkeypatch):
    traced = []

    def make_counted(*arguments, **options):
        step = make_train_step(*arguments, **options)
        return lambda state, batch: traced.append(1) or step(state, batch)

    monkeypatch.setattr(program, "make_train_step", make_counted)
    fields = {"mixing.mixup_alpha": 0.8, "mixing.cutmix_alpha": 1.0, "mixing.probability": 0.7}
    config = config_of(files, "cross_entropy", **fields, evaluators={})
    train.run(config, str(tmp_path))
    losses = [line["loss"] for line in read_metrics(tmp_path)]
    assert np.isfinite(losses).all() and np.mean(losses[-5:]) < np.mean(losses[:5])
    assert traced == [1]


@pytest.mark.slow
def test_folders_name_the_classes_of_a_run_and_of_its_evaluation(files, tmp_path):
    data = {"source": files.folders, "classes": "source"}
    names = {"name": "classification", "source": files.folders, "transform": TEST["transform"]}
    fields = {"evaluators": {"own": names}, "total_steps": 2, "evaluate_batch_size": 64}
    config = labeled_digits.get_config("cross_entropy", data, **fields)
    results = train.run(config, str(tmp_path))
    assert evaluate.run(config, str(tmp_path)) == pytest.approx(results, abs=1e-6)
