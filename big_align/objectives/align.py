"""ALIGN (Jia et al. 2021, §4.1): softmax over in-batch pairs gathered from every device.

The loss is the sum of image-to-text (eq. 1) and text-to-image (eq. 2) classification. Cosines are
divided by a learned temperature that starts at 1 and is shared by both directions. `clip` is the
same with CLIP's parametrization: cosines times exp(tau), and the mean of the two directions.
"""

import math

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.two_tower import TwoTower, real_texts, replace_leaf
from big_align.types import Batch, Metrics, ModelState, Outputs, Params


class Align(TwoTower):
    """Trains by the normalized softmax in both directions.

    Args:
      model: the dual encoder.
      mesh: over which the loss is computed.
      temperature: initial value of the divisor of the cosines (§5: 1.0).
      learn_temperature: False keeps the initial value (Table 8: 1/128, 1/64, 1/32).
      min_temperature: lower bound, by projection after each update.
      label_smoothing: share of the target spread over the batch (§5: 0.1).
      negative_share: share of the batch that takes part in each softmax (Table 8: 50%, 25%). The
        batch is cut into 1 / negative_share groups that do not see each other; the paper does not
        say how it drops negatives.
      keep_logits_bytes: logits of a device are kept for the backward pass when they fit in this.

    Raises:
      ValueError: a value is out of its range.
    """

    def __init__(
        self,
        model: DualEncoder,
        mesh: Mesh,
        temperature: float = 1.0,
        learn_temperature: bool = True,
        min_temperature: float = 0.005,
        label_smoothing: float = 0.1,
        negative_share: float = 1.0,
        keep_logits_bytes: int = 2**28,
    ):
        super().__init__(model)
        if not 0 < min_temperature <= temperature:
            raise ValueError(
                f"temperature = {temperature} must be at least min_temperature = "
                f"{min_temperature}, which must be positive"
            )
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing = {label_smoothing} is not in [0, 1)")
        if not 0 < negative_share <= 1 or round(1 / negative_share) * negative_share != 1:
            raise ValueError(f"negative_share = {negative_share} is not 1, 1/2, 1/4, ...")
        self.mesh = mesh
        self.temperature = temperature
        self.learn_temperature = learn_temperature
        self.min_temperature = min_temperature
        self.label_smoothing = label_smoothing
        self.groups = round(1 / negative_share)
        self.keep_logits_bytes = keep_logits_bytes

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes the towers' parameters and the temperature."""
        params, model_state = super().init(rng, batch)
        if self.learn_temperature:
            params["temperature"] = jnp.float32(self.temperature)
        return params, model_state

    def scale(self, params: Params) -> Float[Array, ""]:
        """Returns what the cosines are multiplied with."""
        return 1 / jnp.asarray(params.get("temperature", self.temperature), jnp.float32)

    def labels(self, batch: Batch) -> Int[Array, " b"] | None:
        """Returns a label for the image and the texts of each row; equal ones are positive.

        Here a row's image and texts are positive for each other alone. Where image i and text i are
        all there is, None says the same, which saves sorting.
        """
        return None if batch["text_mask"].ndim == 2 else jnp.arange(len(batch["mask"]))

    def directions(
        self, params: Params, outputs: Outputs, batch: Batch
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Returns the image-to-text and the text-to-image loss, each a mean over the batch.

        With several texts an image all of them are its positives, in equal shares.
        """
        rows = {**outputs, "image_mask": batch["mask"], "text_mask": real_texts(batch)}
        if (label := self.labels(batch)) is not None:
            rows["label"] = label
        # Every group takes each `groups`-th row, so that it has rows on every device.
        rows = {k: x.reshape(-1, self.groups, *x.shape[1:]) for k, x in rows.items()}
        pairs = [
            self._contrast(self.scale(params), **{k: x[:, group] for k, x in rows.items()})
            for group in range(self.groups)
        ]
        image_to_text, text_to_image = (sum(x) / self.groups for x in zip(*pairs, strict=True))
        return image_to_text, text_to_image

    def _contrast(
        self,
        scale: Float[Array, ""],
        *,
        zimg: Float[Array, "b d"],
        ztxt: Float[Array, "b *k d"],
        image_mask: Bool[Array, " b"],
        text_mask: Bool[Array, "b *k"],
        label: Int[Array, " b"] | None = None,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        texts = text_mask.size // len(text_mask)  # of an image
        return blockwise_contrastive_loss(
            zimg,
            ztxt.reshape(-1, ztxt.shape[-1]),
            scale,
            image_mask=image_mask,
            text_mask=text_mask.reshape(-1),
            image_label=label,
            text_label=None if label is None else jnp.repeat(label, texts),
            label_smoothing=self.label_smoothing,
            mesh=self.mesh,
            keep_logits_bytes=self.keep_logits_bytes,
        )

    def loss(
        self, params: Params, outputs: Outputs, prepared: None, batch: Batch
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns the sum of the directions (eq. 1 + eq. 2)."""
        image_to_text, text_to_image = self.directions(params, outputs, batch)
        return image_to_text + text_to_image, {
            "image_to_text_loss": image_to_text,
            "text_to_image_loss": text_to_image,
            "temperature": 1 / self.scale(params),
        }

    def project(self, params: Params) -> Params:
        """Keeps the temperature above its bound."""
        if not self.learn_temperature:
            return params
        bounded = jnp.maximum(params["temperature"], self.min_temperature)
        return replace_leaf(params, "temperature", bounded)


class Clip(Align):
    """CLIP (Radford et al. 2021): cosines times exp(tau), the mean of both directions.

    Args:
      model: the dual encoder.
      mesh: over which the loss is computed.
      temperature: initial value of exp(-tau) (CLIP §2.5: 0.07).
      min_temperature: lower bound of exp(-tau) (CLIP §2.5: logits scaled by 100 at most).
      label_smoothing: share of the target spread over the batch.
      keep_logits_bytes: logits of a device are kept for the backward pass when they fit in this.
    """

    def __init__(
        self,
        model: DualEncoder,
        mesh: Mesh,
        temperature: float = 0.07,
        min_temperature: float = 0.01,
        label_smoothing: float = 0.0,
        keep_logits_bytes: int = 2**28,
    ):
        super().__init__(
            model,
            mesh,
            temperature=temperature,
            min_temperature=min_temperature,
            label_smoothing=label_smoothing,
            keep_logits_bytes=keep_logits_bytes,
        )

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes the towers' parameters and tau, the logarithm of the scale."""
        params, model_state = TwoTower.init(self, rng, batch)
        return params | {"log_scale": jnp.float32(-math.log(self.temperature))}, model_state

    def scale(self, params: Params) -> Float[Array, ""]:
        """Returns exp(tau)."""
        return jnp.exp(params["log_scale"])

    def loss(
        self, params: Params, outputs: Outputs, prepared: None, batch: Batch
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns the mean of the directions."""
        total, metrics = super().loss(params, outputs, prepared, batch)
        return total / 2, metrics

    def project(self, params: Params) -> Params:
        """Keeps the scale below its bound."""
        bounded = jnp.minimum(params["log_scale"], -math.log(self.min_temperature))
        return replace_leaf(params, "log_scale", bounded)
