"""iCLIP (Wei et al. 2023, §3.2): images are classified over all classes and the batch's captions.

The classifier's weights are the embeddings of the class texts "a photo of a NAME, DESCRIPTION"
(eq. 5), which the text encoder computes again in every step. A labeled image's positive is the text
of its class, a captioned image's positives are its own captions, and the candidates of both are the
texts of all classes and all captions of the batch (eq. 6).
"""

from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from big_align.core.errors import check_known
from big_align.core.types import Batch, Logits, Metrics, ModelState, Outputs, Params
from big_align.data.labels.classes import ClassList
from big_align.data.text.tokenizers import Tokenizer
from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.losses.classification import labeled_rows
from big_align.losses.contrastive import compute_logits
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.parts.class_texts import ClassTexts, tokenize_classes
from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.contrast import KEEP_LOGITS_BYTES, describe_directions
from big_align.objectives.parts.encoders import TwoTowers, real_texts
from big_align.objectives.parts.temperature import LogScale
from big_align.parallel.shards import concatenate_rows

DIRECTIONS = ("both", "image_to_text", "all")


class Iclip(ComposedObjective):
    """Trains with one softmax over the texts of all classes and the captions of the batch.

    The positive of a row with a label is the text of its class; the row's text in the batch takes
    no part. A row with a negative label is an image with its captions. A row whose label is beyond
    the last class takes no part at all, as if it were masked; the metric `labels_outside` counts
    these.

    In eq. 6 only images are queries, which without labels is one direction of CLIP. `direction`
    says whether texts are queries too, in a softmax over the images of the batch:

      "both": captions are. A class text is not: the images it is compared with would depend on
        which classes the batch has, while eq. 6 was designed to compare with all.
      "image_to_text": no text is, as in eq. 6.
      "all": captions are, and every class that has an image in the batch, once.

    The loss is the sum of eq. 6 and the mean over the text queries, the latter times the number of
    labels among the queries (a captioned image is one, with all its captions) per image. So each
    term has the weight of one over the number of images, as in eq. 6: the weight of an example does
    not depend on how many captions happen to be in its batch, while a plain mean would give a
    single one the weight of all images together. Without captions the loss is eq. 6; without labels
    it is ALIGN's sum of both directions, with the class texts as further candidates of the images.

    Args:
      model: the dual encoder; its text tower has no running statistics.
      mesh: the devices over which class texts are encoded and the loss is computed.
      classes: the classes that labels refer to.
      tokenizer: turns class texts into ids, as it does with captions.
      template: class text, with {} in place of the name and {description} in place of what the
        class means (eq. 5).
      chunk: number of class texts that a device encodes at a time.
      direction: "both", "image_to_text" or "all".
      temperature: initial value of exp(-tau); not given for iCLIP, CLIP §2.5: 0.07.
      min_temperature: lower bound of exp(-tau) (CLIP §2.5: logits scaled by 100 at most).

    Raises:
      ValueError: a value is out of range, or no class has the description that is asked for.
    """

    def __init__(
        self,
        model: DualEncoder,
        mesh: Mesh,
        classes: ClassList,
        tokenizer: Tokenizer,
        template: str = "a photo of a {}, {description}",
        chunk: int = 128,
        direction: str = "both",
        temperature: float = 0.07,
        min_temperature: float = 0.01,
        keep_logits_bytes: int = KEEP_LOGITS_BYTES,
    ):
        super().__init__(TwoTowers(model), mesh, LogScale(temperature, min_temperature))
        check_known("direction", direction, DIRECTIONS)
        ids = tokenize_classes(classes, template, tokenizer)
        self.class_texts = ClassTexts(*ids, mesh, chunk)
        self.direction = direction
        self.keep_logits_bytes = keep_logits_bytes

    def prepare(self, params: Params, batch: Batch, rng: PRNGKeyArray) -> Float[Array, "p d"]:
        """Embeds the texts of all classes, in training mode; further rows are padding."""
        return self._encode_classes(params, rng)

    def _encode_classes(self, params: Params, rng: PRNGKeyArray | None) -> Float[Array, "p d"]:
        """Embeds the texts of all classes; in evaluation mode if `rng` is None."""

        def encode_text(params: Params, text: Array, text_mask: Array, key: Array | None) -> Any:
            return self.model.apply(
                {"params": params},
                text,
                text_mask,
                train=key is not None,
                rngs={} if key is None else {"dropout": key},
                method="encode_text",
            )

        return self.class_texts.encode(encode_text, params["model"], rng)

    def loss(
        self, params: Params, outputs: Outputs, prepared: Float[Array, "p d"], batch: Batch
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns eq. 6, plus the other direction as set by `direction`."""
        label, num_classes = batch["label"], self.class_texts.count
        labeled = labeled_rows(label, batch["mask"], num_classes)
        pair = batch["mask"] & (label < 0)
        captions = real_texts(batch).reshape(len(label), -1) & pair[:, None]
        own_label = len(prepared) + jnp.arange(len(label))  # for pairs; no class has it
        scale = self.scale(params)
        image_to_text, text_to_image = directions = blockwise_contrastive_loss(
            outputs["zimg"],
            scale=scale,
            image_label=jnp.where(labeled, label, own_label),
            image_mask=labeled | pair,
            mesh=self.mesh,
            keep_logits_bytes=self.keep_logits_bytes,
            **self._join_texts(prepared, outputs["ztxt"], own_label, captions),
        )
        captioned = captions.any(axis=1).sum()
        seen = jnp.zeros(num_classes, bool).at[label].max(labeled, mode="drop").sum()
        queries: Any = {"both": captioned, "image_to_text": 0, "all": captioned + seen}
        fraction = queries[self.direction] / jnp.maximum(labeled.sum() + captioned, 1)
        outside = (batch["mask"] & (label >= num_classes)).sum().astype(jnp.float32)
        metrics = describe_directions(directions, scale) | {"labels_outside": outside}
        return image_to_text + fraction * text_to_image, metrics

    def _join_texts(
        self,
        of_classes: Float[Array, "p d"],
        of_captions: Float[Array, "b *k d"],
        own_label: Int[Array, " b"],
        captions: Bool[Array, "b k"],
    ) -> dict[str, Any]:
        """Returns the text arguments of the loss, for the classes and the captions of the batch."""
        texts = {
            "ztxt": (of_classes, of_captions.reshape(captions.size, -1)),
            "text_label": (
                jnp.arange(len(of_classes)),
                jnp.repeat(own_label, captions.shape[1]),
            ),
            "text_mask": (jnp.asarray(self.class_texts.mask), captions.ravel()),
            "text_queries": (
                jnp.full(len(of_classes), self.direction == "all"),
                jnp.full(captions.size, self.direction != "image_to_text"),
            ),
        }
        return {name: concatenate_rows(x, self.mesh) for name, x in texts.items()}

    def classify(self, params: Params, model_state: ModelState, batch: Batch) -> Logits:
        """Returns the logits of the classes from their texts, in evaluation mode."""
        zimg = self.embed_image(params, model_state, batch)
        ztxt = self._encode_classes(params, None)[: self.class_texts.count]
        return compute_logits(zimg, ztxt, self.scale(params))
