"""IDEA (Huang et al. 2022): tags in captions train a recognizer; the tags it finds become texts.

Captions name some of what an image shows. A head on the image tower learns their tags, and after a
while finds others (§3.2). In the same step, an image with found tags gets a second text made of
tags (§3.3), so contrastive learning has two positives for it.

Eq. 6 is the mean over both directions of KL(target || softmax), where each row's target is spread
evenly over its positives. (The paper exchanges the arguments, which is infinite wherever a target
is 0; and Algorithm 1 has targets of 1 for both texts of an image, which is not a distribution.) So
it is a cross-entropy minus the entropy of the targets: an image whose two texts fit it equally well
loses nothing by having two.

An image without found tags has an empty string for a second text (§3.3). It is a column of the
similarity matrix with a target of 0 for every image (Algorithm 1): M images are compared with 2M
texts. As a row it has no target, so its divergence is 0, and the mean from texts to images is over
the rows that have one. The authors' code counts it in that mean (`empty_texts="rows"`). Where it is
left out (`"left_out"`), and no tag is found, eq. 6 is CLIP's loss.

Eq. 7 is the plain sum of both losses. The authors' code divides each loss by its own value, so that
both weigh the same however large they are, and takes the mean over tags instead of eq. 1's sum.
"""

from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from big_align.core.errors import UserError
from big_align.core.types import Batch, Logits, MeasuredLoss, Metrics, ModelState, Outputs, Params
from big_align.data.tags.tag_list import TagList
from big_align.data.text.tokenizers import Tokenizer
from big_align.losses.tag_recognition import mark_tags, measure_found, tag_recognition_loss
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.contrast import Contrast, describe_directions
from big_align.objectives.parts.encoders import Encoder, TwoTowers
from big_align.objectives.parts.tag_recognizer import (
    DISCOVERY,
    RECOGNIZER,
    Discovery,
    Recognizer,
    RecognizingImageTower,
    RecognizingTowers,
    TagFinder,
    TagScorer,
)
from big_align.objectives.parts.tag_texts import TagTexts
from big_align.objectives.parts.temperature import LogScale

NO_TEXTS = (
    "config.objective.contrast = False has no text side: leave out evaluators that embed texts "
    "(zero_shot, retrieval), or set it to True"
)


class Idea(ComposedObjective):
    """Trains by contrast, and by recognizing tags that become further texts when found (eq. 7).

    The batch has `tags`, those of the texts that an example was given, and, if known, `true_tags`,
    all tags of the image. The parameters are `model`, `log_scale` and `recognizer`. The ablations
    are settings: Tables 1 and 4 go from `recognition=False` via `tag_to_text=False` and
    `retain=False` to the defaults (RmTopFreq is a property of the tag list). Table 1's second row
    is `contrast=False`, recognition alone, and so are the rows of Table 3, which also set `head`
    and `loss`.

    Without contrast, the loss is that of recognition. Texts are not encoded, and there is nothing
    that only contrast would train: no text tower, projections or temperature. Captions are read
    only for their tags.

    Args:
      model: the dual encoder.
      mesh: the devices over which the contrastive loss is computed.
      tags: the tags to recognize.
      tokenizer: the tokenizer of the captions.
      contrast: False trains recognition alone.
      recognition: False trains contrast alone, which is CLIP.
      recognizer: scores tags.
      discovery: when tags are found, and how they are used.
      temperature: initial value of exp(-tau); the paper does not say, CLIP §2.5: 0.07.
      min_temperature: lower bound of exp(-tau) (CLIP §2.5: logits scaled by 100 at most).

    Raises:
      UserError: the tag list was made for another vocabulary.
      ValueError: a value is out of range, a text is too short for a tag, or nothing is trained.
    """

    def __init__(
        self,
        model: DualEncoder,
        mesh: Mesh,
        tags: TagList,
        tokenizer: Tokenizer,
        contrast: bool = True,
        recognition: bool = True,
        recognizer: Recognizer = RECOGNIZER,
        discovery: Discovery = DISCOVERY,
        temperature: float = 0.07,
        min_temperature: float = 0.01,
    ):
        if not contrast and not recognition:
            raise ValueError("contrast and recognition are both False: nothing is trained")
        self.tags = tags
        self.change_step = discovery.change_step
        self.loss_name = recognizer.loss
        self.counts_empty = discovery.empty_texts == "rows"
        self.scorer: TagScorer | None = None
        self.finder: TagFinder | None = None
        encoder: Encoder = TwoTowers(model)
        if recognition:
            written = TagTexts(tags, tokenizer) if contrast and discovery.tag_to_text else None
            self.finder = TagFinder(tags, discovery, written)
            self.scorer = TagScorer(recognizer, len(tags.names), model.image.dtype)
            encoder = (
                RecognizingTowers(model, self.scorer, self.finder)
                if contrast
                else RecognizingImageTower(model, self.scorer, NO_TEXTS)
            )
        scale = LogScale(temperature, min_temperature)
        super().__init__(encoder, mesh, scale if contrast else None)
        self.contrast: Any = Contrast(mesh) if contrast else None

    def augment(self, batch: Batch, rng: PRNGKeyArray, step: Int[Array, ""]) -> Batch:
        """Adds `correcting` [b]: whether tags are found already."""
        correcting = jnp.broadcast_to(step >= self.change_step, batch["mask"].shape)
        return {**batch, "correcting": correcting}

    def loss(self, params: Params, outputs: Outputs, prepared: None, batch: Batch) -> MeasuredLoss:
        """Returns eq. 7, the sum of recognition and contrast, or the one that is trained."""
        finder = self.finder
        if finder is None:
            return self.contrast.average(self.scale(params), outputs, batch)
        given, found = finder.find(batch, outputs["logits"])
        mask, weights = batch["mask"], jnp.asarray(self.tags.weights)
        mlr = tag_recognition_loss(self.loss_name, outputs["logits"], given, found, mask, weights)
        true = mark_tags(batch["true_tags"], given.shape[1]) if "true_tags" in batch else None
        metrics = {"mlr_loss": mlr} | measure_found(given, found, mask, true)
        if self.contrast is None:
            return mlr, metrics
        new = found.any(axis=1)
        itc, compared = self._compare(params, outputs, batch, *finder.mark_texts(batch, new))
        metrics |= compared | {"itc_loss": itc}
        if finder.written is not None:
            metrics["images_with_new_text"] = new.sum() / jnp.maximum(mask.sum(), 1)
        return itc + mlr, metrics

    def _compare(
        self,
        params: Params,
        outputs: Outputs,
        batch: Batch,
        real: Bool[Array, "b k"],
        empty: Bool[Array, "b k"] | None,
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns the mean of both terms of eq. 6; a text has one image, so its entropy is 0.

        `real` texts take part; `empty` are those of them that are empty, whose target is 0 for
        every image.
        """
        scale = self.scale(params)
        rows = {"mask": batch["mask"], "text_mask": real[:, :, None]}
        image_to_text, text_to_image = self.contrast(scale, outputs, rows, unmatched=empty)
        texts = (real if empty is None else real & ~empty).sum(axis=1)
        entropy = jnp.log(jnp.maximum(texts, 1)).sum() / jnp.maximum((texts > 0).sum(), 1)
        if self.counts_empty:
            text_to_image *= texts.sum() / jnp.maximum(real.sum(), 1)
        directions = image_to_text - entropy, text_to_image
        return (directions[0] + directions[1]) / 2, describe_directions(directions, scale)

    def recognize(self, params: Params, model_state: ModelState, batch: Batch) -> Logits:
        """Returns the logits of the tags, in evaluation mode."""
        if self.scorer is None:
            raise UserError(
                "config.objective.recognition = False trains no recognizer: leave out the "
                "evaluators of tags, or set it to True"
            )
        return self.scorer.recognize(self.encoder, params, model_state, batch)
