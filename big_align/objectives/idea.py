"""IDEA (Huang et al. 2022): the tags in captions train a recognizer, whose finds become texts.

Captions name some of what an image shows. A head on the image tower learns their tags, and after a
while finds others (§3.2). An image with found tags gets a second text, made of tags, in the same
step (§3.3), and contrastive learning has two positives for it.

Eq. 6 is the mean of both directions of KL(target || softmax), each row's target spread evenly over
its positives. (It is written with its arguments exchanged, which is infinite wherever a target is
0; and Algorithm 1 has targets of 1 for both texts of an image, which is no distribution.) So it is
CLIP's cross-entropy less the entropy of the targets: without a found tag it is CLIP's loss, and an
image whose two texts fit it alike loses nothing by having two.
"""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, DTypeLike, Float, Int, PRNGKeyArray, UInt8

from big_align.data.tags.tag_list import TagList
from big_align.data.text.tokenizers import Tokenizer
from big_align.errors import UserError
from big_align.losses.tag_recognition import (
    LOSSES,
    find_tags,
    mark_tags,
    measure_found,
    tag_recognition_loss,
)
from big_align.models.dual_encoder import DualEncoder
from big_align.models.ml_decoder import MLDecoder
from big_align.objectives.cross_entropy import make_classifier
from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.contrast import Contrast, describe_directions
from big_align.objectives.parts.encoders import Encoder, TwoTowers, flatten_texts, real_texts
from big_align.objectives.parts.tag_texts import TagTexts
from big_align.objectives.parts.temperature import LogScale
from big_align.types import Batch, Metrics, ModelState, Outputs, Params

HEADS = ("ml_decoder", "cls")


@dataclasses.dataclass(frozen=True)
class Recognizer:
    """What scores the tags of an image, and how it learns (§3.2, Table 3).

    Attributes:
      head: "ml_decoder" on the spatial tokens, or "cls", a linear layer on the pooled features.
      decoder_width: of the ML-Decoder, whose perceptron is 8/3 as wide; a multiple of 8. Its
        default adds the FLOPs that the paper counts (§4.5) with its other defaults.
      decoder_groups: queries of the ML-Decoder (its authors: 100).
      loss: "bce", "weighted_bce", "splc" or "splc_focal", see `losses.tag_recognition`.
      prior: probability of every tag before training, which the bias of the logits makes (Lin et
        al. 2017, §3.3). SPLC strengthens what it finds: a tag that starts near the threshold, as
        without a bias all do, and has not sunk by `change_step`, is found in every image for good.

    Raises:
      ValueError: a value is out of its range.
    """

    head: str = "ml_decoder"
    decoder_width: int = 768
    decoder_groups: int = 100
    loss: str = "splc"
    prior: float = 0.01

    def __post_init__(self):
        for field, known in (("head", HEADS), ("loss", LOSSES)):
            if (value := getattr(self, field)) not in known:
                raise ValueError(f"{field} = {value!r} is unknown; known: {', '.join(known)}")
        check_probability("prior", self.prior)
        width, groups = self.decoder_width, self.decoder_groups
        if width < 8 or width % 8:
            raise ValueError(f"decoder_width = {width} is no multiple of the 8 heads")
        if groups < 1:
            raise ValueError(f"decoder_groups = {groups} must be at least 1")

    @property
    def spatial(self) -> bool:
        """Whether the head reads spatial tokens."""
        return self.head == "ml_decoder"

    def make_head(self, num_tags: int, dtype: DTypeLike) -> nn.Module:
        """Makes the module from what it reads of an image to logits of the tags."""
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


def check_probability(name: str, value: float) -> None:
    """Checks that a probability is neither 0 nor 1.

    Raises:
      ValueError: it is not between them.
    """
    if not 0 < value < 1:
        raise ValueError(f"{name} = {value} is not in (0, 1): it is a probability")


class Idea(ComposedObjective):
    """Trains by contrast, and by recognition of tags whose finds become further texts (eq. 7).

    The batch has `tags`, those of the texts that an example was given, and where it is known
    `true_tags`, all tags of the image. The parameters are `model`, `log_scale` and `recognizer`.
    The ablations are settings: Tables 1 and 4 go from `recognition=False` over `tag_to_text=False`
    and `retain=False` to the defaults (RmTopFreq is a property of the tag list), Table 3 sets
    `head` and `loss`.

    Args:
      model: the dual encoder.
      mesh: over which the contrastive loss is computed.
      tags: what is recognized.
      tokenizer: that of the captions.
      recognition: False leaves contrastive learning alone, which is CLIP.
      recognizer: scores tags.
      threshold: of the probability above which a tag is found (§4.1: 0.6).
      change_step: steps before any tag is found (§4.1: one epoch).
      tag_to_text: whether found tags become texts.
      retain: whether the given tags stand in these texts too.
      temperature: initial value of exp(-tau); the paper does not say, CLIP §2.5: 0.07.
      min_temperature: lower bound of exp(-tau) (CLIP §2.5: logits scaled by 100 at most).

    Raises:
      UserError: the tag list was made for another vocabulary.
      ValueError: a value is out of its range, or a text is too short for a tag.
    """

    def __init__(
        self,
        model: DualEncoder,
        mesh: Mesh,
        tags: TagList,
        tokenizer: Tokenizer,
        recognition: bool = True,
        recognizer: Recognizer = Recognizer(),
        threshold: float = 0.6,
        change_step: int = 0,
        tag_to_text: bool = True,
        retain: bool = True,
        temperature: float = 0.07,
        min_temperature: float = 0.01,
    ):
        check_probability("threshold", threshold)
        if change_step < 0:
            raise ValueError(f"change_step = {change_step} must be at least 0")
        self.tags = tags
        self.change_step = change_step
        self.loss_name = recognizer.loss
        written = TagTexts(tags, tokenizer) if recognition and tag_to_text else None
        self.recognition = None
        if recognition:
            finder = TagFinder(tags, threshold, written, retain)
            self.recognition = RecognizingTowers(model, recognizer, finder)
        encoder = self.recognition or TwoTowers(model)
        super().__init__(encoder, mesh, LogScale(temperature, min_temperature))
        self.contrast = Contrast(mesh)

    def augment(self, batch: Batch, rng: PRNGKeyArray, step: Int[Array, ""]) -> Batch:
        """Adds `correcting` [b]: whether tags are found yet."""
        correcting = jnp.broadcast_to(step >= self.change_step, batch["mask"].shape)
        return {**batch, "correcting": correcting}

    def loss(
        self, params: Params, outputs: Outputs, prepared: None, batch: Batch
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns eq. 7, the sum of recognition and contrast."""
        if self.recognition is None:
            return self._compare(params, outputs, batch)
        finder = self.recognition.finder
        given, found = finder.find(batch, outputs["logits"])
        mask, new = batch["mask"], found.any(axis=1)
        texts = {**batch, "text_mask": finder.mark_texts(batch, new)}
        itc, metrics = self._compare(params, outputs, texts)
        mlr = tag_recognition_loss(
            self.loss_name, outputs["logits"], given, found, mask, jnp.asarray(self.tags.weights)
        )
        true = mark_tags(batch["true_tags"], given.shape[1]) if "true_tags" in batch else None
        metrics |= {"itc_loss": itc, "mlr_loss": mlr} | measure_found(given, found, mask, true)
        if finder.written is not None:
            metrics["images_with_new_text"] = new.sum() / jnp.maximum(mask.sum(), 1)
        return itc + mlr, metrics

    def _compare(
        self, params: Params, outputs: Outputs, batch: Batch
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns the mean of both terms of eq. 6; a text has one image, which has no entropy."""
        scale = self.scale(params)
        image_to_text, text_to_image = self.contrast(scale, outputs, batch)
        texts = real_texts(batch).reshape(len(batch["mask"]), -1).sum(axis=1)
        entropy = jnp.log(jnp.maximum(texts, 1)).sum() / jnp.maximum((texts > 0).sum(), 1)
        directions = image_to_text - entropy, text_to_image
        return sum(directions) / 2, describe_directions(directions, scale)

    def recognize(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b c"]:
        """Returns the logits of the tags, in evaluation mode.

        Raises:
          UserError: there is no recognizer.
        """
        if self.recognition is None:
            raise UserError(
                "config.objective.recognition = False trains no recognizer: leave out the "
                "evaluators of tags, or set it to True"
            )
        return self.recognition.recognize(params, model_state, batch)


class TagFinder:
    """Tells which tags were found, and writes texts of them (§3.3).

    Args:
      tags: what is recognized.
      threshold: of the probability above which a tag is found.
      written: writes texts of tags; None writes none.
      retain: whether the given tags stand in these texts too.
    """

    def __init__(self, tags: TagList, threshold: float, written: TagTexts | None, retain: bool):
        self.num_tags = len(tags.names)
        self.threshold = threshold
        self.written = written
        self.retain = retain

    def find(
        self, batch: Batch, logits: Float[Array, "b c"]
    ) -> tuple[Bool[Array, "b c"], Bool[Array, "b c"]]:
        """Returns the tags that are given and those that are found."""
        given = mark_tags(batch["tags"], self.num_tags)
        options = batch["mask"], batch["correcting"], self.threshold
        return given, find_tags(logits, given, *options)

    def join_texts(
        self, batch: Batch, logits: Float[Array, "b c"]
    ) -> tuple[Int[Array, "b *k l"], Bool[Array, "b *k l"]]:
        """Returns the captions, and behind those of each image the text of its tags."""
        texts = jnp.asarray(batch["text"]), jnp.asarray(batch["text_mask"])
        if self.written is None:
            return texts
        given, found = self.find(batch, logits)
        chosen = found | given if self.retain else found
        written = self.written(chosen & found.any(axis=1, keepdims=True))
        length = texts[0].shape[-1]
        return tuple(
            jnp.concatenate([old.reshape(len(found), -1, length), new[:, None]], axis=1)
            for old, new in zip(texts, written, strict=True)
        )

    def mark_texts(self, batch: Batch, new: Bool[Array, " b"]) -> Bool[Array, "b *k l"]:
        """Returns a mask of texts, one place a text: of the captions, and of the new ones."""
        if self.written is None:
            return batch["text_mask"]
        captions = real_texts(batch).reshape(len(new), -1)
        return jnp.concatenate([captions, new[:, None]], axis=1)[:, :, None]


class RecognizingTowers(Encoder):
    """Encodes images, recognizes their tags, and encodes their texts with those of found tags.

    Args:
      model: the dual encoder.
      recognizer: scores tags.
      finder: makes texts of them.
    """

    def __init__(self, model: DualEncoder, recognizer: Recognizer, finder: TagFinder):
        super().__init__(model)
        self.finder = finder
        self.spatial = recognizer.spatial
        self.head = recognizer.make_head(finder.num_tags, model.image.dtype)

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes the towers' parameters and the recognizer's."""
        params, state = self.init_by(None, rng, batch["image"], *flatten_texts(batch))
        features, tokens = jax.eval_shape(
            lambda image: self.apply("image_tokens", params, state, image), batch["image"]
        )
        read = tokens if self.spatial else features
        blank = jnp.zeros(read.shape, read.dtype)
        recognizer = self.head.init(jax.random.fold_in(rng, 1), blank)["params"]
        return params | {"recognizer": recognizer}, state

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Returns `zimg` [b d], `logits` [b c] of the tags, and `ztxt` [b d].

        With texts of tags the latter is [b k + 1 d]: embeddings of the captions, then of the text
        of tags, which means nothing where no tag was found.
        """

        def read(features: Array, tokens: Array) -> tuple[Array, Array, Array]:
            key = jax.random.fold_in(rng, 1)
            logits = self._score(params, features, tokens, dropout=key)
            return logits, *self.finder.join_texts(batch, logits)

        (zimg, ztxt, logits), state = self.train(
            params, model_state, rng, batch["image"], read, method=_encode_all
        )
        return {"zimg": zimg, "ztxt": ztxt, "logits": logits}, state

    def _score(
        self,
        params: Params,
        features: Float[Array, "b f"],
        tokens: Float[Array, "b t d"],
        dropout: PRNGKeyArray | None = None,
    ) -> Float[Array, "b c"]:
        """Returns the logits of the tags; with a key in training mode."""
        variables = {"params": params["recognizer"]}
        if not self.spatial:
            return self.head.apply(variables, features)
        rngs = {} if dropout is None else {"dropout": dropout}
        return self.head.apply(variables, tokens, dropout is not None, rngs=rngs)

    def recognize(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b c"]:
        """Returns the logits of the tags, in evaluation mode."""
        read = self.apply("image_tokens", params, model_state, batch["image"])
        return self._score(params, *read)


def _encode_all(
    model: DualEncoder, image: UInt8[Array, "b h w 3"] | Float[Array, "b h w 3"], read
) -> tuple[Float[Array, "b d"], Float[Array, "b *k d"], Float[Array, "b c"]]:
    """Encodes in training mode; what is read from the image is among the texts."""
    features, tokens = model.image_tokens(image, train=True)
    logits, text, text_mask = read(features, tokens)
    length = text.shape[-1]
    ztxt = model.encode_text(text.reshape(-1, length), text_mask.reshape(-1, length), train=True)
    return model.embed_features(features, True), ztxt.reshape(*text.shape[:-1], -1), logits
