"""Folders that `SentenceTransformer` opens: a text tower with its projection, for one space.

What they embed can be compared with a model's embeddings of images and texts.
"""

from typing import Any

import numpy as np

from big_align.core.errors import UserError, WeightsMismatch
from big_align.weights.formats import sentence_transformers, text_files, transformers_format
from big_align.weights.formats.pretrained import Pretrained
from big_align.weights.formats.sentence_transformers import LAST_TOKEN


def write(pretrained: Pretrained) -> dict[str, Any]:
    """Makes the files of a folder that embeds texts as the model does, or a text tower alone."""
    tower = pretrained.tower("text")
    if not pretrained.embeds("text"):
        raise UserError("the model has not trained its text tower: there is nothing to write")
    tokenizer = tower.tokenizer or {"name": None}
    if tokenizer["name"] not in text_files.DEFAULTS:
        raise WeightsMismatch(
            f"SentenceTransformer takes texts, so the folder needs a tokenizer that transformers "
            f"has, {', '.join(text_files.DEFAULTS)}; the model's is {tokenizer['name']!r}"
        )
    files = transformers_format.write(tower)
    pool, width = getattr(tower.model, "pool", LAST_TOKEN), tower.model.output_dim
    length, projection = tokenizer.get("length"), _read_projection(pretrained)
    return files | sentence_transformers.write(pool, width, length, projection)


def _read_projection(pretrained: Pretrained) -> dict[str, np.ndarray]:
    """Returns the text's projection as torch names and orders it; nothing if there is none."""
    layer = pretrained.variables["params"].get("project_text")
    if layer is None:
        return {}
    found = {"linear.weight": np.asarray(layer["kernel"], np.float32).T}
    if "bias" in layer:
        found["linear.bias"] = np.asarray(layer["bias"], np.float32)
    return found
