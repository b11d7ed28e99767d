"""Recognizes the tags of images, and finds those that captions leave out (IDEA, §3.2, §3.3)."""

import dataclasses
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from big_align.core.errors import check_at_least, check_known
from big_align.core.types import Batch, Features, ModelState, Outputs, Params
from big_align.data.tags.tag_list import TagList
from big_align.losses.tag_recognition import LOSSES, find_tags, mark_tags
from big_align.models.dual_encoder import DualEncoder, normalize
from big_align.models.ml_decoder import MLDecoder
from big_align.objectives.parts.classifier import make_classifier, run_layer
from big_align.objectives.parts.encoders import Encoder, read_features, real_texts
from big_align.objectives.parts.tag_texts import TagTexts, choose_written

HEADS = ("ml_decoder", "cls")
EMPTY_TEXTS = ("candidates", "rows", "left_out")


@dataclasses.dataclass(frozen=True)
class Recognizer:
    """What scores the tags of an image, and how it learns (§3.2, Table 3).

    Attributes:
      head: "ml_decoder" on the spatial tokens, or "cls", a linear layer on the pooled features.
      decoder_width: width of the ML-Decoder, whose perceptron is 8/3 as wide; a multiple of 8.
        Together with the other defaults, the default adds the FLOPs that the paper counts (§4.5).
      decoder_groups: number of queries of the ML-Decoder (its authors: 100).
      loss: "bce", "weighted_bce", "splc" or "splc_focal", see `losses.tag_recognition`.
      prior: probability of every tag before training, set by the bias of the logits
        (Lin et al. 2017, §3.3). SPLC strengthens what it finds: a tag that starts near the
        threshold, as all do without a bias, and has not fallen by `change_step`, is found in every
        image from then on.
    """

    head: str = "ml_decoder"
    decoder_width: int = 768
    decoder_groups: int = 100
    loss: str = "splc"
    prior: float = 0.01

    def __post_init__(self):
        check_known("head", self.head, HEADS)
        check_known("loss", self.loss, LOSSES)
        check_probability("prior", self.prior)
        width, groups = self.decoder_width, self.decoder_groups
        if width < 8 or width % 8:
            raise ValueError(f"decoder_width = {width} is no multiple of the 8 heads")
        check_at_least(1, decoder_groups=groups)

    @property
    def spatial(self) -> bool:
        """Whether the head reads spatial tokens."""
        return self.head == "ml_decoder"

    def make_head(self, num_tags: int, dtype: str) -> nn.Module:
        """Makes the module from the image features it reads to logits of the tags."""
        bias = math.log(self.prior / (1 - self.prior))
        if not self.spatial:
            init = nn.initializers.constant(bias)
            return make_classifier(num_tags).clone(bias_init=init)
        return MLDecoder(
            classes=num_tags,
            groups=self.decoder_groups,
            width=self.decoder_width,
            mlp_dim=self.decoder_width * 8 // 3,
            initial_bias=bias,
            dtype=dtype,
        )


@dataclasses.dataclass(frozen=True)
class Discovery:
    """When tags that the captions of an image leave out are found, and how they are used.

    Attributes:
      threshold: probability above which a tag is found (§4.1: 0.6).
      change_step: steps before any tag is found (§4.1: one epoch).
      tag_to_text: whether found tags become texts.
      retain: whether these texts also contain the given tags.
      empty_texts: where the empty text of an image without found tags takes part in eq. 6:
        "candidates" of every image (§3.3, Algorithm 1); also as "rows" of the text-to-image mean,
        each with a loss of 0 (the authors' code); or "left_out".
    """

    threshold: float = 0.6
    change_step: int = 0
    tag_to_text: bool = True
    retain: bool = True
    empty_texts: str = "candidates"

    def __post_init__(self):
        check_probability("threshold", self.threshold)
        check_known("empty_texts", self.empty_texts, EMPTY_TEXTS)
        check_at_least(0, change_step=self.change_step)


def check_probability(name: str, value: float) -> None:
    """Raises a ValueError if a probability is not between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name} = {value} is not in (0, 1): it is a probability")


RECOGNIZER, DISCOVERY = Recognizer(), Discovery()
"""The published settings."""


class TagFinder:
    """Determines which tags were found, and writes texts of them (§3.3) where `written` does."""

    def __init__(self, tags: TagList, discovery: Discovery, written: TagTexts | None):
        self.num_tags = len(tags.names)
        self.discovery = discovery
        self.written = written

    def find(
        self, batch: Batch, logits: Float[Array, "b c"]
    ) -> tuple[Bool[Array, "b c"], Bool[Array, "b c"]]:
        """Returns the given tags and the found tags."""
        given = mark_tags(batch["tags"], self.num_tags)
        options = batch["mask"], batch["correcting"], self.discovery.threshold
        return given, find_tags(logits, given, *options)

    def join_texts(
        self, batch: Batch, logits: Float[Array, "b c"]
    ) -> tuple[Int[Array, "b *k l"], Bool[Array, "b *k l"]]:
        """Returns the captions, followed by the text of the tags of each image."""
        texts = jnp.asarray(batch["text"]), jnp.asarray(batch["text_mask"])
        if self.written is None:
            return texts
        given, found = self.find(batch, logits)
        written = self.written(choose_written(given, found, self.discovery.retain))
        length = texts[0].shape[-1]
        text, mask = (
            jnp.concatenate([old.reshape(len(found), -1, length), new[:, None]], axis=1)
            for old, new in zip(texts, written, strict=True)
        )
        return text, mask

    def mark_texts(
        self, batch: Batch, new: Bool[Array, " b"]
    ) -> tuple[Bool[Array, "b k"], Bool[Array, "b k"] | None]:
        """Returns which texts take part, the captions and then those of tags, and which are empty.

        `new` images are those in which tags are found.
        """
        captions = real_texts(batch).reshape(len(new), -1)
        if self.written is None:
            return captions, None
        if self.discovery.empty_texts == "left_out":
            return jnp.concatenate([captions, new[:, None]], axis=1), None
        empty = jnp.concatenate([jnp.zeros_like(captions), ~new[:, None]], axis=1)
        empty &= batch["mask"][:, None]
        return jnp.concatenate([captions, batch["mask"][:, None]], axis=1), empty


class TagScorer:
    """Scores the tags of images, given what an image tower makes of them.

    Its parameters are `recognizer`, besides those of the towers.
    """

    def __init__(self, recognizer: Recognizer, num_tags: int, dtype: str):
        self.spatial = recognizer.spatial
        self.takes_features = () if self.spatial else ("image_embedding",)
        self.head = recognizer.make_head(num_tags, dtype)

    def init(
        self, encoder: Encoder, rng: PRNGKeyArray, params: Params, state: ModelState, batch: Batch
    ) -> Params:
        """Returns the parameters of an encoder's towers together with its own."""
        features, tokens = jax.eval_shape(
            lambda image: encoder.apply("image_tokens", params, state, image), batch["image"]
        )
        read = tokens if self.spatial else features
        blank = jnp.zeros(read.shape, read.dtype)
        return params | {"recognizer": self.head.init(jax.random.fold_in(rng, 1), blank)["params"]}

    def __call__(
        self,
        params: Params,
        features: Float[Array, "b f"],
        tokens: Float[Array, "b t d"] | None,
        dropout: PRNGKeyArray | None = None,
    ) -> Float[Array, "b c"]:
        """Returns the logits of the tags; in training mode if there is a dropout key.

        A linear layer on pooled features needs no tokens.
        """
        weights = params["recognizer"]
        if not self.spatial:
            return run_layer(self.head, weights, features)
        rngs = {} if dropout is None else {"dropout": dropout}
        return run_layer(self.head, weights, tokens, dropout is not None, rngs=rngs)

    def recognize(
        self, encoder: Encoder, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b c"]:
        """Returns the logits of the tags, in evaluation mode."""
        return self(params, *encoder.apply("image_tokens", params, model_state, batch["image"]))


class RecognizingTowers(Encoder):
    """Encodes images, recognizes their tags, and encodes their texts with those of found tags.

    A batch may hold the pooled features of a locked image tower if the recognizer reads no others.
    """

    def __init__(self, model: DualEncoder, scorer: TagScorer, finder: TagFinder):
        super().__init__(model)
        self.scorer, self.finder = scorer, finder
        self.takes_features = scorer.takes_features

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes the towers' parameters and the recognizer's."""
        params, state = super().init(rng, batch)
        return self.scorer.init(self, rng, params, state, batch), state

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Returns `zimg` [b d], `logits` [b c] of the tags, and `ztxt` [b d].

        With texts of tags, `ztxt` is [b k + 1 d]: embeddings of the captions, then of the text of
        tags, which is meaningless if no tag was found.
        """

        def read(features: Array, tokens: Array | None) -> tuple[Array, Array, Array]:
            key = jax.random.fold_in(rng, 1)
            logits = self.scorer(params, features, tokens, dropout=key)
            return logits, *self.finder.join_texts(batch, logits)

        (zimg, ztxt, logits), state = self.train(_encode_all, params, model_state, batch, rng, read)
        return {"zimg": zimg, "ztxt": ztxt, "logits": logits}, state


class RecognizingImageTower(Encoder):
    """Encodes images alone, and recognizes their tags; a text tower, if any, is left out."""

    def __init__(self, model: DualEncoder, scorer: TagScorer, no_texts: str):
        super().__init__(model, no_texts)
        self.scorer = scorer
        self.takes_features = scorer.takes_features

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes the image tower's parameters and the recognizer's."""
        params, state = self.init_by("image_tokens", rng, batch["image"])
        return self.scorer.init(self, rng, params, state, batch), state

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Returns `logits` [b c] of the tags."""
        (features, tokens), state = self.train(_read_image, params, model_state, batch, rng)
        # The dropout keys are those of training with texts.
        dropout = jax.random.fold_in(rng, 1)
        return {"logits": self.scorer(params, features, tokens, dropout)}, state

    def embed_image(self, params: Params, model_state: ModelState, batch: Batch) -> Features:
        """Returns the features at unit length: no projection is trained."""
        return normalize(self.image_features(params, model_state, batch))


def _read_image(
    model: DualEncoder, batch: Batch
) -> tuple[Float[Array, "b f"], Float[Array, "b t d"] | None]:
    """Returns the pooled features of images and their tokens, in training mode.

    Features of a locked tower in the batch have no tokens.
    """
    if "image_embedding" in batch:
        return read_features(model, batch, "image_embedding"), None
    return model.image_tokens(batch["image"], train=True)


def _encode_all(
    model: DualEncoder, batch: Batch, read: Callable[..., tuple[Array, Array, Array]]
) -> tuple[Float[Array, "b d"], Float[Array, "b *k d"], Float[Array, "b c"]]:
    """Encodes in training mode; the texts come from `read`, which gets the image's features."""
    features, tokens = _read_image(model, batch)
    logits, text, text_mask = read(features, tokens)
    length = text.shape[-1]
    ztxt = model.encode_text(text.reshape(-1, length), text_mask.reshape(-1, length), train=True)
    return model.embed_features(features, True), ztxt.reshape(*text.shape[:-1], -1), logits
