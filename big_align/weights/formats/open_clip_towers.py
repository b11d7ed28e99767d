"""Towers that open_clip takes from timm and from transformers, beside its own.

open_clip makes them from a name, and a name tells the sizes of published towers alone. What tells
those of others is a folder with a config, to which the name is a path.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from big_align.core.errors import WeightsMismatch
from big_align.weights.formats import architecture, open_clip_configs, text_files, timm_format
from big_align.weights.formats.open_clip_configs import TowerRead, TowerWritten, read_edge
from big_align.weights.formats.pretrained import Pretrained
from big_align.weights.formats.timm_models import SIZE, TimmConfig, count
from big_align.weights.formats.transformers_configs import read_fields
from big_align.weights.formats.transformers_families import FAMILIES
from big_align.weights.formats.transformers_format import describe
from big_align.weights.tables.mapping import Rule, prefix_table

FOLDERS = IMAGE_FOLDER, TEXT_FOLDER = "image_tower", "text_tower"
"""Folders of the towers' configs within that of the model."""

TRUNK, TRANSFORMER = "visual.trunk.", "text.transformer."
"""What the names of the towers' arrays begin with."""

MODEL_TYPES = ("bert", "roberta")
POOLERS = {"mean_pooler": "mean", "cls_last_hidden_state_pooler": "cls"}
"""Our pooled outputs, by open_clip's names; its cls_pooler has a layer more."""

WIDTHS = (768, 1024)
"""Of BERT and RoBERTa, base and large, whose heads are 64 wide."""

Shapes = Mapping[str, tuple[int, ...]]


def read_image(
    config: Mapping[str, Any], shapes: Shapes, folder: pathlib.Path, where: str
) -> TowerRead:
    """Reads the image tower in `model_cfg`, open_clip's own or one of timm's."""
    given = config["vision_cfg"]
    if not given.get("timm_model_name"):
        return open_clip_configs.read_image(config, where)
    size = read_edge(given.get("image_size", SIZE), "image_size", where)
    told = timm_format.read_config(folder / IMAGE_FOLDER) or {}
    name = told.get("architecture") or str(given["timm_model_name"]).rpartition("/")[2]
    arguments, pool = dict(told.get("model_args") or {}), given.get("timm_pool", "avg")
    below = {k.removeprefix(TRUNK): shape for k, shape in shapes.items() if k.startswith(TRUNK)}
    if "cls_token" in below and pool:  # others have no choice but the mean
        arguments["global_pool"] = pool
    elif pool not in ("", "avg"):
        raise WeightsMismatch(f"{where}: vision_cfg.timm_pool = {pool!r} is not supported")
    stated = TimmConfig(name.split(".")[0], arguments, size)
    named = f"{where}: vision_cfg.timm_model_name = {given['timm_model_name']!r:.100}"
    family, node, size = timm_format.read_tower(below, stated, named)
    bias = _read_projection(given, "timm_proj", "linear", "none", where)
    if bias is not None:
        bias = bool(given.get("timm_proj_bias"))
    table = prefix_table(family.table, "image/", TRUNK)
    table.append(Rule("project_image", "visual.head.proj", "linear"))
    return TowerRead(node, bias, table, size)


def read_text(
    config: Mapping[str, Any], shapes: Shapes, folder: pathlib.Path, where: str
) -> TowerRead:
    """Reads the text tower in `model_cfg`, open_clip's own or one of transformers'."""
    given = config["text_cfg"]
    if not given.get("hf_model_name"):
        return open_clip_configs.read_text(config, shapes, where)
    told = text_files.read_json(folder / TEXT_FOLDER / "config.json")
    told = told or _infer_config(shapes, given["hf_model_name"], where)
    if told.get("model_type") not in MODEL_TYPES:
        raise WeightsMismatch(
            f"{where}: the text tower is {told.get('model_type')!r}; known: "
            f"{', '.join(MODEL_TYPES)}"
        )
    pooler = given.get("hf_pooler_type", "mean_pooler")
    if pooler not in POOLERS:
        known = " or ".join(map(repr, POOLERS))
        raise WeightsMismatch(
            f"{where}: text_cfg.hf_pooler_type = {pooler!r} is not supported, only {known}"
        )
    bias = _read_projection(given, "hf_proj_type", "mlp", None, where)
    family = FAMILIES[told["model_type"]]
    table = prefix_table(family.table, "text/", TRANSFORMER)
    table.append(Rule("project_text", "text.proj", "bare linear"))
    node = read_fields(family, told, where) | {"pool": POOLERS[pooler]}
    return TowerRead(node, bias, table)


def _read_projection(
    given: Mapping[str, Any], name: str, default: str, nothing: str | None, where: str
) -> bool | None:
    """Returns False for a linear layer without a bias, and None for none."""
    kind = given.get(name, default)
    if kind not in ("linear", nothing):
        raise WeightsMismatch(
            f"{where}: {name} = {kind!r} is not supported, only 'linear' or {nothing!r}"
        )
    return False if kind == "linear" else None


def _infer_config(shapes: Shapes, name: Any, where: str) -> dict[str, Any]:
    """Makes the config that follows from the shapes of a published BERT or RoBERTa."""

    def find(module: str) -> tuple[int, ...]:
        if (array := f"{TRANSFORMER}{module}.weight") not in shapes:
            raise WeightsMismatch(
                f"{where}: hf_model_name = {name!r} is no BERT or RoBERTa: {array} is missing"
            )
        return shapes[array]

    vocab_size, width = find("embeddings.word_embeddings")
    if width not in WIDTHS:
        raise WeightsMismatch(
            f"{where}: no shape tells the heads of a text tower of width {width}; put the "
            f"config.json of {name!r:.100} into {TEXT_FOLDER}/"
        )
    roberta = find("embeddings.token_type_embeddings")[0] == 1
    return {
        "model_type": "roberta" if roberta else "bert",
        "hidden_size": width,
        "num_hidden_layers": count(shapes, rf"{TRANSFORMER}encoder\.layer\.(\d+)\."),
        "intermediate_size": find("encoder.layer.0.intermediate.dense")[0],
        "num_attention_heads": width // 64,
        "vocab_size": vocab_size,
        "max_position_embeddings": find("embeddings.position_embeddings")[0],
        "layer_norm_eps": 1e-5 if roberta else 1e-12,
    }


def write_image(pretrained: Pretrained) -> TowerWritten:
    """Describes the image tower, if possible as open_clip's own, else as one of timm's."""
    try:
        return open_clip_configs.write_image(pretrained)
    except WeightsMismatch as error:
        fault = error
    try:
        return _write_timm(pretrained)
    except WeightsMismatch as error:
        if architecture.settings(pretrained.model.image)["name"] != "vit":
            raise
        raise WeightsMismatch(f"as open_clip's own {fault}; as timm's: {error}") from error


def _write_timm(pretrained: Pretrained) -> TowerWritten:
    model = pretrained.model
    family, config = timm_format.write_config(pretrained.tower("image"))
    # Published sizes are in the name, unless the name also fixes the size of images.
    named = not config["model_args"] and not family.fixed_size
    table = prefix_table(family.table, "image/", TRUNK)
    table.append(Rule("project_image", "visual.head.proj", "linear"))
    described = {
        "timm_model_name": config["architecture"]
        if named
        else lambda folder: f"local-dir:{folder}/{IMAGE_FOLDER}",
        "timm_model_pretrained": False,
        "timm_pool": "token" if getattr(model.image, "pool", "mean") == "cls" else "avg",
        "timm_proj": "linear" if model.image_projection else "none",
        "timm_proj_bias": model.image_projection and model.projection_bias,
        "image_size": config["pretrained_cfg"]["input_size"][1],
    }
    files = {} if named else {f"{IMAGE_FOLDER}/config.json": config}
    return TowerWritten(described, table, files)


def write_text(pretrained: Pretrained) -> TowerWritten:
    """Describes the text tower, open_clip's own or one of transformers'."""
    model, tokenizer = pretrained.model, pretrained.tokenizer or {}
    if not hasattr(model.text, "pool"):
        return open_clip_configs.write_text(pretrained)
    if model.text_projection and model.projection_bias:
        raise WeightsMismatch(
            "open_clip's projection behind a tower of transformers has no bias: it needs "
            "projection_bias=False, not True"
        )
    # What pools is open_clip's, and takes the outputs of all tokens.
    name, config = describe(model.text.clone(pool="cls"), MODEL_TYPES, None)
    _check_padding(tokenizer, config)
    table = prefix_table(FAMILIES[name].table, "text/", TRANSFORMER)
    table.append(Rule("project_text", "text.proj", "bare linear"))
    poolers = {pool: pooler for pooler, pool in POOLERS.items()}
    described = {
        "hf_model_name": lambda folder: f"{folder}/{TEXT_FOLDER}",
        "hf_model_pretrained": False,
        "hf_proj_type": "linear" if model.text_projection else None,
        "hf_pooler_type": poolers[model.text.pool],
        "context_length": tokenizer.get("length") or model.text.max_length,
    }
    return TowerWritten(described, table, {f"{TEXT_FOLDER}/config.json": config})


def _check_padding(tokenizer: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Refuses a tokenizer whose padding open_clip would take for words: it goes by the id."""
    if tokenizer.get("name") not in text_files.DEFAULTS:
        return
    found, wanted = text_files.find_padding(tokenizer), config["pad_token_id"]
    if found != wanted:
        told = "no id of padding" if found is None else f"padding {found}"
        raise WeightsMismatch(
            f"open_clip masks token {wanted} behind a {config['architectures'][0]}, and the "
            f"model's tokenizer {tokenizer['name']!r} has {told}"
        )
