"""MLCD from embeddings to a text tower: the tools, the trainer and the evaluators, on digits."""

import json
import types

import jax
import numpy as np
import pytest
from sklearn import datasets

from big_align.config.components.signatures import make_named
from big_align.config.components.tables import SOURCES
from big_align.core.errors import CheckpointMismatch, ConfigError, UserError
from big_align.data.precomputed import shard_files
from big_align.data.precomputed.shard_files import EMBEDDINGS
from big_align.data.sources.digits import DIGIT_CLASSES, DIGIT_TEMPLATES
from big_align.objectives.mlcd import Mlcd
from big_align.runs import check, train
from big_align.runs.workdir import TrainedRun
from big_align.tools import cluster, embed, show_clusters
from tests import labeled_digits, tiny
from tests.runs.test_labeled_runs import TEST, TRAIN, read_metrics

COUNT, K, STEPS = 400, 24, 60


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Digits in a shard, and clusters of their pixels."""
    root = tmp_path_factory.mktemp("clustered")
    shard = labeled_digits.write_shard(root / "digits.tar", COUNT)
    node = {"name": "tar", "path": shard["path"], "caption": ""}
    source = make_named(SOURCES, node, "source")
    values = datasets.load_digits().data[:COUNT]
    values = (values - values.mean(0)).astype(np.float32)
    shards = shard_files.list_shards(source)
    index = {"dim": 64, "dtype": "float32", "unit_length": False, "made_by": {}}
    index["shards"] = [shard._asdict() for shard in shards]
    shard_files.claim_folder(root / "embeddings", index, write=True)
    keys = shard_files.join_keys(f"{n:04d}" for n in range(COUNT))
    shard_files.write_shard(root / "embeddings", shards[0], EMBEDDINGS, values, keys)
    for k in (K, 30):
        assert not cluster.main(
            [f"--embeddings={root}/embeddings", f"--k={k}", "--labels_per_image=3",
             f"--output={root}/clusters-{k}"]
        )  # fmt: skip
    return types.SimpleNamespace(
        root=root, node=node, labeled=shard, clusters=str(root / f"clusters-{K}")
    )


def config_of(files, **fields):
    """The config of a short run on clusters alone."""
    data = {"source": files.node, "captions_per_image": 0}
    defaults = {
        "objective.num_clusters": K,
        "objective.labels_per_image": 2,
        "objective.sampling_ratio": 0.5,
        "objective.scale": 8.0,
        "data.precomputed.clusters": files.clusters,
        "tokenizer": {"name": "none"},
        "model.text": {},
        "evaluators": {"knn": {"name": "knn"} | TEST | {"train_source": TRAIN}},
        "total_steps": STEPS,
        "checkpoint.every": STEPS // 2,
        "optimizer.name": "adamw",
        "evaluate_batch_size": 64,
    }
    return labeled_digits.get_config("mlcd", data, **defaults | fields)


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("mlcd")
    return workdir, train.run(config_of(files), str(workdir))


@pytest.mark.slow
def test_clusters_alone_teach_features(trained):
    workdir, results = trained
    metrics = read_metrics(workdir)
    assert np.mean([m["loss"] for m in metrics[-5:]]) < metrics[0]["loss"] - 0.5
    gap = [m["positive_cosine"] - m["negative_cosine"] for m in metrics]
    assert gap[-1] > gap[0] + 0.05
    assert results["knn/r1"] > 0.8


@pytest.mark.slow
def test_a_run_that_was_stopped_repeats_itself(files, trained, tmp_path):
    whole = read_metrics(trained[0])
    config = config_of(files, total_steps=STEPS // 2, **{"schedule.decay": "constant"})
    full = config_of(files, **{"schedule.decay": "constant"})
    train.run(config, str(tmp_path / "halves"))
    train.run(full, str(tmp_path / "halves"))
    train.run(full, str(tmp_path / "whole"))
    halves = read_metrics(tmp_path / "halves")
    assert halves == read_metrics(tmp_path / "whole") and len(halves) == len(whole)


@pytest.mark.slow
def test_centers_start_from_those_of_the_clusters(files, tmp_path):
    """The pixels' 64 numbers are not the embedding's, which is the tower's width: told at once."""
    with pytest.raises(UserError, match=r"the centers are \[24, 64\], but the class table has"):
        train.run(config_of(files, **{"init.centers": files.clusters}), str(tmp_path))
    wide = {"init.centers": files.clusters, "model.embedding_dim": 64}
    wide |= {"model.image_projection": True, "schedule.warmup_steps": 0}
    train.run(config_of(files, total_steps=1, **wide), str(tmp_path / "wide"))
    centers = show_clusters.read_centers(str(tmp_path / "wide"))
    given = np.load(f"{files.clusters}/centers.npy")
    # One update of Adam moves a number by the learning rate at most.
    assert 0 < np.abs(centers - given).max() < 0.011


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"objective.num_clusters": 30}, ConfigError, "num_clusters = 30, but .* has 24 clusters"),
        ({"data.precomputed.clusters": None}, ConfigError, "data.precomputed.clusters is missing"),
        pytest.param(
            {"objective.labels_per_image": 25},
            ConfigError,
            "labels_per_image = 25 is not in",
            marks=pytest.mark.slow,
        ),
        ({"objective.labels_per_image": 4}, ConfigError, "has 3 clusters an image"),
        ({"data.precomputed.clusters": "nowhere"}, UserError, "nowhere has no index.json"),
        ({"data.precomputed.cluster": "nowhere"}, ConfigError, "cluster is unknown.*'clusters'"),
        ({"optimizer.name": "lamb"}, UserError, "'lamb' cannot update the rows"),
        ({"data.captions_per_image": 1}, UserError, "has none|'none' makes no ids"),
    ],
)
def test_data_that_do_not_fit_are_an_error_before_the_first_step(
    files, tmp_path, fields, error, message
):
    with pytest.raises(error, match=message):
        train.run(config_of(files, **fields), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_clusters_of_parts_and_first_centers_are_of_one_run_of_k_means(tmp_path):
    """A number of one run means another center in another run, even if both have as many."""

    def make_part(name, objective):
        (tmp_path / name).mkdir()
        index = {"format": 1, "k": K, "labels_per_image": 3, "objective": objective}
        (tmp_path / name / "index.json").write_text(json.dumps(index))
        node = {"source": {"name": "tar"}, "weight": 0.5}
        return {name: node | {"precomputed": {"clusters": str(tmp_path / name)}}}

    first, same = make_part("first", [0.5, 0.625]), make_part("same", [0.5, 0.625])
    other = make_part("other", [0.5, 0.75])
    objective = Mlcd(tiny.make_model(), tiny.make_mesh(1), K, labels_per_image=3)

    def check_clusters(start, **parts):
        config = {"data": {"mixture": parts}, "init": {"centers": start and f"{tmp_path}/{start}"}}
        check.check_precomputed(config, objective)

    check_clusters("", **first, **same)
    for start in ("first", "same", "lost"):
        check_clusters(start, **first)
    with pytest.raises(ConfigError, match="mixture.other.*another run of k-means .*mixture.first"):
        check_clusters("", **first, **other)
    # Centers go on from the stage before, unless others are named.
    config = {"data": {"mixture": first}, "first": {"data": {"mixture": other}}}
    check.check_precomputed(config | {"init": {"centers": f"{tmp_path}/same"}}, objective)
    with pytest.raises(ConfigError, match="config.first.data.mixture.other.*another run of k-mean"):
        check.check_precomputed(config | {"init": {}}, objective)
    with pytest.raises(ConfigError, match="init.centers .*other is of another run .*mixture.first"):
        check_clusters("other", **first)


@pytest.mark.slow
def test_a_table_of_other_clusters_is_not_continued(files, trained):
    other = {"objective.num_clusters": 30, "data.precomputed.clusters": f"{files.root}/clusters-30"}
    with pytest.raises(CheckpointMismatch, match="was made with precomputed = "):
        train.run(config_of(files, total_steps=STEPS + 1, **other), str(trained[0]))


def lit_config(files, tower, **fields):
    data = {
        "source": files.labeled,
        "classes": labeled_digits.write_names(files.root / "names.json"),
        "transform": "resize(10)|central_crop(8)",
    }
    zero_shot = {"name": "zero_shot", "names": DIGIT_CLASSES, "templates": DIGIT_TEMPLATES}
    defaults = {
        "objective.temperature": 0.1,
        "optimizer.name": "adamw",
        "init.image": str(tower),
        "evaluators": {"zero_shot": zero_shot | TEST},
        "total_steps": 32,
        "evaluate_batch_size": 64,
        "model.image_projection": True,
    }
    return labeled_digits.get_config("lit", data, **defaults | fields)


@pytest.mark.slow
def test_a_text_tower_learns_the_same_from_images_and_from_their_embeddings(
    files, trained, tmp_path
):
    """Features made beforehand stand in for the locked tower: the same losses, without images."""
    tower, source = trained[0], files.node["path"]
    options = ["--transform=resize(10)|central_crop(8)", "--what=features", "--dtype=float32"]
    assert not embed.main(
        [f"--model={tower}", f"--source={source}", f"--output={tmp_path}/features",
         "--batch_size=64", *options]
    )  # fmt: skip
    expected = train.run(lit_config(files, tower), str(tmp_path / "images"))
    precomputed = {"data.precomputed.image_embedding": str(tmp_path / "features")}
    results = train.run(lit_config(files, tower, **precomputed), str(tmp_path / "embeddings"))
    images, embeddings = (read_metrics(tmp_path / name) for name in ("images", "embeddings"))
    for one, two in zip(images, embeddings, strict=True):
        np.testing.assert_allclose(one["loss"], two["loss"], rtol=2e-3)
    losses = [each["loss"] for each in images]
    assert np.mean(losses[-8:]) < np.mean(losses[:8]) - 0.1, losses
    for name in ("zero_shot/top1", "zero_shot/mean_per_class"):
        np.testing.assert_allclose(results[name], expected[name], atol=0.03)


@pytest.mark.slow
def test_embeddings_of_unit_length_are_not_taken_for_features(files, trained, tmp_path):
    folder = tmp_path / "embeddings"
    assert not embed.main(
        [f"--model={trained[0]}", f"--source={files.node['path']}", f"--output={folder}",
         "--batch_size=64"]
    )  # fmt: skip
    config = lit_config(files, trained[0], **{"data.precomputed.image_embedding": str(folder)})
    with pytest.raises(ConfigError, match="holds the embedding of each example, not"):
        train.run(config, str(tmp_path / "run"))
    assert json.loads((folder / "index.json").read_text())["made_by"]["what"] == "embedding"


@pytest.mark.slow
def test_centers_and_their_moments_go_on_in_the_next_stage(files, tmp_path):
    """Two stages with a kept optimizer are one run, to the last digit of every row."""
    fields = {
        "evaluators": {},
        "objective.sampling_ratio": 1.0,  # a sample would be another
        "schedule.decay": "constant",
        "schedule.warmup_steps": 0,
        "log_every": 1,
    }
    train.run(config_of(files, **fields, total_steps=5), str(tmp_path / "one"))
    config = config_of(files, **fields, total_steps=2)
    with config.unlocked():
        config.first = config_of(files, **fields, total_steps=3)
    for kept in ("kept", None):
        config.init.optimizer = kept
        train.run(config, str(tmp_path / str(kept)))
    one, two, fresh = (
        TrainedRun(tmp_path / name).load_state(("tables", "params"), {"fsdp": 1})[1]
        for name in ("one", "kept", "None")
    )
    jax.tree.map(np.testing.assert_array_equal, one, two)
    losses = [
        [line["loss"] for line in read_metrics(tmp_path / x)] for x in ("one", "kept", "None")
    ]
    assert losses[0][3:] == losses[1] and losses[1][0] == losses[2][0] != losses[2][1]
    assert (one["tables"]["centers"].values != fresh["tables"]["centers"].values).any()
