"""Initial weights of training, published or from earlier runs: `config.init`."""

import copy
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from big_align.config.components.from_init import FROM_INIT
from big_align.config.defaults import complete_config
from big_align.config.kept_files import replace_missing
from big_align.config.stages import FIRST, KEPT, keeps_optimizer
from big_align.core.errors import (
    ConfigError,
    MissingInput,
    WeightsMismatch,
    naming_field,
    suggest,
)
from big_align.core.module_paths import fits, split_path
from big_align.core.nodes import Node, find_node
from big_align.core.types import Objective, Params
from big_align.data.package_files import check_installed, locate
from big_align.data.precomputed.embedding_files import read_centers
from big_align.data.precomputed.shard_files import read_index
from big_align.models.dual_encoder import TOWERS, DualEncoder
from big_align.parallel.distributed import agreement
from big_align.runs import build, dataset, restore, workdir
from big_align.runs.own_vocabulary import take_vocabulary
from big_align.runs.program import Program
from big_align.runs.stage_before import continue_stage
from big_align.training.row_tables import Table, place_centers
from big_align.training.saving.step_folders import find_folder, has_steps
from big_align.training.state import TrainState, replace_weights
from big_align.weights.hub.download import fix_revision
from big_align.weights.hub.names import PREFIX, parse_name
from big_align.weights.transfer.settings import (
    COLORS,
    PROJECTIONS,
    describe_differences,
    describe_inputs,
    describe_model,
    inherit_tokenizer,
    inherit_tower,
    inherit_transform,
    list_names,
)
from big_align.weights.transfer.tables import belongs, count_leading, fit_table, place_arrays

Flat = dict[str, np.ndarray]
INIT = ("all", "image", "text")
"""Parts of a model that may start from earlier weights; so may the objective's tables, by name."""
TEMPERATURE = "temperature"  # what an objective divides cosines by, as named in `config.init`
OPTIMIZER = "optimizer"  # the one of `config.init` that names no weights
CLASSIFIER = "classifier"  # the layer from features to classes, in parameters and `config.init`


def check_init(node: Node, objective: Objective, needed: bool) -> None:
    """Checks that initial weights and rows of tables are known and, if needed, exist."""
    if needed:
        check_installed(path for part, path in node.items() if path and part != OPTIMIZER)
    own = (CLASSIFIER,) if hasattr(objective, CLASSIFIER) else ()
    known = *INIT, *own, TEMPERATURE, *objective.table_sizes
    for part, path in node.items():
        if part == OPTIMIZER:
            continue
        where = f"config.init.{part}"
        if path and part not in known:
            raise ConfigError(
                f"{where} is nothing that the objective has{suggest(part, known)}; known: "
                f"{', '.join(known)}"
            )
        if not path or not needed or (part, path) == (TEMPERATURE, "all"):
            continue
        if path.startswith(PREFIX) or os.path.exists(locate(path)):
            continue
        if not workdir.recognize_workdir(Path(path)):
            raise MissingInput(
                f"{where}: there is no file, folder or workdir {path}: put weights there, name "
                f"others, --{where}=PATH or {PREFIX}OWNER/NAME, or start fresh, --{where}=''"
            )


def settle(config: ConfigDict, workdir: str) -> ConfigDict:
    """Returns the config of a run with all that it leaves to find out.

    That is what names of a hub mean now, what is "from_init", and a vocabulary "from_data". What a
    workdir has found before stays, so that a run continues when its sources are gone.
    """
    named = fix_names(config, workdir)
    return take_vocabulary(take_settings(named, workdir), workdir)


def fix_names(config: ConfigDict, folder: str) -> ConfigDict:
    """Returns a config in which names of repositories have the commits that they now mean.

    A run that has begun keeps the commits with which it started, and asks no hub. The first process
    asks for all. The config itself stays as it is.
    """
    config = copy.deepcopy(config)
    with config.unlocked():
        if first := config.get(FIRST):
            config.first = fix_names(first, os.path.join(folder, FIRST))
        given = {part: config.init.get(part) for part in (*INIT, TEMPERATURE)}
        if given := {part: path for part, path in given.items() if path}:
            fixed = agreement.attempt("repositories", _fix, given, config, folder)
            config.init.update(agreement.share("repositories", fixed))
    return config


def _fix(given: dict[str, str], config: ConfigDict, folder: str) -> dict[str, str]:
    """Returns what those of the paths become that are names, by part.

    Other processes than the first, on whose hosts other folders may lie, are not asked.
    """
    named = {part: path for part, path in given.items() if parse_name(path)}
    if jax.process_index() != 0 or not named:
        return {}
    former, begun = restore.read_former(folder), False
    if former is not None:
        begun = has_steps(find_folder(folder, config.checkpoint.get("folder")))
    fixed = {}
    for part, path in named.items():
        before = former.init.get(part) if begun else ""
        known, name = (parse_name(each) if each else None for each in (before, path))
        if known and name and known.id == name.id:
            fixed[part] = str(known)
        elif not begun:
            with naming_field(f"config.init.{part}"):
                fixed[part] = fix_revision(path)
    return fixed


def take_settings(config: ConfigDict, folder: str | None = None) -> ConfigDict:
    """Replaces what is named "from_init" by what the models in `config.init` have.

    These are towers, a tokenizer and image operations. With an image tower come the mean and
    deviation of its colors, and with two towers of one model the projections. A run that continues
    has all of them in its workdir. The config itself stays as it is.
    """
    config = copy.deepcopy(config)
    if first := config.get(FIRST):
        with config.unlocked():
            config.first = take_settings(first, folder and os.path.join(folder, FIRST))
    parts = [part for part in TOWERS if (config.model.get(part) or {}).get("name") == FROM_INIT]
    tokenized = config.tokenizer.get("name") == FROM_INIT
    prepared = [place for place in _list_transforms(config) if _of_init(config, place)]
    wanted = [*parts, *(["text"] if tokenized else []), *(["image"] if prepared else [])]
    if not wanted:
        return config
    there = _find_settings(config, dict.fromkeys(wanted), folder, prepared)
    with config.unlocked():
        for part in parts:
            config.model[part] = inherit_tower(there[part], part, config.model[part])
        outside = COLORS if "image" in parts else ()
        outside += PROJECTIONS if len(parts) == 2 and there["image"] is there["text"] else ()
        own = there[parts[0]] if parts else {}
        config.model.update({name: own[name] for name in outside if name in own})
        if tokenized:
            length = (config.model.get("text") or {}).get("max_length")
            config.tokenizer = inherit_tokenizer(there["text"], length, config.tokenizer)
        for place in prepared:
            find_node(config, place).transform = inherit_transform(there["image"], place)
        return complete_config(config)


def _list_transforms(config: ConfigDict) -> list[str]:
    """Returns the places of nodes that have image operations."""
    mixture = (config.data.get("mixture") or {}).keys()
    return [
        *("data", *(f"data.mixture.{name}" for name in mixture)),
        *(f"evaluators.{name}" for name in config.evaluators),
    ]


def _of_init(config: ConfigDict, place: str) -> bool:
    node = find_node(config, place)
    return node is not None and node.get("transform") == FROM_INIT


def _find_settings(
    config: ConfigDict, parts: Collection[str], folder: str | None, prepared: Sequence[str]
) -> dict[str, Node]:
    """Returns the settings of the models that towers start from, as `describe_model` does."""
    former = restore.read_former(folder) if folder else None
    same = former is not None and former.init.to_dict() == config.init.to_dict()
    if same and folder:
        replace_missing(folder, former)  # what the cache of a hub held may be gone
    if known := former if same else config.get(FIRST):
        seen = {find_node(known, place).transform for place in prepared if find_node(known, place)}
        operations = {"transform": next(iter(seen))} if len(seen) == 1 else {}
        settings = {**known.model.to_dict(), "tokenizer": known.tokenizer, **operations}
        if not prepared or operations:
            return dict.fromkeys(parts, settings)
    paths = {part: config.init.get(part) or config.init.get("all") for part in parts}
    for part, path in paths.items():
        if not path:
            raise ConfigError(
                f"config.init.{part} names nothing whose settings {FROM_INIT!r} could take; write "
                f"--config.init.{part}=PATH"
            )
    read = {
        path: describe_model(workdir.read_pretrained(path))
        for path in dict.fromkeys(paths.values())
    }
    return {part: read[path] for part, path in paths.items()}


def create_state(config: Node, program: Program, tokenizer: Any) -> TrainState:
    """Makes the state of step 0, from earlier weights if the config names some."""
    shapes, model = program.state.weight_shapes, getattr(program.objective, "model", None)
    weights, report = read_initial_weights(shapes, config["init"], model, tokenizer)
    check_frozen(build.find_frozen(config, program.objective), shapes, weights)
    own, more = read_initial_parameters(config, program.state.params)
    agreement.check_weights("objective's parameters", own)
    state = replace_weights(program.create(), weights | own)
    sizes = program.objective.table_sizes
    state = state.replace(tables=start_tables(config["init"], state.tables, sizes))
    if config.get(FIRST):
        state, last = continue_stage(config, program, state, own)
        more += last
    if (report or more) and jax.process_index() == 0:
        print("\n".join(report + more))
    return state


def read_initial_weights(
    fresh: Mapping[str, tuple[int, ...]],
    sources: Node,
    model: DualEncoder | None = None,
    tokenizer: Any = None,
) -> tuple[Flat, list[str]]:
    """Reads the arrays that a model takes over from other models, by path within a dual encoder.

    A tower may come from a tower or from a dual encoder; of "all", "image" and "text", the narrower
    one wins. Tables of positions are made to fit the model's, and have fewer rows where the others
    are to be fresh; arrays that the source lacks keep their fresh values. A WeightsMismatch lists
    all that does not fit.

    Also returns a report: for each source, which arrays were taken, made to fit or left fresh,
    which settings differ from those of the model and its tokenizer, if these are given, and how its
    inputs were made.
    """
    taken, read, report, faults = {}, {}, [], []
    raw = sources.get(OPTIMIZER) == KEPT  # moments are those of the weights that were trained
    for part in INIT:
        path = sources.get(part)
        if not path:
            continue
        source = workdir.read_pretrained(path, averaged=part != "all" or not raw)
        found = place_arrays(source, part, path)
        wanted = [name for name in fresh if belongs(name, part)]
        fitting = [name for name in wanted if name in found]
        if not fitting:
            raise WeightsMismatch(
                f"config.init.{part}: nothing in {path} has a place in the model; its arrays are "
                f"like {', '.join(sorted(found)[:3])}, the model's like {', '.join(wanted[:3])}"
            )
        leading = count_leading(source)
        fitted: dict[str, list[str]] = {}
        for name in fitting:
            array = read[name] = found[name]
            if array.shape == fresh[name]:
                taken[name] = array
            elif made := fit_table(name, array, fresh[name], leading):
                taken[name], told = made
                fitted.setdefault(told, []).append(name)
            else:
                faults.append(
                    f"{name}: {list(array.shape)} in {path}, {list(fresh[name])} in the model"
                )
        report.append(f"init.{part} = {path}: {len(fitting)} of {len(wanted)} arrays taken")
        for told, names in fitted.items():
            report += list_names(told, names)
        report += list_names("fresh", sorted(set(wanted) - set(fitting)))
        report += list_names("not used", sorted(set(found) - set(fitting)))
        if model is not None:
            towers = [x for x in TOWERS if x == part or (part == "all" and not sources.get(x))]
            report += describe_differences(model, source, towers, tokenizer)
        report += describe_inputs(source)
    if faults:
        raise WeightsMismatch(
            f"config.init: {len(faults)} arrays do not fit the model:\n"
            + "\n".join(f"  {fault}" for fault in faults)
        )
    agreement.check_weights("initial weights", read)  # what is resized may be rounded differently
    return taken, report


def read_initial_parameters(config: Node, params: Params) -> tuple[Flat, list[str]]:
    """Reads the objective's own parameters that the config names earlier ones for; and a report."""
    classifier, report = _read_classifier(config, params)
    temperature, more = _read_temperature(config["init"], params)
    return classifier | temperature, report + more


def _read_classifier(config: Node, params: Params) -> tuple[Flat, list[str]]:
    """Reads the classifier; after a first run, it is that run's, if both have one."""
    init, where = config["init"], "config.init.classifier"
    named = init.get(CLASSIFIER)
    path = named or (init.get("all") if config.get(FIRST) else None)
    if not path or CLASSIFIER not in params:
        return {}, []
    is_run, averaged = workdir.recognize_workdir(Path(path)), named or not keeps_optimizer(config)
    read = workdir.TrainedRun(Path(path)).read_classifier(bool(averaged)) if is_run else None
    if read is None:
        if not named:
            return {}, []
        raise ConfigError(f"{where}: {path} is no workdir of a run with a classifier")
    found, classes = read
    fresh = {f"{CLASSIFIER}/{name}": x.shape for name, x in params[CLASSIFIER].items()}
    if classes != dataset.all_classes(dataset.read_parts(config)):
        raise ConfigError(f"{where}: the classifier in {path} is of other classes than this run's")
    if {name: x.shape for name, x in found.items()} != fresh:
        raise ConfigError(f"{where}: the classifier in {path} is for other features or biases")
    return found, [f"init.classifier = {path}: {len(found)} of {len(fresh)} arrays taken"]


def _read_temperature(init: Node, params: Params) -> tuple[Flat, list[str]]:
    """Reads the temperature; the bias comes with it, if both have one."""
    where, named = f"config.init.{TEMPERATURE}", init.get(TEMPERATURE)
    if not named:
        return {}, []
    path = init.get("all") if named == "all" else named
    if not path:
        raise ConfigError(f"{where} = 'all' is the model of config.init.all, which names none")
    of = {TEMPERATURE: lambda x: x, "log_scale": lambda x: -np.log(x)}
    name = next((name for name in of if name in params), None)
    if name is None:
        raise ConfigError(f"{where} = {named!r}: the objective learns no temperature")
    model = workdir.read_pretrained(path)
    if model.temperature is None:
        raise ConfigError(f"{where}: {path} has no temperature; write --{where}=''")
    taken = {name: np.asarray(of[name](np.float64(model.temperature)), np.float32)}
    report = f"init.{TEMPERATURE} = {named}: {model.temperature:.6g}"
    if workdir.has_bias(params) and model.bias is not None:
        taken[workdir.BIAS] = np.float32(model.bias)
        report += f", and the bias {model.bias:.6g}"
    return taken, [report]


def list_fresh(shapes: Mapping[str, tuple[int, ...]], taken: Mapping[str, np.ndarray]) -> list[str]:
    """Returns the arrays that earlier weights leave fresh, all of them or rows at their end."""
    return sorted(k for k, shape in shapes.items() if k not in taken or taken[k].shape != shape)


def check_frozen(
    frozen: Collection[str],
    shapes: Mapping[str, tuple[int, ...]],
    taken: Mapping[str, np.ndarray],
) -> None:
    """Checks that parameters that are not trained, by their paths, come from earlier weights."""
    fresh = list_fresh(shapes, taken)
    for path in frozen:
        if left := [x for x in fresh if fits(("model", *x.split("/")[1:]), split_path(path))]:
            raise WeightsMismatch(
                f"{path} is not trained, but config.init gives no weights to {len(left)} of its "
                f"arrays, {left[0]} the first: they would stay as they are drawn. Name a model "
                "that has them in config.init.all, config.init.image or config.init.text"
            )


def start_tables(
    folders: Node, tables: Mapping[str, Table], sizes: Mapping[str, int]
) -> dict[str, Table]:
    """Returns the tables of a fresh run, with initial rows where `config.init` names some."""
    started = dict(tables)
    for name, path in folders.items():
        if name in (*INIT, CLASSIFIER, TEMPERATURE, OPTIMIZER) or not path:
            continue
        if name not in tables:
            raise ConfigError(f"config.init.{name}: the objective has no table of {name}")
        index = read_index(Path(path), ("k", "dim"))
        made = {f"config.init.{name}": f"one made as {json.dumps(index, sort_keys=True)}"}
        agreement.check_inputs(f"init.{name}", lambda made=made: made)
        centers = read_centers(Path(path), index["k"], index["dim"])
        values = place_centers(centers, tables[name].values, sizes[name])
        started[name] = tables[name]._replace(values=values)
    return started
