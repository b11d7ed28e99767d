"""Checks of a config: everything that can be checked without reading data, before anything runs."""

import inspect
import os
from collections.abc import Collection, Mapping
from pathlib import Path

import jax
import numpy as np
from absl import logging

from big_align.config.components import pipelines, tables
from big_align.config.components.signatures import advise, check_arguments, lookup, make, without
from big_align.config.components.transforms import check_repeatable, shape_of_image
from big_align.config.places import source_fields
from big_align.config.plain_fields import check_fields
from big_align.config.stages import FIRST, KEPT, naming_stage
from big_align.core.errors import (
    ConfigError,
    check_known,
    checking_values,
    naming_field,
    suggest,
)
from big_align.core.nodes import Node
from big_align.core.types import ModelState, Objective, Params
from big_align.data.loading.broken import check_fraction
from big_align.data.loading.mixture import part_rows
from big_align.data.loading.settings import LoaderSettings
from big_align.data.precomputed.joins import FOLDERS as PRECOMPUTED
from big_align.data.precomputed.shard_files import INDEX, read_index
from big_align.data.text.shortening import TRUNCATE, check_way
from big_align.evaluators.embedder import REMEDIES
from big_align.evaluators.evaluator import Evaluator
from big_align.models.dual_encoder import TOWERS
from big_align.objectives.parts.tracing import trace_encoding, trace_loss, trace_verb
from big_align.parallel.devices.compilation import check_cache, check_options
from big_align.runs import build, cached_features, dataset
from big_align.runs.initial_weights import check_init
from big_align.training.layer_rates import LayerRates
from big_align.training.logs.directions import collect_said, find_direction
from big_align.training.logs.trackers import check_login, check_wandb, open_trackers
from big_align.training.saving.checkpoint import Checkpointer
from big_align.training.saving.retention import Retention
from big_align.training.saving.rounds import check_deadline
from big_align.training.saving.step_folders import find_folder, has_steps


@checking_values()
def check_config(config: Node, training: bool = True, workdir: str | None = None) -> None:
    """Checks every field of a config that can be checked without reading or compiling anything.

    If it is to be trained, a batch must also fit the devices of this machine, and the first run is
    checked too. If its workdir has a checkpoint, initial weights may be gone.
    """
    check_fields(config, training)
    check_cache(config["compilation_cache"])
    check_options(config["compiler_options"])
    _check_data(config)
    keeping = without(config["checkpoint"], "every")
    check_arguments(Checkpointer, keeping, "config.checkpoint")
    make(Retention, without(keeping, "folder", "deadline"), "config.checkpoint")
    make(check_deadline, {k: v for k, v in keeping.items() if k == "deadline"}, "config.checkpoint")
    check_wandb(wandb := check_arguments(open_trackers, config["log"], "config.log").get("wandb"))
    build.build_optimizer(config)
    tokenizer = BlankTokenizer(config["tokenizer"])
    objective = build.build_objective(config, build.build_mesh(config), tokenizer)
    begun = workdir is not None and has_steps(find_folder(workdir, keeping.get("folder")))
    # Features are found by the weights that they are of, whenever a run starts.
    cached = bool(cached_features.read_settings(config).towers)
    check_init(config["init"], objective, training and (cached or not begun))
    cached_features.check_towers(config, objective.frozen)
    weights = _check_objective(config, objective, tokenizer, training)
    _check_verbs(config, objective, weights, tokenizer)
    if training:
        if jax.process_index() == 0:  # which alone logs
            check_login(wandb)
        with naming_field("config.tokenizer"):
            check_way(config["tokenizer"].get("shorten") or TRUNCATE)
        _check_precision(config, build.find_frozen(config, objective), weights[0])
        _tell_moving(config["optimizer"], weights[1])
        check_first(config, workdir)


def check_first(config: Node, workdir: str | None = None) -> None:
    """Checks the stage before a run, if there is one, in the run's workdir, if it has one yet."""
    first, kept = config.get(FIRST), config["init"].get("optimizer")
    if kept:
        check_known("config.init.optimizer", kept, (KEPT,))
        _check_kept(config, first)
    if not first:
        return
    if path := config["init"].get("all"):
        raise ConfigError(
            f"config.init.all = {path!r} is not used beside config.first, whose weights start this "
            "run; write --config.first.init.all=... or --config.first={}"
        )
    with naming_stage():
        check_config(first, workdir=workdir and os.path.join(workdir, FIRST))


def _check_kept(config: Node, first: Node | None) -> None:
    """Checks that an optimizer can go on with the state of that of the stage before."""
    if not first:
        raise ConfigError(
            "config.init.optimizer = 'kept' is the state that the run before has left, and there "
            "is no config.first; write --config.init.optimizer=None"
        )
    for part in TOWERS:
        if path := config["init"].get(part):
            raise ConfigError(
                f"config.init.{part} = {path!r} has other weights than those whose moments "
                f"config.init.optimizer = 'kept' takes; write --config.init.optimizer=None"
            )
    names = [each["optimizer"].get("name") for each in (first, config)]
    if len({name == "sgd" for name in names}) > 1:
        raise ConfigError(
            f"config.init.optimizer = 'kept', but config.first.optimizer.name = {names[0]!r} has "
            f"other moments than config.optimizer.name = {names[1]!r}; write "
            f"--config.first.optimizer.name={names[1]} or --config.init.optimizer=None"
        )


def _check_precision(config: Node, frozen: Collection[str], params: Params) -> None:
    """Refuses towers that would be trained in float16: losses are not scaled for it."""
    for part in filter(params["model"].__contains__, TOWERS):  # an objective may leave one out
        dtype = (config["model"].get(part) or {}).get("dtype")
        if dtype == "float16" and not {"model", f"model/{part}"} & set(frozen):
            where = f"config.model.{part}"
            raise ConfigError(
                f"{where}.dtype = 'float16' is for towers that are not trained: small gradients "
                f"become 0{advise(where, dtype='bfloat16')}"
            )


def _tell_moving(optimizer: Node, model_state: ModelState) -> None:
    """Warns of parameters that stay while the statistics beside them move."""
    paths = LayerRates(rates=tuple(optimizer.get("rates") or ())).partly_still
    if paths and jax.tree.leaves(model_state) and jax.process_index() == 0:
        logging.warning(
            "config.optimizer.rates: parts of %s stay, but not their batch statistics, and dropout "
            "is on: name these parts in config.optimizer.frozen",
            " and ".join(paths),
        )


class BlankTokenizer:
    """Makes blank texts of the right length, without reading a vocabulary."""

    vocab_size = 0
    fingerprint = ""

    def __init__(self, node: Node):
        target = lookup(node["name"], tables.TOKENIZERS, "config.tokenizer")
        length = node.get("length")
        default = inspect.signature(target).parameters["length"].default
        self.length = default if length is None else length
        if self.length < 1:
            raise ConfigError(f"config.tokenizer.length = {length} must be at least 1")

    def __call__(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        shape = len(texts), self.length
        # An empty text has no ids, as if between start and end ids, which are not known here.
        real = np.array([text != "" for text in texts], bool)
        return np.zeros(shape, np.int32), np.broadcast_to(real[:, None], shape)


def _check_data(config: Node) -> None:
    """Checks the nodes of objects that read data, without making the objects."""
    _lookup_and_check(config["tokenizer"], tables.TOKENIZERS, "config.tokenizer")
    tags = dataset.read_tag_settings(config)
    if tags.max_tags < 1:
        raise ConfigError(f"config.data.tags.max_tags = {tags.max_tags} must be at least 1")
    for where, node in dataset.part_nodes(config).values():
        if node.get("source"):
            _lookup_and_check(node["source"], tables.SOURCES, f"{where}.source")
        loader = without(node, "source", "classes", "weight", "precomputed", "tags")
        settings = make(LoaderSettings, loader, where)
        shape_of_image(settings.transform, f"{where}.transform")
        if tags.path and not settings.captions_per_image:
            raise ConfigError(
                f"{where}.captions_per_image = 0 reads no texts, so config.data.tags finds no tag; "
                f"write --{where}.captions_per_image=1 or --config.data.tags.path=None"
            )
        if not isinstance(node.get("classes"), str | None):
            raise ConfigError(f"{where}.classes = {node['classes']!r} is no name of a class list")
        for field, path in (node.get("precomputed") or {}).items():
            if field not in PRECOMPUTED:
                raise ConfigError(
                    f"{where}.precomputed.{field} is unknown{suggest(field, PRECOMPUTED)}; known: "
                    f"{', '.join(PRECOMPUTED)}"
                )
            if not isinstance(path, str | None):
                raise ConfigError(f"{where}.precomputed.{field} = {path!r} is no path of a folder")
    pipelines.check_pipeline(config)
    if config["data"].get("mixture"):
        weights = {name: float(part["weight"]) for name, part in config["data"]["mixture"].items()}
        with naming_field("config.data.mixture"):
            part_rows(weights, config["batch_size"])
    for name, node in config["evaluators"].items():
        _check_evaluator(config, node, f"config.evaluators.{name}")


def _check_evaluator(config: Node, node: Node, where: str) -> None:
    target = lookup(node.get("name"), tables.EVALUATORS, where)
    fields = source_fields(target)
    for field in fields:
        if node.get(field):
            _lookup_and_check(node[field], tables.SOURCES, f"{where}.{field}")
            if node[field]["name"] == dataset.HELD_OUT:
                dataset.find_held_out(config, node[field], f"{where}.{field}")
        elif inspect.signature(target).parameters[field].default is inspect.Parameter.empty:
            raise ConfigError(f"{where}.{field} is missing; it names where the examples are")
    arguments = check_arguments(target, without(node, *fields), where)
    if (transform := arguments.get("transform")) is not None:  # one from elsewhere may have none
        shape_of_image(transform, f"{where}.transform")
        check_repeatable(transform, f"{where}.transform")
    if (fraction := arguments.get("max_broken_fraction")) is not None:
        make(check_fraction, {"max_broken_fraction": fraction}, where)


def _check_objective(
    config: Node, objective: Objective, tokenizer: BlankTokenizer, training: bool
) -> tuple[Params, ModelState]:
    """Traces the towers on the shapes of a training batch, and the loss if it is to be trained.

    Towers check their own values. Returns the shapes of parameters and statistics.
    """
    one = build.example_batch(config, tokenizer)
    views = one["image"].shape[1:-3]
    if views and not objective.takes_views:
        raise ConfigError(
            f"config.data.views_per_image = {views[0]}, but the objective "
            f"{config['objective']['name']!r} takes one view an image"
        )
    parts = config["microbatches"]
    rows = config["batch_size"] // parts
    with naming_field("config.model"):
        params, model_state, outputs = trace_encoding(objective, one, rows)
    optimizer, _ = build.build_optimizer(config, build.find_frozen(config, objective))
    jax.eval_shape(optimizer.init, params)  # checks its paths
    init_row = build.build_row_optimizer(config).init
    rng = jax.random.PRNGKey(0)
    fresh = jax.eval_shape(lambda: jax.tree.map(init_row, objective.init_tables(rng)))
    if training:
        example = one | cached_features.describe_example(config, tokenizer, objective)
        trace_loss(objective, params, dict(fresh), outputs, example, rows, parts)
    return params, model_state


def _check_verbs(
    config: Node,
    objective: Objective,
    weights: tuple[Params, ModelState],
    tokenizer: BlankTokenizer,
) -> None:
    """Checks that the objective has the methods that evaluators call, by tracing them."""
    traced = set()
    for name, node in config["evaluators"].items():
        where = f"config.evaluators.{name}"
        target = lookup(node["name"], tables.EVALUATORS, where)
        inputs = _evaluated_batch(config, node, tokenizer, where)
        with naming_field(where):
            for verb in getattr(target, "needs", lambda settings: ())(node):
                if not callable(getattr(objective, verb, None)):
                    raise ConfigError(
                        f"{where}: the objective {config['objective']['name']!r} has no method "
                        f"{verb!r}; {REMEDIES.get(verb, 'another objective is needed')}"
                    )
                if (call := (verb, inputs["image"].shape)) not in traced:
                    trace_verb(objective, verb, *weights, inputs)
                    traced.add(call)
            if hasattr(target, "check_objective"):
                target.check_objective(node, objective)


def _evaluated_batch(
    config: Node, node: Node, tokenizer: BlankTokenizer, where: str
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of a batch that an evaluator would embed."""
    size = config["evaluate_batch_size"]
    image = build.example_batch(config, tokenizer)["image"].shape[-3:]
    if (transform := node.get("transform")) is not None:
        image = shape_of_image(transform, f"{where}.transform")
    shapes = {
        "image": ((size, *image), np.uint8),
        "text": ((size, tokenizer.length), np.int32),
        "text_mask": ((size, tokenizer.length), bool),
    }
    return {name: jax.ShapeDtypeStruct(*shape) for name, shape in shapes.items()}


@checking_values()
def check_keep_best(config: Node, evaluators: Mapping[str, Evaluator]) -> None:
    """Checks that the number that decides which checkpoint is best will be measured.

    Evaluators from elsewhere need not list their numbers; then the first evaluation shows them.
    """
    if (wanted := config["checkpoint"].get("keep_best")) is None:
        return
    named = {name: getattr(each, "numbers", None) for name, each in evaluators.items()}
    known = [f"{name}/{number}" for name, numbers in named.items() for number in numbers or ()]
    known += [f"{name}/..." for name, numbers in named.items() if numbers is None]
    evaluator = wanted.partition("/")[0]
    if wanted in known or (evaluator in named and named[evaluator] is None):
        if evaluator not in (said := collect_said(evaluators)):
            logging.warning(
                "config.checkpoint.keep_best = %r: %s is taken for better, by the number's name, "
                "since the evaluator does not say in lower_is_better which of its numbers are low",
                *(wanted, find_direction(wanted, said)),
            )
        return
    raise ConfigError(
        f"config.checkpoint.keep_best = {wanted!r} is no number of config.evaluators"
        f"{suggest(wanted, known)}; they measure: {', '.join(known) or 'nothing'}"
    )


def check_precomputed(config: Node, objective: Objective) -> None:
    """Checks the folders of precomputed fields with the objective, which reads their metadata."""
    folders = {}
    for part in dataset.read_parts(config).values():
        objective.check_precomputed(part.precomputed, part.where)
        if path := part.precomputed.get("clusters"):
            folders[f"{part.where}.precomputed.clusters"] = Path(path)
    start = config["init"].get("centers")
    if start and (Path(start) / INDEX).exists():  # a run that continues needs it no more
        folders["config.init.centers"] = Path(start)
    for part in dataset.read_parts(config[FIRST]).values() if config.get(FIRST) else ():
        path = part.precomputed.get("clusters")
        if path and folders and not start and (Path(path) / INDEX).exists():  # its centers go on
            place = f"config.{FIRST}.{part.where.removeprefix('config.')}.precomputed.clusters"
            folders[place] = Path(path)
    # The mean cosines of all its iterations tell a clustering from any other.
    found = {field: read_index(path, ()).get("objective") for field, path in folders.items()}
    for field, objectives in found.items():
        if objectives != found[first := next(iter(found))]:
            raise ConfigError(
                f"{field} = {folders[field]} is of another run of k-means than {first} = "
                f"{folders[first]}, so a number would stand for two centers: embed and cluster all "
                "data together, and name one run's folders"
            )


def _lookup_and_check(node: Node, table: Mapping[str, str], where: str) -> None:
    check_arguments(lookup(node.get("name"), table, where), node, where)
