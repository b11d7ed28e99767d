"""Zero-shot classification with class names in averaged templates (CLIP §3.1.4; ALIGN §5.2)."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError, warn_once
from big_align.core.ties import group_equal, rank_of_class
from big_align.data.derived.relabeled_source import choose_classes, join_labels
from big_align.data.examples import Source
from big_align.data.labels.classes import ClassList
from big_align.data.labels.label_names import normalize_name
from big_align.data.labels.prompts import fill_class_templates
from big_align.data.tags.tag_list import TagList, read_tag_list
from big_align.data.text.tokenizers import Tokenizer
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.evaluator import ImageEvaluator
from big_align.evaluators.exhibits.confusion import show_confusion
from big_align.evaluators.exhibits.cosines import show_class_cosines
from big_align.evaluators.exhibits.exhibit import Measured

CHUNK = 4096  # texts tokenized at a time


def embed_classes(
    embedder: Embedder, tokenizer: Tokenizer, texts: Sequence[Sequence[str]]
) -> Float[np.ndarray, "c d"]:
    """Embeds each class as the mean over its texts, scaled back to unit length."""
    ztxt = embedder.embed_texts(*tokenizer([text for group in texts for text in group]))
    return average_texts(ztxt, [len(group) for group in texts])


def average_texts(
    ztxt: Float[np.ndarray, "n d"], counts: Sequence[int]
) -> Float[np.ndarray, "c d"]:
    """Averages the embeddings of each class's texts, in order, scaled back to unit length."""
    groups = np.split(ztxt, np.cumsum(counts)[:-1])
    mean = np.stack([group.mean(axis=0) for group in groups])
    return mean / np.maximum(np.linalg.norm(mean, axis=-1, keepdims=True), 1e-12)


def check_named(label: Int[np.ndarray, "n"], count: int, where: str) -> None:
    """Raises a UserError if a label is not one of `count` classes."""
    outside = (label < 0) | (label >= count)
    if outside.any():
        raise UserError(
            f"{where}: {outside.sum()} labels, {label[outside][0]} among them, are not in "
            f"the {count} class names"
        )


def warn_of_alike(
    ztxt: Float[np.ndarray, "c d"], texts: Sequence[Sequence[str]], tokenizer: Tokenizer, where: str
) -> None:
    """Logs a warning, once, of texts that a model takes for the same, or hardly knows.

    `ztxt` are the embeddings of classes, or of other things with texts; `where` is what they are
    used for, for the message.
    """
    group = group_equal(ztxt)
    equal = np.flatnonzero(np.bincount(group)[group] > 1)
    if equal.size:
        first, second = np.flatnonzero(group == group[equal[0]])[:2]
        warn_once(
            f"{where}: {equal.size} of {len(texts)} texts have the same embedding as another one, "
            f"{texts[first][0]!r} and {texts[second][0]!r} among them, so nothing tells them "
            "apart; they may be equal, or the tokenizer's vocabulary may lack their words"
        )
    strange = np.flatnonzero(share_unknown(tokenizer, texts) > 0.5)
    if strange.size:
        warn_once(
            f"{where}: of {strange.size} of {len(texts)} texts, the tokenizer knows less than "
            f"half, {texts[strange[0]][0]!r} among them; use words of its vocabulary, and the "
            "templates that the model was trained or evaluated with"
        )


def share_unknown(tokenizer: Tokenizer, texts: Sequence[Sequence[str]]) -> Float[np.ndarray, " c"]:
    """Returns which share of the ids of groups of texts stands for words that are unknown.

    A tokenizer without `unknown_id` knows every word.
    """
    unknown = getattr(tokenizer, "unknown_id", None)
    if unknown is None:
        return np.zeros(len(texts))
    flat, counts = [text for group in texts for text in group], []
    ends = int(tokenizer([""])[1].sum())  # ids that every text has
    for first in range(0, len(flat), CHUNK):
        ids, mask = tokenizer(flat[first : first + CHUNK])
        counts.append([((ids == unknown) & mask).sum(axis=1), mask.sum(axis=1) - ends])
    starts = np.cumsum([0, *map(len, texts)])[:-1]
    strange, words = np.add.reduceat(np.concatenate(counts, axis=1), starts, axis=1)
    return strange / np.maximum(words, 1)


def measure_accuracy(
    similarity: Float[np.ndarray, "n c"], label: Int[np.ndarray, "n"]
) -> dict[str, float]:
    """Returns top-1, top-5 and mean-per-class accuracy; ties count against the right class."""
    rank = rank_of_class(similarity, label)
    hit = rank == 0
    per_class = [hit[label == c].mean() for c in np.unique(label)]
    return {
        "top1": float(hit.mean()),
        "top5": float((rank < 5).mean()),
        "mean_per_class": float(np.mean(per_class)),
    }


def tell_accuracy(
    similarity: Float[np.ndarray, "n c"], label: Int[np.ndarray, "n"]
) -> dict[str, float]:
    """Returns `measure_accuracy` with what each is by chance; with five classes, no top 5."""
    count = similarity.shape[1]
    chance = {"top1": 1 / count, "top5": 5 / count, "mean_per_class": 1 / count}
    numbers = measure_accuracy(similarity, label)
    if count <= 5:
        del numbers["top5"]
    return numbers | {f"{name}_chance": chance[name] for name in numbers}


ACCURACIES = ("top1", "top5", "mean_per_class")
"""The names of what `measure_accuracy` returns."""


SEEN = ("seen_top1", "unseen_top1", "seen_classes")
"""The names of what `measure_seen` returns."""


def measure_seen(
    similarity: Float[np.ndarray, "n c"], label: Int[np.ndarray, "n"], seen: Bool[np.ndarray, "c"]
) -> dict[str, float]:
    """Returns top-1 accuracy over the seen classes and over the others (IDEA, Fig. 7).

    Each is the mean over those of its classes that have images, 0 if there are none; every class is
    a candidate for every image.
    """
    found = {}
    for name, part in (("seen_top1", seen), ("unseen_top1", ~seen)):
        mine = part[label]
        accuracy = measure_accuracy(similarity[mine], label[mine]) if mine.any() else {}
        found[name] = accuracy.get("mean_per_class", 0.0)
    return found | {"seen_classes": float(np.unique(label[seen[label]]).size)}


def find_seen(classes: ClassList, tags: TagList) -> Bool[np.ndarray, "c"]:
    """Returns which classes have, ignoring case, the name of a tag, or a synonym that is one."""
    synonyms = classes.synonyms or ((),) * len(classes)
    known = set(map(normalize_name, tags.names))
    return np.array(
        [
            any(normalize_name(each) in known for each in (name, *more))
            for name, more in zip(classes.names, synonyms, strict=True)
        ]
    )


class ZeroShot(ImageEvaluator):
    """Accuracy of naming the class of an image by the nearest class text.

    Args:
      source: examples with an image and a label that is an index into `names`.
      names: class names in the order of their labels, or a class list: one of the package
        ("imagenet", "cifar10", ...) or a file, or `source` for the source's own names.
      tags: a tag list; then accuracy is also reported for the classes that are tags and for the
        others (IDEA, Fig. 7).

    Raises:
      UserError: the class list or the tag list cannot be read, the source names a class that
        the list lacks, or no class is a tag.
    """

    reads = ("label",)
    needed = ("embed_image", "embed_text")

    def __init__(
        self,
        source: Source,
        transform: str,
        tokenizer: Tokenizer,
        names: tuple[str, ...] | str,
        templates: tuple[str, ...] | None = None,
        tags: str | None = None,
        max_broken_fraction: float = 0.01,
    ):
        classes = choose_classes(names, source)
        source = join_labels(source, classes, "zero_shot.source")
        super().__init__(source, transform, max_broken_fraction)
        self.tokenizer = tokenizer
        self.names = classes.names
        self.texts = fill_class_templates(classes, templates)
        self.seen = None
        if tags:
            self.seen = find_seen(classes, read_tag_list(tags))
            if not self.seen.any():
                raise UserError(
                    f"zero_shot.tags: none of the {len(classes)} classes, {classes.names[0]!r} the "
                    f"first, is in the tag list {tags}"
                )
        self.numbers = ACCURACIES if self.seen is None else (*ACCURACIES, *SEEN)

    def measure(self, embedder: Embedder) -> Measured:
        """Embeds images and classes, and returns the accuracies; pictures show confused classes."""
        with self.open(embedder) as loader:
            zimg, readable = embedder.embed_images(loader.images(), loader.num_examples)
            label = loader.labels()[readable]
        check_named(label, len(self.names), "zero_shot")
        ztxt = embed_classes(embedder, self.tokenizer, self.texts)
        warn_of_alike(ztxt, self.texts, self.tokenizer, "zero_shot")
        similarity = zimg[readable] @ ztxt.T
        numbers = tell_accuracy(similarity, label)
        if self.seen is not None:
            numbers |= measure_seen(similarity, label, self.seen)
        return Measured(
            numbers,
            lambda: [
                *show_confusion(similarity, label, self.names),
                *show_class_cosines(similarity, label),
            ],
        )
