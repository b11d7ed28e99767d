"""What transformers' `config.json` says about a tower, and what ours says, field by field."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from big_align.errors import WeightsMismatch
from big_align.interop.mapping import Rule
from big_align.interop.tables import bert, clip_text, efficientnet, resnet, swin, vit
from big_align.models.efficientnet import HEAD_CHANNELS, STAGES, scale_channels


class Field(NamedTuple):
    """A value that both sides hold.

    Args:
      theirs: name in their config.
      ours: name of our argument.
      default: their value when their config leaves it out.
      read: turns their value into ours.
      write: turns ours into theirs.
    """

    theirs: str
    ours: str
    default: Any
    read: Callable[[Any], Any] = lambda value: value
    write: Callable[[Any], Any] = lambda value: value


class Family(NamedTuple):
    """A kind of tower in transformers.

    Args:
      tower: our name of it.
      table: where its arrays are.
      fields: what is translated.
      always: our arguments that follow from the family.
      constants: their values that we can only do one way; checked when read, and written.
      architecture: the class that opens the folder.
      bases: prefixes that names may have in files of models with a head.
      pooler: whether the class has a dense layer on [CLS] that our tower lacks.
      read_more: what of ours follows from several values of theirs.
      write_more: what of theirs follows from several settings of ours.
    """

    tower: str
    table: Sequence[Rule]
    fields: Sequence[Field]
    always: Mapping[str, Any]
    constants: Mapping[str, Any]
    architecture: str
    bases: Sequence[str] = ()
    pooler: bool = False
    read_more: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda config: {}
    write_more: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda settings: {}


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


def _write_activation(name: str) -> str:
    return {"gelu_tanh": "gelu_pytorch_tanh"}.get(name, name)


def _activation(default: str) -> Field:
    return Field("hidden_act", "activation", default, _read_activation, _write_activation)


def _sizes(width: int, depth: int, mlp_dim: int, heads: int) -> tuple[Field, ...]:
    return (
        Field("hidden_size", "width", width),
        Field("num_hidden_layers", "depth", depth),
        Field("intermediate_size", "mlp_dim", mlp_dim),
        Field("num_attention_heads", "heads", heads),
    )


def _patch(default: int) -> Field:
    return Field(
        "patch_size", "variant", default, lambda p: f"b/{p}", lambda v: int(v.split("/")[1])
    )


def _words(vocab_size: int, max_length: int) -> tuple[Field, ...]:
    return (
        Field("vocab_size", "vocab_size", vocab_size),
        Field("max_position_embeddings", "max_length", max_length),
    )


BERT = Family(
    tower="bert",
    table=bert.BERT,
    fields=(
        *_sizes(768, 12, 3072, 12),
        *_words(30522, 512),
        _activation("gelu"),
        Field("hidden_dropout_prob", "dropout", 0.1),
        Field("layer_norm_eps", "layer_norm_eps", 1e-12),
    ),
    always={"variant": "base", "pool": "cls"},
    constants={"model_type": "bert", "type_vocab_size": 2, "pad_token_id": 0},
    architecture="BertModel",
    bases=("bert.",),
    pooler=True,
)

# Positions of RoBERTa start behind that of padding, so its table has two rows more than a text.
ROBERTA = Family(
    tower="roberta",
    table=bert.ROBERTA,
    fields=(
        *_sizes(768, 12, 3072, 12),
        Field("vocab_size", "vocab_size", 50265),
        Field("max_position_embeddings", "max_length", 512, lambda n: n - 2, lambda n: n + 2),
        _activation("gelu"),
        Field("hidden_dropout_prob", "dropout", 0.1),
        Field("layer_norm_eps", "layer_norm_eps", 1e-12),
    ),
    always={"variant": "base", "pool": "cls"},
    constants={"model_type": "roberta", "type_vocab_size": 1, "pad_token_id": 1},
    architecture="RobertaModel",
    bases=("roberta.",),
    pooler=True,
)

VIT = Family(
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

CLIP_VISION = Family(
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
)

CLIP_TEXT = Family(
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
    # CLIP's two special tokens are its last ids; transformers looks for the end of the text there.
    write_more=lambda ours: {
        "bos_token_id": ours["vocab_size"] - 2,
        "eos_token_id": ours["vocab_size"] - 1,
        "pad_token_id": 0,
    },
)

MLCD = Family(
    tower="vit",
    table=vit.MLCD,
    fields=(
        *_sizes(1664, 48, 8192, 16),
        _patch(14),
        _activation("gelu"),
        Field("layer_norm_eps", "layer_norm_eps", 1e-5),
    ),
    always={"pool": "cls", "positions": "rotary", "input_norm": True, "patch_bias": False},
    constants={
        "model_type": "mlcd_vision_model",
        "num_key_value_groups": 1,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"},
    },
    architecture="MLCDVisionModel",
    bases=("vision_model.",),
)

SWIN = Family(
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
    variant, expansion = RESNET_BLOCKS[config.get("layer_type", "bottleneck")]
    sizes = config.get("hidden_sizes", [256, 512, 1024, 2048])
    if list(sizes) != [sizes[0] * 2**stage for stage in range(len(sizes))]:
        raise WeightsMismatch(f"hidden_sizes = {sizes} must double from stage to stage")
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
        "embedding_size": ours["stem_width"] or ours["width"],
    }


RESNET = Family(
    tower="resnet",
    table=resnet.RESNET,
    fields=(Field("depths", "depths", [3, 4, 6, 3], tuple, list),),
    always={"stem": "imagenet"},
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

EFFICIENTNET = Family(
    tower="efficientnet",
    table=efficientnet.EFFICIENTNET,
    fields=(
        Field("width_coefficient", "width", 2.0),
        Field("depth_coefficient", "depth", 3.1),
        Field("drop_connect_rate", "drop_path", 0.2),
    ),
    always={"variant": "b0", "head": True},
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
    write_more=lambda ours: {"hidden_dim": scale_channels(HEAD_CHANNELS, ours["width"])},
)

ALIGN_VISION = EFFICIENTNET._replace(
    always={"variant": "b0", "head": False},
    constants=EFFICIENTNET.constants | {"model_type": "align_vision_model"},
    architecture="AlignVisionModel",
    bases=("vision_model.",),
    write_more=lambda ours: {"hidden_dim": scale_channels(STAGES[-1][-1], ours["width"])},
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


def read_fields(family: Family, config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Turns a config of theirs into a node of ours.

    Raises:
      WeightsMismatch: the config asks for what our tower does not do; the message names it.
    """
    for name, value in family.constants.items():
        if name in config and config[name] != value:
            raise WeightsMismatch(
                f"{where}: {name} = {config[name]!r} is not supported, only {value!r}"
            )
    node = {"name": family.tower} | dict(family.always)
    for field in family.fields:
        value = config.get(field.theirs)
        node[field.ours] = field.read(field.default if value is None else value)
    return node | family.read_more(config)


def write_fields(family: Family, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turns the settings of a tower of ours into a config of theirs.

    Raises:
      WeightsMismatch: the tower has a setting that the family does not do.
    """
    for name, value in family.always.items():
        if name != "variant" and settings[name] != value:
            raise WeightsMismatch(
                f"{family.architecture} needs {name}={value!r}, the model has {settings[name]!r}; "
                f"--format=big_align keeps every model"
            )
    fields = {field.theirs: field.write(settings[field.ours]) for field in family.fields}
    more = family.write_more(settings)
    first = {"architectures": [family.architecture], "dtype": "float32"}
    return first | fields | more | dict(family.constants)
