"""The one place where names in a config become objects."""

import inspect
import os
import random
import types
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from big_align import optim, sharding
from big_align.checkpoint import Checkpointer
from big_align.data.image_ops import Transform
from big_align.data.loader import TrainLoader, text_shape_of
from big_align.data.sources import Source
from big_align.errors import ConfigError
from big_align.models.dual_encoder import DualEncoder
from big_align.registry import (
    Node,
    check_arguments,
    fill_defaults,
    lookup,
    make,
    suggest,
)
from big_align.types import Evaluator, Objective

IMAGE_TOWERS = {
    "efficientnet": "big_align.models.efficientnet:EfficientNet",
    "resnet": "big_align.models.resnet:ResNet",
    "swin": "big_align.models.swin:Swin",
    "vit": "big_align.models.vit:ViT",
}
TEXT_TOWERS = {
    "bert": "big_align.models.bert:Bert",
    "clip_text": "big_align.models.clip_text:ClipText",
    "embedding_table": "big_align.models.embedding_table:EmbeddingTable",
    "roberta": "big_align.models.bert:Roberta",
}
TOWERS = {"image": IMAGE_TOWERS, "text": TEXT_TOWERS}
OBJECTIVES = {
    "align": "big_align.objectives.align:Align",
    "clip": "big_align.objectives.align:Clip",
}
TOKENIZERS = {
    "wordpiece": "big_align.data.tokenizers:WordPieceTokenizer",
    "clip": "big_align.data.tokenizers:ClipTokenizer",
    "words": "big_align.data.tokenizers:WordTokenizer",
}
SOURCES = {
    "tar": "big_align.data.tar_source:TarSource",
    "tfrecord": "big_align.data.record_source:TFRecordSource",
    "tfds": "big_align.data.record_source:TFDSSource",
    "npz": "big_align.data.array_source:ArraySource.from_npz",
    "digits": "big_align.data.digits:digits_source",
}
EVALUATORS = {
    "retrieval": "big_align.evaluators.retrieval:Retrieval",
    "zero_shot": "big_align.evaluators.zero_shot:ZeroShot",
}

GIVEN = (
    *("model", "mesh", "source", "tokenizer", "batch_size", "rows", "seed"),
    *("total_steps", "workdir", "read_only"),
)
"""Arguments of components that come from elsewhere than their own node."""

FIELDS = {
    "seed",
    "batch_size",
    "total_steps",
    "microbatches",
    "average_decay",
    "log_every",
    "mesh",
    "data",
    "tokenizer",
    "model",
    "objective",
    "schedule",
    "optimizer",
    "evaluators",
    "evaluate_every",
    "evaluate_batch_size",
    "checkpoint",
    "init",
}
INIT = ("all", "image", "text")
"""What of a model may start from earlier weights."""


def check_config(config: Node) -> None:
    """Checks every field of a config that can be checked without reading or compiling anything.

    Raises:
      ConfigError: names the first field that is wrong, and what would be right.
    """
    for field in config:
        if field not in FIELDS:
            raise ConfigError(
                f"config.{field} is unknown{suggest(field, FIELDS)}; known: "
                f"{', '.join(sorted(FIELDS))}"
            )
    for field in sorted(FIELDS - set(config)):
        raise ConfigError(f"config.{field} is missing; configs/common.py has all of them")
    for field in ("batch_size", "total_steps", "microbatches", "log_every", "evaluate_every"):
        if config[field] < 1:
            raise ConfigError(f"config.{field} = {config[field]} must be at least 1")
    if config["average_decay"] is not None and not 0 < config["average_decay"] < 1:
        raise ConfigError(f"config.average_decay = {config['average_decay']} is not in (0, 1)")
    for name, parts in (("batch_size", config["microbatches"]), ("evaluate_batch_size", 1)):
        if config[name] % (jax.device_count() * parts):
            raise ConfigError(
                f"config.{name} = {config[name]} is not a multiple of {jax.device_count()} devices"
                + (f" times config.microbatches = {parts}" if parts > 1 else "")
            )
    _check_data(config)
    _check_init(config["init"])
    keeping = _without(config["checkpoint"], "every")
    check_arguments(Checkpointer, keeping, "config.checkpoint", GIVEN)
    build_optimizer(config)
    _check_objective(config, build_objective(config, build_mesh(config)))


def complete_config(config: ConfigDict) -> ConfigDict:
    """Adds every argument that the components of a config leave at its default.

    A config file calls it last: what it returns shows all there is to set, and
    --config.field=value reaches all of it.

    Returns:
      The config, changed in place.
    """
    components = [
        (config, "tokenizer", TOKENIZERS),
        (config, "objective", OBJECTIVES),
        (config.data, "source", SOURCES),
        *((config.model, part, TOWERS[part]) for part in TOWERS),
        *((config.evaluators, name, EVALUATORS) for name in config.evaluators),
        *((node, "source", SOURCES) for node in config.evaluators.values()),
    ]
    for parent, field, table in components:
        fill_defaults(lookup(parent[field].get("name"), table, field), parent[field], GIVEN)
    for target, node in (
        (TrainLoader, config.data),
        (DualEncoder, config.model),
        (Checkpointer, config.checkpoint),
        (optim.make_schedule, config.schedule),
        (optim.make_optimizer, config.optimizer),
    ):
        fill_defaults(target, node, GIVEN)
    return config


def _check_data(config: Node) -> None:
    """Checks the nodes whose objects read files, without making them."""
    _lookup_and_check(config["tokenizer"], TOKENIZERS, "config.tokenizer")
    nodes = {"config.data": (TrainLoader, config["data"])}
    for name, node in config["evaluators"].items():
        where = f"config.evaluators.{name}"
        nodes[where] = (lookup(node.get("name"), EVALUATORS, where), node)
    for where, (target, node) in nodes.items():
        if "source" not in node:
            raise ConfigError(f"{where}.source is missing; it names where the examples are")
        _lookup_and_check(node["source"], SOURCES, f"{where}.source")
        arguments = check_arguments(target, _without(node, "source"), where, GIVEN)
        _shape_of_image(arguments["transform"], f"{where}.transform")


def _check_init(node: Node) -> None:
    """Checks that what the weights start from is there."""
    for part, path in node.items():
        where = f"config.init.{part}"
        if part not in INIT:
            raise ConfigError(f"{where} is unknown{suggest(part, INIT)}; known: {', '.join(INIT)}")
        if path and not os.path.exists(path):
            raise ConfigError(f"{where}: there is no file, folder or workdir {path}")


def _check_objective(config: Node, objective: Objective) -> None:
    """Traces the towers on the shapes of a training batch: they check their values themselves."""
    node = config["tokenizer"]
    parameters = inspect.signature(lookup(node["name"], TOKENIZERS, "config.tokenizer")).parameters
    length = node.get("length") or parameters["length"].default
    one = example_batch(config, types.SimpleNamespace(length=length))
    rows = config["batch_size"] // config["microbatches"]
    batch = {k: jax.ShapeDtypeStruct((rows, *v.shape[1:]), v.dtype) for k, v in one.items()}
    rng = jax.random.PRNGKey(0)
    try:
        params, model_state = nn.meta.unbox(jax.eval_shape(objective.init, rng, one))
        jax.eval_shape(objective.encode, params, model_state, batch, rng)
    except ValueError as error:
        raise ConfigError(f"config.model: {error}") from error


def _shape_of_image(transform: str, where: str) -> tuple[int, ...]:
    """Runs the operations on a large blank image, which also shows whether they fit together."""
    try:
        return Transform(transform)(np.zeros((2048, 2048, 3), np.uint8), random.Random(0)).shape
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def _lookup_and_check(node: Node, table: Mapping[str, str], where: str) -> Any:
    target = lookup(node.get("name"), table, where)
    check_arguments(target, node, where)
    return target


def _without(node: Node, field: str) -> dict[str, Any]:
    return {k: v for k, v in node.items() if k != field}


def build_mesh(config: Node) -> Mesh:
    """Builds the device mesh."""
    return make(sharding.make_mesh, config["mesh"], "config.mesh")


def build_tower(node: Node, part: str, where: str) -> nn.Module:
    """Builds an "image" or "text" tower."""
    return make(lookup(node.get("name"), TOWERS[part], where), node, where)


def build_model(config: Node) -> DualEncoder:
    """Builds the dual encoder from its two towers."""
    node = config["model"]
    towers = {}
    for part in TOWERS:
        where = f"config.model.{part}"
        if part not in node:
            raise ConfigError(f"{where} is missing; known: {', '.join(sorted(TOWERS[part]))}")
        towers[part] = build_tower(node[part], part, where)
    rest = {k: v for k, v in node.items() if k not in towers}
    return make(DualEncoder, rest, "config.model", **towers)


def build_objective(config: Node, mesh: Mesh) -> Objective:
    """Builds what is trained."""
    node = config["objective"]
    target = lookup(node.get("name"), OBJECTIVES, "config.objective")
    return make(target, node, "config.objective", model=build_model(config), mesh=mesh)


def build_optimizer(
    config: Node,
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Builds the optimizer chain and its learning rate."""
    schedule = make(
        optim.make_schedule,
        config["schedule"],
        "config.schedule",
        total_steps=config["total_steps"],
    )
    node = dict(config["optimizer"])
    # The name is an argument here: one function makes every chain.
    name = {"name": node.get("name")}
    optimizer = make(
        optim.make_optimizer, node, "config.optimizer", learning_rate=schedule, **name
    )
    return optimizer, schedule


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
    for field, need in (("vocab_size", tokenizer.vocab_size), ("max_length", tokenizer.length)):
        if getattr(text, field) < need:
            raise ConfigError(
                f"config.model.text.{field} = {getattr(text, field)} is less than the {need} of "
                f"the tokenizer"
            )
    return tokenizer


def build_source(node: Node, where: str) -> Source:
    """Builds a source of examples."""
    return make(lookup(node.get("name"), SOURCES, where), node, where)


def build_train_loader(
    config: Node, tokenizer: Any, rows: tuple[int, int]
) -> TrainLoader:
    """Builds the loader of this process's rows of every training batch."""
    node = config["data"]
    return make(
        TrainLoader,
        _without(node, "source"),
        "config.data",
        source=build_source(node["source"], "config.data.source"),
        tokenizer=tokenizer,
        batch_size=config["batch_size"],
        rows=rows,
        seed=config["seed"],
    )


def build_evaluators(config: Node, tokenizer: Any) -> dict[str, Evaluator]:
    """Builds the evaluators by their names in the config."""
    evaluators = {}
    for name, node in config["evaluators"].items():
        where = f"config.evaluators.{name}"
        evaluators[name] = make(
            lookup(node["name"], EVALUATORS, where),
            _without(node, "source"),
            where,
            source=build_source(node["source"], f"{where}.source"),
            tokenizer=tokenizer,
        )
    return evaluators


def build_checkpointer(
    config: Node, workdir: str, read_only: bool = False
) -> Checkpointer:
    """Builds what saves and restores the training state."""
    node = _without(config["checkpoint"], "every")
    return make(Checkpointer, node, "config.checkpoint", workdir=workdir, read_only=read_only)


def describe_run(config: Node, tokenizer: Any) -> dict[str, Any]:
    """Returns what a checkpoint must agree on to be continued: it fixes the order of examples."""
    return {
        "tokenizer": tokenizer.fingerprint,
        "seed": config["seed"],
        "batch_size": config["batch_size"],
    }


def example_batch(config: Node, tokenizer: Any) -> dict[str, np.ndarray]:
    """Returns one row of a training batch, of zeros: the shapes to build a model with."""
    data = config["data"]
    shape = _shape_of_image(data["transform"], "config.data.transform")
    text_shape = text_shape_of(tokenizer.length, data.get("captions_per_image") or 1)
    return {
        "image": np.zeros((1, *shape), np.uint8),
        "text": np.zeros((1, *text_shape), np.int32),
        "text_mask": np.ones((1, *text_shape), bool),
        "label": np.zeros(1, np.int32),
        "mask": np.ones(1, bool),
    }
