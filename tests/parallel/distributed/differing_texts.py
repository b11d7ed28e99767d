"""An evaluator that embeds other texts in process 1, as with another file of captions."""

import jax
import numpy as np

from big_align.evaluators.embedder import Embedder


class DifferingTexts:
    """Embeds one text."""

    def __call__(self, embedder: Embedder) -> dict[str, float]:
        text = np.full((1, 4), 2 + jax.process_index(), np.int32)
        return {"first": float(embedder.embed_texts(text, np.ones_like(text, bool))[0, 0])}
