"""The one place where names in a config become objects."""

import contextlib
import inspect
import os
import types
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Int

from big_align.config.class_templates import find_trained
from big_align.config.components.models import build_model
from big_align.config.components.pipelines import build_pipeline
from big_align.config.components.signatures import advise, list_settable, lookup, make, without
from big_align.config.components.tables import EVALUATORS, OBJECTIVES
from big_align.config.components.transforms import shape_of_image
from big_align.config.overrides import read_given
from big_align.config.places import source_fields
from big_align.core.errors import ConfigError, MissingCheckpoint, check_members
from big_align.core.nodes import Node
from big_align.core.types import Objective, SavedPart, TrainingData
from big_align.data.examples import Source, describe_shards
from big_align.data.loading.parallel import check_rows
from big_align.data.loading.text_samplers import text_shape_of
from big_align.data.tags.tag_extraction import NO_TAG
from big_align.data.tags.tag_list import read_tag_list
from big_align.data.tf_data.batch_checks import Limits
from big_align.evaluators.evaluator import Evaluator
from big_align.objectives.parts.mixing import MixedLabels
from big_align.parallel.distributed import agreement
from big_align.parallel.meshes import make_mesh
from big_align.runs import dataset
from big_align.runs.own_vocabulary import take_vocabulary
from big_align.runs.providers import Context, provide
from big_align.runs.streams import build_loader, check_class_texts, make_tokenizer
from big_align.training import optimizers
from big_align.training.logs.directions import UNSAID, Said, read_said
from big_align.training.logs.evaluations import read_evaluations
from big_align.training.row_tables import RowOptimizer
from big_align.training.saving.checkpoint import Checkpointer


def build_mesh(config: Node) -> Mesh:
    """Builds the device mesh."""
    return make(make_mesh, config["mesh"], "config.mesh")


def build_objective(config: Node, mesh: Mesh, tokenizer: Any) -> Objective:
    """Builds the objective to train."""
    node = config["objective"]
    target = lookup(node.get("name"), OBJECTIVES, "config.objective")
    given = provide(target, Context(config, tokenizer, mesh))
    objective = make(target, node, "config.objective", **given)
    check_members(objective, Objective, "config.objective")
    mixing = config.get("mixing") or {}
    if mixing.get("mixup_alpha") or mixing.get("cutmix_alpha"):
        objective = make(MixedLabels, mixing, "config.mixing", objective=objective)
    return objective


def find_frozen(config: Node, objective: Objective) -> tuple[str, ...]:
    """Returns the paths of all parameters that are not trained: what is locked, and those named."""
    named = config["optimizer"].get("frozen") or ()
    return tuple(dict.fromkeys((*objective.frozen, *named)))


def build_schedule(config: Node) -> optax.Schedule:
    """Builds the learning rate, a function of the steps that were trained."""
    total = {"total_steps": config["total_steps"]}
    return make(optimizers.make_schedule, config["schedule"], "config.schedule", **total)


def build_optimizer(
    config: Node, frozen: tuple[str, ...] = ()
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Builds the optimizer chain, by default with `optimizer.frozen`, and its learning rate."""
    schedule = build_schedule(config)
    node = dict(config["optimizer"]) | ({"frozen": frozen} if frozen else {})
    # The name is an argument here, since one function makes every chain.
    given = {"learning_rate": schedule, "name": node.get("name")}
    return make(optimizers.make_optimizer, node, "config.optimizer", **given), schedule


def build_row_optimizer(config: Node) -> RowOptimizer:
    """Builds the optimizer of the rows of class tables: the optimizer's settings, row by row."""
    given = {k: value for k, value in config["optimizer"].items() if value is not None}
    return optimizers.make_row_optimizer(**given)


def build_tokenizer(config: Node) -> Any:
    """Builds the tokenizer and checks it against the text tower."""
    tokenizer = make_tokenizer(config)
    text = build_model(config).text
    if text is None:
        return tokenizer
    for field, need in (("vocab_size", tokenizer.vocab_size), ("max_length", tokenizer.length)):
        if getattr(text, field) < need:
            raise ConfigError(
                f"config.model.text.{field} = {getattr(text, field)} is less than the {need} of "
                f"the tokenizer{advise('config.model.text', **{field: need})}"
            )
    return tokenizer


def build_train_loader(
    config: Node, tokenizer: Any, rows: Int[np.ndarray, " r"] | None = None
) -> TrainingData:
    """Builds the data that makes this process's rows of every training batch."""
    if config["data"].get("pipeline"):
        example = example_batch(config, tokenizer)
        row = {name: (array.shape[1:], array.dtype) for name, array in example.items()}
        return build_pipeline(config, row, find_limits(config), rows)
    return build_loader(config, tokenizer, rows)


def find_limits(config: Node) -> Limits:
    """Returns what the model and the data of a config can take of each field of a batch."""
    model, classes = build_model(config), dataset.all_classes(dataset.read_parts(config))
    tags = dataset.read_tag_settings(config).path
    counts = {
        "text": None if model.text is None else model.text.vocab_size,
        "label": None if classes is None else len(classes),
        "tags": len(read_tag_list(tags).names) if tags else None,
        "clusters": config["objective"].get("num_clusters"),
    }
    counts["true_tags"] = counts["tags"]
    black, white = (
        [(level - mean) / std for mean, std in zip(model.image_mean, model.image_std, strict=True)]
        for level in (0, 1)
    )
    return Limits({k: v for k, v in counts.items() if v is not None}, (min(black), max(white)))


def make_loader(
    config: Node | str | os.PathLike,
    *overrides: str,
    rows: Sequence[SupportsIndex] | Int[np.ndarray, " r"] | None = None,
) -> TrainingData:
    """Makes the training batches of a config, for use with a trainer of your own.

    Args:
      config: a config, or its file in the form that `--config` takes.
      overrides: as in `--config.batch_size=64`, if a file is given.
      rows: the rows of the global batch that this process makes, ascending; None makes all.

    Returns:
      The data, which a `with` closes. `iterate(start_step=0)` yields a batch for each step, and
      `batch(step)` makes that of one; a batch is a function of the config and the step alone.

    Raises:
      UserError: a field of the config, the data, or the rows cannot be used.

    Examples:
      >>> import big_align
      >>> with big_align.make_loader("quickstart", "--config.batch_size=4") as loader:
      ...     batch = next(loader.iterate(start_step=0))
      >>> for name in ("image", "text"):
      ...     print(name, batch[name].shape, batch[name].dtype)
      image (4, 16, 16, 3) uint8
      text (4, 12) int32
    """
    config = take_vocabulary(read_given(config, *overrides))
    made = None if rows is None else check_rows(rows, config["batch_size"])
    return build_train_loader(config, build_tokenizer(config), made)


def build_evaluators(config: Node, tokenizer: Any) -> dict[str, Evaluator]:
    """Builds the evaluators, by their names in the config."""
    return {name: build_evaluator(config, name, tokenizer) for name in config["evaluators"]}


def build_evaluator(config: Node, name: str, tokenizer: Any) -> Evaluator:
    """Builds the evaluator of a name, whose examples must be there; those of others need not."""
    node, where = config["evaluators"][name], f"config.evaluators.{name}"
    target = lookup(node["name"], EVALUATORS, where)
    sources = [field for field in source_fields(target) if node.get(field)]
    given, reads = {}, getattr(target, "reads", ())
    for field in sources:
        given[field] = dataset.open_evaluated(config, node[field], f"{where}.{field}")
        dataset.check_first(config, given[field], node[field], f"{where}.{field}", reads)
    given |= provide(target, Context(config, tokenizer))
    settings = without(node, *source_fields(target))
    if node.get("templates") is None and "templates" in list_settable(target):
        settings["templates"] = find_trained(config)
    evaluator = make(target, settings, where, **given)
    check_members(evaluator, Evaluator, where)
    texts = getattr(evaluator, "texts", ())
    if texts:
        check_class_texts(texts, tokenizer, where)
    opened = {f"{where}.{field}": given[field] for field in sources}
    agreement.check_inputs(where, lambda: _describe_inputs(where, opened, texts))
    return evaluator


def _describe_inputs(
    where: str, sources: Mapping[str, Source], texts: Sequence[Sequence[str]]
) -> dict[str, str]:
    """Returns what each shard of an evaluator's sources is called and holds, and its texts."""
    shards = {
        f"{field}, shard {number}": shard
        for field, source in sources.items()
        for number, shard in enumerate(describe_shards(source))
    }
    groups = {f"{where}, texts of class {n}": group for n, group in enumerate(texts)}
    return shards | {
        name: f"{group[0]!r} ({len(group)} of CRC {zlib.crc32(repr(list(group)).encode()):08x})"
        for name, group in groups.items()
    }


def find_evaluators(config: Node, kind: type) -> list[str]:
    """Returns the names of the evaluators of a kind; those that a function makes are of none."""
    targets = {
        name: lookup(node["name"], EVALUATORS, f"config.evaluators.{name}")
        for name, node in config["evaluators"].items()
    }
    return [
        name for name, made in targets.items() if inspect.isclass(made) and issubclass(made, kind)
    ]


def build_checkpointer(
    config: Node,
    workdir: str,
    read_only: bool = False,
    said: Said | None = None,
    parts: Mapping[str, SavedPart] = types.MappingProxyType({}),
) -> Checkpointer:
    """Builds the checkpointer; without `said`, `evaluations.jsonl` says which numbers are low."""
    node = without(config["checkpoint"], "every")
    if said is None and node.get("keep_best"):
        said = agreement.share("said", read_said(read_evaluations(workdir)))
    given = {"workdir": workdir, "read_only": read_only, "parts": parts, "said": said or UNSAID}
    return make(Checkpointer, node, "config.checkpoint", **given)


def has_begun(config: Node, workdir: str) -> bool:
    """Returns whether a run has saved a step."""
    try:
        checkpointer = build_checkpointer(config, workdir, read_only=True)
    except MissingCheckpoint:
        return False
    with contextlib.closing(checkpointer):
        return checkpointer.latest_step is not None


def describe_run(config: Node, tokenizer: Any) -> dict[str, Any]:
    """Returns what a checkpoint must agree with to be continued: the stream of examples."""
    return {
        "tokenizer": tokenizer.fingerprint,
        "seed": config["seed"],
        "batch_size": config["batch_size"],
        "pipeline": config["data"].get("pipeline") or "",
        "tags": dataset.fingerprint_tags(config),
        **dataset.fingerprint_parts(dataset.read_parts(config)),
    }


def example_batch(config: Node, tokenizer: Any) -> dict[str, np.ndarray]:
    """Returns one row of a training batch, all zeros: the shapes with which to build a model."""
    where, node = next(iter(dataset.part_nodes(config).values()))
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
