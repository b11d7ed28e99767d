"""Pipelines that a config names: functions that return a `tf.data.Dataset` of batches."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int

from big_align.config.components.signatures import import_attribute
from big_align.core.errors import ConfigError, suggest
from big_align.core.nodes import Node
from big_align.core.types import TrainingData
from big_align.data.tf_data.batch_checks import Limits
from big_align.data.workers.batch_memory import Row

WHERE = "config.data.pipeline"

PARAMETERS = ("config", "start_step", "rows")
"""The arguments that a function is called with, if it takes them."""


def check_pipeline(config: Node) -> None:
    """Imports the function that a config names, if any, and checks its parameters."""
    name = config["data"].get("pipeline")
    if not name:
        return
    _list_parameters(_import(name), name)


def build_pipeline(
    config: Node, row: Row, limits: Limits, rows: Int[np.ndarray, " r"] | None = None
) -> TrainingData:
    """Builds the training data of a config that names a pipeline.

    A function that takes `start_step` starts there. The iterator of one that does not is saved with
    the training state. `row` has the shape and type of each field of a batch, without the batch
    axis.
    """
    # TensorFlow is imported only by the modules that make batches with it.
    from big_align.data.tf_data.dataset_loader import DatasetLoader, SavedDatasetLoader

    name, size = config["data"]["pipeline"], config["batch_size"]
    function = _import(name)
    takes = _list_parameters(function, name)
    rows = np.arange(size) if rows is None else rows
    make = functools.partial(_call, function, takes, config, rows)
    kind = DatasetLoader if "start_step" in takes else SavedDatasetLoader
    return kind(make, row, len(rows), size, f"{WHERE} = {name!r}", limits)


def _import(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise ConfigError(f"{WHERE} = {name!r} is not of the form package.module:function")
    return import_attribute(name, WHERE)


def _list_parameters(function: Callable[..., Any], name: str) -> list[str]:
    """Returns which of `PARAMETERS` a function takes."""
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        takes_any = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        required = parameter.default is parameter.empty and not takes_any
        if parameter.name not in PARAMETERS and required:
            raise ConfigError(
                f"{WHERE} = {name!r} needs {parameter.name!r}"
                f"{suggest(parameter.name, PARAMETERS)}, which is not provided; it may take "
                f"{', '.join(PARAMETERS)}"
            )
    return [parameter for parameter in PARAMETERS if parameter in parameters]


def _call(
    function: Callable[..., Any],
    takes: list[str],
    config: Node,
    rows: Int[np.ndarray, " r"],
    start_step: int,
) -> Any:
    given = {"config": config, "start_step": start_step, "rows": rows}
    return function(**{name: given[name] for name in takes})
