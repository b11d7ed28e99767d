"""Measures existing embeddings of images and texts by human judgments."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError
from big_align.suites.benchmark import Benchmark
from big_align.suites.judged import choice_files, rating_files
from big_align.suites.judged.judgments import Choices, Judged, RatedCaptions, RatedWords, Ratings
from big_align.suites.judged.scores import (
    bootstrap_correlation,
    choose_text,
    correlate_ranks,
    match_two,
    rank_of_positive,
    score_categories,
)
from big_align.suites.measuring.embeddings import EmbeddedImages
from big_align.suites.measuring.outcomes import Outcome
from big_align.suites.measuring.tasks import KS

EmbedTexts = Callable[[Sequence[str], str], np.ndarray]
"""From texts and a kind, "embedding" or "features", to one row per text."""
SIDES = ("text", "image", "text_text", "image_image")
RATED = ("sts", "sis", "sits")
QUERY = {"sts": 0, "sis": 0, "sits": 1}
"""Which side of a pair is the query of a bootstrap.

For a caption and an image it is the image: with that number of queries, the deviations are those of
the papers; with captions as queries they would be half as large.
"""


def measure_judged(
    judged: Judged, metric: str, images: EmbeddedImages | None, embed_texts: EmbedTexts
) -> Outcome:
    """Measures a model by human judgments, given embeddings of their images, if they have any."""
    if isinstance(judged, RatedWords):
        return _measure_words(judged, embed_texts(judged.texts, "features"))
    assert images is not None
    ztxt = embed_texts(judged.texts, "embedding")
    if isinstance(judged, RatedCaptions):
        return _measure_captions(judged, images, ztxt)
    return _measure_choices(judged, metric, images, ztxt)


def list_judged_numbers(benchmark: Benchmark) -> tuple[str, ...]:
    """Returns the names of the numbers measured on a data set."""
    kind = benchmark.layouts[0].kind
    if kind == "simlex":
        return tuple(_name_correlation(name) for name in rating_files.SUBSETS)
    if kind == "crisscrossed":
        recalls = [f"{side}_retrieval_recall@{k}" for side in SIDES for k in KS]
        rated = [name for kind in RATED for name in (kind, f"{kind}_std")]
        return *recalls, "mean_recall", *rated, "mean_correlation"
    if kind == "winoground":
        return "text_acc", "image_acc", "group_acc"
    if kind == "sugar_crepe":
        names = [*choice_files.CATEGORIES, *choice_files.GROUPS]
        return "acc", *(f"acc_{name}" for name in names), "mean_of_categories"
    return ("acc", "mean_of_categories") if kind == "aro_boxes" else ("acc",)


def _measure_choices(
    judged: Choices, metric: str, images: EmbeddedImages, ztxt: Float[np.ndarray, "m d"]
) -> Outcome:
    """Measures which texts are chosen; cases with an unreadable image are left out."""
    kept = images.readable[judged.image].all(axis=1)
    if not kept.any():
        raise UserError("no image can be read")
    zimg = images.embedding[judged.image[kept]]
    cosine = np.einsum("nid,ntd->nit", zimg, ztxt[judged.text[kept]])
    category = [name for name, there in zip(judged.category, kept, strict=True) if there]
    if judged.image.shape[1] == 2:
        found = match_two(cosine)._asdict()
        numbers = {f"{name}_acc": float(right.mean()) for name, right in found.items()}
        return Outcome(numbers, numbers["group_acc"], _tell_categories(found["group"], category))
    right = choose_text(cosine[:, 0])
    numbers = {"acc": float(right.mean())}
    details = _tell_categories(right, category)
    if metric == "mean_of_categories":
        numbers |= _average_categories(judged, right, category)
    return Outcome(numbers, numbers.get(metric, numbers["acc"]), details)


def _average_categories(
    judged: Choices, right: Bool[np.ndarray, "n"], category: Sequence[str]
) -> dict[str, float]:
    """Returns the accuracy of each category in a group, of the groups, and the mean of all."""
    score = {name: value for name, (value, _) in score_categories(right, category).items()}
    averaged = [score[name] for name in judged.averaged if name in score]
    if not averaged:
        raise UserError("no category of the mean has a case")
    numbers = {}
    for names in judged.groups.values():
        numbers |= {f"acc_{name}": score[name] for name in names if name in score}
    for group, names in judged.groups.items():
        mine = [score[name] for name in names if name in score]
        numbers |= {f"acc_{group}": float(np.mean(mine))} if mine else {}
    return numbers | {"mean_of_categories": float(np.mean(averaged))}


def _tell_categories(right: Bool[np.ndarray, "n"], category: Sequence[str]) -> dict:
    """Returns the table of categories, if there are any."""
    rows = [
        {"class": name, "images": count, "accuracy": value}
        for name, (value, count) in score_categories(right, category).items()
    ]
    return {"cases": len(right), **({"per_class": rows} if rows else {})}


def _measure_captions(
    judged: RatedCaptions, images: EmbeddedImages, ztxt: Float[np.ndarray, "m d"]
) -> Outcome:
    """Measures recalls from the pairs that belong together, and correlations with the ratings."""
    ranks = _rank_captions(judged, images, ztxt)
    if empty := [side for side in SIDES if not len(ranks[side])]:
        raise UserError(f"no pair belongs together for {empty[0]} retrieval")
    numbers = {
        f"{side}_retrieval_recall@{k}": float(np.mean(found < k))
        for side, found in ranks.items() for k in KS
    }  # fmt: skip
    numbers["mean_recall"] = float(np.mean(list(numbers.values())))
    text = ztxt, np.ones(len(ztxt), bool)
    image = images.embedding, images.readable
    sides = {"sts": (text, text), "sis": (image, image), "sits": (text, image)}
    for name, given in sides.items():
        found = _correlate(getattr(judged, name), *given, QUERY[name])
        numbers[name], numbers[f"{name}_std"] = found
    numbers["mean_correlation"] = float(np.mean([numbers[name] for name in RATED]))
    details = {"queries": {side: len(found) for side, found in ranks.items()}}
    return Outcome(numbers, numbers["mean_recall"], details)


def _rank_captions(
    judged: RatedCaptions, images: EmbeddedImages, ztxt: Float[np.ndarray, "m d"]
) -> dict[str, Int[np.ndarray, "_"]]:
    """Returns the ranks of what belongs to each query, by kind of retrieval."""
    own = np.stack([np.arange(len(judged.owner)), judged.owner], axis=1)
    across = _find_positive(judged.sits, own)
    texts = _find_positive(judged.sts, _pair_captions(judged.owner), turned=True)
    alike = _find_positive(judged.sis, np.zeros((0, 2), np.int64), turned=True)
    # unreadable images are neither queries nor candidates
    place = np.where(images.readable, np.cumsum(images.readable) - 1, -1)
    zimg = images.embedding[images.readable]
    across, alike = np.stack([across[:, 0], place[across[:, 1]]], axis=1), place[alike]
    across, alike = (pairs[(pairs >= 0).all(axis=1)] for pairs in (across, alike))
    return {
        "text": rank_of_positive(zimg, ztxt, across[:, ::-1]),
        "image": rank_of_positive(ztxt, zimg, across),
        "text_text": rank_of_positive(ztxt, ztxt, texts, itself=True),
        "image_image": rank_of_positive(zimg, zimg, alike, itself=True),
    }


def _correlate(
    ratings: Ratings,
    one: tuple[Float[np.ndarray, "n d"], Bool[np.ndarray, "n"]],
    other: tuple[Float[np.ndarray, "m d"], Bool[np.ndarray, "m"]],
    query: int,
) -> tuple[float, float]:
    """Correlates cosines with ratings, for pairs whose sides are both readable.

    Each side is embeddings, and which are readable; `query` is the side that asks, 0 or 1.
    """
    first, second = ratings.pair.T
    there = one[1][first] & other[1][second]
    cosine = _compare(one[0], other[0], ratings.pair[there])
    return bootstrap_correlation(cosine, ratings.rating[there], ratings.pair[there, query])


def _find_positive(
    ratings: Ratings, known: Int[np.ndarray, "k 2"], turned: bool = False
) -> Int[np.ndarray, "p 2"]:
    """Returns pairs that belong together: those rated so, and known ones without a rating.

    If it is turned, a rating also applies to the pair in reverse order.
    """
    pair, belongs = ratings.pair, ratings.rating >= ratings.positive
    if turned:
        pair, belongs = np.concatenate([pair, pair[:, ::-1]]), np.tile(belongs, 2)
    rated = set(map(tuple, pair.tolist()))
    unrated = [one for one in known.tolist() if tuple(one) not in rated]
    return np.array(unrated + pair[belongs].tolist(), np.int64).reshape(-1, 2)


def _pair_captions(owner: Int[np.ndarray, "m"]) -> Int[np.ndarray, "p 2"]:
    """Returns all ordered pairs of captions of the same image, whose captions are consecutive."""
    groups = np.split(np.arange(len(owner)), np.flatnonzero(np.diff(owner)) + 1)
    pairs = [list(itertools.permutations(group.tolist(), 2)) for group in groups]
    return np.array([pair for some in pairs for pair in some], np.int64).reshape(-1, 2)


def _compare(
    one: Float[np.ndarray, "n d"], other: Float[np.ndarray, "m d"], pair: Int[np.ndarray, "p 2"]
) -> Float[np.ndarray, "p"]:
    """Returns the cosine of each pair of unit-length embeddings."""
    return np.einsum("pd,pd->p", one[pair[:, 0]], other[pair[:, 1]])


def _measure_words(judged: RatedWords, features: Float[np.ndarray, "w f"]) -> Outcome:
    """Measures Spearman's correlation for all pairs and for each subset."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    cosine, numbers = _compare(unit, unit, judged.ratings.pair), {}
    for name, places in judged.subsets.items():
        if len(places):
            found = correlate_ranks(cosine[places], judged.ratings.rating[places])
            numbers[_name_correlation(name)] = found
    counts = {name: len(places) for name, places in judged.subsets.items()}
    return Outcome(numbers, numbers["spearman"], {"pairs": counts})


def _name_correlation(subset: str) -> str:
    return "spearman" if subset == "all" else f"spearman_{subset}"
