"""Recall among the nearest labeled images (ALIGN §6)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from big_align.core.nodes import Node
from big_align.core.ties import reaches
from big_align.data.derived.relabeled_source import join_sources
from big_align.data.examples import Source
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.evaluator import ImageEvaluator
from big_align.evaluators.features import VERBS, LabeledFeatures, check_classes, check_what

NOWHERE = np.iinfo(np.int32).max
"""The rank if no candidate is of the right class."""

COMPARISONS = 2**27
"""Number of similarities in memory at a time: 0.5 GB, a few times over."""


@jax.jit
def _count_before(
    queries: Float[Array, "q d"],
    candidates: Float[Array, "k d"],
    query_label: Int[Array, " q"],
    label: Int[Array, " k"],
    own: Int[Array, " q"],
) -> Int[Array, " q"]:
    similarity = jnp.matmul(queries, candidates.T, precision="highest")
    right = query_label[:, None] == label
    usable = right & (own[:, None] != jnp.arange(len(label)))
    best = jnp.where(usable, similarity, -jnp.inf).max(axis=1, keepdims=True)
    before = (reaches(similarity, best) & ~right).sum(axis=1)
    return jnp.where(usable.any(axis=1), before, NOWHERE)


def rank_of_label(
    queries: Float[np.ndarray, "q d"],
    query_label: Int[np.ndarray, "q"],
    candidates: Float[np.ndarray, "k d"],
    label: Int[np.ndarray, "k"],
    leave_one_out: bool = False,
) -> Int[np.ndarray, "q"]:
    """Returns how many candidates of other classes are nearer than the first of the right class.

    Ties count against the query, so embeddings that have collapsed to a point score nothing; the
    rank is NOWHERE if no candidate is of the right class. The search is exact: every pair is
    compared. With `leave_one_out` queries are the candidates, and none is its own neighbor.
    """
    queries, candidates = (
        np.float32(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12))
        for x in (queries, candidates)
    )
    rows = min(len(queries), max(1, COMPARISONS // len(candidates)))
    on_device = jnp.asarray(candidates)
    ranks = []
    for start in range(0, len(queries), rows):
        # The last chunk is padded with its last query, so that all chunks have one shape.
        picked = np.minimum(np.arange(start, start + rows), len(queries) - 1)
        own = picked if leave_one_out else np.full(rows, -1)
        count = _count_before(queries[picked], on_device, query_label[picked], label, own)
        ranks.append(np.asarray(count))
    return np.concatenate(ranks)[: len(queries)]


def measure_neighbors(
    test: LabeledFeatures, train: LabeledFeatures | None, ks: tuple[int, ...]
) -> dict[str, float]:
    """Returns the fraction of images with their class among the k nearest, as `r1` and so on.

    Candidates are those of `train`, or else the other images of `test`.
    """
    ranks = rank_of_label(*test, *(train or test), leave_one_out=train is None)
    return {f"r{k}": float(np.mean(ranks < k)) for k in ks}


class KNN(ImageEvaluator):
    """Fraction of images with an image of their class among the k nearest by cosine: `r1` etc.

    The measure is ALIGN's, Recall@K of the right label among the K nearest training images; at
    K = 1, which the paper reports, it is the accuracy of the nearest neighbor.

    The training images' embeddings are on one device (4 n d bytes).

    Args:
      source: examples with an image and a label.
      train_source: labeled examples in which neighbors are searched; None for the others of
        `source`.
      what: "embedding", or "features" of the image tower before projection.
      ks: cut-offs.

    Raises:
      ValueError: `what` is unknown, a cut-off is below 1, or `source` has a class that
        `train_source` lacks.
    """

    place = "knn"

    @classmethod
    def needs(cls, settings: Node) -> tuple[str, ...]:
        """Returns the methods of an objective that it calls."""
        return (VERBS[check_what(settings.get("what") or "embedding")],)

    def __init__(
        self,
        source: Source,
        transform: str,
        train_source: Source | None = None,
        what: str = "embedding",
        ks: tuple[int, ...] = (1,),
        max_broken_fraction: float = 0.01,
    ):
        if not ks or min(ks) < 1:
            raise ValueError(f"ks = {ks} must be one or more numbers from 1 on")
        if train_source is not None:
            source = join_sources(source, train_source, "knn.source", "knn.train_source")
        super().__init__(source, transform, max_broken_fraction)
        self.train_source, self.what, self.ks = train_source, check_what(what), ks

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the numbers it returns."""
        return tuple(f"r{k}" for k in self.ks)

    def __call__(self, embedder: Embedder) -> dict[str, float]:
        """Embeds all images and returns the recalls."""
        test, train = self.read_features(embedder, "source", self.what)[self.what], None
        if self.train_source is not None:
            train = self.read_features(embedder, "train_source", self.what)[self.what]
            check_classes(train.label, test.label, "knn.source", "knn.train_source")
        return measure_neighbors(test, train, self.ks)
