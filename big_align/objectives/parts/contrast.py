"""The contrastive term: images classified over the batch's texts, and texts over its images."""

import math
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from big_align.core.errors import UserError, check_known
from big_align.core.types import Batch, Metrics, Outputs
from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.objectives.parts.encoders import real_texts

KEEP_LOGITS_BYTES = 2**28
"""Logits of a device are kept for the backward pass if they fit in this many bytes."""
DIRECTIONS = ("both", "image_to_text", "text_to_image")
"""What is trained: the mean of both directions, or one of them."""


class Contrast:
    """Softmax in both directions over the pairs of a batch, gathered from every device.

    With a `negative_fraction` (ALIGN Table 8) the batch is split into 1 / negative_fraction groups
    that do not see each other; the paper does not say how it drops negatives. `direction`, one of
    `DIRECTIONS`, is for `average`.
    """

    def __init__(
        self,
        mesh: Mesh,
        label_smoothing: float = 0.0,
        keep_logits_bytes: int = KEEP_LOGITS_BYTES,
        direction: str = "both",
        negative_fraction: float = 1.0,
    ):
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing = {label_smoothing} is not in [0, 1)")
        groups = round(1 / negative_fraction) if 0 < negative_fraction <= 1 else 0
        if not groups or not math.isclose(groups * negative_fraction, 1):
            raise ValueError(f"negative_fraction = {negative_fraction} is not 1, 1/2, 1/3, ...")
        check_known("direction", direction, DIRECTIONS)
        self._mesh = mesh
        self._direction = direction
        self._label_smoothing = label_smoothing
        self._groups = groups
        self.keep_logits_bytes = keep_logits_bytes

    def __call__(
        self,
        scale: Float[Array, ""],
        outputs: Outputs,
        batch: Batch,
        label: Int[Array, " b"] | None = None,
        unmatched: Bool[Array, "b k"] | None = None,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Returns the image-to-text and the text-to-image loss, each as a mean over the batch.

        With groups it is the mean over those that have a real row. Images and texts of rows with
        equal labels are positive for each other, with equal weights; by default, those of the same
        row are. `unmatched` texts are candidates of every image and belong to none, so they are no
        rows of the text-to-image mean.
        """
        if len(batch["mask"]) % self._groups:
            raise UserError(
                f"negative_fraction = 1/{self._groups} makes {self._groups} groups, which do not "
                f"divide a batch of {len(batch['mask'])}"
            )
        real = real_texts(batch).reshape(len(batch["mask"]), -1)
        if label is None and (unmatched is not None or real.shape[1] > 1):
            # If each image has one text, passing no labels means the same and saves a sort.
            label = jnp.arange(len(real))
        rows: dict[str, Any] = {k: outputs[k] for k in ("zimg", "ztxt")}
        rows |= {"image_mask": batch["mask"], "text_mask": real}
        if label is not None:
            text_label = jnp.broadcast_to(label[:, None], real.shape)
            if unmatched is not None:
                no_image = jnp.iinfo(label.dtype).min
                text_label = jnp.where(unmatched, no_image, text_label)
            rows |= {"image_label": label, "text_label": text_label}
        # Every group takes each `groups`-th row, so that it has rows on every device.
        rows = {k: x.reshape(-1, self._groups, *x.shape[1:]) for k, x in rows.items()}

        def contrast(group: int) -> tuple[Float[Array, ""], Float[Array, ""]]:
            part = {k: x[:, group] for k, x in rows.items()}
            part["ztxt"] = part["ztxt"].reshape(-1, part["ztxt"].shape[-1])
            part |= {k: part[k].ravel() for k in ("text_mask", "text_label") if k in part}
            return blockwise_contrastive_loss(
                scale=scale,
                label_smoothing=self._label_smoothing,
                mesh=self._mesh,
                keep_logits_bytes=self.keep_logits_bytes,
                **part,
            )

        pairs = [contrast(group) for group in range(self._groups)]
        if self._groups == 1:
            return pairs[0]
        groups = jnp.maximum(rows["image_mask"].any(axis=0).sum(), 1)
        image_to_text, text_to_image = (sum(x) / groups for x in zip(*pairs, strict=True))
        return image_to_text, text_to_image

    def average(
        self,
        scale: Float[Array, ""],
        outputs: Outputs,
        batch: Batch,
        label: Int[Array, " b"] | None = None,
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns the mean of both directions, or the one that is trained, and metrics of both.

        It takes the arguments of a call.
        """
        directions = self(scale, outputs, batch, label)
        metrics = describe_directions(directions, scale)
        both = self._direction == "both"
        mean = (directions[0] + directions[1]) / 2
        return mean if both else metrics[f"{self._direction}_loss"], metrics


def describe_directions(
    directions: tuple[Float[Array, ""], Float[Array, ""]], scale: Float[Array, ""]
) -> Metrics:
    """Returns the metrics of both directions and the temperature."""
    image_to_text, text_to_image = directions
    return {
        "image_to_text_loss": image_to_text,
        "text_to_image_loss": text_to_image,
        "temperature": 1 / scale,
    }


def distinguish_pairs(label: Int[Array, " b"]) -> Int[Array, " b"]:
    """Gives each image-text pair a label that no other row has (Algorithm 1, TargetM).

    Pairs are the rows of the global batch with negative labels; pair i has -1 - i, which is unique
    over all devices.
    """
    return jnp.where(label < 0, -1 - jnp.arange(len(label), dtype=label.dtype), label)
