"""A model that embeds, classifies and ranks what a user has, in one line each."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Bool, Float, Int32

from big_align.config.components.signatures import make_named
from big_align.config.components.tables import TOKENIZERS
from big_align.config.components.transforms import check_repeatable, shape_of_image
from big_align.core import library_messages
from big_align.core.errors import BrokenImages, UserError
from big_align.core.progress import make_bar
from big_align.data.images import given_images
from big_align.data.images.image_ops import Transform
from big_align.data.labels.prompts import choose_templates, fill_class_templates
from big_align.data.text.tokenizers import Tokenizer
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.zero_shot import average_texts, warn_of_alike
from big_align.runs import workdir
from big_align.use.inference import ranking
from big_align.use.inference.batched_model import BatchedModel
from big_align.use.inference.given_texts import check_texts, read_names
from big_align.use.inference.image_batches import ImageBatch, load_images
from big_align.weights.formats.pretrained import Pretrained

NAMED_FIRST = 20  # broken images that are named in the log
CLASS_LISTS = 4  # whose embeddings `classify` keeps
TEXT_BATCHES = 16  # embedded at a time, texts of similar length together
BAR = {"delay": 1, "dynamic_ncols": True, "leave": False}  # short work shows no bar


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LoadedModel(Pretrained):
    """A model, ready for use: it knows how images are prepared and texts are tokenized.

    `big_align.load` returns it. Work is done in batches on all devices of this process. A batch is
    padded to a power of two, so that few programs are compiled; the first call for a size compiles.
    Work of more than a second shows a progress bar.

    The attributes that are not listed are those of `big_align.Pretrained`.

    Attributes:
      batch_size: the most rows of a batch, over all devices; None for 64 per device.
      progress: whether there are progress bars.
    """

    batch_size: int | None = None
    progress: bool = True

    @classmethod
    def of(cls, pretrained: Pretrained, **settings: Any) -> "LoadedModel":
        """Makes one from a model that is loaded or made already.

        Args:
          pretrained: the model.
          settings: attributes that replace its own, except those that are None.

        Returns:
          A model with the same arrays.
        """
        fields = {f.name: getattr(pretrained, f.name) for f in dataclasses.fields(pretrained)}
        return cls(**fields | {k: v for k, v in settings.items() if v is not None})

    def embed_images(self, images: Any, broken: str = "error") -> Float[np.ndarray, "n d"]:
        """Embeds images.

        Args:
          images: a list of paths, URLs that fsspec reads, encoded bytes, PIL images or uint8 arrays
            [h w 3], in any mixture, an array of paths, an array [n h w 3], or one image.
          broken: what happens to images that are missing or cannot be decoded: "error", or "nan"
            for rows of NaN and a warning that names them.

        Returns:
          A row of unit length for each image [n d], float32, in their order.

        Raises:
          UserError: an image is broken; or nothing is given, or something that is not an image,
            such as floats; or the model has no image tower, or does not say how its images are
            made.
        """
        return self._run_images(images, broken, Embedder.embed_images)

    def embed_texts(self, texts: Any) -> Float[np.ndarray, "n d"]:
        """Embeds texts; anything beyond the tokenizer's length is cut off.

        Args:
          texts: a list of texts, or one.

        Returns:
          A row of unit length for each text [n d], float32, in their order.

        Raises:
          UserError: no text is given, or something that is not a text; or the model has no text
            tower or tokenizer.
        """
        self._check_part("text")
        texts = check_texts(texts)
        size, rows = self._batched.choose_rows(len(texts)), []
        with make_bar(total=len(texts), unit="text", disable=not self.progress, **BAR) as bar:
            for first in range(0, len(texts), TEXT_BATCHES * size):
                part = texts[first : first + TEXT_BATCHES * size]
                rows.append(_check_finite(self._batched.embed_texts(*self.made_tokenizer(part))))
                bar.update(len(part))
        return np.concatenate(rows)

    def embed_queries(self, texts: Any) -> Float[np.ndarray, "n d"]:
        """Embeds texts like `embed_texts`, and warns of those that the model can hardly use.

        Args:
          texts: a list of texts, or one.

        Returns:
          A row of unit length for each text [n d], float32, in their order.

        Raises:
          UserError: as in `embed_texts`.
        """
        ztxt = self.embed_texts(texts := check_texts(texts))
        once = {text: n for n, text in enumerate(texts)}
        warn_of_alike(ztxt[[*once.values()]], [[t] for t in once], self.made_tokenizer, "queries")
        return ztxt

    def classify(
        self,
        images: Any,
        names: Any = None,
        templates: Sequence[str] | None = None,
        temperature: float | None = None,
        broken: str = "error",
    ) -> ranking.Classes | list[ranking.Classes]:
        """Names what images show, by the texts of classes or by a classifier that was trained.

        Args:
          images: as in `embed_images`, or embeddings of images, for texts of classes.
          names: a list of names, or a class list: "imagenet", another of the package, or a file.
            None for the classes of the model's own classifier, which has no texts.
          templates: one or more texts with {} for the name and perhaps {description}; None for
            those of the run's class texts, class list or evaluators, or else "a photo of a {}.".
          temperature: what cosines are divided by; None for the model's own.
          broken: as in `embed_images`; with "nan" a broken image has an empty list.

        Returns:
          Every class with its probability, the most probable first; a list of such lists unless
          there is only one image.

        Raises:
          UserError: what `embed_images` and `embed_texts` raise; or there are no names; or a
            template is wrong, or no class has what it asks for; or no temperature is known.
        """
        if names is None:
            return self._classify_by_training(images, broken)
        if self.classifier and not self.embeds("text"):
            raise UserError("the model has no text tower: classify(images) names its own classes")
        temperature = self.temperature if temperature is None else temperature
        self._check_part("text")
        if temperature is None or not temperature > 0:
            known = "is unknown to the model" if temperature is None else f"is {temperature}"
            raise UserError(f"the temperature {known}; give temperature= a number above 0")
        classes = read_names(names)
        given = self.trained_templates if templates is None else templates
        chosen = choose_templates(classes, given, self.templates)
        prompts = fill_class_templates(classes, chosen)
        ztxt = self._embed_classes(tuple(map(tuple, prompts)))
        embed_images = functools.partial(self.embed_images, broken=broken)
        zimg, alone = self._embed_or_take(images, embed_images, given_images.is_image)
        logits = np.float64(ranking.compute_cosines(zimg, ztxt)) / temperature
        return ranking.name_classes(classes.names, logits, alone)

    @functools.cached_property
    def _embed_classes(self) -> Callable[[tuple[tuple[str, ...], ...]], Float[np.ndarray, "c d"]]:
        """A function that embeds classes by their texts, once for calls with the same ones."""

        @functools.lru_cache(CLASS_LISTS)
        def embed(prompts: tuple[tuple[str, ...], ...]) -> Float[np.ndarray, "c d"]:
            ztxt = self.embed_texts([text for group in prompts for text in group])
            ztxt = average_texts(ztxt, list(map(len, prompts)))
            warn_of_alike(ztxt, prompts, self.made_tokenizer, "classify")
            return ztxt

        return embed

    def _classify_by_training(
        self, images: Any, broken: str
    ) -> ranking.Classes | list[ranking.Classes]:
        """Names what images show by the classifier that a run has trained."""
        if self.classifier is None:
            raise UserError("the model has no classifier of its own; give the names of classes")
        features = self._run_images(images, broken, Embedder.image_features)
        logits = self.classifier.compute_logits(features)
        return ranking.name_classes(self.classifier.names, logits, given_images.is_image(images))

    def _run_images(
        self, images: Any, broken: str, method: Callable[..., tuple]
    ) -> Float[np.ndarray, "n d"]:
        """Returns what a method of `Embedder` makes of images."""
        if broken not in ("error", "nan"):
            raise UserError(f"broken = {broken!r} is neither 'error' nor 'nan'")
        self._check_part("image")
        given = given_images.check_images(images)
        rows, lost = [], 0
        with make_bar(total=len(given), unit="image", disable=not self.progress, **BAR) as bar:
            for batch in load_images(
                given, *self._operations, self._batched.choose_rows(len(given))
            ):
                self._tell_broken(batch, given, broken, lost)
                lost += len(batch.faults)
                rows.append(self._batched.apply(method, batch.image, batch.mask))
                _check_finite(rows[-1][batch.mask])
                bar.update(len(rows[-1]))
        if lost > NAMED_FIRST:
            logging.warning("%d of %d images are broken; their rows are NaN", lost, len(given))
        return np.concatenate(rows)

    def rank(self, texts: Any, images: Any, k: int | None = None) -> ranking.Ranking:
        """Ranks images for each text by their cosines.

        Args:
          texts: queries: texts, or embeddings, of texts or of images.
          images: as in `embed_images`, or embeddings, of images or of texts.
          k: how many images to return for each text; None for all.

        Returns:
          `order`, the numbers of the images, nearest first, and their `cosine`, one row per text;
          both are [q k].

        Raises:
          UserError: what `embed_images` and `embed_texts` raise; embeddings do not fit; or `k` is
            not a whole number from 1 on, which is told before anything is embedded.

        Examples:
          Embeddings, which may have any length, need no weights:

          >>> import big_align
          >>> model = big_align.LoadedModel(big_align.load_config("quickstart").model.to_dict(), {})
          >>> found = model.rank([[1.0, 0.0]], [[0.0, 2.0], [3.0, 4.0], [1.0, 0.0]], k=2)
          >>> print(found.order, found.cosine)
          [[2 1]] [[1.  0.6]]
        """
        k = None if k is None else ranking.check_count(k)
        queries, _ = self._embed_or_take(texts, self.embed_queries)
        candidates, _ = self._embed_or_take(images, self.embed_images)
        return ranking.rank_by_cosine(queries, candidates, k)

    def tower(self, part: str) -> "LoadedModel":
        """Returns one tower by itself, with what belongs to it, like `Pretrained.tower`.

        Args:
          part: "image" or "text".

        Raises:
          UserError: it is a tower for the other kind of inputs.
        """
        tower = super().tower(part)
        settings = {"batch_size": self.batch_size, "progress": self.progress}
        return self if tower is self else LoadedModel.of(tower, **settings)

    def tokenize(self, texts: Any) -> tuple[Int32[np.ndarray, "n l"], Bool[np.ndarray, "n l"]]:
        """Makes token ids of texts.

        Args:
          texts: a list of texts, or one.

        Returns:
          Token ids, int32 [n l], and which of them are real, bool [n l].

        Raises:
          UserError: something is not a text, or the model has no tokenizer.
        """
        return self.made_tokenizer(check_texts(texts))

    def __getstate__(self) -> dict[str, Any]:
        """Returns what another process gets; it makes compiled programs and tokenizer anew."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def _check_part(self, part: str) -> None:
        """Raises a UserError if the model lacks a tower."""
        if not self.embeds(part):
            other = "text" if part == "image" else "image"
            raise UserError(
                f"the model has no {part} tower, only {self.description} for {other}s; "
                f"it cannot embed {part}s"
            )

    @functools.cached_property
    def made_tokenizer(self) -> Tokenizer:
        """The tokenizer that its settings make; a UserError if the model has none."""
        if self.tokenizer is None:
            raise UserError(
                "the model's files do not say which tokenizer it uses; give load() one, such as "
                "tokenizer={'name': 'clip', 'merges': 'bpe_simple_vocab_16e6.txt.gz'}"
            )
        tokenizer = make_named(TOKENIZERS, self.tokenizer, "tokenizer")
        tower = self.tower("text").model
        for field, need in (("vocab_size", tokenizer.vocab_size), ("max_length", tokenizer.length)):
            if getattr(tower, field, need) < need:
                raise UserError(
                    f"tokenizer: it needs a text tower of {field} = {need}, and the model's has "
                    f"{getattr(tower, field)}"
                )
        return tokenizer

    @functools.cached_property
    def _operations(self) -> tuple[Transform, tuple[int, ...]]:
        """The image operations, and the shape of their results."""
        if not self.preprocessing:
            raise UserError(
                "the model's files do not say how its images are preprocessed; give load() the "
                "operations, such as transform='resize_small(224)|central_crop(224)'"
            )
        text = self.preprocessing.transform
        shape = shape_of_image(text, "transform")
        check_repeatable(text, "transform")
        self._batched.check_shape(shape)
        return Transform(text), shape

    @functools.cached_property
    def _batched(self) -> BatchedModel:
        return BatchedModel(self, self.batch_size)

    def _tell_broken(
        self, batch: ImageBatch, given: Sequence[Any], broken: str, before: int
    ) -> None:
        """Names the broken images of a batch in an error or in the log."""
        named = [f"{given_images.name_image(given[n], n)}: {w}" for n, w in batch.faults.items()]
        if named and broken == "error":
            more = f" (and {len(named) - 1} more are broken)" if len(named) > 1 else ""
            advice = "embed_images(..., broken='nan') gives such images rows of NaN"
            raise BrokenImages(f"{named[0]}{more}", advice)
        for text in named[: max(0, NAMED_FIRST - before)]:
            logging.warning("%s; its row is NaN", text)

    def _embed_or_take(
        self,
        given: Any,
        embed: Callable[[Any], Float[np.ndarray, "n d"]],
        is_one: Callable[[Any], bool] = lambda _: False,
    ) -> tuple[Float[np.ndarray, "n d"], bool]:
        """Embeds, unless embeddings are given; also returns whether there was only one."""
        rows = ranking.read_embeddings(given)
        if rows is None:
            return embed(given), is_one(given)
        return np.atleast_2d(rows), rows.ndim == 1


def load(
    path: str | os.PathLike,
    transform: str | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    progress: bool = True,
) -> LoadedModel:
    """Loads any model: what a run has trained, or weights of other libraries.

    Args:
      path: a workdir, for its newest checkpoint, `WORKDIR/checkpoints/STEP`,
        `WORKDIR/checkpoints/best`; a folder of transformers, open_clip, timm or big_align; a file
        of weights (`.safetensors`, `.pt`, `.bin`, `.pth`) with names of timm, open_clip,
        efficientnet_pytorch, UniCL or MoBY; `package:MODULE/PATTERN`, one in an installed package;
        or a repository of a hub, `hf-hub:OWNER/NAME`, perhaps with `@REVISION`.
      transform: image operations in place of the model's own, such as
        "resize_small(224)|central_crop(224)".
      tokenizer: in place of the model's own, as in `config.tokenizer`: its `name` and settings.
      batch_size: the most rows of a batch, over all devices; None for 64 per device.
      progress: whether work of more than a second shows a progress bar.

    Returns:
      The model. `embed_images`, `embed_texts`, `classify` and `rank` take files and texts;
      `.model` and `.variables` are what flax needs.

    Raises:
      FileNotFoundError: there is nothing at the path.
      MissingCheckpoint: the workdir has no complete checkpoint, or not the given one.
      CheckpointMismatch: the workdir was trained with another tokenizer.
      UserError: the path is none of these, or damaged, or has weights of a model that there is
        not; or an image operation is unknown.
    """
    with library_messages.without_orbax():
        pretrained = workdir.read_pretrained(path, tokenizer)
    if transform:
        pretrained = pretrained.with_transform(transform)
    return LoadedModel.of(pretrained, batch_size=batch_size, progress=progress)


def _check_finite(rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    if not np.isfinite(rows).all():
        raise UserError("an embedding is not finite; are the weights of the model damaged?")
    return rows
