"""The towers of transformers that ours correspond to."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from big_align.core.errors import WeightsMismatch
from big_align.models.efficientnet import HEAD_CHANNELS, STAGES, STEM_CHANNELS, scale_channels
from big_align.weights.formats.transformers_configs import Field, TransformersFamily, read_edge
from big_align.weights.tables import bert, clip_text, efficientnet, resnet, swin, vit

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}


def _read_activation(name: str) -> str:
    if name not in ACTIVATIONS:
        raise WeightsMismatch(
            f"hidden_act = {name!r} has no counterpart; known: {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def _activation(default: str) -> Field:
    return Field(
        *("hidden_act", "activation", default),
        read=_read_activation,
        write=lambda name: {"gelu_tanh": "gelu_pytorch_tanh"}.get(name, name),
    )


def _sizes(width: int, depth: int, mlp_dim: int, heads: int) -> tuple[Field, ...]:
    return (
        Field("hidden_size", "width", width),
        Field("num_hidden_layers", "depth", depth),
        Field("intermediate_size", "mlp_dim", mlp_dim),
        Field("num_attention_heads", "heads", heads),
    )


def _patch(default: int) -> Field:
    return Field(
        *("patch_size", "variant", default),
        read=lambda size: f"b/{read_edge(size, 'patch_size')}",
        write=lambda variant: int(variant.split("/")[1]),
    )


def _words(vocab_size: int, max_length: int) -> tuple[Field, ...]:
    return (
        Field("vocab_size", "vocab_size", vocab_size),
        Field("max_position_embeddings", "max_length", max_length),
    )


BERT_FIELDS = (
    *_sizes(768, 12, 3072, 12),
    _activation("gelu"),
    Field("hidden_dropout_prob", "dropout", 0.1),
    Field("layer_norm_eps", "layer_norm_eps", 1e-12),
)

BERT = TransformersFamily(
    tower="bert",
    table=bert.BERT,
    fields=(*BERT_FIELDS, *_words(30522, 512)),
    always={"variant": "base", "pool": "cls"},
    constants={"model_type": "bert", "type_vocab_size": 2, "pad_token_id": 0},
    architecture="BertModel",
    bases=("bert.",),
    pooler=True,
)

# RoBERTa's positions start after that of padding, so its table has two rows more than a text.
ROBERTA = BERT._replace(
    tower="roberta",
    table=bert.ROBERTA,
    fields=(
        *BERT_FIELDS,
        Field("vocab_size", "vocab_size", 50265),
        Field("max_position_embeddings", "max_length", 512, lambda n: n - 2, lambda n: n + 2),
    ),
    constants={"model_type": "roberta", "type_vocab_size": 1, "pad_token_id": 1},
    architecture="RobertaModel",
    bases=("roberta.",),
)

VIT = TransformersFamily(
    tower="vit",
    table=vit.VIT,
    fields=(
        *_sizes(768, 12, 3072, 12),
        _patch(16),
        _activation("gelu"),
        Field("hidden_dropout_prob", "dropout", 0.0),
        Field("layer_norm_eps", "layer_norm_eps", 1e-12),
    ),
    always={"pool": "cls", "positions": "learned", "input_norm": False, "patch_bias": True},
    constants={"model_type": "vit", "qkv_bias": True},
    architecture="ViTModel",
    bases=("vit.",),
    pooler=True,
)

CLIP_VISION = TransformersFamily(
    tower="vit",
    table=vit.CLIP,
    fields=(
        *_sizes(768, 12, 3072, 12),
        _patch(32),
        _activation("quick_gelu"),
        Field("layer_norm_eps", "layer_norm_eps", 1e-5),
    ),
    always={"pool": "cls", "positions": "learned", "input_norm": True, "patch_bias": False},
    constants={"model_type": "clip_vision_model"},
    architecture="CLIPVisionModel",
    bases=("vision_model.",),
    prefix="vision_model.",
)

CLIP_TEXT = TransformersFamily(
    tower="clip_text",
    table=clip_text.CLIP,
    fields=(
        *_sizes(512, 12, 2048, 8),
        *_words(49408, 77),
        _activation("quick_gelu"),
        Field("layer_norm_eps", "layer_norm_eps", 1e-5),
    ),
    always={"variant": "b"},
    constants={"model_type": "clip_text_model"},
    architecture="CLIPTextModel",
    bases=("text_model.",),
    prefix="text_model.",
    # CLIP's two special tokens are its last ids; transformers looks for the end of the text there.
    write_more=lambda ours: {
        "bos_token_id": ours["vocab_size"] - 2,
        "eos_token_id": ours["vocab_size"] - 1,
        "pad_token_id": 0,
    },
)

MLCD = CLIP_VISION._replace(
    table=vit.MLCD,
    fields=(
        *_sizes(1664, 48, 8192, 16),
        _patch(14),
        _activation("gelu"),
        Field("layer_norm_eps", "layer_norm_eps", 1e-5),
    ),
    always=CLIP_VISION.always | {"positions": "rotary"},
    constants={
        "model_type": "mlcd_vision_model",
        "num_key_value_groups": 1,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"},
    },
    architecture="MLCDVisionModel",
)

SWIN = TransformersFamily(
    tower="swin",
    table=swin.SWIN,
    fields=(
        Field("embed_dim", "width", 96),
        Field("depths", "depths", [2, 2, 6, 2], tuple, list),
        Field("num_heads", "heads", [3, 6, 12, 24], tuple, list),
        Field("window_size", "window", 7),
        _activation("gelu"),
        Field("drop_path_rate", "drop_path", 0.1),
        Field("layer_norm_eps", "layer_norm_eps", 1e-5),
    ),
    always={"variant": "tiny"},
    constants={
        "model_type": "swin",
        "patch_size": 4,
        "mlp_ratio": 4.0,
        "qkv_bias": True,
        "use_absolute_embeddings": False,
    },
    architecture="SwinModel",
    bases=("swin.",),
    write_more=lambda ours: {
        "num_layers": len(ours["depths"]),
        "hidden_size": ours["width"] * 2 ** (len(ours["depths"]) - 1),
    },
)

RESNET_BLOCKS = {"bottleneck": ("50", 4), "basic": ("18", 1)}
"""Our variant of a kind of block, and its widest layer over its 3x3 convolution."""


def _read_resnet(config: Mapping[str, Any]) -> dict[str, Any]:
    kind = config.get("layer_type", "bottleneck")
    if kind not in RESNET_BLOCKS:
        known = ", ".join(RESNET_BLOCKS)
        raise WeightsMismatch(f"layer_type = {kind!r} has no counterpart; known: {known}")
    variant, expansion = RESNET_BLOCKS[kind]
    sizes = config.get("hidden_sizes", [256, 512, 1024, 2048])
    if any(wide != 2 * narrow for narrow, wide in zip(sizes[:-1], sizes[1:], strict=True)):
        raise WeightsMismatch(f"hidden_sizes must double from stage to stage, not be {sizes}")
    return {
        "variant": variant,
        "width": sizes[0] // expansion,
        "stem_width": config.get("embedding_size", 64),
    }


def _write_resnet(ours: Mapping[str, Any]) -> dict[str, Any]:
    kind = ours["kind"]
    first = ours["width"] * RESNET_BLOCKS[kind][1]
    return {
        "layer_type": kind,
        "hidden_sizes": [first * 2**stage for stage in range(len(ours["depths"]))],
        "embedding_size": ours["stem_width"],
    }


RESNET = TransformersFamily(
    tower="resnet",
    table=resnet.RESNET,
    fields=(Field("depths", "depths", [3, 4, 6, 3], tuple, list),),
    always={"stem": "imagenet", "epsilon": 1e-5},
    constants={
        "model_type": "resnet",
        "hidden_act": "relu",
        "downsample_in_first_stage": False,
        "downsample_in_bottleneck": False,
    },
    architecture="ResNetModel",
    bases=("resnet.",),
    read_more=_read_resnet,
    write_more=_write_resnet,
)


def find_odd_blocks(depth: float, size: int) -> list[int]:
    """Returns the blocks of an EfficientNet that halve an odd edge; -1 is the stem.

    Ours pads so that an odd edge is rounded up, the same on both sides, as in TensorFlow;
    transformers does this in the blocks of `depthwise_padding`, and never in the stem.
    """
    odd, edge, number = [-1] if size % 2 else [], math.ceil(size / 2), 0
    for repeats, _, stride, *_ in STAGES:
        if stride == 2:
            odd += [number] if edge % 2 else []
            edge = math.ceil(edge / 2)
        number += math.ceil(repeats * depth)
    return odd


def _check_residuals(width: float) -> None:
    """Refuses widths at which the first block of a stage could add its input.

    Ours does so, like TensorFlow's and timm's; transformers' adds it only in later blocks. No
    published width is affected.
    """
    channels = [scale_channels(c, width) for c in (STEM_CHANNELS, *(stage[-1] for stage in STAGES))]
    strides = (stage[2] for stage in STAGES)
    if any(s == 1 and a == b for a, b, s in zip(channels[:-1], channels[1:], strides, strict=True)):
        raise WeightsMismatch(
            f"at a width of {width} a stage begins with as many channels as it has, where "
            f"transformers leaves out a residual connection"
        )


def _read_efficientnet(config: Mapping[str, Any]) -> dict[str, Any]:
    _check_residuals(config.get("width_coefficient", 2.0))
    return {}


def _write_efficientnet(channels: int) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Returns a function that writes the width of the features, and where edges are odd."""

    def write(ours: Mapping[str, Any]) -> dict[str, Any]:
        _check_residuals(ours["width"])
        odd = find_odd_blocks(ours["depth"], ours["image_size"])
        return {
            "hidden_dim": scale_channels(channels, ours["width"]),
            "depthwise_padding": [block for block in odd if block >= 0],
        }

    return write


EFFICIENTNET = TransformersFamily(
    tower="efficientnet",
    table=efficientnet.EFFICIENTNET,
    fields=(
        Field("width_coefficient", "width", 2.0),
        Field("depth_coefficient", "depth", 3.1),
        Field("drop_connect_rate", "drop_path", 0.2),
    ),
    always={"variant": "b0", "lite": False, "head": True, "stem_stride": 2},
    constants={
        "model_type": "efficientnet",
        "hidden_act": "swish",
        "depth_divisor": 8,
        "squeeze_expansion_ratio": 0.25,
        "kernel_sizes": [3, 3, 5, 3, 5, 5, 3],
        "in_channels": [32, 16, 24, 40, 80, 112, 192],
        "out_channels": [16, 24, 40, 80, 112, 192, 320],
        "strides": [1, 2, 2, 2, 1, 2, 1],
        "num_block_repeats": [1, 2, 2, 3, 3, 4, 1],
        "expand_ratios": [1, 6, 6, 6, 6, 6, 6],
        "batch_norm_eps": 0.001,
        "pooling_type": "mean",
    },
    architecture="EfficientNetModel",
    bases=("efficientnet.",),
    read_more=_read_efficientnet,
    write_more=_write_efficientnet(HEAD_CHANNELS),
)

ALIGN_VISION = EFFICIENTNET._replace(
    always={"variant": "b0", "lite": False, "head": False, "stem_stride": 2},
    constants=EFFICIENTNET.constants | {"model_type": "align_vision_model"},
    architecture="AlignVisionModel",
    bases=("vision_model.",),
    write_more=_write_efficientnet(STAGES[-1][-1]),
)

ALIGN_TEXT = BERT._replace(
    constants=BERT.constants | {"model_type": "align_text_model"},
    architecture="AlignTextModel",
    bases=("text_model.",),
)

FAMILIES = {
    family.constants["model_type"]: family
    for family in (
        *(BERT, ROBERTA, VIT, CLIP_VISION, CLIP_TEXT, MLCD, SWIN, RESNET, EFFICIENTNET),
        *(ALIGN_VISION, ALIGN_TEXT),
    )
}
