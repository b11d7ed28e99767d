"""JSON of a folder, and tokenizer files of transformers from and to `config.tokenizer`."""

import pathlib
from collections.abc import Mapping
from typing import Any

from big_align.data.clip_tokenizer import END, START, list_merges, list_pieces
from big_align.data.tokenizers import list_wordpieces
from big_align.errors import UserError
from big_align.interop.stored_arrays import parse_json

PROCESSOR_CLASSES = {"align": "AlignProcessor", "clip": "CLIPProcessor"}
"""Processors of transformers that pair an image processor with a tokenizer."""

DEFAULTS = {
    "wordpiece": {"length": 64, "lowercase": True},
    "clip": {"length": 77},
}
"""What our tokenizers take where a config is silent."""


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object; an empty one where there is no file.

    Raises:
      WeightFileError: the file is not a JSON object.
    """
    return parse_json(path.read_bytes(), str(path)) if path.is_file() else {}


def read(path: pathlib.Path, max_length: int) -> dict[str, Any] | None:
    """Reads which tokenizer a folder has.

    Args:
      path: the folder.
      max_length: positions of the text tower.

    Returns:
      What `config.tokenizer` needs, or None where there is no tokenizer that big_align has.
    """
    config, whole = (read_json(path / f"{name}.json") for name in ("tokenizer_config", "tokenizer"))
    length = min(int(config.get("model_max_length") or max_length), max_length)
    kind = (whole.get("model") or {}).get("type")
    if (path / "vocab.txt").is_file() or kind == "WordPiece":
        file = path / ("vocab.txt" if (path / "vocab.txt").is_file() else "tokenizer.json")
        normalizer = whole.get("normalizer") or {}
        lowercase = bool(config.get("do_lower_case", normalizer.get("lowercase", True)))
        node = {"name": "wordpiece", "vocabulary": str(file), "lowercase": lowercase}
        return node | {"length": length}
    merges = path / "merges.txt"
    if "CLIP" in str(config.get("tokenizer_class")) and (kind == "BPE" or merges.is_file()):
        file = merges if merges.is_file() else path / "tokenizer.json"
        return {"name": "clip", "merges": str(file), "length": length}
    return None


def write(tokenizer: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Makes the files of a tokenizer that transformers opens.

    Args:
      tokenizer: as `config.tokenizer` has it.
      model_type: of the model beside it.

    Returns:
      Text or a dictionary for JSON, by file name; nothing for a tokenizer that only big_align has.

    Raises:
      UserError: the tokenizer's vocabulary cannot be read.
    """
    name = tokenizer["name"]
    if name not in DEFAULTS:
        return {}
    tokenizer = DEFAULTS[name] | {k: v for k, v in tokenizer.items() if v is not None}
    processor = PROCESSOR_CLASSES.get(model_type)
    # AlignProcessor pads to `max_length`, which is 64 unless the tokenizer says otherwise.
    common = {"model_max_length": tokenizer["length"], "max_length": tokenizer["length"]}
    common |= {"processor_class": processor} if processor else {}
    pieces = list_tokens(tokenizer)
    if name == "wordpiece":
        names = ("unk", "sep", "pad", "cls", "mask")
        special = {f"{name}_token": f"[{name.upper()}]" for name in names}
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": tokenizer["lowercase"]}
        return {
            "vocab.txt": "".join(f"{piece}\n" for piece in pieces),
            "tokenizer_config.json": settings | special | common,
        }
    special = {"bos_token": START, "eos_token": END, "unk_token": END, "pad_token": END}
    merges = (" ".join(pair) for pair in list_merges(tokenizer["merges"]))
    return {
        "vocab.json": {piece: number for number, piece in enumerate(pieces)},
        "merges.txt": "\n".join(["#version: 0.2", *merges]) + "\n",
        "tokenizer_config.json": {"tokenizer_class": "CLIPTokenizer"} | special | common,
    }


def list_tokens(tokenizer: Mapping[str, Any]) -> list[str]:
    """Returns the pieces of a WordPiece tokenizer or of CLIP's, in the order of their ids.

    Raises:
      UserError: the file of its vocabulary is missing or is none.
    """
    try:
        if tokenizer["name"] == "wordpiece":
            return list_wordpieces(tokenizer["vocabulary"])
        return list_pieces(list_merges(tokenizer["merges"]))
    except ValueError as error:
        raise UserError(f"the model's tokenizer: {error}") from error


def find_end(tokenizer: Mapping[str, Any]) -> int | None:
    """Returns the id that ends every text, None for a tokenizer without one."""
    ends = {"wordpiece": "[SEP]", "clip": END}
    if tokenizer["name"] not in ends:
        return None
    return list_tokens(tokenizer).index(ends[tokenizer["name"]])
