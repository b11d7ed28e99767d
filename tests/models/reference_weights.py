"""Reads reference weights (Hugging Face names) into the parameters of big_align's towers.

Each table maps modules: our path, the reference's name, and the kind of layer. `{i}` stands for the
number of a block, two digits on our side. A kind says which leaves the layer has, under which name
the reference holds them, and how their axes are ordered there.
"""

import json
import pathlib

import flax.linen as nn
import jax
import numpy as np
from flax import traverse_util
from safetensors.numpy import load_file


def same(w):
    return w


NORM = {"scale": ("weight", same), "bias": ("bias", same)}

KINDS = {  # our leaf: the reference's leaf, and what turns its array into ours
    "array": {"": ("", same)},
    "flat": {"": ("", np.ravel)},
    "flat positions": {"": ("", lambda w: w[0])},
    "first row": {"": ("", lambda w: w[0])},
    "embedding": {"embedding": ("weight", same)},
    "linear": {"kernel": ("weight", np.transpose), "bias": ("bias", same)},
    "conv": {"kernel": ("weight", lambda w: w.transpose(2, 3, 1, 0))},
    "depthwise": {"": ("weight", lambda w: w.transpose(2, 3, 1, 0))},
    "pointwise": {"kernel": ("weight", lambda w: w[:, :, 0, 0].T)},
    "biased pointwise": {
        "kernel": ("weight", lambda w: w[:, :, 0, 0].T),
        "bias": ("bias", same),
    },
    "patches": {
        "kernel": ("weight", lambda w: w.transpose(2, 3, 1, 0).reshape(-1, len(w))),
        "bias": ("bias", same),
    },
    "layer norm": NORM,
    "batch norm": NORM | {"mean": ("running_mean", same), "var": ("running_var", same)},
}

BERT = [
    ("token_embedding", "embeddings.word_embeddings", "embedding"),
    ("position_embedding", "embeddings.position_embeddings.weight", "array"),
    ("token_type_embedding", "embeddings.token_type_embeddings.weight", "first row"),
    ("embedding_norm", "embeddings.LayerNorm", "layer norm"),
    ("block_{i}/attention/query", "encoder.layer.{i}.attention.self.query", "linear"),
    ("block_{i}/attention/key", "encoder.layer.{i}.attention.self.key", "linear"),
    ("block_{i}/attention/value", "encoder.layer.{i}.attention.self.value", "linear"),
    ("block_{i}/attention/out", "encoder.layer.{i}.attention.output.dense", "linear"),
    ("block_{i}/attention_norm", "encoder.layer.{i}.attention.output.LayerNorm", "layer norm"),
    ("block_{i}/mlp/up", "encoder.layer.{i}.intermediate.dense", "linear"),
    ("block_{i}/mlp/down", "encoder.layer.{i}.output.dense", "linear"),
    ("block_{i}/mlp_norm", "encoder.layer.{i}.output.LayerNorm", "layer norm"),
]

VIT = [
    ("cls_token", "embeddings.cls_token", "flat"),
    ("position_embedding", "embeddings.position_embeddings", "flat positions"),
    ("patch_embedding", "embeddings.patch_embeddings.projection", "patches"),
    ("block_{i}/attention_norm", "encoder.layer.{i}.layernorm_before", "layer norm"),
    ("block_{i}/attention/query", "encoder.layer.{i}.attention.attention.query", "linear"),
    ("block_{i}/attention/key", "encoder.layer.{i}.attention.attention.key", "linear"),
    ("block_{i}/attention/value", "encoder.layer.{i}.attention.attention.value", "linear"),
    ("block_{i}/attention/out", "encoder.layer.{i}.attention.output.dense", "linear"),
    ("block_{i}/mlp_norm", "encoder.layer.{i}.layernorm_after", "layer norm"),
    ("block_{i}/mlp/up", "encoder.layer.{i}.intermediate.dense", "linear"),
    ("block_{i}/mlp/down", "encoder.layer.{i}.output.dense", "linear"),
    ("final_norm", "layernorm", "layer norm"),
]

EFFICIENTNET = [
    ("stem_conv", "embeddings.convolution", "conv"),
    ("stem_norm", "embeddings.batchnorm", "batch norm"),
    ("block_{i}/expand_conv", "encoder.blocks.{i}.expansion.expand_conv", "pointwise"),
    ("block_{i}/expand_norm", "encoder.blocks.{i}.expansion.expand_bn", "batch norm"),
    (
        "block_{i}/depthwise_kernel",
        "encoder.blocks.{i}.depthwise_conv.depthwise_conv",
        "depthwise",
    ),
    (
        "block_{i}/depthwise_norm",
        "encoder.blocks.{i}.depthwise_conv.depthwise_norm",
        "batch norm",
    ),
    ("block_{i}/squeeze_conv", "encoder.blocks.{i}.squeeze_excite.reduce", "biased pointwise"),
    ("block_{i}/excite_conv", "encoder.blocks.{i}.squeeze_excite.expand", "biased pointwise"),
    ("block_{i}/project_conv", "encoder.blocks.{i}.projection.project_conv", "pointwise"),
    ("block_{i}/project_norm", "encoder.blocks.{i}.projection.project_bn", "batch norm"),
    ("head_conv", "encoder.top_conv", "pointwise"),
    ("head_norm", "encoder.top_bn", "batch norm"),
]

ALIGN = [
    *[(f"text/{ours}", f"text_model.{theirs}", kind) for ours, theirs, kind in BERT],
    *[(f"image/{ours}", f"vision_model.{theirs}", kind) for ours, theirs, kind in EFFICIENTNET],
    ("project_text", "text_projection", "linear"),
]

RUNNING = ("mean", "var")

UNUSED = ("pooler.", "num_batches_tracked", "temperature")
"""Parts of the names of reference arrays that no tower of ours has."""


def read(folder: pathlib.Path) -> tuple[dict, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the config, the weights, and the inputs and outputs of a reference."""
    config = json.loads((folder / "config.json").read_text())
    return config, load_file(folder / "model.safetensors"), dict(np.load(folder / "io.npz"))


def convert(weights: dict[str, np.ndarray], table: list, model: nn.Module, *inputs) -> dict:
    """Returns the variables of the model, filled with reference weights.

    Fails unless every variable is filled with an array of its shape and every array is used.
    """
    flat, unused = {}, {name for name in weights if not any(part in name for part in UNUSED)}
    for ours, theirs, kind in table:
        for i in range(100 if "{i}" in ours else 1):
            for leaf, (their_leaf, reorder) in KINDS[kind].items():
                name = ".".join(filter(None, (theirs.format(i=i), their_leaf)))
                if name in weights:
                    collection = "batch_stats" if leaf in RUNNING else "params"
                    path = "/".join(filter(None, (collection, ours.format(i=f"{i:02d}"), leaf)))
                    flat[path] = reorder(weights[name])
                    unused.discard(name)
    assert not unused, f"reference arrays left over: {sorted(unused)}"

    variables = traverse_util.unflatten_dict(flat, sep="/")
    expected = nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), *inputs))
    shapes = {path: x.shape for path, x in traverse_util.flatten_dict(expected, sep="/").items()}
    assert {path: x.shape for path, x in flat.items()} == shapes
    return variables


def channels_last(images: np.ndarray) -> np.ndarray:
    """Turns images of a reference, [b 3 h w], into ours."""
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1))
