"""Zero-shot classification with class names in averaged templates (CLIP §3.1.4; ALIGN §5.2)."""

import numpy as np
from jaxtyping import Float, Int

from big_align.data.examples import Source
from big_align.data.labels import label_check
from big_align.data.labels.classes import ClassList, read_classes
from big_align.data.labels.prompts import choose_templates, fill_templates
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.text.tokenizers import Tokenizer
from big_align.errors import UserError
from big_align.evaluators.embedder import Embedder
from big_align.nodes import Node


def embed_classes(
    embedder: Embedder, tokenizer: Tokenizer, names: tuple[str, ...], templates: tuple[str, ...]
) -> Float[np.ndarray, "c d"]:
    """Embeds each class as the mean over its filled templates, brought back to unit length."""
    prompts = [prompt for group in fill_templates(names, templates) for prompt in group]
    return average_templates(embedder.embed_texts(*tokenizer(prompts)), len(names))


def average_templates(ztxt: Float[np.ndarray, "n d"], classes: int) -> Float[np.ndarray, "c d"]:
    """Averages the embeddings of each class's texts in turn, brought back to unit length."""
    mean = ztxt.reshape(classes, -1, ztxt.shape[-1]).mean(axis=1)
    return mean / np.maximum(np.linalg.norm(mean, axis=-1, keepdims=True), 1e-12)


def measure_accuracy(
    similarity: Float[np.ndarray, "n c"], label: Int[np.ndarray, "n"]
) -> dict[str, float]:
    """Returns top-1, top-5 and mean-per-class accuracy; ties count against the right class.

    Args:
      similarity: of each example to each class.
      label: the right class of each example.
    """
    own = np.take_along_axis(similarity, label[:, None], axis=1)
    rank = (similarity >= own).sum(axis=1) - 1
    hit = rank == 0
    per_class = [hit[label == c].mean() for c in np.unique(label)]
    return {
        "top1": float(hit.mean()),
        "top5": float((rank < 5).mean()),
        "mean_per_class": float(np.mean(per_class)),
    }


def _find_classes(source: Source, names: tuple[str, ...] | str) -> ClassList:
    if names != "source":
        return read_classes(names) if isinstance(names, str) else ClassList.from_names(names)
    if source.class_names is None:
        raise UserError("names = 'source', but the source has no names of its own: name a list")
    return ClassList.from_names([name.replace("_", " ") for name in source.class_names])


class ZeroShot:
    """Accuracy of naming the class of an image by the nearest class text.

    Args:
      source: examples with an image and a label that counts into `names`.
      transform: image operations, without randomness.
      tokenizer: the one that the model was trained with.
      names: class names in the order of their labels, or a class list: one of the package
        ("imagenet", "cifar10", ...) or a file, or `source` for the names that the source has.
      templates: texts with {} where the name goes; None for those of the class list, or else
        "a photo of a {}.".
      with_descriptions: whether a class is named "NAME, DESCRIPTION" (iCLIP eq. 5) where the list
        describes it.
      max_broken_fraction: the fraction of broken examples above which evaluation stops.

    Raises:
      UserError: the class list cannot be read, or the source names other classes.
    """

    reads = ("label",)

    @classmethod
    def needs(cls, settings: Node) -> tuple[str, ...]:
        """Tells which verbs of an objective it calls."""
        return "embed_image", "embed_text"

    def __init__(
        self,
        source: Source,
        transform: str,
        tokenizer: Tokenizer,
        names: tuple[str, ...] | str,
        templates: tuple[str, ...] | None = None,
        with_descriptions: bool = False,
        max_broken_fraction: float = 0.01,
    ):
        self.source = source
        self.transform = transform
        self.tokenizer = tokenizer
        classes = _find_classes(source, names)
        label_check.check_class_names(source, classes)
        self.names = classes.phrases(with_descriptions)
        self.templates = choose_templates(classes, templates)
        self.max_broken_fraction = max_broken_fraction

    def __call__(self, embedder: Embedder) -> dict[str, float]:
        """Embeds all images and classes and returns the accuracies."""
        loader = EvalLoader(
            self.source,
            self.transform,
            embedder.batch_size,
            embedder.rows,
            max_broken_fraction=self.max_broken_fraction,
        )
        zimg, readable = embedder.embed_images(loader.images(), loader.num_examples)
        zimg, label = zimg[readable], loader.labels()[readable]
        outside = (label < 0) | (label >= len(self.names))
        if outside.any():
            raise UserError(
                f"zero_shot: {outside.sum()} labels, {label[outside][0]} among them, are not in "
                f"the {len(self.names)} class names"
            )
        classes = embed_classes(embedder, self.tokenizer, self.names, self.templates)
        return measure_accuracy(zimg @ classes.T, label)
