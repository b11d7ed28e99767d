"""Image-text retrieval with several captions an image (Karpathy & Fei-Fei 2015; ALIGN §5.1)."""

from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Float, Int

from big_align.data.examples import Source
from big_align.data.images.same_images import SameImages, find_firsts, tell_copies
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.text.caption_check import find_caption_fault
from big_align.data.text.tokenizers import Tokenizer
from big_align.errors import UserError
from big_align.evaluators.embedder import Embedder
from big_align.nodes import Node


def rank_of_match(
    queries: Float[np.ndarray, "q d"],
    candidates: Float[np.ndarray, "k d"],
    query_owner: Int[np.ndarray, "q"],
    candidate_owner: Int[np.ndarray, "k"],
    chunk: int = 1024,
) -> Int[np.ndarray, "q"]:
    """Returns how many wrong candidates stand before the best right one, for each query.

    A candidate is right if it has the owner of the query. Wrong candidates that tie with it stand
    before it, so embeddings that have collapsed to a point score nothing.

    Args:
      queries: unit-length embeddings.
      candidates: unit-length embeddings.
      query_owner: which example each query belongs to.
      candidate_owner: which example each candidate belongs to.
      chunk: queries compared at a time.
    """
    ranks = []
    for start in range(0, len(queries), chunk):
        similarity = queries[start : start + chunk] @ candidates.T
        right = query_owner[start : start + chunk, None] == candidate_owner[None, :]
        best = np.where(right, similarity, -np.inf).max(axis=1, keepdims=True)
        ranks.append(((similarity >= best) & ~right).sum(axis=1))
    return np.concatenate(ranks)


class Pairs(NamedTuple):
    """The embedded images and captions of a set.

    Attributes:
      zimg: unit-length embeddings of the images that could be read, each once.
      ztxt: unit-length embeddings of all their captions.
      captions: the texts of `ztxt`.
      owner: which row of `zimg` each caption belongs to.
      number: which example of the source each row of `zimg` is.
    """

    zimg: Float[np.ndarray, "n d"]
    ztxt: Float[np.ndarray, "m d"]
    captions: list[str]
    owner: Int[np.ndarray, "m"]
    number: Int[np.ndarray, "n"]


class Retrieval:
    """Recall at 1, 5 and 10, image to text and text to image, in [0, 1].

    Image to text counts an image as found when any of its captions is among the first k; text to
    image has every caption as a query. Examples whose images are the same after the transform
    count as one with the captions of all: the result is that of a source which groups them.

    Args:
      source: examples with an image and one or more captions.
      transform: image operations, without randomness.
      tokenizer: the one that the model was trained with.
      ks: cut-offs.
      max_broken_fraction: the fraction of broken examples above which evaluation stops.

    Raises:
      UserError: the source has no captions.
    """

    reads = ("caption",)

    @classmethod
    def needs(cls, settings: Node) -> tuple[str, ...]:
        """Tells which verbs of an objective it calls."""
        return "embed_image", "embed_text"

    def __init__(
        self,
        source: Source,
        transform: str,
        tokenizer: Tokenizer,
        ks: tuple[int, ...] = (1, 5, 10),
        max_broken_fraction: float = 0.01,
    ):
        if fault := find_caption_fault(source):
            raise UserError(
                f"{fault}; retrieval needs captions: let the source read them (its field "
                "`caption`), or evaluate classes with zero_shot"
            )
        self.source = source
        self.transform = transform
        self.tokenizer = tokenizer
        self.ks = ks
        self.max_broken_fraction = max_broken_fraction

    def embed(self, embedder: Embedder) -> Pairs:
        """Embeds all images and captions."""
        loader = EvalLoader(
            self.source,
            self.transform,
            embedder.batch_size,
            embedder.rows,
            max_broken_fraction=self.max_broken_fraction,
        )
        same = SameImages(loader.num_examples, embedder.batch_size, embedder.rows)
        zimg, readable = embedder.embed_images(same.watch(loader.images()), loader.num_examples)
        hashes = same.hashes
        if jax.process_count() > 1:  # each knows the images of its own rows, and has 0 elsewhere
            hashes = multihost_utils.process_allgather(hashes).max(axis=0)
        firsts = find_firsts(hashes)
        tell_copies(firsts, self.source, self.transform)
        number = np.flatnonzero(readable & (firsts == np.arange(len(firsts))))
        captions: dict[int, list[str]] = {first: [] for first in number.tolist()}
        for first, texts, real in zip(firsts.tolist(), loader.captions(), readable, strict=True):
            if real:
                captions[first] += texts
        owner = np.repeat(np.arange(len(captions)), [len(c) for c in captions.values()])
        texts = [text for group in captions.values() for text in group]
        ztxt = embedder.embed_texts(*self.tokenizer(texts))
        return Pairs(zimg[number], ztxt, texts, owner, number)

    def __call__(self, embedder: Embedder) -> dict[str, float]:
        """Embeds all images and captions and returns the recalls."""
        zimg, ztxt, _, owner, _ = self.embed(embedder)
        image = np.arange(len(zimg))
        image_to_text = rank_of_match(zimg, ztxt, image, owner)
        text_to_image = rank_of_match(ztxt, zimg, owner, image)
        return {
            f"{name}_r{k}": float(np.mean(ranks < k))
            for name, ranks in (("image_to_text", image_to_text), ("text_to_image", text_to_image))
            for k in self.ks
        }
