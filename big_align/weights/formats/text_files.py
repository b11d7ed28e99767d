"""JSON of a folder, and tokenizer files of transformers, read and written as `config.tokenizer`."""

import pathlib
from collections.abc import Mapping
from typing import Any

from absl import logging

from big_align.core.errors import UserError
from big_align.core.regular_files import read_regular
from big_align.data.text import clip_tokenizer, roberta_tokenizer
from big_align.data.text.roberta_tokenizer import END, PAD, START, UNKNOWN
from big_align.data.text.tokenizers import list_wordpieces
from big_align.weights.arrays.stored_arrays import parse_json

FILES = ("tokenizer_config.json", "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt")
"""What `read` looks at."""

PROCESSOR_CLASSES = {"align": "AlignProcessor", "clip": "CLIPProcessor"}
"""Processors of transformers that pair an image processor with a tokenizer."""

DEFAULTS = {
    "wordpiece": {"length": 64, "lowercase": True},
    "clip": {"length": 77},
    "roberta": {},
}
"""What our tokenizers take if a config leaves it out."""

ENDS = {"wordpiece": "[SEP]", "clip": clip_tokenizer.END, "roberta": END}
"""The token that ends every text."""

PADDINGS = {"wordpiece": "[PAD]", "roberta": PAD}
"""The token that fills up a text; CLIP's tokenizer has none, and ours fills up with 0."""

SETTINGS = {
    "wordpiece": {
        "tokenizer_class": "BertTokenizer",
        **{f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")},
    },
    "clip": {
        "tokenizer_class": "CLIPTokenizer",
        "bos_token": clip_tokenizer.START,
        **{f"{name}_token": clip_tokenizer.END for name in ("eos", "unk", "pad")},
    },
    "roberta": {
        "tokenizer_class": "RobertaTokenizer",
        "add_prefix_space": False,
        **dict.fromkeys(("bos_token", "cls_token"), START),
        **dict.fromkeys(("eos_token", "sep_token"), END),
        **{"pad_token": PAD, "unk_token": UNKNOWN, "mask_token": "<mask>"},
    },
}
"""The settings of our tokenizers for transformers."""


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object; an empty one if there is no file."""
    return parse_json(read_regular(path), str(path)) if path.is_file() else {}


def read(path: pathlib.Path, max_length: int) -> dict[str, Any] | None:
    """Reads which tokenizer a folder has, as `config.tokenizer`; None if it is none of ours.

    Texts are cut to `max_length`, the positions of the text tower.
    """
    config, whole = (read_json(path / f"{name}.json") for name in ("tokenizer_config", "tokenizer"))
    length = min(int(config.get("model_max_length") or max_length), max_length)
    kind = (whole.get("model") or {}).get("type")
    if (path / "vocab.txt").is_file() or kind == "WordPiece":
        file = path / ("vocab.txt" if (path / "vocab.txt").is_file() else "tokenizer.json")
        normalizer = whole.get("normalizer") or {}
        lowercase = bool(config.get("do_lower_case", normalizer.get("lowercase", True)))
        if other := _find_other_rule(config, normalizer, lowercase):
            logging.warning("%s: its tokenizer is left out, since it has %s", path, other)
            return None
        node = {"name": "wordpiece", "vocabulary": str(file), "lowercase": lowercase}
        return node | {"length": length}
    merges = path / "merges.txt"
    if "CLIP" in str(config.get("tokenizer_class")) and (kind == "BPE" or merges.is_file()):
        file = merges if merges.is_file() else path / "tokenizer.json"
        vocabulary = path / "vocab.json"
        try:  # ids, which follow from the merges, may be others in the folder
            clip_tokenizer.list_merges(str(file), str(vocabulary) if vocabulary.is_file() else None)
        except ValueError as error:
            logging.warning("%s: its tokenizer is left out: %s", path, error)
            return None
        return {"name": "clip", "merges": str(file), "length": length}
    if _is_roberta(path, config, whole) and (kind == "BPE" or merges.is_file()):
        names = ("vocab.json", "merges.txt") if merges.is_file() else ("tokenizer.json",) * 2
        vocabulary, merges = (str(path / name) for name in names)
        return {"name": "roberta", "vocabulary": vocabulary, "merges": merges, "length": length}
    return None


def _find_other_rule(
    config: Mapping[str, Any], normalizer: Mapping[str, Any], lowercase: bool
) -> str:
    """Returns a setting by which BERT's tokenizer would split texts as ours cannot; "" if none.

    Ours drops accents exactly if it drops case, and Chinese characters are words of their own.
    """
    for name, other, ours in (
        ("strip_accents", "strip_accents", lowercase),
        ("tokenize_chinese_chars", "handle_chinese_chars", True),
    ):
        given = config.get(name, normalizer.get(other))
        if given is not None and bool(given) != ours:
            return f"{name} = {given} beside do_lower_case = {lowercase}"
    return ""


def _is_roberta(path: pathlib.Path, config: Mapping[str, Any], whole: Mapping[str, Any]) -> bool:
    """Returns whether a folder has RoBERTa's tokenizer, which puts no space before a text."""
    # In the published folder the class follows from the model.
    model_type = read_json(path / "config.json").get("model_type")
    known = config.get("tokenizer_class") or ("RobertaTokenizer" if model_type == "roberta" else "")
    pre_tokenizer = whole.get("pre_tokenizer") or {}
    spaced = config.get("add_prefix_space", pre_tokenizer.get("add_prefix_space", False))
    return known in ("RobertaTokenizer", "RobertaTokenizerFast") and not spaced


def write(tokenizer: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Makes the files of a tokenizer beside a model of this type; none if only big_align has it."""
    name = tokenizer["name"]
    if name not in DEFAULTS:
        return {}
    tokenizer = DEFAULTS[name] | {k: v for k, v in tokenizer.items() if v is not None}
    processor = PROCESSOR_CLASSES.get(model_type)
    # AlignProcessor pads to `max_length`, which is 64 unless the tokenizer says otherwise.
    common = {"model_max_length": tokenizer["length"], "max_length": tokenizer["length"]}
    common |= {"processor_class": processor} if processor else {}
    settings = SETTINGS[name] | common
    pieces, merges = _read_vocabulary(tokenizer)
    if name == "wordpiece":
        settings["do_lower_case"] = tokenizer["lowercase"]
        vocabulary = {"vocab.txt": "".join(f"{piece}\n" for piece in pieces)}
    else:
        lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
        ids = {piece: number for number, piece in enumerate(pieces)}
        vocabulary = {"vocab.json": ids, "merges.txt": "\n".join(lines) + "\n"}
    return vocabulary | {"tokenizer_config.json": settings}


def _read_vocabulary(tokenizer: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns the pieces of a tokenizer in the order of their ids, and its merges."""
    try:
        if tokenizer["name"] == "wordpiece":
            return list_wordpieces(tokenizer["vocabulary"]), []
        if tokenizer["name"] == "clip":
            merges = clip_tokenizer.list_merges(tokenizer["merges"])
            return clip_tokenizer.list_pieces(merges), merges
        ids = roberta_tokenizer.read_vocabulary(tokenizer["vocabulary"])
        return sorted(ids, key=ids.__getitem__), roberta_tokenizer.list_merges(tokenizer["merges"])
    except ValueError as error:
        raise UserError(f"the model's tokenizer: {error}") from error


def find_end(tokenizer: Mapping[str, Any]) -> int | None:
    """Returns the id that ends every text; None for a tokenizer without one."""
    return _find_id(tokenizer, ENDS)


def find_padding(tokenizer: Mapping[str, Any]) -> int | None:
    """Returns the id that fills up a text; None for a tokenizer without one."""
    return _find_id(tokenizer, PADDINGS)


def _find_id(tokenizer: Mapping[str, Any], pieces: Mapping[str, str]) -> int | None:
    """Returns the id of the piece that is listed for a tokenizer."""
    name = tokenizer["name"]
    return _read_vocabulary(tokenizer)[0].index(pieces[name]) if name in pieces else None
