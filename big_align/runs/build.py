"""The one place where names in a config become objects."""

import inspect
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Int

from big_align import sharding
from big_align.components.models import build_model
from big_align.components.signatures import lookup, make, make_named, without
from big_align.components.tables import EVALUATORS, OBJECTIVES, SOURCES, TOKENIZERS
from big_align.data.images.image_ops import Transform
from big_align.data.loading.loader import TrainLoader, text_shape_of
from big_align.data.loading.mixture import MixtureLoader, part_processes, part_rows, part_seed
from big_align.data.precomputed.embedding_files import read_centers
from big_align.data.precomputed.joins import open_joins
from big_align.data.precomputed.shard_files import read_index
from big_align.data.tags.tag_extraction import NO_TAG
from big_align.errors import ConfigError
from big_align.objectives.mixing import MixedLabels
from big_align.row_tables import RowOptimizer, Table, place_centers
from big_align.runs import dataset
from big_align.runs.defaults import source_fields
from big_align.training import optimizers
from big_align.training.checkpoint import Checkpointer
from big_align.types import Evaluator, Node, Objective


def build_mesh(config: Node) -> Mesh:
    """Builds the device mesh."""
    return make(sharding.make_mesh, config["mesh"], "config.mesh")


def build_objective(config: Node, mesh: Mesh, tokenizer: Any) -> Objective:
    """Builds what is trained.

    Args:
      config: the config.
      mesh: the devices.
      tokenizer: makes the ids of class texts, for objectives that encode them.

    Raises:
      ConfigError: a value does not fit, or an objective over classes has no class list, or one that
        recognizes tags no tag list.
    """
    node = config["objective"]
    target = lookup(node.get("name"), OBJECTIVES, "config.objective")
    given = {"model": build_model(config), "mesh": mesh}
    wanted = inspect.signature(target).parameters
    if {"classes", "num_classes"} & set(wanted):
        classes = dataset.all_classes(dataset.read_parts(config))
        if classes is None:
            raise ConfigError(
                f"config.objective.name = {node['name']!r} needs classes: name a class list in "
                "config.data.classes, or in a part of config.data.mixture"
            )
        given |= {"classes": classes, "num_classes": len(classes)}
    if "tags" in wanted:
        given["tags"] = dataset.read_tags(config, tokenizer)
    given["tokenizer"] = tokenizer
    given = {name: value for name, value in given.items() if name in wanted}
    objective = make(target, node, "config.objective", **given)
    mixing = config.get("mixing") or {}
    if mixing.get("mixup_alpha") or mixing.get("cutmix_alpha"):
        objective = make(MixedLabels, mixing, "config.mixing", objective=objective)
    return objective


def build_optimizer(
    config: Node,
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Builds the optimizer chain and its learning rate."""
    schedule = make(
        optimizers.make_schedule,
        config["schedule"],
        "config.schedule",
        total_steps=config["total_steps"],
    )
    node = dict(config["optimizer"])
    # The name is an argument here: one function makes every chain.
    name = {"name": node.get("name")}
    optimizer = make(
        optimizers.make_optimizer, node, "config.optimizer", learning_rate=schedule, **name
    )
    return optimizer, schedule


def build_row_optimizer(config: Node) -> RowOptimizer:
    """Builds what updates the rows of class tables: the optimizer's settings, row by row."""
    return optimizers.make_row_optimizer(**config["optimizer"])


def start_tables(config: Node, tables: Mapping[str, Table]) -> dict[str, Table]:
    """Returns the tables of a fresh run, with the centers that `config.init.centers` names.

    Raises:
      ConfigError: the objective has no centers.
      UserError: the folder has none, or not as many or wide as the table.
    """
    path = config["init"].get("centers")
    if not path:
        return dict(tables)
    if "centers" not in tables:
        raise ConfigError(
            f"config.init.centers: the objective {config['objective']['name']!r} has no centers"
        )
    index, table = read_index(Path(path), ("k", "dim")), tables["centers"]
    centers = read_centers(Path(path), index["k"], index["dim"])
    values = place_centers(centers, table.values, config["objective"]["num_clusters"])
    return {**tables, "centers": table._replace(values=values)}


def build_tokenizer(config: Node) -> Any:
    """Builds the tokenizer and checks it against the text tower.

    Raises:
      ConfigError: the text tower has fewer rows than the vocabulary, or fewer positions than
        the tokenizer's length.
    """
    node = config["tokenizer"]
    target = lookup(node.get("name"), TOKENIZERS, "config.tokenizer")
    tokenizer = make(target, node, "config.tokenizer")
    text = build_model(config).text
    if text is None:
        return tokenizer
    for field, need in (("vocab_size", tokenizer.vocab_size), ("max_length", tokenizer.length)):
        if getattr(text, field) < need:
            raise ConfigError(
                f"config.model.text.{field} = {getattr(text, field)} is less than the {need} of "
                f"the tokenizer"
            )
    return tokenizer


def build_train_loader(
    config: Node, tokenizer: Any, rows: Int[np.ndarray, " r"] | None = None
) -> TrainLoader | MixtureLoader:
    """Builds the loader of this process's rows of every training batch."""
    parts, size = dataset.read_parts(config), config["batch_size"]
    tagger = dataset.build_tagger(config)
    for part in parts.values():
        dataset.check_joined(part, config["objective"])
    if "mixture" not in config["data"] or not config["data"]["mixture"]:
        (part,) = parts.values()
        given = {"batch_size": size, "rows": rows, "seed": config["seed"]}
        return _build_part(part, tokenizer, tagger=tagger, **given)
    weights = {name: float(part.weight) for name, part in parts.items()}
    counts = part_rows(weights, size)
    processes = part_processes(weights, config["data"].get("num_processes") or 0)
    loaders = {
        name: _build_part(
            part,
            tokenizer,
            tagger=tagger,
            batch_size=counts[name],
            seed=part_seed(config["seed"], name),
            num_processes=processes[name],
        )
        for name, part in parts.items()
    }
    options = {k: config["data"].get(k) for k in ("num_threads", "prefetch")}
    return MixtureLoader(loaders, rows, **{k: v for k, v in options.items() if v is not None})


def _build_part(part: dataset.Part, tokenizer: Any, **given: Any) -> TrainLoader:
    dataset.check_texts(part, tokenizer)
    source = make_named(SOURCES, part.source, f"{part.where}.source")
    return make(
        TrainLoader,
        without(part.loader, *given),
        part.where,
        source=source,
        joins=open_joins(part.joined, source),
        tokenizer=tokenizer,
        classes=part.classes,
        label_offset=part.label_offset,
        **given,
    )


def build_evaluators(config: Node, tokenizer: Any) -> dict[str, Evaluator]:
    """Builds the evaluators by their names in the config."""
    evaluators = {}
    for name, node in config["evaluators"].items():
        where = f"config.evaluators.{name}"
        target = lookup(node["name"], EVALUATORS, where)
        sources = [field for field in source_fields(target) if node.get(field)]
        given = {field: make_named(SOURCES, node[field], f"{where}.{field}") for field in sources}
        if "tokenizer" in inspect.signature(target).parameters:
            given["tokenizer"] = tokenizer
        made = make(target, without(node, *source_fields(target)), where, **given)
        if templates := getattr(made, "templates", ()):
            dataset.check_class_texts(made.names, templates, tokenizer, where)
        evaluators[name] = made
    return evaluators


def build_checkpointer(
    config: Node, workdir: str, read_only: bool = False
) -> Checkpointer:
    """Builds what saves and restores the training state."""
    node = without(config["checkpoint"], "every")
    return make(Checkpointer, node, "config.checkpoint", workdir=workdir, read_only=read_only)


def describe_run(config: Node, tokenizer: Any) -> dict[str, Any]:
    """Returns what a checkpoint must agree on to be continued: the stream of examples."""
    return {
        "tokenizer": tokenizer.fingerprint,
        "seed": config["seed"],
        "batch_size": config["batch_size"],
        "tags": dataset.fingerprint_tags(config),
        **dataset.fingerprint_parts(dataset.read_parts(config)),
    }


def example_batch(config: Node, tokenizer: Any) -> dict[str, np.ndarray]:
    """Returns one row of a training batch, of zeros: the shapes to build a model with."""
    part = next(iter(dataset.read_parts(config).values()))
    node, where = part.loader, part.where
    shape = shape_of_image(node["transform"], f"{where}.transform")
    views = node.get("views_per_image") or 1
    captions = node.get("captions_per_image")
    text_shape = text_shape_of(tokenizer.length, 1 if captions is None else captions)
    tags = dataset.tag_fields(config)
    return {
        **{name: np.full((1, *shape), NO_TAG, np.int32) for name, shape in tags.items()},
        "image": np.zeros((1, *shape) if views == 1 else (1, views, *shape), np.uint8),
        "text": np.zeros((1, *text_shape), np.int32),
        "text_mask": np.ones((1, *text_shape), bool),
        "label": np.zeros(1, np.int32),
        "mask": np.ones(1, bool),
    }


def shape_of_image(transform: str, where: str) -> tuple[int, ...]:
    """Runs the operations on a large blank image, which also shows whether they fit together."""
    try:
        return Transform(transform)(np.zeros((2048, 2048, 3), np.uint8), random.Random(0)).shape
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
