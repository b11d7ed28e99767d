"""Tokenizer files of transformers, from and to `config.tokenizer`."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from big_align.data.clip_tokenizer import END, START, list_merges, list_pieces
from big_align.data.tokenizers import list_wordpieces

PROCESSOR_CLASSES = {"align": "AlignProcessor", "clip": "CLIPProcessor"}
"""Processors of transformers that pair an image processor with a tokenizer."""


def read(path: pathlib.Path, max_length: int) -> dict[str, Any] | None:
    """Reads which tokenizer a folder has.

    Args:
      path: the folder.
      max_length: positions of the text tower.

    Returns:
      What `config.tokenizer` needs, or None where there is no tokenizer that big_align has.
    """
    config = _load(path / "tokenizer_config.json")
    length = min(int(config.get("model_max_length", max_length)), max_length)
    whole = path / "tokenizer.json"
    kind = _load(whole).get("model", {}).get("type")
    if (path / "vocab.txt").is_file() or kind == "WordPiece":
        file = path / "vocab.txt" if (path / "vocab.txt").is_file() else whole
        lowercase = bool(config.get("do_lower_case", True))
        node = {"name": "wordpiece", "vocabulary": str(file), "lowercase": lowercase}
        return node | {"length": length}
    if "CLIP" in str(config.get("tokenizer_class")) and (kind == "BPE" or not whole.is_file()):
        file = path / "merges.txt" if (path / "merges.txt").is_file() else whole
        return {"name": "clip", "merges": str(file), "length": length}
    return None


def write(tokenizer: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Makes the files of a tokenizer that transformers opens.

    Args:
      tokenizer: as `config.tokenizer` has it.
      model_type: of the model beside it.

    Returns:
      Text or a dictionary for JSON, by file name; nothing for a tokenizer that only big_align has.
    """
    processor = PROCESSOR_CLASSES.get(model_type)
    common = {"model_max_length": tokenizer["length"]}
    common |= {"processor_class": processor} if processor else {}
    if tokenizer["name"] == "wordpiece":
        special = {
            f"{name}_token": f"[{token}]"
            for name, token in zip(
                ("unk", "sep", "pad", "cls", "mask"),
                ("UNK", "SEP", "PAD", "CLS", "MASK"),
                strict=True,
            )
        }
        pieces = list_wordpieces(tokenizer["vocabulary"])
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": tokenizer["lowercase"]}
        return {
            "vocab.txt": "".join(f"{piece}\n" for piece in pieces),
            "tokenizer_config.json": settings | special | common,
        }
    if tokenizer["name"] == "clip":
        pairs = list_merges(tokenizer["merges"])
        ids = {piece: number for number, piece in enumerate(list_pieces(pairs))}
        special = {"bos_token": START, "eos_token": END, "unk_token": END, "pad_token": END}
        lines = ["#version: 0.2", *(f"{first} {second}" for first, second in pairs)]
        return {
            "vocab.json": ids,
            "merges.txt": "\n".join(lines) + "\n",
            "tokenizer_config.json": {"tokenizer_class": "CLIPTokenizer"} | special | common,
        }
    return {}


def _load(path: pathlib.Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
