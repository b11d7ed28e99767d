"""The one place where names in a config become objects."""

import inspect
import random
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Int
from ml_collections import ConfigDict

from big_align import data_parts, optim, sharding
from big_align.checkpoint import Checkpointer
from big_align.class_table import RowOptimizer, Table, place_centers
from big_align.data.image_ops import Transform
from big_align.data.joins import open_joins
from big_align.data.loader import TrainLoader, text_shape_of
from big_align.data.mixture import MixtureLoader, part_processes, part_rows, part_seed
from big_align.data.sources import Source
from big_align.data.tag_extraction import NO_TAG
from big_align.embedding_files import read_centers
from big_align.errors import ConfigError
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.mixing import MixedLabels
from big_align.registry import Node, fill_defaults, lookup, make
from big_align.shard_files import read_index
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
    "cross_entropy": "big_align.objectives.cross_entropy:CrossEntropy",
    "iclip": "big_align.objectives.iclip:Iclip",
    "idea": "big_align.objectives.idea:Idea",
    "lit": "big_align.objectives.lit:Lit",
    "mlcd": "big_align.objectives.mlcd:Mlcd",
    "multitask": "big_align.objectives.multitask:MultiTask",
    "supcon": "big_align.objectives.supcon:SupCon",
    "unicl": "big_align.objectives.unicl:Unicl",
}
TOKENIZERS = {
    "wordpiece": "big_align.data.tokenizers:WordPieceTokenizer",
    "clip": "big_align.data.tokenizers:ClipTokenizer",
    "roberta": "big_align.data.roberta_tokenizer:RobertaTokenizer",
    "words": "big_align.data.tokenizers:WordTokenizer",
    "class_names": "big_align.data.tokenizers:ClassNameTokenizer",
    "none": "big_align.data.tokenizers:NoTokenizer",
}
SOURCES = {
    "tar": "big_align.data.tar_source:TarSource",
    "tfrecord": "big_align.data.record_source:TFRecordSource",
    "tfds": "big_align.data.record_source:TFDSSource",
    "folder": "big_align.data.folder_source:FolderSource",
    "csv": "big_align.data.csv_source:CsvSource",
    "npz": "big_align.data.array_source:read_npz",
    "digits": "big_align.data.digits:digits_source",
}
EVALUATORS = {
    "classification": "big_align.evaluators.classification:Classification",
    "few_shot": "big_align.evaluators.few_shot:FewShot",
    "found_tags": "big_align.evaluators.found_tags:FoundTags",
    "knn": "big_align.evaluators.knn:KNN",
    "linear_probe": "big_align.evaluators.linear_probe:LinearProbe",
    "retrieval": "big_align.evaluators.retrieval:Retrieval",
    "tag_recognition": "big_align.evaluators.tag_recognition:TagRecognition",
    "zero_shot": "big_align.evaluators.zero_shot:ZeroShot",
}

GIVEN = (
    *("model", "mesh", "source", "tokenizer", "batch_size", "rows", "seed", "objective"),
    *("total_steps", "workdir", "read_only", "classes", "label_offset"),
    *("train_source", "validation_source", "absent_source", "joins", "tagger"),
)
"""Arguments of components that come from elsewhere than their own node."""


def complete_config(config: ConfigDict) -> ConfigDict:
    """Adds every argument that the components of a config leave at its default.

    A config file calls it last: what it returns shows all there is to set, and
    --config.field=value reaches all of it.

    Returns:
      The config, changed in place.
    """
    parts = [config.data, *(config.data.get("mixture") or {}).values()]
    components = [
        (config, "tokenizer", TOKENIZERS),
        (config, "objective", OBJECTIVES),
        *((node, "source", SOURCES) for node in parts),
        *((config.model, part, TOWERS[part]) for part in TOWERS),
        *((config.evaluators, name, EVALUATORS) for name in config.evaluators),
    ]
    for name, node in config.evaluators.items():
        fields = source_fields(lookup(node.get("name"), EVALUATORS, f"evaluators.{name}"))
        components += [(node, field, SOURCES) for field in fields if node.get(field)]
    for parent, field, table in components:
        if parent.get(field):
            fill_defaults(lookup(parent[field].get("name"), table, field), parent[field], GIVEN)
    for target, node in (
        (TrainLoader, config.data),
        (DualEncoder, config.model),
        (Checkpointer, config.checkpoint),
        (MixedLabels, config.mixing),
        (optim.make_schedule, config.schedule),
        (optim.make_optimizer, config.optimizer),
    ):
        fill_defaults(target, node, GIVEN)
    return config


def source_fields(target: Any) -> list[str]:
    """Returns the parameters of a component that are sources: config nodes of their own."""
    hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    return [name for name, hint in hints.items() if Source in (hint, *typing.get_args(hint))]


def without(node: Node, *fields: str) -> dict[str, Any]:
    """Returns a node without some fields."""
    return {k: v for k, v in node.items() if k not in fields}


def build_mesh(config: Node) -> Mesh:
    """Builds the device mesh."""
    return make(sharding.make_mesh, config["mesh"], "config.mesh")


def build_tower(node: Node, part: str, where: str) -> nn.Module:
    """Builds an "image" or "text" tower."""
    return make(lookup(node.get("name"), TOWERS[part], where), node, where)


def build_model(config: Node) -> DualEncoder:
    """Builds the dual encoder from its towers; an empty node for texts leaves that one out."""
    node = config["model"]
    towers = {}
    for part in TOWERS:
        where = f"config.model.{part}"
        if part not in node or (part == "image" and not node[part]):
            raise ConfigError(f"{where} is missing; known: {', '.join(sorted(TOWERS[part]))}")
        towers[part] = build_tower(node[part], part, where) if node[part] else None
    return make(DualEncoder, without(node, *towers), "config.model", **towers)


def build_objective(config: Node, mesh: Mesh, tokenizer: Any) -> Objective:
    """Builds what is trained.

    Args:
      config: the config.
      mesh: the devices.
      tokenizer: makes the ids of class texts, for objectives that encode them.

    Raises:
      ConfigError: a value does not fit, or an objective over classes has no class list, or one that
        recognises tags no tag list.
    """
    node = config["objective"]
    target = lookup(node.get("name"), OBJECTIVES, "config.objective")
    given = {"model": build_model(config), "mesh": mesh}
    wanted = inspect.signature(target).parameters
    if {"classes", "num_classes"} & set(wanted):
        classes = data_parts.all_classes(data_parts.read_parts(config))
        if classes is None:
            raise ConfigError(
                f"config.objective.name = {node['name']!r} needs classes: name a class list in "
                "config.data.classes, or in a part of config.data.mixture"
            )
        given |= {"classes": classes, "num_classes": len(classes)}
    if "tags" in wanted:
        given["tags"] = data_parts.read_tags(config, tokenizer)
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


def build_row_optimizer(config: Node) -> RowOptimizer:
    """Builds what updates the rows of class tables: the optimizer's settings, row by row."""
    node = config["optimizer"]
    return RowOptimizer(**{name: node[name] for name in RowOptimizer._fields if name in node})


def start_tables(config: Node, tables: Mapping[str, Table]) -> dict[str, Table]:
    """Returns the tables of a fresh run, with the centres that `config.init.centers` names.

    Raises:
      ConfigError: the objective has no centres.
      UserError: the folder has none, or not as many or wide as the table.
    """
    path = config["init"].get("centers")
    if not path:
        return dict(tables)
    if "centers" not in tables:
        raise ConfigError(
            f"config.init.centers: the objective {config['objective']['name']!r} has no centres"
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


def build_source(node: Node, where: str) -> Source:
    """Builds a source of examples."""
    return make(lookup(node.get("name"), SOURCES, where), node, where)


def build_train_loader(
    config: Node, tokenizer: Any, rows: Int[np.ndarray, " r"] | None = None
) -> TrainLoader | MixtureLoader:
    """Builds the loader of this process's rows of every training batch."""
    parts, size = data_parts.read_parts(config), config["batch_size"]
    tagger = data_parts.build_tagger(config)
    for part in parts.values():
        data_parts.check_joined(part, config["objective"])
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


def _build_part(part: data_parts.Part, tokenizer: Any, **given: Any) -> TrainLoader:
    data_parts.check_texts(part, tokenizer)
    source = build_source(part.source, f"{part.where}.source")
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
        given = {field: build_source(node[field], f"{where}.{field}") for field in sources}
        if "tokenizer" in inspect.signature(target).parameters:
            given["tokenizer"] = tokenizer
        made = make(target, without(node, *source_fields(target)), where, **given)
        if templates := getattr(made, "templates", ()):
            data_parts.check_class_texts(made.names, templates, tokenizer, where)
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
        "tags": data_parts.fingerprint_tags(config),
        **data_parts.fingerprint_parts(data_parts.read_parts(config)),
    }


def example_batch(config: Node, tokenizer: Any) -> dict[str, np.ndarray]:
    """Returns one row of a training batch, of zeros: the shapes to build a model with."""
    part = next(iter(data_parts.read_parts(config).values()))
    node, where = part.loader, part.where
    shape = shape_of_image(node["transform"], f"{where}.transform")
    views = node.get("views_per_image") or 1
    captions = node.get("captions_per_image")
    text_shape = text_shape_of(tokenizer.length, 1 if captions is None else captions)
    tags = data_parts.tag_fields(config)
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
