"""timm's image towers: the architecture that names and shapes imply, and timm's terms for ours."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from big_align.core.errors import WeightsMismatch
from big_align.models import efficientnet as efficientnet_tower
from big_align.models import resnet as resnet_tower
from big_align.models import swin as swin_tower
from big_align.weights.formats import architecture
from big_align.weights.formats.open_clip_configs import find_ratio
from big_align.weights.tables import efficientnet, resnet, swin, vit
from big_align.weights.tables.mapping import Rule

SIZE = 224
"""Pixels of an edge of images if nothing says it."""

Shapes = Mapping[str, tuple[int, ...]]
Settings = Mapping[str, Any]


class TimmConfig(NamedTuple):
    """What a folder says besides the weights."""

    name: str  # of the architecture, up to a dot; "" if there is no config
    arguments: Mapping[str, Any]  # `model_args`
    size: int | None  # pixels of an edge of its images


NOTHING_STATED = TimmConfig("", {}, None)
"""What a state dict by itself says."""


class TimmFamily(NamedTuple):
    """A kind of tower in timm.

    `read` makes a node and the size of images, `write` an architecture's name and `model_args`.
    """

    tower: str  # our name for it
    table: Sequence[Rule]
    mark: str  # an array that no other family has
    names: str  # a pattern of the architectures that our tower is
    fixed_size: bool  # whether the model is made for one size of images
    first: str  # the convolution that timm adapts to other numbers of channels
    classifier: str
    arguments: Sequence[str]  # of `model_args`; others change what the model does
    needs: Mapping[str, Any]  # settings of ours that have one value in timm
    read: Callable[[Shapes, TimmConfig], tuple[dict[str, Any], int]]
    write: Callable[[Settings, int], tuple[str, dict[str, Any]]]


def count(shapes: Shapes, pattern: str) -> int:
    """Returns one more than the largest number at a place in the names; 0 if none has one."""
    matches = (re.match(pattern, name) for name in shapes)
    number = max((int(match[1]) + 1 for match in matches if match), default=0)
    if number > len(shapes):
        raise WeightsMismatch(f"names have numbers up to {number - 1}, and there are {len(shapes)}")
    return number


def _count_stages(shapes: Shapes, pattern: str, first: int = 0) -> tuple[int, ...]:
    """Returns the blocks of each stage; the pattern has groups for the numbers of both."""
    blocks: dict[int, int] = {}
    for match in filter(None, (re.match(pattern, name) for name in shapes)):
        stage, block = int(match[1]), int(match[2])
        blocks[stage] = max(blocks.get(stage, 0), block + 1)
    return tuple(blocks.get(stage, 0) for stage in range(first, first + len(blocks)))


def _read_resnet(shapes: Shapes, config: TimmConfig) -> tuple[dict[str, Any], int]:
    variant = "50" if "layer1.0.conv3.weight" in shapes else "18"
    node = {
        "variant": variant,
        "width": shapes["layer1.0.conv1.weight"][0],
        "depths": _count_stages(shapes, r"layer(\d+)\.(\d+)\.", first=1),
        "stem_width": shapes["conv1.weight"][0],
    }
    return node, config.size or SIZE


def _write_resnet(ours: Settings, size: int) -> tuple[str, dict[str, Any]]:
    if len(ours["depths"]) != 4:
        raise WeightsMismatch(f"timm's resnet has four stages, not {len(ours['depths'])}")
    if ours["stem_width"] != 64:
        raise WeightsMismatch("timm's resnet has 64 channels in its first convolution")
    wanted = ours["kind"], tuple(ours["depths"])
    variants = {sizes: variant for variant, sizes in resnet_tower.VARIANTS.items()}
    name = variants.get(wanted, "50" if ours["kind"] == "bottleneck" else "18")
    channels = [ours["width"] * 2**stage for stage in range(len(ours["depths"]))]
    return f"resnet{name}", {"layers": list(ours["depths"]), "channels": channels}


def read_swin(shapes: Shapes, config: TimmConfig) -> tuple[dict[str, Any], int]:
    depths = _count_stages(shapes, r"layers\.(\d+)\.blocks\.(\d+)\.")
    tables = [
        shapes[f"layers.{s}.blocks.0.attn.relative_position_bias_table"] for s in range(len(depths))
    ]
    window = (math.isqrt(tables[0][0]) + 1) // 2
    node = {
        "variant": "tiny",
        "width": shapes["patch_embed.proj.weight"][0],
        "depths": depths,
        "heads": tuple(heads for _, heads in tables),
        "window": window,
    }
    return node, config.size or _smallest_image(window, depths)


def _smallest_image(window: int, depths: Sequence[int]) -> int:
    """Returns the size at which the last map is one window, as in every published model."""
    return window * swin_tower.PATCH * 2 ** (len(depths) - 1)


def _write_swin(ours: Settings, size: int) -> tuple[str, dict[str, Any]]:
    smallest = _smallest_image(ours["window"], ours["depths"])
    if size < smallest or size % swin_tower.PATCH:
        raise WeightsMismatch(
            f"timm has smaller tables of biases where a map is smaller than window="
            f"{ours['window']}: it needs images of {smallest} or more, and a multiple of "
            f"{swin_tower.PATCH}; the model has {size}"
        )
    wanted = ours["width"], tuple(ours["depths"]), tuple(ours["heads"])
    variants = {sizes: variant for variant, sizes in swin_tower.VARIANTS.items()}
    return f"swin_{variants.get(wanted, 'tiny')}_patch4_window7_224", {
        "embed_dim": ours["width"],
        "depths": list(ours["depths"]),
        "num_heads": list(ours["heads"]),
        "window_size": ours["window"],
    }


WIDE_HEADS = {1152: 16, 1280: 16, 1408: 16, 1536: 16, 1664: 16}
"""Heads of timm's largest ViTs, by width; the heads of all others are 64 wide."""

TANH = re.compile(
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip|vit_large_patch16_siglip(_gap)?_512"
)
"""Names of timm's ViTs that approximate GELU by tanh; its other SigLIP towers do not."""

CLIP_EPSILON, EPSILON = 1e-5, 1e-6
"""Added to variances in timm's ViTs with `clip` in their names, and in all others."""

VIT_SIZES = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge"}
VIT_PATCHES = {  # of the architectures that timm has
    EPSILON: {"tiny": (16,), "small": (16, 32), "base": (8, 16, 32), "large": (14, 16, 32)},
    CLIP_EPSILON: {"base": (16, 32), "large": (14,), "huge": (14,)},
}


def _read_vit(shapes: Shapes, config: TimmConfig) -> tuple[dict[str, Any], int]:
    width, _, _, patch = shapes["patch_embed.proj.weight"]
    pool = "cls" if "cls_token" in shapes else "mean"
    pool_name = config.arguments.get("global_pool", {"cls": "token", "mean": "avg"}[pool])
    if (pool, pool_name) not in (("cls", "token"), ("mean", "avg")) or "fc_norm.weight" in shapes:
        raise WeightsMismatch(
            "a ViT must pool its class token, or the mean over patches without a class token after "
            "the last normalization (fc_norm=False)"
        )
    clip = "clip" in config.name if config.name else "norm_pre.weight" in shapes
    usual = "quick_gelu" if "quickgelu" in config.name else None
    usual = "gelu_tanh" if TANH.match(config.name) else usual
    activation = config.arguments.get("act_layer", usual)
    heads = config.arguments.get("num_heads") or WIDE_HEADS.get(width, max(width // 64, 1))
    node = {
        "variant": f"b/{patch}",
        "width": width,
        "depth": count(shapes, r"blocks\.(\d+)\."),
        "mlp_dim": shapes["blocks.0.mlp.fc1.weight"][0],
        "heads": heads,
        "pool": pool,
        "patch_bias": "patch_embed.proj.bias" in shapes,
        "input_norm": "norm_pre.weight" in shapes,
        "activation": activation or "gelu",
        "layer_norm_eps": CLIP_EPSILON if clip else EPSILON,
    }
    side = architecture.side_of_grid(shapes["pos_embed"][1], int(pool == "cls"))
    return node, side * patch


def _write_vit(ours: Settings, size: int) -> tuple[str, dict[str, Any]]:
    width, epsilon = ours["width"], ours["layer_norm_eps"]
    patch = int(ours["variant"].split("/")[1])
    if epsilon not in VIT_PATCHES:
        raise WeightsMismatch(
            f"timm's vit has layer_norm_eps={EPSILON}, or {CLIP_EPSILON} as in CLIP, the model has "
            f"{epsilon}"
        )
    if ours["patch_bias"] == ours["input_norm"]:
        raise WeightsMismatch("timm's vit has either patch_bias or input_norm")
    known = VIT_SIZES.get(width)
    named = (known, patch) if patch in VIT_PATCHES[epsilon].get(known, ()) else ("base", 16)
    name = "vit_{}_patch{}".format(*named) + ("_clip_224" if epsilon == CLIP_EPSILON else "_224")
    arguments = {
        "patch_size": patch,
        "embed_dim": width,
        "depth": ours["depth"],
        "num_heads": ours["heads"],
        "mlp_ratio": find_ratio(width, ours["mlp_dim"]),
        "pre_norm": ours["input_norm"],
        "act_layer": ours["activation"],
    }
    if ours["pool"] == "mean":
        arguments |= {"class_token": False, "global_pool": "avg", "fc_norm": False}
    return name, arguments


def _read_efficientnet(shapes: Shapes, config: TimmConfig) -> tuple[dict[str, Any], int]:
    stem = shapes["conv_stem.weight"][0]
    depths = _count_stages(shapes, r"blocks\.(\d+)\.(\d+)\.")
    last = shapes[f"blocks.{len(depths) - 1}.{depths[-1] - 1}.conv_pwl.weight"][0]
    lite = "blocks.0.0.se.conv_reduce.weight" not in shapes
    variant = efficientnet_tower.find_variant(sum(depths), stem, last, lite)
    if variant is None:
        raise WeightsMismatch(
            f"no EfficientNet has {stem} channels in its first convolution, {depths} blocks and "
            f"{last} channels behind them; known are {', '.join(efficientnet_tower.VARIANTS)}"
        )
    usual = efficientnet_tower.IMAGE_SIZES[variant]
    return {"variant": variant, "head": True}, config.size or usual


def _write_efficientnet(ours: Settings, size: int) -> tuple[str, dict[str, Any]]:
    for variant in efficientnet_tower.VARIANTS:
        published = efficientnet_tower.EfficientNet(variant).resolved
        if all(ours[name] == published[name] for name in ("width", "depth", "lite")):
            return f"tf_efficientnet_{variant}", {}
    raise WeightsMismatch(
        f"timm has no EfficientNet{'-Lite' if ours['lite'] else ''} of width={ours['width']} and "
        f"depth={ours['depth']}"
    )


COMMON = ("num_classes", "in_chans", "img_size", "drop_rate", "drop_path_rate")
"""What `model_args` may have for every tower."""

FAMILIES = (
    TimmFamily(
        tower="resnet",
        table=resnet.TIMM_RESNET,
        mark="layer1.0.conv1.weight",
        names=r"(tv_)?resnet\d+",
        fixed_size=False,
        first="conv1",
        classifier="fc",
        arguments=("layers", "channels"),
        needs={"stem": "imagenet", "epsilon": 1e-5},
        read=_read_resnet,
        write=_write_resnet,
    ),
    TimmFamily(
        tower="swin",
        table=swin.TIMM_SWIN,
        mark="layers.0.blocks.0.attn.relative_position_bias_table",
        names=r"swin_(tiny|small|base|large)_patch4_window\d+_\d+\w*",
        fixed_size=True,
        first="patch_embed.proj",
        classifier="head.fc",
        arguments=("embed_dim", "depths", "num_heads", "window_size", "patch_size"),
        needs={"activation": "gelu", "layer_norm_eps": 1e-5},
        read=read_swin,
        write=_write_swin,
    ),
    TimmFamily(
        tower="vit",
        table=vit.TIMM_VIT,
        mark="blocks.0.attn.qkv.weight",
        names=r"(vit|deit)_[a-z0-9]+_patch\d+_\w+",
        fixed_size=True,
        first="patch_embed.proj",
        classifier="head",
        arguments=(
            *("patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "pre_norm"),
            *("act_layer", "class_token", "global_pool", "fc_norm", "dynamic_img_size"),
        ),
        needs={"positions": "learned"},
        read=_read_vit,
        write=_write_vit,
    ),
    TimmFamily(
        tower="efficientnet",
        table=efficientnet.TIMM_EFFICIENTNET,
        mark="blocks.0.0.conv_dw.weight",
        names=r"tf_efficientnet_(b[0-7]|l2|lite[0-4])(_\w+)?",
        fixed_size=False,
        first="conv_stem",
        classifier="classifier",
        arguments=(),
        needs={"head": True, "stem_stride": 2},
        read=_read_efficientnet,
        write=_write_efficientnet,
    ),
)
