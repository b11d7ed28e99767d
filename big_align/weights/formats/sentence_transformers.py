"""What folders of sentence-transformers hold beside the model: how texts are pooled and cut off."""

import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from big_align.core.errors import WeightFileError, WeightsMismatch
from big_align.core.regular_files import read_regular
from big_align.weights.arrays.stored_arrays import parse_json
from big_align.weights.formats.text_files import read_json

MODULES, SETTINGS = "modules.json", "sentence_bert_config.json"
POOLING, DENSE = "1_Pooling", "2_Dense"
"""Folders of the pooling's config and of a projection, as sentence-transformers names them."""

POOLS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
"""Our pooled outputs, and what selects them."""

LAST_TOKEN = "lasttoken"
"""What CLIP's towers pool, which have no choice: it is written, and not read."""

PACKAGE = "sentence_transformers.models."


def list_files(names: Collection[str]) -> list[str]:
    """Lists what is read of the files of a folder, by their paths in it."""
    configs = [name for name in names if name.endswith("Pooling/config.json")]
    return [MODULES, SETTINGS, *configs] if MODULES in names else []


def read_pool(path: pathlib.Path, has_choice: bool = True) -> str | None:
    """Reads how the outputs of a text's tokens become one vector: "cls" or "mean".

    None if the folder is not one of sentence-transformers, or the tower has no choice.
    """
    if not (path / MODULES).is_file():
        return None
    kinds = {}
    for module in parse_json(read_regular(path / MODULES), f"{path}/{MODULES}", list):
        if not isinstance(module, Mapping) or not {"type", "path"} <= module.keys():
            raise WeightFileError(f"{path}/{MODULES}: {module!r} is no module with type and path")
        kinds[str(module["type"]).split(".")[-1]] = str(module["path"])
    strange = kinds.keys() - {"Transformer", "Pooling", "Normalize"}
    if strange or "Pooling" not in kinds:
        what = f"has {', '.join(sorted(strange))}" if strange else "has no Pooling"
        raise WeightsMismatch(
            f"{path}/{MODULES} {what}; a text tower is a Transformer and a Pooling, and takes "
            f"Normalize besides. Without {MODULES} the folder is read as one of transformers"
        )
    if not has_choice:
        return None
    return _read_mode(path / kinds["Pooling"] / "config.json")


def _read_mode(path: pathlib.Path) -> str:
    config = read_json(path)
    modes = {name: value for name, value in config.items() if name.startswith("pooling_mode_")}
    on, named = [name for name, value in modes.items() if value is True], config.get("pooling_mode")
    pools = [pool for pool, name in POOLS.items() if on == [name] or not on and named == pool]
    if len(pools) != 1:
        raise WeightsMismatch(
            f"{path} pools by {on or named!r}, which a text tower cannot; it can by one of "
            f"{', '.join(POOLS.values())}"
        )
    return pools[0]


def read_length(path: pathlib.Path) -> int | None:
    """Returns the most tokens that the folder makes from a text; None if it does not say."""
    length = read_json(path / SETTINGS).get("max_seq_length")
    if length is not None and (type(length) is not int or length < 1):
        raise WeightFileError(f"{path}/{SETTINGS}: max_seq_length = {length!r} must be above 0")
    return length


def write(
    pool: str,
    width: int,
    length: int | None,
    projection: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Makes the files with which sentence-transformers pools as a tower does, by name.

    `pool` is "cls", "mean" or `LAST_TOKEN`, and `length` the tokens of a text, if known. The
    projection is a linear layer after it, as torch names and orders its arrays, before scaling to
    unit length; None for neither, and no arrays for no layer.
    """
    modules = [("Transformer", ""), ("Pooling", POOLING)]
    written = POOLS | {LAST_TOKEN: "pooling_mode_lasttoken"}
    modes = {name: pool == own for own, name in written.items()}
    files: dict[str, Any] = {
        f"{POOLING}/config.json": {"word_embedding_dimension": width} | modes,
        SETTINGS: {"max_seq_length": length, "do_lower_case": False},
    }
    if projection:
        modules.append(("Dense", DENSE))
        files[f"{DENSE}/config.json"] = {
            "in_features": width,
            "out_features": len(projection["linear.weight"]),
            "bias": "linear.bias" in projection,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        files[f"{DENSE}/model.safetensors"] = projection
    if projection is not None:
        modules.append(("Normalize", f"{len(modules)}_Normalize"))
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": PACKAGE + kind}
        for i, (kind, path) in enumerate(modules)
    ]
    return files | {MODULES: listed}
