"""Our own folders, which can hold any model."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

from big_align.components.tables import TOKENIZERS
from big_align.data.files import exists, files_of
from big_align.data.package_files import locate
from big_align.errors import UserError, WeightFileError, WeightsMismatch
from big_align.interop.arrays.weight_files import open_weights
from big_align.interop.formats import architecture
from big_align.interop.formats.preprocessing import Preprocessing
from big_align.interop.formats.pretrained import Classifier, Pretrained
from big_align.interop.formats.text_files import read_json

FORMAT = "big_align"
TEMPERATURE, BIAS = "temperature", "bias"
DIGESTS = "vocabulary_sha256"  # of each file of the tokenizer; folders of earlier versions lack it
FIELDS = ("model", "image_size", "preprocessing", "tokenizer", TEMPERATURE)
CLASSES, CLASSIFIER = "classes", "classifier.safetensors"
"""The names of a classifier's classes in the config, and the file of its arrays."""
VOCABULARIES = {
    "wordpiece": ("vocabulary",),
    "clip": ("merges",),
    "roberta": ("vocabulary", "merges"),
}
"""The arguments of a tokenizer that name files."""


def recognize(path: pathlib.Path) -> bool:
    """Returns whether a folder is one of ours."""
    return read_json(path / "config.json").get("format") == FORMAT


def read(path: pathlib.Path) -> Pretrained:
    """Reads a folder that `write` made.

    Raises:
      WeightsMismatch: the weights are not those of the model in `config.json`; all differences are
        listed.
      WeightFileError: a file is damaged.
    """
    config = read_config(path / "config.json", FIELDS)
    node, tokenizer = config["model"], _find_vocabularies(path, config)
    with open_weights(path) as weights:
        architecture.check_sizes(node, config["image_size"], weights.arrays, str(path))
        shapes = architecture.expected_shapes(node, config["image_size"])
        stored = {name: array.shape for name, array in weights.arrays.items()}
        faults = [f"{name} is missing" for name in sorted(shapes.keys() - stored.keys())]
        faults += [f"{name} has no place" for name in sorted(stored.keys() - shapes.keys())]
        faults += [
            f"{name} has shape {list(stored[name])}, the model {list(shapes[name])}"
            for name in sorted(stored.keys() & shapes.keys())
            if stored[name] != shapes[name]
        ]
        if faults:
            raise WeightsMismatch(
                f"{path} does not hold the model that its config describes:\n"
                + "\n".join(f"  {fault}" for fault in faults[:40])
            )
        flat = {name: weights[name] for name in weights}
    seen = config["preprocessing"]
    return Pretrained(
        node,
        architecture.unflatten(flat),
        config["image_size"],
        preprocessing=Preprocessing(**seen) if seen else None,
        tokenizer=tokenizer,
        temperature=config[TEMPERATURE],
        bias=config.get(BIAS),
        classifier=_read_classifier(path, config.get(CLASSES)),
    )


def _read_classifier(path: pathlib.Path, names: tuple[str, ...] | None) -> Classifier | None:
    if names is None:
        return None
    with open_weights(path / CLASSIFIER) as weights:
        if not {"kernel"} <= set(weights) <= {"kernel", "bias"}:
            raise WeightsMismatch(f"{path / CLASSIFIER} has {', '.join(weights)}, not a kernel")
        bias = weights["bias"] if "bias" in weights else None
        return Classifier(tuple(map(str, names)), weights["kernel"], bias)


def _find_vocabularies(path: pathlib.Path, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the settings of the tokenizer with the paths of its files, which are checked."""
    tokenizer = config["tokenizer"]
    if tokenizer and tokenizer["name"] not in TOKENIZERS:  # other names would be imported
        name, known = str(tokenizer["name"])[:50], ", ".join(TOKENIZERS)
        raise WeightFileError(f"{path}/config.json names a tokenizer {name!r}; known: {known}")
    for file in _vocabularies_of(tokenizer):
        name = str(tokenizer[file])
        if pathlib.PurePath(name).name != name:
            raise WeightFileError(f"{path}/config.json: {name[:50]!r} is no file of the folder")
        tokenizer |= {file: str(path / name)}
        if not (path / name).is_file():
            raise WeightFileError(f"the tokenizer's file {tokenizer[file]} is missing")
        digest = _digest((path / name).read_bytes())
        if config.get(DIGESTS, {}).get(name, digest) != digest:
            raise WeightFileError(
                f"the tokenizer's file {tokenizer[file]} is not the one that was exported: it has "
                f"another {DIGESTS} than config.json; copy or export the folder again"
            )
    return tokenizer


def read_config(path: pathlib.Path, fields: tuple[str, ...]) -> dict[str, Any]:
    """Reads a `config.json` of ours, with tuples in place of JSON's lists, as in configs.

    Raises:
      WeightFileError: it is not JSON, or lacks some fields.
    """
    try:
        config = _tuples(read_json(path))
    except RecursionError as error:
        raise WeightFileError(f"{path} nests its values too deeply") from error
    if missing := [field for field in fields if field not in config]:
        raise WeightFileError(f"{path} lacks {', '.join(missing)}; it is not as it was written")
    return config


def write(pretrained: Pretrained) -> dict[str, Any]:
    """Makes the files of a folder of ours, by name.

    Raises:
      UserError: the file of the tokenizer's vocabulary is missing.
    """
    files, tokenizer = {}, dict(pretrained.tokenizer or {}) or None
    for file in _vocabularies_of(tokenizer):
        source = locate(tokenizer[file])
        if not exists(source):
            raise UserError(f"the model's tokenizer has its {file} in {source}, which is missing")
        content, name = files_of(source).read_all(source), source.rpartition("/")[2]
        if files.setdefault(name, content) != content:
            raise UserError(f"the model's tokenizer has two files {name}; rename one")
        tokenizer[file] = name
    seen = pretrained.preprocessing
    values = (
        pretrained.node,
        pretrained.image_size,
        dataclasses.asdict(seen) if seen else None,
        tokenizer,
        pretrained.temperature,
    )
    config = {"format": FORMAT} | dict(zip(FIELDS, values, strict=True))
    if files:
        config[DIGESTS] = {name: _digest(content) for name, content in files.items()}
    if pretrained.bias is not None:
        config[BIAS] = pretrained.bias
    if classifier := pretrained.classifier:
        config[CLASSES] = list(classifier.names)
        arrays = {"kernel": classifier.kernel, "bias": classifier.bias}
        files[CLASSIFIER] = {name: x for name, x in arrays.items() if x is not None}
    return files | {"config.json": config, "model.safetensors": pretrained.flat}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _vocabularies_of(tokenizer: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Returns the arguments of a tokenizer that name files."""
    return VOCABULARIES.get(tokenizer["name"], ()) if tokenizer else ()


def _tuples(node: Any) -> Any:
    """Turns the lists of JSON into the tuples that configs have."""
    if isinstance(node, dict):
        return {k: _tuples(v) for k, v in node.items()}
    return tuple(map(_tuples, node)) if isinstance(node, list) else node
