"""Our own folders, which can hold any model."""

import dataclasses
import hashlib
import pathlib
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from big_align.config.components.tables import TOKENIZERS
from big_align.config.config_files import make_tuples
from big_align.core import formats
from big_align.core.errors import UserError, WeightFileError, WeightsMismatch
from big_align.core.regular_files import read_regular
from big_align.data.files import exists, files_of
from big_align.data.package_files import locate
from big_align.weights.arrays.weight_files import choose_file, open_weights
from big_align.weights.formats.preprocessing import Preprocessing
from big_align.weights.formats.pretrained import Classifier, Pretrained, assemble
from big_align.weights.formats.text_files import read_json

KIND = "model folder"
TEMPERATURE, BIAS = "temperature", "bias"
TEMPLATES = "templates", "trained_templates"
# Digests of the tokenizer's files, and checksums of those of weights: whoever changes a file on
# purpose removes them.
DIGESTS, SUMS = "vocabulary_sha256", "weights_crc32"
FIELDS = ("model", "image_size", "preprocessing", "tokenizer", TEMPERATURE)
WEIGHTS = "model.safetensors"
CLASSES, CLASSIFIER = "classes", "classifier.safetensors"
"""The names of a classifier's classes in the config, and the file of its arrays."""
VOCABULARIES = {
    "wordpiece": ("vocabulary",),
    "clip": ("merges",),
    "roberta": ("vocabulary", "merges"),
}
"""The arguments of a tokenizer that name files."""


def recognize(path: pathlib.Path, names: Collection[str]) -> bool:
    """Returns whether a folder is one of ours, and no workdir."""
    config = read_json(path / "config.json")
    return formats.VERSION in config and "objective" not in config


def list_files(path: pathlib.Path, names: Collection[str]) -> list[str]:
    """Lists what `read` reads, of the files that a folder has or a repository would give it."""
    tokenizer = read_json(path / "config.json").get("tokenizer")
    files = [str(tokenizer.get(file)) for file in _vocabularies_of(tokenizer)]
    return ["config.json", *files, CLASSIFIER, *choose_file(names)]


def read(path: pathlib.Path) -> Pretrained:
    """Reads a folder that `write` made; an error lists all that differs from `config.json`."""
    config = make_tuples(read_json(path / "config.json"))
    formats.check(KIND, config, path / "config.json")
    if missing := [field for field in FIELDS if field not in config]:
        raise WeightFileError(f"{path}/config.json lacks {', '.join(missing)}")
    node, tokenizer = config["model"], _find_vocabularies(path, config)
    seen = config["preprocessing"]
    with open_weights(path) as weights:
        read = assemble(
            node,
            None,
            weights,
            image_size=config["image_size"],
            where=str(path),
            unused=(),
            preprocessing=Preprocessing(**seen) if seen else None,
            tokenizer=tokenizer,
            temperature=config[TEMPERATURE],
            bias=config.get(BIAS),
            classifier=_read_classifier(path, config),
            **{name: tuple(map(str, config.get(name) or ())) or None for name in TEMPLATES},
        )
    _check_sum(path / WEIGHTS, read.flat, config)
    return read


def _read_classifier(path: pathlib.Path, config: Mapping[str, Any]) -> Classifier | None:
    if config.get(CLASSES) is None:
        return None
    with open_weights(path / CLASSIFIER) as weights:
        if not {"kernel"} <= set(weights) <= {"kernel", "bias"}:
            raise WeightsMismatch(f"{path / CLASSIFIER} has {', '.join(weights)}, not a kernel")
        arrays = {name: weights[name] for name in weights}
    _check_sum(path / CLASSIFIER, arrays, config)
    return Classifier(tuple(map(str, config[CLASSES])), arrays["kernel"], arrays.get("bias"))


def _check_sum(path: pathlib.Path, arrays: Mapping[str, np.ndarray], config: Any) -> None:
    """Raises a WeightFileError if arrays are not those of the file that was exported."""
    sums = config.get(SUMS, {})
    if not isinstance(sums, Mapping):
        raise WeightFileError(f"{path.parent}/config.json: {SUMS} is no object of checksums")
    if path.name in sums and sums[path.name] != (found := _sum_up(arrays)):
        raise WeightFileError(
            f"{path} is not the file that was exported: the checksum of its arrays is {found}, and "
            f"{SUMS} of config.json says {str(sums[path.name])[:50]}; copy or export the folder "
            f"again, or remove {SUMS} if the weights were changed on purpose"
        )


def _sum_up(arrays: Mapping[str, np.ndarray]) -> str:
    """Returns a checksum of arrays with their names, types and shapes."""
    total = 0
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        head = f"{name} {array.dtype} {array.shape}".encode()
        total = zlib.crc32(array.reshape(-1).view(np.uint8), zlib.crc32(head, total))
    return f"{total:08x}"


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
        digest = hashlib.sha256(read_regular(path / name)).hexdigest()
        if config.get(DIGESTS, {}).get(name, digest) != digest:
            raise WeightFileError(
                f"the tokenizer's file {tokenizer[file]} is not the one that was exported: it has "
                f"another {DIGESTS} than config.json; copy or export the folder again"
            )
    return tokenizer


def write(pretrained: Pretrained) -> dict[str, Any]:
    """Makes the files of a folder of ours, by name."""
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
    config = {
        "model": pretrained.node,
        "image_size": pretrained.image_size,
        "preprocessing": dataclasses.asdict(seen) if seen else None,
        "tokenizer": tokenizer,
        TEMPERATURE: pretrained.temperature,
    }
    if files:
        config[DIGESTS] = {name: hashlib.sha256(x).hexdigest() for name, x in files.items()}
    if pretrained.bias is not None:
        config[BIAS] = pretrained.bias
    config |= {name: list(kept) for name in TEMPLATES if (kept := getattr(pretrained, name))}
    if classifier := pretrained.classifier:
        config[CLASSES] = list(classifier.names)
        arrays = {"kernel": classifier.kernel, "bias": classifier.bias}
        files[CLASSIFIER] = {name: x for name, x in arrays.items() if x is not None}
    files[WEIGHTS] = pretrained.flat
    summed = [name for name in (WEIGHTS, CLASSIFIER) if name in files]

    def make_config(folder: pathlib.Path) -> dict[str, Any]:  # once the folder is written
        return formats.stamp(KIND, config | {SUMS: {n: _sum_up(files[n]) for n in summed}})

    return files | {"config.json": make_config}


def _vocabularies_of(tokenizer: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Returns the arguments of a tokenizer that name files."""
    return VOCABULARIES.get(tokenizer["name"], ()) if tokenizer else ()
