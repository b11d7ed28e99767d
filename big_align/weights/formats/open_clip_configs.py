"""open_clip's own towers: what its `model_cfg` says about them, and what our config says.

They are those of CLIP: a vision transformer with a class token, a causal text transformer.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from big_align.core.errors import WeightsMismatch
from big_align.weights.formats import architecture
from big_align.weights.formats.pretrained import Pretrained
from big_align.weights.tables import dual_encoder
from big_align.weights.tables.mapping import Rule

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
}
TEXT_PROJECTION = {"proj_type": ("linear", "none"), "proj_bias": (False, True)}
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


class TowerRead(NamedTuple):
    """A tower and the projection behind it, as a config of open_clip describes them."""

    node: dict[str, Any]
    bias: bool | None  # of the projection; None if there is none
    table: Sequence[Rule]  # their arrays, ours below "image/" and "text/"
    size: int | None = None  # pixels of an edge of its images


class TowerWritten(NamedTuple):
    """What open_clip needs to make a tower of ours, and the projection behind it."""

    config: dict[str, Any]  # `vision_cfg` or `text_cfg`; a value may be a function of the folder
    table: Sequence[Rule]
    files: Mapping[str, Any] = {}
    quick_gelu: bool | None = None  # of open_clip's own towers, which must agree


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
            f"{where} has names of open_clip, but {error.args[0]} is missing: without its "
            f"open_clip_config.json only open_clip's own two towers can be read"
        ) from error


def read_image(config: Mapping[str, Any], where: str) -> TowerRead:
    """Reads open_clip's own image tower in `model_cfg`."""
    node = _read_tower(config, "vision_cfg", VISION, {}, where)
    patch, size = (read_edge(node.pop(name), name, where) for name in ("patch_size", "image_size"))
    node["heads"] = node["width"] // node.pop("head_width")
    node = dict(IMAGE_TOWER) | {"variant": f"b/{patch}"} | node
    return TowerRead(node, False, dual_encoder.OPEN_CLIP_IMAGE, size)


def read_text(config: Mapping[str, Any], names: Collection[str], where: str) -> TowerRead:
    """Reads open_clip's own text tower in `model_cfg`."""
    node = _read_tower(config, "text_cfg", TEXT, TEXT_PROJECTION, where)
    node["max_length"] = node.pop("context_length")
    given = config["text_cfg"]
    bias = None if given.get("proj_type") == "none" else bool(given.get("proj_bias"))
    table = [rule._replace(theirs=find_text(names) + rule.theirs) for rule in _list_text(bias)]
    return TowerRead(TEXT_TOWER | {"variant": "b"} | node, bias, table)


def _list_text(bias: bool | None) -> list[Rule]:
    """Returns the table of the text tower; its projection is a matrix unless it has a bias."""
    kind = "linear" if bias else "matrix"
    return [*dual_encoder.OPEN_CLIP_TEXT, Rule("project_text", "text_projection", kind)]


def read_edge(size: Any, name: str, where: str) -> int:
    """Returns the edge of a square, given as one number or as two."""
    edge = size[0] if isinstance(size, list) and len(set(size)) == 1 else size
    if not isinstance(edge, int):
        raise WeightsMismatch(f"{where}: {name} = {size!r:.50}; only square ones can be read")
    return edge


def _read_tower(
    config: Mapping[str, Any],
    part: str,
    known: Mapping[str, Any],
    more: Mapping[str, Any],
    where: str,
) -> dict[str, Any]:
    """Reads what both towers have, by our names; what only one of them has keeps its name.

    `more` has the values of settings that are read elsewhere.
    """
    given = {k: v for k, v in config[part].items() if v is not None}
    for name, value in given.items():
        if name in known or WITHOUT_EFFECT.fullmatch(name):
            continue
        allowed = {"pool_type": POOL[part], **more}.get(name, (ONLY[name],) if name in ONLY else ())
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
    quick = bool(config.get("quick_gelu"))
    values["activation"] = _read_activation(quick, values.pop("act_kwargs") or {}, where)
    values["layer_norm_eps"] = (values.pop("norm_kwargs") or {}).get("eps", 1e-5)
    return values


def _read_activation(quick: bool, arguments: Mapping[str, Any], where: str) -> str:
    approximate = arguments.get("approximate", "none")
    if arguments.keys() - {"approximate"} or (quick, approximate) not in ACTIVATIONS:
        raise WeightsMismatch(f"{where}: act_kwargs = {arguments} is not supported")
    return ACTIVATIONS[quick, approximate]


def write_image(pretrained: Pretrained) -> TowerWritten:
    """Describes an image tower that is open_clip's own; an error lists what is not."""
    settings, model = architecture.settings(pretrained.model.image), pretrained.model
    _check(settings, IMAGE_TOWER)
    needed = {name: DUAL[name] for name in ("image_projection", "projection_bias")}
    _check({name: getattr(model, name) for name in needed}, needed)
    config = _write_tower(settings) | {
        "head_width": settings["width"] // settings["heads"],
        "patch_size": int(settings["variant"].split("/")[1]),
        "image_size": pretrained.image_size,
    }
    quick = settings["activation"] == "quick_gelu"
    return TowerWritten(config, dual_encoder.OPEN_CLIP_IMAGE, quick_gelu=quick)


def write_text(pretrained: Pretrained) -> TowerWritten:
    """Describes a text tower that is open_clip's own; an error lists what is not."""
    settings, model = architecture.settings(pretrained.model.text), pretrained.model
    _check(settings, TEXT_TOWER)
    config = _write_tower(settings) | {
        "heads": settings["heads"],
        "vocab_size": settings["vocab_size"],
        "context_length": settings["max_length"],
    }
    bias = model.projection_bias if model.text_projection else None
    config |= {None: {"proj_type": "none"}, True: {"proj_bias": True}}.get(bias, {})
    quick = settings["activation"] == "quick_gelu"
    return TowerWritten(config, _list_text(bias), quick_gelu=quick)


def _check(settings: Mapping[str, Any], needed: Mapping[str, Any]) -> None:
    """Raises an error if settings are not what is needed."""
    faults = [
        f"it needs {name}={value!r}, not {settings.get(name)!r}"
        for name, value in _compare(settings, needed)
    ]
    if faults:
        raise WeightsMismatch("; ".join(faults))


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
