"""What a run has trained, and with which config, from its workdir."""

import contextlib
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh
from jaxtyping import Float
from ml_collections import ConfigDict

from big_align.config.components.signatures import advise
from big_align.config.config_files import CONFIG_JSON, format_config, read_config
from big_align.config.defaults import complete_config
from big_align.config.places import find_target
from big_align.core.errors import (
    CheckpointMismatch,
    ConfigError,
    MissingCheckpoint,
    UserError,
    put_in_a_line,
)
from big_align.core.formats import OtherFormat
from big_align.core.nodes import Node
from big_align.core.regular_files import read_regular
from big_align.core.types import Objective
from big_align.core.whole_files import write_whole
from big_align.pages.run_report.starts import compare_configs
from big_align.runs import build
from big_align.training.health.rewinds import SPREADS
from big_align.training.logs.line_files import read_lines
from big_align.training.logs.metrics import FILE
from big_align.training.saving.checkpoint import ATTEMPTS
from big_align.training.saving.retention import Which
from big_align.training.saving.step_folders import find_folder, list_steps, read_record
from big_align.training.state import describe_state

SIZES = "sizes"  # what the sizes of the training data are called in the record of a checkpoint
SKIPPED = "skipped_batches"  # and the batches of the data that the stages before have used


def check_not_begun(workdir: str, folder: epath.Path) -> None:
    """Raises a UserError if a run has begun here, but its checkpoints are not where it looks.

    It would start again, and erase what was logged. A run that was killed before its first save was
    complete has no checkpoint either: it starts again, and says so.
    """
    former = read_former(workdir) if jax.process_index() == 0 else None
    if former is None:
        return
    lines = read_lines(pathlib.Path(workdir, FILE), ("step",))
    logged = max((line["step"] or 0 for line in lines), default=0)
    if not logged:
        return
    there = find_folder(workdir, former.checkpoint.get("folder"))
    elsewhere = str(there) != str(folder) and (not there.exists() or list_steps(there))
    # Each save waits for the one before it.
    saved = len(list(read_lines(pathlib.Path(workdir, SPREADS), ("step",)))) >= 2
    most = (ATTEMPTS + 1) * former.checkpoint.every
    if elsewhere or saved or logged >= former.total_steps or logged > most:
        told = f"they were saved in {there}: set config.checkpoint.folder or " if elsewhere else ""
        raise UserError(
            f"{workdir} has logged {logged} steps, but there is no checkpoint in {folder}; {told}"
            f"make the folder available. To train from the start, use another --workdir, or remove "
            f"{workdir}"
        )
    dropped = "1 logged step is" if logged == 1 else f"{logged} logged steps are"
    print(f"{workdir} starts at step 0: it has no checkpoint, and {dropped} dropped")


def check_continued(
    config: Node, workdir: str, folder: epath.Path, step: int, sizes: Mapping[str, str]
) -> None:
    """Checks that a run can continue from a checkpoint that was restored, and tells from which.

    The sizes of the training data must be those that the run began with. The workdir has no config
    yet if another run has written the checkpoint.
    """
    saved = (read_record(folder / str(step)) or {}).get(SIZES, {})
    for name, size in sizes.items():
        if saved.get(name, size) != size:
            raise CheckpointMismatch(
                f"config.data{name and f'.mixture.{name}'} had {saved[name]} and now has {size}: "
                f"{workdir} would skip some and repeat others. Restore the data, or start another "
                f"run from the weights with --config.init.all={workdir} and its own --workdir"
            )
    if config["total_steps"] < step:
        raise ConfigError(
            f"config.total_steps = {config['total_steps']}, but {workdir} has reached step {step}: "
            f"give at least {step}, or another --workdir"
        )
    if jax.process_index() == 0:
        known = pathlib.Path(workdir, CONFIG_JSON).exists()
        other = f"; {workdir} has no {CONFIG_JSON}: another workdir may have written it"
        print(f"continues after step {step} of {folder}{'' if known else other}")


def load_weights(
    config: Any, workdir: str, tokenizer: Any, step: Which = None, averaged: bool = True
) -> tuple[Objective, Mesh, dict, int]:
    """Loads the weights to evaluate from a checkpoint of a workdir.

    The step is a number or "best"; None is the newest. The tokenizer has to be the one used in
    training. Returns the objective, the mesh, `params` and `model_state` (if `averaged` their
    averages, where they are kept), and the step of the checkpoint.

    Raises:
      CheckpointMismatch: the checkpoint belongs to another model or tokenizer.
      MissingCheckpoint: there is no checkpoint, none of this step, or no best one.
    """
    averaged &= config.average_decay is not None
    names = ("average",) if averaged else ("params", "model_state")
    record = {"tokenizer": tokenizer.fingerprint}
    with named_tokenizers(workdir, config, tokenizer):
        loaded = load_fields(config, workdir, tokenizer, names, record, step)
    objective, mesh, restored, step = loaded
    params, model_state = restored.get("average") or (restored[name] for name in names)
    return objective, mesh, {"params": params, "model_state": model_state}, step


def load_table(
    config: Any, workdir: str, name: str, step: Which = None
) -> Float[np.ndarray, "k d"]:
    """Loads the values of a table of rows, such as "centers", without its padding.

    The errors are those of `load_weights`, and a UserError if the objective has no such table.
    """
    tokenizer = build.build_tokenizer(config)
    objective, _, restored, _ = load_fields(config, workdir, tokenizer, ("tables",), step=step)
    if name not in restored["tables"]:
        raise UserError(
            f"{workdir}: the objective {config.objective.name!r} has no table of {name}"
        )
    return np.asarray(restored["tables"][name].values)[: objective.table_sizes[name]]


def load_fields(
    config: Any,
    workdir: str,
    tokenizer: Any,
    fields: Sequence[str],
    record: Mapping[str, Any] | None = None,
    step: Which = None,
) -> tuple[Objective, Mesh, dict[str, Any], int]:
    """Restores fields of the state of a checkpoint whose record agrees; as `load_weights`."""
    mesh = build.build_mesh(config)
    objective = build.build_objective(config, mesh, tokenizer)
    described, _ = describe_state(
        objective,
        build.build_optimizer(config, build.find_frozen(config, objective))[0],
        build.example_batch(config, tokenizer),
        mesh,
        averaged=config.average_decay is not None,
        row_optimizer=build.build_row_optimizer(config),
    )
    wanted = {name: getattr(described, name) for name in fields}
    with contextlib.closing(build.build_checkpointer(config, workdir, read_only=True)) as saved:
        restored = saved.restore(wanted, dict(record or {}), step)
        step = saved.find(step)
    if restored is None:
        raise MissingCheckpoint(f"no complete checkpoint in {workdir}: train with it first")
    return objective, mesh, restored, step


def read_former(workdir: str, name: str = CONFIG_JSON) -> ConfigDict | None:
    """Returns the config in a file of a workdir, with all defaults; None if there is none yet."""
    path = pathlib.Path(workdir) / name
    if not path.exists():
        return None
    try:
        former = read_config(path)
    except OtherFormat:
        raise
    except UserError as error:
        raise UserError(
            f"{put_in_a_line(str(error))}; mend it or move it away, and give --config"
        ) from error
    with contextlib.suppress(ConfigError, AttributeError, TypeError):
        return complete_config(former)  # this fails if a component no longer exists
    return former


def keep_config(workdir: str, config: ConfigDict, step: int) -> list[str]:
    """Writes the config of a run that starts or continues, and keeps the earlier one if it differs.

    The earlier one is kept as `config.STEP.json`, with the step at which the new one takes over.
    Returns what differs from the config of the steps so far, a line per field, and what follows.
    """
    path = pathlib.Path(workdir) / CONFIG_JSON
    kept = path.with_name(f"config.{step}.json")
    # Of several changes at the same step, only the first replaces a config that was trained with.
    former = read_former(workdir, kept.name if step and kept.exists() else CONFIG_JSON)
    lines = [] if former is None else describe_changes(former, config)
    if lines and step:
        lines += tell_consequences(former, config, step)
    if lines and not kept.exists():
        write_whole(kept, read_regular(path), sync=True)
    write_whole(path, format_config(config).encode(), sync=True)
    return lines


def describe_changes(former: Node, config: Node) -> list[str]:
    """Returns what differs between two configs, one line per field: its place and both values."""
    changes = compare_configs(_plain(former), _plain(config))
    return [
        f"config.{place}: {put_in_a_line(repr(before))} -> {put_in_a_line(repr(after))}"
        for name, (one, other) in changes.items()
        for place, before, after in _spread(name, one, other)
    ]


def tell_consequences(former: Node, config: Node, step: int) -> Iterator[str]:
    """Yields what changed fields do to a run that has begun, where the fields do not say it."""
    changes = compare_configs(_plain(former), _plain(config))
    causes = {k: v[0] for k, v in changes.items() if k.split(".")[0] in ("total_steps", "schedule")}
    before, after = map(build.build_schedule, (former, config))
    rates = [float(before(step)), float(after(step)), float(before(step - 1))]
    if causes and not math.isclose(rates[0], rates[1], rel_tol=1e-3):
        names = ", ".join(f"config.{name}" for name in causes)
        rate = f"{rates[0] or rates[2]:.6g}"  # after the last step of a finished run it is 0
        hold = {"schedule.decay": "constant", "schedule.warmup_steps": 0}
        again = f"{advise('config', **causes)} to keep what it was"
        if causes.get("total_steps", math.inf) <= step:  # it was finished
            again = ""
        yield (
            f"the learning rate of step {step + 1} changes from {rates[0]:.3g} to {rates[1]:.3g}, "
            f"because of {names}{again}"
            f"{advise('config', **hold, **{'schedule.learning_rate': rate})} to hold it"
        )
    unused = [f"config.{name}" for name in changes if _is_of_start(config, name)]
    if unused:
        told = "has" if len(unused) == 1 else "have"
        yield f"{', '.join(unused)} {told} no effect, since the run has begun"


def _is_of_start(config: Node, place: str) -> bool:
    """Returns whether only a run that starts reads a field: its weights, or an initial value."""
    node, _, field = place.rpartition(".")
    if place.split(".")[0] == "init":
        return not (config.get("cached_features") or {}).get("towers")  # which reads them again
    if node != "objective" or config["objective"].get("learn_temperature") is False:
        return place.split(".")[0] == "first"
    return field in getattr(find_target(config, node), "initial", ())


def _plain(config: Any) -> Any:
    return config.to_dict() if isinstance(config, ConfigDict) else config


def _spread(place: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields the fields of a node that only one config has, or the node itself if both have it."""
    whole = one or other
    if not isinstance(whole, Mapping) or (one and other):
        yield place, one, other
        return
    for name, value in whole.items():
        yield from _spread(f"{place}.{name}", *((value, None) if one else (None, value)))


@contextlib.contextmanager
def named_tokenizers(workdir: str, config: Node, tokenizer: Any) -> Iterator[None]:
    """Makes the error about a checkpoint with another tokenizer name both tokenizers."""
    try:
        yield
    except CheckpointMismatch as error:
        if tokenizer.fingerprint not in str(error):  # the difference is elsewhere
            raise
        former = read_former(workdir)
        before = _describe(former["tokenizer"]) if former else "another tokenizer"
        again = f", the config has {_describe(config['tokenizer'])}"
        if former and _spell(former["tokenizer"]) == _spell(config["tokenizer"]):
            again = ", whose files have changed since"
        raise CheckpointMismatch(
            f"{workdir} was trained with the tokenizer {before}{again}; use another --workdir or "
            "the former tokenizer, since the ids of texts would mean something else"
        ) from error


def _spell(node: Node) -> str:
    """Returns a config node as JSON, in which lists and tuples are the same."""
    return json.dumps(_plain(node), sort_keys=True, default=str)


def _describe(node: Node) -> str:
    """Returns the name of a tokenizer and the fields of its config node, as far as a line goes."""
    said = (f"{k}={put_in_a_line(repr(_plain(v)))}" for k, v in sorted(node.items()) if k != "name")
    return put_in_a_line(f"{node.get('name')} ({', '.join(said)})")
