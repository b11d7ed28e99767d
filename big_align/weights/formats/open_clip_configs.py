"""What open_clip's `model_cfg` says about a dual encoder, and what our config says.

The models are those of CLIP: a vision transformer with a class token, a causal text transformer.
"""

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from big_align.core.errors import WeightsMismatch
from big_align.weights.formats import architecture
from big_align.weights.formats.pretrained import Pretrained

VISION = {  # what we read, and open_clip's values if a config leaves it out
    "layers": 12,
    "width": 768,
    "head_width": 64,
    "mlp_ratio": 4.0,
    "patch_size": 16,
    "image_size": 224,
    "act_kwargs": None,
    "norm_kwargs": None,
}
TEXT = {
    "context_length": 77,
    "vocab_size": 49408,
    "width": 512,
    "heads": 8,
    "layers": 12,
    "mlp_ratio": 4.0,
    "act_kwargs": None,
    "norm_kwargs": None,
}

ONLY = {  # settings of which our towers support one value
    **dict.fromkeys(("attentional_pool", "no_ln_pre", "final_ln_after_pool"), False),
    **dict.fromkeys(("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn"), False),
    **dict.fromkeys(("scale_attn_inner", "scale_fc", "no_causal_mask", "embed_cls"), False),
    **{"ls_init_value": None, "block_type": None, "pos_embed_type": "learnable"},
    **{"proj_type": "linear", "proj_bias": False},
}
POOL = {"vision_cfg": ("tok",), "text_cfg": ("argmax", "eos")}
"""Our text tower pools the last real token, which has the largest id and is end-of-text."""

WITHOUT_EFFECT = re.compile(
    r"patch_dropout|output_tokens|pad_id|eos_id|attn_pooler_\w+|tokenizer_\w+|(hf|timm)_\w+"
)
"""Settings of training, of tokenizers, and of parts that a model of this kind does not have."""

ACTIVATIONS = {
    (True, "none"): "quick_gelu",
    (False, "none"): "gelu",
    (False, "tanh"): "gelu_tanh",
}
"""Our names, by `quick_gelu` and `act_kwargs["approximate"]`."""

IMAGE_TOWER = {
    "name": "vit",
    "pool": "cls",
    "input_norm": True,
    "patch_bias": False,
    "positions": "learned",
}
TEXT_TOWER = {"name": "clip_text"}
DUAL = {"image_projection": True, "text_projection": True, "projection_bias": False}


def find_text(names: Collection[str]) -> str:
    """Returns the prefix of the names of the text tower in one of open_clip's two classes."""
    return "text." if "text.ln_final.weight" in names else ""


def infer_config(shapes: Mapping[str, tuple[int, ...]], where: str) -> dict[str, Any]:
    """Makes the config that follows from a state dict's shapes, with heads that are 64 wide."""
    below = find_text(shapes)

    def measure(prefix: str, width: int) -> dict[str, Any]:
        mlp_dim = shapes[f"{prefix}transformer.resblocks.0.mlp.c_fc.weight"][0]
        pattern = re.compile(re.escape(prefix) + r"transformer\.resblocks\.(\d+)\.")
        depth = 1 + max(int(match[1]) for match in map(pattern.match, shapes) if match)
        if width % 64:
            raise WeightsMismatch(
                f"{where}: heads are 64 wide where no config says otherwise, and {width} is not a "
                f"multiple; put open_clip_config.json beside the weights and give the folder"
            )
        return {"width": width, "layers": depth, "mlp_ratio": mlp_dim / width}

    try:
        width, _, _, patch = shapes["visual.conv1.weight"]
        grid = architecture.side_of_grid(shapes["visual.positional_embedding"][0], 1)
        vocab_size, text_width = shapes[f"{below}token_embedding.weight"]
        vision = measure("visual.", width) | {"patch_size": patch, "image_size": patch * grid}
        text = measure(below, text_width) | {"heads": text_width // 64, "vocab_size": vocab_size}
        text["context_length"] = shapes[f"{below}positional_embedding"][0]
        embed_dim = shapes["visual.proj"][1]
        return {"embed_dim": embed_dim, "vision_cfg": vision, "text_cfg": text}
    except KeyError as error:
        raise WeightsMismatch(
            f"{where} has names of open_clip, but {error.args[0]} is missing: only models of its "
            f"vision and text transformers can be read"
        ) from error


def read_config(config: Mapping[str, Any], where: str) -> tuple[dict[str, Any], int]:
    """Turns `model_cfg` into a node, and the size of images."""
    for name in ("embed_dim", "vision_cfg", "text_cfg"):
        if name not in config:
            raise WeightsMismatch(f"{where}: {name} is missing in the config")
    if "multimodal_cfg" in config:
        raise WeightsMismatch(f"{where}: multimodal_cfg (CoCa) has no counterpart")
    quick = bool(config.get("quick_gelu"))
    vision = _read_tower(config, "vision_cfg", VISION, quick, where)
    text = _read_tower(config, "text_cfg", TEXT, quick, where)
    sizes = vision.pop("patch_size"), vision.pop("image_size")
    patch, size = (s[0] if isinstance(s, list) and len(set(s)) == 1 else s for s in sizes)
    if not isinstance(patch, int) or not isinstance(size, int):
        raise WeightsMismatch(
            f"{where}: patches of {sizes[0]} and images of {sizes[1]}; only square ones can be read"
        )
    vision["heads"] = vision["width"] // vision.pop("head_width")
    text["max_length"] = text.pop("context_length")
    image = dict(IMAGE_TOWER) | {"variant": f"b/{patch}"} | vision
    node = {"image": image, "text": TEXT_TOWER | {"variant": "b"} | text}
    return node | {"embedding_dim": config["embed_dim"]} | DUAL, size


def _read_tower(
    config: Mapping[str, Any], part: str, known: Mapping[str, Any], quick: bool, where: str
) -> dict[str, Any]:
    """Reads what both towers have, by our names; what only one of them has keeps its name."""
    given = {k: v for k, v in (config.get(part) or {}).items() if v is not None}
    for name in ("timm_model_name", "hf_model_name"):
        if given.get(name):
            raise WeightsMismatch(
                f"{where}: {part}.{name} = {given[name]!r}: towers that open_clip takes from "
                f"another library cannot be read, only its own vision and text transformers"
            )
    for name, value in given.items():
        if name in known or WITHOUT_EFFECT.fullmatch(name):
            continue
        allowed = POOL[part] if name == "pool_type" else (ONLY[name],) if name in ONLY else ()
        if value not in allowed:
            wanted = f", only {' or '.join(map(repr, allowed))}" if allowed else ""
            raise WeightsMismatch(f"{where}: {part}.{name} = {value!r} is not supported{wanted}")
    values = dict(known) | {k: v for k, v in given.items() if k in known}
    if not isinstance(values["layers"], int):
        raise WeightsMismatch(
            f"{where}: {part}.layers = {values['layers']}: open_clip's ResNets cannot be read"
        )
    for name in ("width", "mlp_ratio"):  # their product must not be a list
        if not isinstance(values[name], int | float):
            raise WeightsMismatch(f"{where}: {part}.{name} = {values[name]!r:.50} is no number")
    values["depth"] = values.pop("layers")
    values["mlp_dim"] = int(values["width"] * values.pop("mlp_ratio"))
    values["activation"] = _read_activation(quick, values.pop("act_kwargs") or {}, where)
    values["layer_norm_eps"] = (values.pop("norm_kwargs") or {}).get("eps", 1e-5)
    return values


def _read_activation(quick: bool, arguments: Mapping[str, Any], where: str) -> str:
    approximate = arguments.get("approximate", "none")
    if arguments.keys() - {"approximate"} or (quick, approximate) not in ACTIVATIONS:
        raise WeightsMismatch(f"{where}: act_kwargs = {arguments} is not supported")
    return ACTIVATIONS[quick, approximate]


def write_config(pretrained: Pretrained) -> dict[str, Any]:
    """Turns a model into `model_cfg`; an error lists what differs from CLIP's kind."""
    if pretrained.kind != "dual":
        raise WeightsMismatch(
            f"open_clip has dual encoders only, and this is a tower for {pretrained.kind}s; "
            f"--format=timm or --format=transformers may have it"
        )
    model = pretrained.model
    image, text = architecture.settings(model.image), architecture.settings(model.text)
    outside = {name: getattr(model, name) for name in DUAL}
    parts = (
        ("the image tower", image, IMAGE_TOWER),
        ("the text tower", text, TEXT_TOWER),
        ("the model", outside, DUAL),
    )
    faults = [
        f"{what} needs {name}={value!r}, it has {settings.get(name)!r}"
        for what, settings, needed in parts
        for name, value in _compare(settings, needed)
    ]
    quick = image.get("activation") == "quick_gelu"
    if quick != (text.get("activation") == "quick_gelu"):
        faults.append("both towers must have quick_gelu, or neither")
    if faults:
        raise WeightsMismatch(
            "open_clip has no such dual encoder:\n"
            + "\n".join(f"  {fault}" for fault in faults)
            + "\n--format=big_align keeps every model"
        )
    vision_cfg = _write_tower(image) | {
        "head_width": image["width"] // image["heads"],
        "patch_size": int(image["variant"].split("/")[1]),
        "image_size": pretrained.image_size,
    }
    text_cfg = _write_tower(text) | {
        "heads": text["heads"],
        "vocab_size": text["vocab_size"],
        "context_length": text["max_length"],
    }
    embed_dim = model.embedding_dim or model.image.output_dim
    towers = {"vision_cfg": vision_cfg, "text_cfg": text_cfg}
    return {"embed_dim": embed_dim, "quick_gelu": quick} | towers


def _compare(settings: Mapping[str, Any], needed: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns what is needed and different; of a tower of another name, the name alone."""
    differing = [(name, value) for name, value in needed.items() if settings.get(name) != value]
    return [each for each in differing if each[0] == "name"] or differing


def _write_tower(settings: Mapping[str, Any]) -> dict[str, Any]:
    tanh = settings["activation"] == "gelu_tanh"
    eps = settings["layer_norm_eps"]
    return {
        "layers": settings["depth"],
        "width": settings["width"],
        "mlp_ratio": find_ratio(settings["width"], settings["mlp_dim"]),
        **({"act_kwargs": {"approximate": "tanh"}} if tanh else {}),
        **({"norm_kwargs": {"eps": eps}} if eps != 1e-5 else {}),
    }


def find_ratio(width: int, mlp_dim: int) -> float:
    """Returns the number whose product with the width is truncated to `mlp_dim`."""
    ratio = mlp_dim / width
    return ratio if int(width * ratio) == mlp_dim else math.nextafter(ratio, math.inf)
