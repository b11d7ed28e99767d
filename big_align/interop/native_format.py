"""Our own folders, which hold any model, and workdirs of training."""

import dataclasses
import json
import pathlib
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from big_align import build, evaluate
from big_align.errors import WeightsMismatch
from big_align.interop import architecture
from big_align.interop.preprocessing import Preprocessing
from big_align.interop.pretrained import Pretrained
from big_align.interop.weight_files import open_weights

FORMAT = "big_align"
TEMPERATURE = "temperature"
VOCABULARIES = {"wordpiece": "vocabulary", "clip": "merges"}
"""The argument of a tokenizer that names a file."""


def recognise(path: pathlib.Path) -> bool:
    """Tells whether a folder is one of ours."""
    config = path / "config.json"
    return config.is_file() and json.loads(config.read_text()).get("format") == FORMAT


def read(path: pathlib.Path) -> Pretrained:
    """Reads a folder that `write` made.

    Raises:
      WeightsMismatch: the weights are not those of the model in `config.json`; all that differs is
        listed.
      WeightFileError: the file of weights is damaged.
    """
    config = json.loads((path / "config.json").read_text())
    node, tokenizer = _tuples(config["model"]), config["tokenizer"]
    file = VOCABULARIES.get((tokenizer or {}).get("name"))
    if file:
        tokenizer[file] = str(path / tokenizer[file])
    shapes = architecture.expected_shapes(node, config["image_size"])
    with open_weights(path) as weights:
        faults = [f"{name} is missing" for name in sorted(shapes.keys() - set(weights))]
        flat = {name: np.array(weights[name]) for name in weights if name in shapes}
        faults += [
            f"{name} has shape {list(array.shape)}, the model {list(shapes[name])}"
            for name, array in flat.items()
            if array.shape != shapes[name]
        ]
    if faults:
        raise WeightsMismatch(
            f"{path} does not hold the model that its config describes:\n"
            + "\n".join(f"  {fault}" for fault in faults[:40])
        )
    seen = config["preprocessing"]
    return Pretrained(
        node,
        architecture.unflatten(flat),
        config["image_size"],
        preprocessing=Preprocessing(**_tuples(seen)) if seen else None,
        tokenizer=tokenizer,
        temperature=config[TEMPERATURE],
    )


def write(pretrained: Pretrained) -> dict[str, Any]:
    """Makes the files of a folder of ours, by name."""
    files, tokenizer = {}, dict(pretrained.tokenizer or {}) or None
    file = VOCABULARIES.get((tokenizer or {}).get("name"))
    if file:
        source = pathlib.Path(tokenizer[file])
        files[source.name] = source.read_bytes()
        tokenizer[file] = source.name
    seen = pretrained.preprocessing
    config = {
        "format": FORMAT,
        "model": dict(pretrained.node),
        "image_size": pretrained.image_size,
        "preprocessing": dataclasses.asdict(seen) if seen else None,
        "tokenizer": tokenizer,
        TEMPERATURE: pretrained.temperature,
    }
    return files | {"config.json": config, "model.safetensors": pretrained.flat}


def recognise_workdir(path: pathlib.Path) -> bool:
    """Tells whether a folder is a workdir."""
    config = path / "config.json"
    return config.is_file() and "objective" in json.loads(config.read_text())


def read_workdir(path: pathlib.Path) -> Pretrained:
    """Reads the newest checkpoint of a workdir: the average of parameters where one is kept.

    Raises:
      FileNotFoundError: there is no complete checkpoint.
    """
    config = ConfigDict(_tuples(json.loads((path / "config.json").read_text())))
    tokenizer = build.build_tokenizer(config)
    objective, _, found, _ = evaluate.load_weights(config, str(path), tokenizer)
    params = found["params"]
    weights = {"params": params["model"], **found["model_state"]}
    node = config.model.to_dict()
    transforms = [e.transform for e in config.evaluators.values() if "transform" in e]
    return Pretrained(
        node,
        jax.tree.map(np.asarray, weights),
        build.example_batch(config, tokenizer)["image"].shape[1],
        preprocessing=_find_preprocessing(transforms, node),
        tokenizer=config.tokenizer.to_dict(),
        temperature=float(1 / objective.scale(params)),
    )


def _find_preprocessing(transforms: list[str], node: Any) -> Preprocessing | None:
    """Takes the first evaluator's image operations that other libraries can be told."""
    model = architecture.make_model(node)
    for transform in transforms:
        try:
            return Preprocessing.from_transform(transform, model.image_mean, model.image_std)
        except ValueError:
            continue
    return None


def _tuples(node: Any) -> Any:
    """Turns the lists of JSON into the tuples that configs have."""
    if isinstance(node, dict):
        return {k: _tuples(v) for k, v in node.items()}
    return tuple(map(_tuples, node)) if isinstance(node, list) else node
