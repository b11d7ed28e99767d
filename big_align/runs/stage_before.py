"""What a stage of a run takes over from the one before, besides the weights of the model."""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from big_align.config.stages import keeps_optimizer
from big_align.core.errors import ConfigError
from big_align.core.nodes import Node
from big_align.runs import dataset
from big_align.runs.program import Program
from big_align.runs.workdir import TrainedRun
from big_align.training.moments import keep_moments, read_whole
from big_align.training.row_tables import Table
from big_align.training.state import TrainState, replace_weights
from big_align.weights.transfer.settings import list_names
from big_align.weights.transfer.tables import fit_table


def continue_stage(
    config: Node, program: Program, state: TrainState, taken: Mapping[str, Any]
) -> tuple[TrainState, list[str]]:
    """Returns the state of a run that starts, with what it takes over from the stage before.

    These are layers of the objective, such as a tag recognizer, and rows of tables, such as class
    centers, unless `config.init` names others. With `config.init.optimizer = "kept"` they are also
    its numbers, such as the temperature, and the moments of everything.

    Args:
      config: of the run; `init.all` is the workdir of the stage before.
      program: the run's, which describes a fresh state.
      state: the fresh state, with the weights of the model.
      taken: the objective's own parameters that are there already, by path.

    Also returns a report, as lines.
    """
    path, kept = config["init"]["all"], keeps_optimizer(config)
    before = TrainedRun(pathlib.Path(path))
    averaged = not kept and before.config.average_decay is not None
    fields = ("average", "tables") if averaged else ("params", "tables")
    objective, found = before.load_state((*fields, "opt_state") if kept else fields, config["mesh"])
    params = found["average"][0] if averaged else found["params"]
    own, report = _take_own(config, before.config, params, state.params, kept)
    state = replace_weights(state, {k: x for k, x in own.items() if k not in taken})
    tables, more = _take_tables(config, state.tables, found["tables"], kept)
    report += more
    if kept:
        text = getattr(getattr(objective, "model", None), "text", None)
        leading = getattr(text, "rows_before_positions", 0)

        def fit(name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
            made = fit_table(name, array, shape, leading)
            return made and made[0]

        opt_state, left = keep_moments(state.opt_state, found["opt_state"], fit)
        state = state.replace(opt_state=opt_state)
        report += list_names("moments begin at 0, with large first steps", left)
        report.insert(0, f"init.optimizer = kept: the moments, and weights, are those of {path}")
    return state.replace(tables=tables), report


def _take_own(
    config: Node, before: Node, there: Mapping[str, Any], here: Mapping[str, Any], kept: bool
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the objective's own parameters of the stage before, by path, that have a place."""

    def list_own(params: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: x for name, x in params.items() if name != "model"}
        own = {name: x for name, x in own.items() if kept or isinstance(x, Mapping)}
        return traverse_util.flatten_dict(own, sep="/")

    found, fresh = list_own(there), list_own(here)
    if any("recognizer" in name.split("/") for name in found.keys() & fresh.keys()):
        if dataset.fingerprint_tags(before) != dataset.fingerprint_tags(config):
            raise ConfigError("config.data.tags.path has other tags than those of config.first")
    fits = [name for name, x in fresh.items() if name in found and found[name].shape == x.shape]
    report = list_names("of the stage before, also", fits)
    report += list_names("fresh", sorted(fresh.keys() - set(fits)))
    return {name: read_whole(found[name]) for name in fits}, report


def _take_tables(
    config: Node, fresh: Mapping[str, Table], there: Mapping[str, Table], kept: bool
) -> tuple[dict[str, Table], list[str]]:
    """Returns the tables with the rows of the stage before where `config.init` names no others."""
    tables, report = dict(fresh), []
    for name, table in fresh.items():
        if config["init"].get(name) or name not in there:
            continue
        if there[name].values.shape != table.values.shape:
            shapes = there[name].values.shape, table.values.shape
            report.append(f"  fresh: {name}, {list(shapes[1])} and not {list(shapes[0])} as before")
            continue
        state = table.state
        if kept:
            state = keep_moments(table.state, there[name].state, lambda *_: None)[0]
        values = jax.device_put(there[name].values, table.values.sharding)
        tables[name] = Table(values, state)
        report.append(f"  of the stage before, also: the {name}")
    return tables, report
