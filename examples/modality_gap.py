"""An evaluator: how far the images of pairs lie from their texts (Liang et al. 2022)."""

import numpy as np

from big_align.data.examples import Source
from big_align.data.text.tokenizers import Tokenizer
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.evaluator import ImageEvaluator


class ModalityGap(ImageEvaluator):
    """Measures the distance between the mean image and the mean text, each by its first caption."""

    needed = ("embed_image", "embed_text")  # methods of the objective, traced before training
    numbers = lower_is_better = ("gap",)
    reads = ("caption",)  # what the first example must have

    def __init__(
        self,
        source: Source,
        transform: str,
        tokenizer: Tokenizer,
        max_broken_fraction: float = 0.01,
    ):
        super().__init__(source, transform, max_broken_fraction)
        self.tokenizer = tokenizer

    def __call__(self, embedder: Embedder) -> dict[str, float]:
        """Returns the distance, of vectors of unit length."""
        with self.open(embedder) as loader:
            zimg, readable = embedder.embed_images(loader.images(), loader.num_examples)
            captions = [texts[0] for texts in loader.captions() if texts]
        ztxt = embedder.embed_texts(*self.tokenizer(captions))
        return {"gap": float(np.linalg.norm(zimg[readable].mean(0) - ztxt.mean(0)))}
