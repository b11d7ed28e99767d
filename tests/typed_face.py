"""A program that uses every public name as typed code does; mypy checks it, and nobody runs it.

`assert_type` fails where a type is lost: what mypy does not follow is Any to it.
"""

import pathlib
from collections.abc import Iterator
from typing import Any, assert_type

import jax
import numpy as np
import optax
from jax.sharding import Mesh

import big_align

assert_type(big_align.__version__, str)


def embed(folder: pathlib.Path, words: list[str]) -> np.ndarray:
    model = big_align.load(folder, batch_size=8)
    assert_type(model, big_align.LoadedModel)
    assert_type(model.embedding_dim, int)
    assert_type(model.tower("text"), big_align.LoadedModel)
    pretrained: big_align.Pretrained = model
    big_align.save(folder / "exported", pretrained, format="big_align")
    order = model.rank(words, [folder / "a.jpg"], k=1).order
    return model.embed_texts(words) @ model.embed_images([folder / "a.jpg"]).T + order.sum()


def search(folder: pathlib.Path, model: big_align.LoadedModel) -> list[str]:
    index = big_align.load_index(folder)
    assert_type(index, big_align.SearchIndex)
    for given in (model, folder, str(folder)):
        index = big_align.load_index(str(folder), given)
    try:
        return [hit.name for hit in index.search("a dog", [folder / "a.jpg"], k=3)]
    except big_align.UserError as error:
        return [str(error)]


def train(workdir: pathlib.Path) -> dict[str, float]:
    config = big_align.load_config("quickstart", "--config.seed=1")
    assert_type(big_align.train(config, workdir), dict[str, float])
    return big_align.train(workdir / "config.json", workdir, "--config.total_steps=10")


def batches(path: pathlib.Path) -> Iterator[dict[str, np.ndarray]]:
    for rows in (range(4), [0, 1], (2, 3), np.arange(4), None):
        with big_align.make_loader(path, "--config.batch_size=8", rows=rows) as loader:
            big_align.as_dataset(loader, start_step=2)
            yield from loader.iterate(start_step=0)


def optimize() -> optax.GradientTransformation:
    schedule = big_align.make_schedule(total_steps=10, learning_rate=1e-3)
    layers = big_align.LayerRates(rates=("model/image=0.1",))
    return big_align.make_optimizer(schedule, "adamw", layers=layers)


def measure(
    objective: big_align.Objective, evaluator: big_align.Evaluator, params: dict[str, Any]
) -> dict[str, float]:
    mesh = big_align.make_mesh(fsdp=1)
    assert_type(mesh, Mesh)
    return evaluator(big_align.Embedder(objective, mesh, batch_size=8).use(params, {}))


def lose(z: jax.Array, t: jax.Array, label: jax.Array, mesh: Mesh) -> dict[str, Any]:
    """The losses, by their names."""
    scale = jax.numpy.float32(10.0)
    one, other = big_align.contrastive_loss(z, t, scale)
    assert_type(one, jax.Array)
    big_align.blockwise_contrastive_loss(z, t, scale, mesh=mesh)
    big_align.sigmoid_loss(z, t, scale, scale)
    big_align.blockwise_sigmoid_loss(z, t, scale, scale)
    big_align.supervised_contrastive_loss(z, t, scale, label)
    big_align.blockwise_supervised_contrastive_loss(z, t, scale, label)
    shards = big_align.Shards
    return {
        "classes": big_align.softmax_cross_entropy(z, label, label >= 0),
        "clusters": [
            big_align.mlcd_loss, big_align.mlc_loss, big_align.unicom_loss,
            big_align.sampled_cluster_loss, shards,
        ],
        "tags": [big_align.tag_recognition_loss, big_align.find_tags],
    }  # fmt: skip
