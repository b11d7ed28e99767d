"""What an evaluator is, and what those of images share."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from big_align.core.nodes import Node
from big_align.data.examples import Source
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.features import LabeledFeatures, mark_classes, take_readable


@runtime_checkable
class Evaluator(Protocol):
    """Measures a model through an `Embedder` and returns named numbers.

    Its class may say what it needs, which is checked before training:

    - `needs(settings)`, a classmethod, returns the names of the methods of the objective that it
      calls, such as ("embed_image",), given the fields of its config node.
    - `check_objective(settings, objective)`, a classmethod, raises a ValueError if it cannot
      measure this objective.

    Its instances may list the names of the numbers they return in `numbers`, and those of which
    lower is better in `lower_is_better`; without the latter, the names of the numbers decide.
    One that shows more than numbers also has `measure(embedder)`, which returns an
    `exhibits.exhibit.Measured`: the same numbers, and a function that makes the pictures.
    """

    def __call__(self, embedder: Embedder) -> dict[str, float]:
        """Measures the weights that the embedder has.

        Args:
          embedder: embeds images and texts with the model.

        Returns:
          Numbers by name; they are logged as `EVALUATOR/NAME`.
        """


class ImageEvaluator:
    """Measures images of a source. One that has `measure` returns its numbers.

    Args:
      source: examples with an image.
      transform: image operations, without randomness.
      max_broken_fraction: the fraction of broken examples above which evaluation stops.
      tokenizer: the one that the model was trained with.
      templates: texts with {} in place of the name, and perhaps {description}; None for those of
        the class list, or else "a photo of a {}.".
    """

    place = ""
    """The name of the evaluator in messages about its sources."""
    lower_is_better: Sequence[str] = ()
    needed: tuple[str, ...] = ()
    """The methods of an objective that it calls, whatever its settings are."""
    measure: Any

    @classmethod
    def needs(cls, settings: Node) -> tuple[str, ...]:
        """Returns the methods of an objective that it calls."""
        return cls.needed

    def __init__(self, source: Source, transform: str, max_broken_fraction: float):
        self.source, self.transform = source, transform
        self.max_broken_fraction = max_broken_fraction

    def open(self, embedder: Embedder, source: Source | None = None) -> EvalLoader:
        """Opens the examples, or others, in the batches of an embedder."""
        source = self.source if source is None else source
        rows = embedder.batch_size, embedder.rows
        return EvalLoader(source, self.transform, *rows, self.max_broken_fraction)

    def read_features(
        self, embedder: Embedder, field: str, *whats: str, several_labels: bool = False
    ) -> dict[str, LabeledFeatures]:
        """Returns each kind of features, in one pass, of the images of a source that can be read.

        The source is the one in a field. With `several_labels` an example has any number of labels,
        and the number of classes is the largest label plus one.

        Raises:
          UserError: as for `take_readable`, or an example has several labels and should not.
        """
        source, where = getattr(self, field), f"{self.place}.{field}"
        with self.open(embedder, source) as loader:
            given = loader.images(), loader.num_examples
            if len(whats) > 1:
                embedding, features, readable = embedder.embeddings_and_features(*given)
                found = {"embedding": embedding, "features": features}
            else:
                (what,) = whats
                embed = {"features": embedder.image_features, "embedding": embedder.embed_images}
                rows, readable = embed[what](*given)
                found = {what: rows}
            label = mark_classes(loader.label_sets()) if several_labels else loader.labels()
        return {x: take_readable(source, found[x], label, readable, x, where) for x in whats}

    def __call__(self, embedder: Embedder) -> dict[str, float]:
        """Returns the numbers of `measure`."""
        return self.measure(embedder).numbers
