"""Features of locked towers are computed once; training on them is training on what they are of."""

import dataclasses
import json
import pathlib
import time

import jax
import numpy as np
import pytest

from big_align import weights
from big_align.config.overrides import load_config
from big_align.core.errors import BrokenDataError, ConfigError, UserError, WeightsMismatch
from big_align.data.loading.extra_fields import ExtraFields
from big_align.data.precomputed.joins import choose_captions, open_joins
from big_align.parallel.distributed import agreement
from big_align.runs import build, cached_features, check, train
from big_align.runs.cached_features import cache_features
from big_align.runs.initial_weights import check_frozen
from big_align.runs.workdir import read_pretrained
from tests.data.samples import encode_image, make_pixels, write_tar
from tests.run_main import TINY, read_losses
from tests.two_processes import run_both

STEPS = 6
BOTH = "('image','text')"
SMALL = (
    "--config.data.transform=resize(8)",
    "--config.evaluators={}",
    "--config.evaluate_batch_size=16",
    "--config.model.image_projection=True",
    "--config.model.embedding_dim=8",
    f"--config.total_steps={STEPS}",
)


def write_captions(folder: pathlib.Path, broken: int | None = None) -> str:
    """Two shards of 20 examples with one to three captions; the image of one may be no image."""
    for shard in range(2):
        members = []
        for number in range(20 * shard, 20 * shard + 20):
            words = ["a digit one", "photo of two", "three by hand"][: 1 + number % 3]
            image = b"none" if number == broken else encode_image(make_pixels(6 * number))
            facts = json.dumps({"captions": words, "other": ["another text"]}).encode()
            members += [(f"{number:03d}.png", image), (f"{number:03d}.json", facts)]
        write_tar(folder / f"pairs-{shard}.tar", members)
    return f"{folder}/pairs-*.tar"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_captions(tmp_path_factory.mktemp("pairs"))


def make_config(pairs, *flags):
    return load_config(
        TINY,
        *("--config.data.source.name=tar", f"--config.data.source.path={pairs}"),
        "--config.data.source.caption=json.captions",
        *SMALL,
        *flags,
    )


@pytest.fixture(scope="module")
def trained(pairs, tmp_path_factory):
    """A workdir whose towers others start from."""
    workdir = tmp_path_factory.mktemp("trained")
    train.run(make_config(pairs), str(workdir))
    return workdir


def lock(pairs, trained, *flags, towers=BOTH):
    return make_config(
        pairs,
        f"--config.init.all={trained}",
        f"--config.model.locked={BOTH}",
        f"--config.cached_features.towers={towers}",
        *flags,
    )


def list_files(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*.npy"))}


@pytest.mark.slow
@pytest.mark.parametrize("captions", [1, 2])
def test_training_on_features_is_training_with_the_towers_in_the_step(
    pairs, trained, tmp_path, captions
):
    several = f"--config.data.captions_per_image={captions}"
    train.run(lock(pairs, trained, several, towers="()"), str(tmp_path / "towers"))
    train.run(lock(pairs, trained, several), str(tmp_path / "features"))
    one, two = (read_losses(tmp_path / name) for name in ("towers", "features"))
    np.testing.assert_allclose(np.array(one), np.array(two), rtol=1e-5)
    models = [read_pretrained(tmp_path / name).flat for name in ("towers", "features")]
    before = read_pretrained(trained).flat
    for name, array in models[0].items():
        np.testing.assert_allclose(array, models[1][name], rtol=0, atol=2e-5, err_msg=name)
        if "project" not in name:
            np.testing.assert_array_equal(models[1][name], before[name])
    assert np.abs(models[1]["params/project_text/kernel"]
                  - before["params/project_text/kernel"]).max() > 1e-3  # fmt: skip


@pytest.mark.slow
def test_features_are_found_again_and_what_is_missing_is_made(pairs, trained, tmp_path):
    """The folder of a run that was killed half-way has some of the shards."""
    folder = f"--config.cached_features.folder={tmp_path}"
    config = lock(pairs, trained, folder)
    cache_features(config, "unused")
    first = list_files(tmp_path)
    arrays = {path: np.load(path) for path in first}
    assert len(first) == 4
    cache_features(config, "unused")
    assert list_files(tmp_path) == first

    lost = [path for path in first if path.name.startswith("000001")]
    assert len(lost) == 2
    for path in lost:
        path.unlink()
    cache_features(config, "unused")
    again = list_files(tmp_path)
    assert {path for path in first if again[path] != first[path]} == set(lost)
    for path in lost:
        np.testing.assert_array_equal(np.load(path), arrays[path])

    # Other pixels are other features; those of the texts stay.
    other = lock(pairs, trained, folder, "--config.data.transform=resize(10)|central_crop(8)")
    fed = cache_features(other, "unused")
    assert len(list_files(tmp_path)) == 6
    assert fed.data.precomputed.text_embedding in {str(path.parent) for path in first}

    # Other texts are other features; those of the images stay.
    other = lock(pairs, trained, folder, "--config.data.source.caption=json.other")
    fed = cache_features(other, "unused")
    assert len(list_files(tmp_path)) == 8
    assert fed.data.precomputed.image_embedding in {str(path.parent) for path in first}
    with build.build_train_loader(fed, build.build_tokenizer(other)) as loader:
        batch = loader.batch(0)
    found = {row.tobytes() for path in first for row in arrays[path].astype(np.float32)}
    assert {np.float32(row).tobytes() for row in batch["image_embedding"]} <= found

    # Other weights of a tower are other features; those of the other tower stay.
    model = read_pretrained(trained)
    text = jax.tree.map(lambda x: 2 * x, model.variables["params"]["text"])
    variables = model.variables | {"params": model.variables["params"] | {"text": text}}
    changed = dataclasses.replace(model, variables=variables)
    weights.save(tmp_path / "changed", changed, format="big_align")
    fed = cache_features(lock(pairs, tmp_path / "changed", folder), "unused")
    assert len(list_files(tmp_path)) == 10
    assert fed.data.precomputed.image_embedding in {str(path.parent) for path in first}


@pytest.mark.slow
def test_a_broken_image_is_replaced_on_features_as_it_is_on_images(trained, tmp_path):
    pairs = write_captions(tmp_path, broken=7)
    broken = "--config.data.max_broken_fraction=0.1"
    texts = []
    for name, towers in (("images", "()"), ("features", "('image',)")):
        config = cache_features(lock(pairs, trained, broken, towers=towers), str(tmp_path / name))
        with build.build_train_loader(config, build.build_tokenizer(config)) as loader:
            texts.append(np.concatenate([loader.batch(step)["text"] for step in range(4)]))
            assert loader.broken == 1
    np.testing.assert_array_equal(*texts)
    with pytest.raises(BrokenDataError):
        strict = lock(pairs, trained, "--config.data.max_broken_fraction=0")
        cache_features(strict, str(tmp_path / "strict"))


@pytest.mark.slow
def test_held_out_examples_have_no_features(pairs, trained, tmp_path):
    config = lock(pairs, trained, "--config.data.hold_out=0.2")
    fed = cache_features(config, str(tmp_path))
    tokenizer = build.build_tokenizer(config)
    with build.build_train_loader(fed, tokenizer) as loader:
        assert loader.num_examples < 40
        assert loader.batch(0)["image_embedding"].shape == (16, 16)
    with fed.unlocked():
        fed.data.hold_out = 0.3
    with pytest.raises(ConfigError, match="hold_out = 0.3 is not used beside .*image_embedding"):
        build.build_train_loader(fed, tokenizer)


@pytest.mark.slow
def test_a_classifier_on_a_locked_tower_has_the_same_image_features(pairs, trained, tmp_path):
    """A model without a text tower: the objective says what the parameters are."""
    (tmp_path / "classes.json").write_text(json.dumps([{"name": "one"}, {"name": "two"}]))
    classifier = lock(pairs, trained, towers="('image',)")
    with classifier.unlocked():
        classifier.objective = dict(name="cross_entropy")
        classifier.data.classes = str(tmp_path / "classes.json")
        classifier.model.text, classifier.model.locked = {}, ("image",)
    lit = make_config(pairs, f"--config.init.all={trained}", "--config.objective.name=lit",
                      "--config.cached_features.towers=('image',)")  # fmt: skip
    check.check_config(lit)  # it locks the tower itself
    fed = [
        cache_features(config, str(tmp_path)).data.precomputed.image_embedding
        for config in (lock(pairs, trained, towers="('image',)"), classifier, lit)
    ]
    assert fed[0] == fed[1] == fed[2] and len(list_files(tmp_path)) == 2


@pytest.mark.slow
def test_towers_without_weights_have_no_features(pairs, tmp_path):
    config = lock(pairs, "")
    with pytest.raises(WeightsMismatch, match="config.init gives no weights to"):
        cache_features(config, str(tmp_path))


@pytest.mark.parametrize("part", ["image", "text"])
def test_a_locked_tower_without_weights_is_named_with_the_field_that_gives_them(part):
    shapes = {f"params/{part}/kernel": (2, 3), "params/project/kernel": (3, 3)}
    rows = {f"params/{part}/kernel": np.zeros((1, 3))}  # of which there are two
    with pytest.raises(WeightsMismatch):
        check_frozen((f"model/{part}",), shapes, rows)
    with pytest.raises(WeightsMismatch) as error:
        check_frozen((f"model/{part}",), shapes, {})
    message = str(error.value)  # the config has nothing in optimizer.frozen
    assert message.startswith(f"model/{part} is not trained, but config.init gives no weights to 1")
    assert f"config.init.{part}" in message and "optimizer.frozen holds" not in message


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model.locked", ("text",), r"has 'image', a tower that is trained.*write --config.model"),
        ("data.transform", "resize(10)|random_crop(8)", "data.transform = .*at random"),
        ("data.views_per_image", 2, "config.data.views_per_image must be 1 where"),
        ("data.captions_per_image", 0, "has 'text', but config.data has no captions"),
        ("data.pipeline", "tests.pipelines:plain", "config.data.pipeline makes its own batches"),
        ("mixing.mixup_alpha", 0.1, "whose pixels config.mixing would mix"),
        ("cached_features.towers", ("head",), "towers has 'head'; there are image and text"),
        ("cached_features.dtype", "int8", "dtype = 'int8' is neither"),
    ],
)
def test_inputs_that_change_from_visit_to_visit_are_refused(field, value, message):
    config = lock("pairs.tar", "weights")
    config.update_from_flattened_dict({field: value})
    with pytest.raises(UserError, match=message):
        cached_features.check_towers(config, [f"model/{tower}" for tower in config.model.locked])


def test_captions_that_are_drawn_have_their_own_features():
    row = np.arange(6, dtype=np.float32).reshape(3, 2)
    captions = ["a", "b", "a"]
    drawn = choose_captions(row, captions, ["b", "a"], 3)
    np.testing.assert_array_equal(drawn, [row[1], row[0], [0, 0]])
    with pytest.raises(ValueError, match="features of 2 captions, 'c' not among them"):
        choose_captions(row[:2], ["a", "b", "c"], ["c"], 1)


@pytest.mark.slow
def test_rows_of_a_batch_have_the_features_of_their_texts(pairs, trained, tmp_path):
    """Equal texts have equal features, whichever example they are of, and others have others."""
    config = lock(pairs, trained, "--config.data.captions_per_image=2")
    fed = cache_features(config, str(tmp_path))
    with build.build_train_loader(fed, build.build_tokenizer(config)) as loader:
        batch = loader.batch(0)
    real = batch["text_mask"].any(-1)
    assert not batch["text_embedding"][~real].any() and (~real).any()
    features = {}
    for text, row in zip(batch["text"][real], batch["text_embedding"][real], strict=True):
        np.testing.assert_array_equal(features.setdefault(text.tobytes(), row), row)
    assert len(np.unique(np.stack(list(features.values())), axis=0)) == len(features) == 3
    joins = open_joins(dict(fed.data.precomputed), build.dataset.open_source(
        build.dataset.read_parts(fed)["data"]))  # fmt: skip
    assert ExtraFields(joins, texts=4).row["text_embedding"][0] == (4, 16)
    assert jax.tree.leaves(batch)


def test_a_process_waits_for_the_features_of_others_in_no_collective(pairs, tmp_path, monkeypatch):
    """The first collective is given up after half a minute on CPUs, and others have more to do."""

    class Towers:
        def __init__(self, *_):
            pass

        def embed(self, *_):
            time.sleep(0.5 * agreement.processes.coordination().process_id)
            done.append(0)
            return "features"

    done, config = [], make_config(pairs, f"--config.cached_features.towers={BOTH}")
    monkeypatch.setattr(cached_features, "LockedTowers", Towers)
    monkeypatch.setattr(jax, "process_count", lambda *_: 2)  # of which a collective finds one

    def count(process):
        cache_features(config, str(tmp_path))
        return len(done)

    assert run_both(monkeypatch, count) == [4, 4]
