"""MixUp (Zhang et al. 2018) and CutMix (Yun et al. 2019) around any objective with labels.

Both replace an image by a mixture with a partner's image, and its target by the same mixture of
targets. A loss that is linear in the targets needs no soft labels for that: it is

    fraction * loss(own examples) + (1 - fraction) * loss(partners' examples)

on the same embeddings of the mixed images, if one fraction holds for the whole batch.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from big_align.core.types import Batch, Metrics, Objective, Outputs, Params


@Objective.register  # from Python 3.12 on, isinstance does not see what `__getattr__` provides
class MixedLabels:
    """Trains an objective on mixtures of labeled images; everything else is left to the objective.

    Labeled rows are paired first with last, second with last but one, and so on; a row without a
    label, and the middle one of an odd number, stays as it is. A batch has one fraction and one
    method. Partners may be on any device, so the batch's images, in uint8, are gathered on every
    device for the mixing.

    Args:
      objective: what is trained; its loss must be linear in the targets defined by `label`.
      mixup_alpha: both parameters of the Beta distribution of MixUp's weight; 0 for no MixUp.
      cutmix_alpha: the same for CutMix.
      probability: probability of mixing a batch at all.
      switch_probability: probability of CutMix in a mixed batch, if both methods are possible.

    Raises:
      ValueError: a value is out of range, neither method may be chosen, or the objective learns
        from clusters or tags, of which an image has its own alone.
    """

    def __init__(
        self,
        objective: Objective,
        mixup_alpha: float = 0.0,
        cutmix_alpha: float = 0.0,
        probability: float = 1.0,
        switch_probability: float = 0.5,
    ):
        for name, value in (("mixup_alpha", mixup_alpha), ("cutmix_alpha", cutmix_alpha)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} = {value} must be 0 or a positive number")
        chances = ("probability", probability), ("switch_probability", switch_probability)
        for name, value in chances:
            if not 0 <= value <= 1:
                raise ValueError(f"{name} = {value} is not in [0, 1]")
        if mixup_alpha == cutmix_alpha == 0:
            raise ValueError("mixup_alpha and cutmix_alpha are both 0: there is nothing to mix by")
        if objective.table_sizes or hasattr(objective, "recognize"):
            raise ValueError(
                "images and labels can be mixed, but not the clusters or tags that the objective "
                "learns from: set mixup_alpha and cutmix_alpha to 0"
            )
        self.objective = objective
        self.mixup_alpha = mixup_alpha
        self.cutmix_alpha = cutmix_alpha
        self.probability = probability
        only_one = 1.0 if cutmix_alpha > 0 else 0.0
        both = mixup_alpha > 0 and cutmix_alpha > 0
        self.switch_probability = switch_probability if both else only_one

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "objective" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.objective, name)

    def augment(self, batch: Batch, rng: PRNGKeyArray, step: Int[Array, ""]) -> Batch:
        """Mixes the images of a global batch with one view per image; uint8 images stay uint8.

        The batch gets `partner` [b], the row that each row is mixed with or its own,
        `partner_label` [b], and `mix_fraction` [b], the fraction that is its own: one number,
        repeated.
        """
        inner_rng, rng = jax.random.split(rng)
        batch = self.objective.augment(batch, inner_rng, step)
        image, label = batch["image"], batch["label"]
        if image.ndim != 4:
            raise ValueError(
                f"images {image.shape} have several views, which cannot be mixed: set "
                "config.data.views_per_image = 1, or do not mix"
            )
        partner = pair_rows(batch["mask"] & (label >= 0))
        weight, fraction = self._draw(rng, image.shape[1:3])
        weight = weight[:, :, None]
        own, other = (x.astype(jnp.float32) for x in (image, image[partner]))
        mixed = weight * own + (1 - weight) * other
        if not jnp.issubdtype(image.dtype, jnp.floating):
            mixed = jnp.round(mixed)
        moved = (partner != jnp.arange(len(partner)))[:, None, None, None]
        return {
            **batch,
            "image": jnp.where(moved, mixed.astype(image.dtype), image),
            "partner": partner,
            "partner_label": label[partner],
            "mix_fraction": jnp.broadcast_to(fraction, label.shape),
        }

    def _draw(
        self, rng: PRNGKeyArray, size: tuple[int, int]
    ) -> tuple[Float[Array, "h w"], Float[Array, ""]]:
        """Draws the weight of an image's own pixels, and its own fraction."""
        mix_rng, switch_rng, mixup_rng, cutmix_rng, box_rng = jax.random.split(rng, 5)
        mixes = jax.random.uniform(mix_rng) < self.probability
        cuts = jax.random.uniform(switch_rng) < self.switch_probability
        # A disabled method is never chosen, but its draw needs some alpha.
        mixup, cutmix = self.mixup_alpha or 1.0, self.cutmix_alpha or 1.0
        fraction = jax.random.beta(mixup_rng, mixup, mixup)
        box = draw_box(box_rng, size, jax.random.beta(cutmix_rng, cutmix, cutmix))
        outside = 1 - box.astype(jnp.float32)
        weight = jnp.where(mixes, jnp.where(cuts, outside, fraction), 1.0)
        return weight, jnp.where(mixes, jnp.where(cuts, outside.mean(), fraction), 1.0)

    def loss(
        self, params: Params, outputs: Outputs, prepared: object, batch: Batch
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns the mixture of the losses for the own labels and for those of the partners.

        An example is its image, its label and its texts: where the image counts as its partner's,
        so does the row's text.
        """
        partner, fraction = batch["partner"], batch["mix_fraction"][0]
        swapped = {k: batch[k][partner] for k in ("text", "text_mask") if k in batch}
        texts = {k: x[partner] for k, x in outputs.items() if k == "ztxt"}
        own = self.objective.loss(params, outputs, prepared, batch)
        other = self.objective.loss(
            params,
            {**outputs, **texts},
            prepared,
            {**batch, **swapped, "label": batch["partner_label"]},
        )
        return jax.tree.map(lambda x, y: fraction * x + (1 - fraction) * y, own, other)


def pair_rows(eligible: Bool[Array, " b"]) -> Int[Array, " b"]:
    """Returns the row that each eligible row is paired with, from the outside in.

    Others are paired with themselves. It is a permutation that is its own inverse.
    """
    rows = jnp.arange(len(eligible))
    rank = jnp.cumsum(eligible) - 1
    (by_rank,) = jnp.nonzero(eligible, size=len(rows), fill_value=0)
    return jnp.where(eligible, by_rank[rank[-1] - rank], rows)


def draw_box(
    rng: PRNGKeyArray, size: tuple[int, int], fraction: Float[Array, ""]
) -> Bool[Array, "h w"]:
    """Draws CutMix's box: 1 - `fraction` of the area, around any pixel, clipped at the borders.

    It is True inside; `fraction` is the part that is outside before it is clipped.
    """

    def side(key: PRNGKeyArray, length: int) -> Bool[Array, " n"]:
        # Whole pixels, the same number on either side of the center.
        half = jnp.floor(length * jnp.sqrt(1 - fraction)).astype(jnp.int32) // 2
        center = jax.random.randint(key, (), 0, length)
        position = jnp.arange(length)
        return (position >= center - half) & (position < center + half)

    rows, columns = (side(*x) for x in zip(jax.random.split(rng), size, strict=True))
    return rows[:, None] & columns
