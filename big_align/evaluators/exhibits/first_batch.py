"""Examples as they enter training."""

from typing import Any

import numpy as np

from big_align.core.types import Batch
from big_align.data.text.tokenizers import spell
from big_align.evaluators.exhibits.exhibit import Examples, Finding, Item

SHOWN = 8
"""Number of examples."""


def take_first(batch: Batch) -> dict[str, np.ndarray]:
    """Copies the first examples of a batch, whose memory the loader uses again."""
    return {name: np.array(values[:SHOWN]) for name, values in batch.items()}


def show_batch(batch: Batch, tokenizer: Any) -> list[Examples]:
    """Shows the images of a batch with their texts, labels and clusters.

    There is nothing to show where no pixels are read: if features take the place of images.
    """
    images = batch.get("image")
    if images is None or images.dtype != np.uint8 or not images.size:
        return []
    views = images if images.ndim == 5 else images[:, None]
    texts = [_tell(batch, row, tokenizer) for row in range(len(images))]
    if not any(texts):
        rows = [Finding(Item(), [Item(view) for several in views for view in several])]
    elif views.shape[1] > 1:
        rows = [
            Finding(Item(text=" · ".join(told)), [Item(view) for view in several])
            for told, several in zip(texts, views, strict=True)
        ]
    else:
        rows = [
            Finding(Item(image), [Item(text=text) for text in told or ["without a text"]])
            for (image,), told in zip(views, texts, strict=True)
        ]
    note = "Images after the transform, and texts as the tokenizer's pieces."
    return [Examples("Training examples", note, rows)]


def _tell(batch: Batch, row: int, tokenizer: Any) -> list[str]:
    told = []
    if "text" in batch:
        length = batch["text"].shape[-1]
        ids, real = (batch[k][row].reshape(-1, length) for k in ("text", "text_mask"))
        words = (
            spell(tokenizer, each[mask].tolist()) for each, mask in zip(ids, real, strict=True)
        )
        told += [" ".join(pieces) for pieces in words if pieces]
    for name in ("label", "clusters"):
        numbers = np.atleast_1d(batch[name][row]) if name in batch else np.zeros(0)
        if known := numbers[numbers >= 0].tolist():
            told.append(f"{name} {', '.join(map(str, known))}")
    return told
