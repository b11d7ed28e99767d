"""Folders whose configs describe what their weights are not, and must not be believed."""

import functools
import json
import pathlib
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from big_align import weights
from big_align.weights.arrays.weight_files import open_weights, write_safetensors
from big_align.weights.formats import architecture
from tests.models.drawn_variables import draw_variables
from tests.weights import tiny_pairs

SIZE = 32
TOWERS = {
    "bert": tiny_pairs.BERT,
    "clip": {
        "image": tiny_pairs.CLIP_VIT,
        "text": tiny_pairs.CLIP_TEXT,
        **{"embedding_dim": 24, "image_projection": True, "projection_bias": False},
    },
    **{"vit": tiny_pairs.VIT, "swin": tiny_pairs.SWIN, "resnet": tiny_pairs.RESNET},
    "efficientnet": tiny_pairs.EFFICIENTNET | {"head": True},
}


class HostileConfig(NamedTuple):
    """A folder of a format in which a config, or the name of an array, is another.

    Args:
      tower: a name in `TOWERS`.
      format: of the folder.
      field: where in its JSON, separated by dots, or an array.
      value: what stands there, or the array's new name, or an array in its place.
      message: a pattern of what is said about it.
    """

    tower: str
    format: str
    field: str
    value: Any
    message: str


DEEP = functools.reduce(lambda inner, _: [inner], range(450), 0)

CONFIGS = {
    "bert of a million layers": HostileConfig(
        "bert", "transformers", "num_hidden_layers", 10**6, "num_hidden_layers|depth|blocks"
    ),
    "bert of absurd width": HostileConfig(
        "bert", "transformers", "hidden_size", 10**12, "width = 1000000000000 is too large"
    ),
    "bert of a long number": HostileConfig(
        "bert", "transformers", "hidden_size", 10**4000, "width = 1000.* is too large"
    ),
    "resnet of many stages": HostileConfig(
        "resnet", "transformers", "depths", [1] * 400_000, "blocks in 400000 stages"
    ),
    "resnet of empty stages": HostileConfig(
        "resnet", "transformers", "depths", [0] * 400_000, "depths has 0, and all must be above 0$"
    ),
    "resnet of negative stages": HostileConfig(
        "resnet", "transformers", "depths", [-(10**6), 10**6], "too large|blocks"
    ),
    "resnet of many sizes": HostileConfig(
        "resnet", "transformers", "hidden_sizes", [8] * 500_000, "must double"
    ),
    "resnet of growing texts": HostileConfig(
        "resnet", "transformers", "hidden_sizes", ["a"] * 60, "must double|does not describe"
    ),
    "efficientnet of a million blocks": HostileConfig(
        "efficientnet", "transformers", "depth_coefficient", 1e6, "describes .* blocks"
    ),
    "efficientnet of an infinite width": HostileConfig(
        "efficientnet", "transformers", "width_coefficient", 1e300, "does not describe a model"
    ),
    "swin of a large window": HostileConfig(
        "swin", "transformers", "window_size", 600, "window = 600 is too large"
    ),
    "swin of large images": HostileConfig(
        "swin", "transformers", "image_size", 10**6, "1000000 pixels; it must have from 1 to 4096"
    ),
    "clip of a million layers": HostileConfig(
        "clip", "transformers", "text_config.num_hidden_layers", 1000, "describes .* blocks"
    ),
    "open_clip of a million layers": HostileConfig(
        "clip", "open_clip", "model_cfg.vision_cfg.layers", 10**6, "depth = 1000000 is too large"
    ),
    "open_clip of long lists": HostileConfig(
        "clip", "open_clip", "model_cfg.text_cfg.mlp_ratio", 10**10, "is too large"
    ),
    "open_clip of a list for a width": HostileConfig(
        "clip", "open_clip", "model_cfg.text_cfg.width", [0] * 1000, "width = .* is no number"
    ),
    "open_clip of large images": HostileConfig(
        "clip", "open_clip", "model_cfg.vision_cfg.image_size", 10**9, "1000000000 pixels"
    ),
    "timm of a far block": HostileConfig(
        "vit", "timm", "blocks.0.attn.qkv.bias", "blocks.999999999.x", "numbers up to 999999999"
    ),
    "timm of a far stage": HostileConfig(
        "swin", "timm", "layers.1.blocks.0.attn.qkv.bias", "layers.999999999.blocks.0.x", "missing"
    ),
    "timm of small crops": HostileConfig(
        "vit", "timm", "pretrained_cfg.crop_pct", 1e-300, "pixels"
    ),
    "native of a million layers": HostileConfig(
        "clip", "big_align", "model.image.depth", 10**6, "too large|blocks"
    ),
    "native of a text for a depth": HostileConfig(
        "clip", "big_align", "model.image.depth", "many", "is not of type"
    ),
    "native of large images": HostileConfig(
        "swin", "big_align", "image_size", 10**9, "1000000000 pixels"
    ),
    "clip of a scale that is no logarithm": HostileConfig(
        "clip", "transformers", "logit_scale", np.float32(100), r"logit_scale is 100; .*is 4\.60517"
    ),
    "clip of many scales": HostileConfig(
        "clip", "transformers", "logit_scale", np.zeros(3, np.float32), r"is an array \[3\]; as the"
    ),
    "open_clip of a scale of NaN": HostileConfig(
        "clip", "open_clip", "logit_scale", np.float32(np.nan), "logit_scale is nan; as the log"
    ),
    "native of a negative temperature": HostileConfig(
        "clip", "big_align", "temperature", -0.07, "temperature of the model is -0.07; it must be a"
    ),
    "native of a temperature in words": HostileConfig(
        "clip", "big_align", "temperature", "0.07", "temperature of the model is '0.07'; it must"
    ),
    "native of a foreign tower": HostileConfig(
        "clip", "big_align", "model.image.name", "antigravity:fly", "named 'antigravity:fly'"
    ),
    "native of a foreign tokenizer": HostileConfig(
        "clip", "big_align", "tokenizer", {"name": "antigravity:fly"}, "tokenizer 'antigravity:fly'"
    ),
    "native of a foreign vocabulary": HostileConfig(
        *("clip", "big_align", "tokenizer"),
        {"name": "wordpiece", "vocabulary": "../../passwords"},
        "'../../passwords' is no file of the folder",
    ),
    "native of large frames": HostileConfig(
        "vit", "big_align", "preprocessing", {"size": 32, "resize": 10**9}, "pixels"
    ),
    "native of lists in lists": HostileConfig(
        "vit", "big_align", "model.width", DEEP, "nested more than 100 deep"
    ),
}


def write_intact(hostile: HostileConfig, folder: pathlib.Path) -> None:
    """Writes a legal folder of a format."""
    node = TOWERS[hostile.tower]
    inputs = {
        "image": (jnp.zeros((1, SIZE, SIZE, 3)),),
        "text": (jnp.ones((1, 1), jnp.int32), jnp.ones((1, 1), bool)),
    }
    kind = architecture.kind_of(node)
    model = architecture.make_model(node)
    given = inputs["image"] + inputs["text"] if kind == "dual" else inputs[kind]
    size = None if kind == "text" else SIZE
    seen = weights.Preprocessing(SIZE, 40) if size else None
    variables = draw_variables(model, *given)
    pretrained = weights.Pretrained(node, variables, size, preprocessing=seen)
    weights.save(folder, pretrained, format=hostile.format)


def spoil(hostile: HostileConfig, folder: pathlib.Path) -> None:
    """Changes a field of a legal folder, or the name of an array."""
    for path in folder.glob("*config.json"):
        config = json.loads(path.read_text())
        *above, field = hostile.field.split(".")
        node = functools.reduce(lambda node, name: node.get(name, {}), above, config)
        if field in node:
            node[field] = hostile.value
            path.write_text(json.dumps(config))
            return
    path = next(folder.glob("*model.safetensors"))
    with open_weights(path) as opened:
        arrays = dict(opened)
    given = hostile.value
    if isinstance(given, str):
        arrays[given] = arrays.pop(hostile.field)
    else:
        arrays[hostile.field] = np.asarray(given)
    write_safetensors(path, arrays)
