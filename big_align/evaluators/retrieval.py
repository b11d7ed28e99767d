"""Image-text retrieval with several captions per image (Karpathy & Fei-Fei 2015; ALIGN §5.1)."""

from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError
from big_align.core.ties import reaches
from big_align.data.examples import Source, language_of
from big_align.data.images.same_images import SameImages, find_firsts, tell_copies
from big_align.data.text.caption_checks import count_languages, find_caption_fault
from big_align.data.text.tokenizers import Tokenizer
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.evaluator import ImageEvaluator
from big_align.evaluators.exhibits.cosines import show_pair_cosines
from big_align.evaluators.exhibits.exhibit import Exhibit, Measured
from big_align.evaluators.exhibits.pixels import read_pixels
from big_align.evaluators.exhibits.retrieval import Pairs, show_pairs


def rank_of_match(
    queries: Float[np.ndarray, "q d"],
    candidates: Float[np.ndarray, "k d"],
    query_owner: Int[np.ndarray, "q"],
    candidate_owner: Int[np.ndarray, "k"],
    chunk: int = 1024,
) -> Int[np.ndarray, "q"]:
    """Returns how many wrong candidates rank before the best right one, for each query.

    A candidate is right if it belongs to the same example as the query, its owner. Wrong candidates
    that tie with it rank before it, so embeddings that have collapsed to a point score nothing, nor
    do NaN. `chunk` queries are compared at a time.
    """
    ranks = []
    for start in range(0, len(queries), chunk):
        similarity = queries[start : start + chunk] @ candidates.T
        right = query_owner[start : start + chunk, None] == candidate_owner[None, :]
        best = np.where(right, similarity, -np.inf).max(axis=1, keepdims=True)
        ranks.append((reaches(similarity, best) & ~right).sum(axis=1))
    return np.concatenate(ranks)


DIRECTIONS = ("image_to_text", "text_to_image")
MEAN = "mean_recall"


def measure_recalls(pairs: Pairs, ks: tuple[int, ...]) -> dict[str, float]:
    """Returns recalls in both directions, as `image_to_text_r1` and so on."""
    image = np.arange(len(pairs.zimg))
    image_to_text = rank_of_match(pairs.zimg, pairs.ztxt, image, pairs.owner)
    text_to_image = rank_of_match(pairs.ztxt, pairs.zimg, pairs.owner, image)
    return {
        f"{name}_r{k}": float(np.mean(ranks < k))
        for name, ranks in zip(DIRECTIONS, (image_to_text, text_to_image), strict=True)
        for k in ks
    }


def count_candidates(pairs: Pairs) -> dict[str, int]:
    """Returns how many captions an image, and how many images a caption, is compared with."""
    return dict(zip(DIRECTIONS, (len(pairs.owner), len(pairs.zimg)), strict=True))


def find_chance(pairs: Pairs, ks: tuple[int, ...]) -> dict[str, float]:
    """Returns the recalls of a random order, as `image_to_text_r1_chance`, and candidates.

    An image with c of m captions has none of them among the first k with the probability that k of
    the m - c others are drawn.
    """
    captions, images = count_candidates(pairs).values()
    others = captions - np.bincount(pairs.owner, minlength=images)
    found = {}
    for k in ks:
        drawn = np.arange(k)
        missed = np.clip(others[:, None] - drawn, 0, None) / np.maximum(captions - drawn, 1)
        chances = 1 - float(missed.prod(axis=1).mean()), min(1.0, k / images)
        found |= {f"{name}_r{k}_chance": x for name, x in zip(DIRECTIONS, chances, strict=True)}
    sizes = count_candidates(pairs)
    return found | {f"{name}_candidates": float(count) for name, count in sizes.items()}


def tell_recalls(pairs: Pairs, ks: tuple[int, ...]) -> dict[str, float]:
    """Returns `measure_recalls` and `find_chance`, without recalls that any model has.

    These are at as many as there are candidates, or more.
    """
    counts = count_candidates(pairs).items()
    certain = {f"{name}_r{k}" for name, count in counts for k in ks if k >= count}
    numbers = measure_recalls(pairs, ks) | find_chance(pairs, ks)
    return {k: x for k, x in numbers.items() if k.removesuffix("_chance") not in certain}


def take_language(pairs: Pairs, language: str) -> Pairs:
    """Returns the captions in a language, and the images that have one."""
    mine = np.array([language_of(caption) == language for caption in pairs.captions], bool)
    images, owner = np.unique(pairs.owner[mine], return_inverse=True)
    captions = [caption for caption, taken in zip(pairs.captions, mine, strict=True) if taken]
    return Pairs(pairs.zimg[images], pairs.ztxt[mine], captions, owner, pairs.number[images])


def measure_languages(
    pairs: Pairs, languages: Sequence[str], ks: tuple[int, ...]
) -> dict[str, float]:
    """Returns the mean recall over languages and of each language, and the underlying recalls.

    The mean of a language is that of its recalls in both directions: with R@1, R@5 and R@10, this
    is the mean recall of ALIGN's §8. An image is measured in the languages of its captions. Names
    are `mean_recall`, `de_mean_recall` and so on, and `de_image_to_text_r1` and so on.
    """
    means: dict[str, float] = {}
    every: dict[str, float] = {}
    for language in languages:
        part = take_language(pairs, language)
        if not part.captions:
            raise UserError(f"no image that can be read has a caption in {language!r}")
        told = tell_recalls(part, ks)
        recalls = [value for name, value in told.items() if f"{name}_chance" in told]
        means[f"{language}_{MEAN}"] = float(np.mean(recalls or [1.0]))
        every |= {f"{language}_{name}": value for name, value in told.items()}
    return {MEAN: float(np.mean(list(means.values())))} | means | every


def join_captions(
    captions: Sequence[Sequence[str]], readable: Bool[np.ndarray, "n"], firsts: Int[np.ndarray, "n"]
) -> tuple[list[str], Int[np.ndarray, "m"], Int[np.ndarray, "k"]]:
    """Gives the captions of copies of an image to the first copy; images without any do not count.

    `firsts` has the first example with the same image for each example. Returns the captions of the
    images that count; which of these images each caption belongs to; and the example number of each
    image.
    """
    joined: dict[int, list[str]] = {}
    for first, texts, real in zip(firsts.tolist(), captions, readable, strict=True):
        if real and texts:
            joined.setdefault(first, []).extend(texts)
    if not joined:
        raise UserError("no image that can be read has a caption")
    number = np.sort(np.fromiter(joined, np.int64))
    groups = [joined[first] for first in number.tolist()]
    owner = np.repeat(np.arange(len(groups)), [len(texts) for texts in groups])
    return [text for texts in groups for text in texts], owner, number


class Retrieval(ImageEvaluator):
    """Recall at 1, 5 and 10, image to text and text to image, in [0, 1].

    Image to text counts an image as found if any of its captions is among the first k; text to
    image uses every caption as a query. Examples whose images are identical after the transform
    count as one that has the captions of all: the result is that of a source that groups them.
    Images without a caption do not count. With each recall comes that of a random order, and a
    recall at as many as there are candidates, which is always 1, is left out.

    Args:
      source: examples with an image and one or more captions.
      ks: cut-offs.
      by_language: whether each language of the captions is also measured separately, among the
        captions in it, with its mean recall and the mean over languages (`measure_languages`).

    Raises:
      UserError: the source has no captions, `by_language` is set and captions have no languages, or
        a cut-off is below 1.
    """

    reads = ("caption",)
    needed = ("embed_image", "embed_text")

    def __init__(
        self,
        source: Source,
        transform: str,
        tokenizer: Tokenizer,
        ks: tuple[int, ...] = (1, 5, 10),
        max_broken_fraction: float = 0.01,
        by_language: bool = False,
    ):
        if fault := find_caption_fault(source):
            raise UserError(
                f"{fault}; retrieval needs captions: let the source read them (its field "
                "`caption`), or evaluate classes with zero_shot"
            )
        if not ks or min(ks) < 1:
            raise UserError(f"ks = {ks} must be one or more numbers from 1 on")
        super().__init__(source, transform, max_broken_fraction)
        self.tokenizer = tokenizer
        self.ks = ks
        self.languages = tuple(count_languages(source)) if by_language else ()
        if by_language and not self.languages:
            raise UserError(
                "by_language measures each language of the captions, and the source gives none: "
                "name them in its field `caption`, as in json.{en,de}, or leave by_language out"
            )

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the numbers it returns."""
        recalls = tuple(f"{name}_r{k}" for name in DIRECTIONS for k in self.ks)
        if not self.languages:
            return recalls
        means = (f"{language}_{MEAN}" for language in self.languages)
        return MEAN, *means, *(f"{each}_{name}" for each in self.languages for name in recalls)

    def embed(self, embedder: Embedder) -> Pairs:
        """Embeds all images and captions."""
        with self.open(embedder) as loader:
            same = SameImages(loader.num_examples, embedder.batch_size, embedder.rows)
            images = same.watch(loader.images())
            zimg, readable = embedder.embed_images(images, loader.num_examples)
            captions = loader.captions()
        hashes = same.hashes
        if jax.process_count() > 1:  # each process knows the images of its own rows, others are 0
            hashes = multihost_utils.process_allgather(hashes).max(axis=0)
        firsts = find_firsts(hashes)
        tell_copies(firsts, self.source, self.transform)
        texts, owner, number = join_captions(captions, readable, firsts)
        ztxt = embedder.embed_texts(*self.tokenizer(texts))
        return Pairs(zimg[number], ztxt, texts, owner, number)

    def measure(self, embedder: Embedder) -> Measured:
        """Embeds all, and returns the recalls; pictures show what is found, and cosines."""
        pairs = self.embed(embedder)
        if self.languages:
            recalls = measure_languages(pairs, self.languages, self.ks)
        else:
            recalls = tell_recalls(pairs, self.ks)

        def show() -> list[Exhibit]:
            return [*show_pairs(pairs, read_pixels(self.source)), *show_pair_cosines(pairs)]

        return Measured(recalls, show)
