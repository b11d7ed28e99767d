"""MLCD (An et al. 2024, §3.2): images against cluster centers, several of which are their own.

The clusters of each image were found beforehand from another model's embeddings. The centers are a
table besides the parameters, split over all devices; a step sees only the rows that it draws. MLC
and UNICOM, with which the paper compares, differ only in the loss.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray

from big_align.core.errors import ConfigError, UserError, check_at_least, check_known
from big_align.core.types import Batch, MeasuredLoss, Outputs, Params
from big_align.data.precomputed.shard_files import read_index
from big_align.losses.cluster_discrimination import LOSSES, NEGATIVES
from big_align.losses.sampled_cluster_discrimination import sampled_cluster_loss
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.encoders import ProjectedImageTower
from big_align.training.row_tables import Drawn, Table, draw_rows, init_values

TABLE = "centers"
NO_TEXTS = (
    "config.objective.name = 'mlcd' has no text side: evaluate it by image features (k-NN, linear "
    "probe), or train a text tower on its locked image tower first"
)


class Mlcd(ComposedObjective):
    """Trains the image tower with the clusters of its images.

    The batch's `clusters` is int32 [b p], nearest first and -1 for none. Images that are masked or
    have no cluster take no part. The parameters are `model`, without those of a text tower; the
    table "centers" holds the class centers. The rows that a step has drawn from it reach `loss` as
    `params["drawn"]`.

    Args:
      model: the encoder; its text tower, if any, is left out.
      mesh: the devices over which the centers are split and the loss is computed.
      num_clusters: number of centers (MLCD §4.1: one million).
      loss: "mlcd" (eq. 5), "mlc" (eq. 4) or "unicom" (eq. 3, with the nearest center alone).
      labels_per_image: number of an image's clusters, nearest first, that are its labels (MLCD
        §4.1: 8).
      sampling_ratio: fraction of the centers that is sampled as negatives in each step (MLCD §4.1:
        0.1).
      negatives: "sampled", only the sampled centers are an image's negatives (MLCD §3.2: |Ω'n| = r
        |Ωn|); or "drawn", so are all centers that are positive for another image of the batch, so
        that the fraction of the centers that are negatives also depends on the batch.
      scale: factor of the cosines. MLCD gives none; ArcFace (Deng et al. 2019): 64.
      margin: added to the angle between an image and its centers (MLCD A.1: 0.3).
      min_similarity: the least cosine for which clusters of images were kept (Table 5d), which the
        folder of clusters must have been made with; None accepts any folder.
    """

    initial = ()
    watched = {"cosine_gap": "below"}
    """When the cosines meet, all images look alike, though the loss hardly shows it."""

    def __init__(
        self,
        model: DualEncoder,
        mesh: Mesh,
        num_clusters: int,
        loss: str = "mlcd",
        labels_per_image: int = 8,
        sampling_ratio: float = 0.1,
        negatives: str = "sampled",
        scale: float = 64.0,
        margin: float = 0.3,
        min_similarity: float | None = None,
    ):
        super().__init__(ProjectedImageTower(model, NO_TEXTS), mesh)
        check_known("loss", loss, LOSSES)
        check_at_least(2, num_clusters=num_clusters)
        if not 1 <= labels_per_image <= num_clusters:
            raise ValueError(
                f"labels_per_image = {labels_per_image} is not in [1, num_clusters = "
                f"{num_clusters}]"
            )
        if not 0 < sampling_ratio <= 1:
            raise ValueError(f"sampling_ratio = {sampling_ratio} is not in (0, 1]")
        check_known("negatives", negatives, NEGATIVES)
        if not 0 < scale < math.inf:
            raise ValueError(f"scale = {scale} must be positive and finite")
        if not 0 <= margin < 1.5:
            raise ValueError(f"margin = {margin} is not in [0, 1.5): it is an angle in radians")
        self.num_clusters, self.table_sizes = num_clusters, {TABLE: num_clusters}
        self.loss_name = loss
        self.labels_per_image = 1 if loss == "unicom" else labels_per_image
        self.sampling_ratio = sampling_ratio
        self.negatives = negatives
        self.cosine_scale = scale
        self.margin = margin
        self.min_similarity = min_similarity

    def check_precomputed(self, folders: Mapping[str, str], where: str) -> None:
        """Checks that there are clusters, as many as centers, with enough for each image."""
        super().check_precomputed(folders, where)
        if "clusters" not in folders:
            raise ConfigError(
                f"{where}.precomputed.clusters is missing: config.objective.name = 'mlcd' needs the"
                " folder that python -m big_align.tools.cluster wrote"
            )
        path = folders["clusters"]
        index = read_index(Path(path), ("k", "labels_per_image"))
        if (k := index["k"]) != self.num_clusters:
            raise ConfigError(
                f"config.objective.num_clusters = {self.num_clusters}, but {path} has {k} "
                f"clusters: set it to {k}"
            )
        if (wanted := self.labels_per_image) > (there := index["labels_per_image"]):
            raise ConfigError(
                f"config.objective.labels_per_image = {wanted}, but {path} has {there} clusters an "
                f"image: lower it, or cluster again with --labels_per_image={wanted}"
            )
        kept = index.get("made_by", {}).get("min_similarity")
        if self.min_similarity is not None and kept != self.min_similarity:
            raise ConfigError(
                f"config.objective.min_similarity = {self.min_similarity}, but {path} was made "
                f"with {kept}: cluster again with --min_similarity={self.min_similarity}"
            )

    def describe_fields(self) -> dict[str, tuple[int, ...]]:
        """Requires the clusters of each image."""
        return {"clusters": (self.labels_per_image,)}

    def init_tables(self, rng: PRNGKeyArray) -> dict[str, Float[Array, "k_pad d"]]:
        """Makes centers with random directions."""
        dim = self.model.embedding_dim or self.model.image.output_dim
        return {TABLE: init_values(rng, self.num_clusters, dim, self.mesh)}

    def draw(
        self, tables: Mapping[str, Table], batch: Batch, rng: PRNGKeyArray
    ) -> dict[str, Drawn]:
        """Draws the centers that are positive for some image, and a sample of all centers."""
        drawn = draw_rows(
            tables[TABLE].values,
            self._labels(batch),
            rng,
            num_rows=self.num_clusters,
            ratio=self.sampling_ratio,
            mesh=self.mesh,
        )
        return {TABLE: drawn}

    def _labels(self, batch: Batch) -> Int[Array, "b p"]:
        """Returns the clusters that count, with -1 in padding rows."""
        given = batch["clusters"].shape[1]
        if given < self.labels_per_image:
            raise UserError(
                f"config.objective.labels_per_image = {self.labels_per_image}, but the data have "
                f"{given} clusters an image: lower it, or cluster with as many labels an image"
            )
        labels = jnp.asarray(batch["clusters"])[:, : self.labels_per_image]
        return jnp.where(batch["mask"][:, None], labels, -1)

    def loss(self, params: Params, outputs: Outputs, prepared: None, batch: Batch) -> MeasuredLoss:
        """Returns the loss over the drawn centers, `params["drawn"]`.

        Metrics are the mean cosines of images with their own centers and with their negatives
        (Fig. 3), the difference of these, the fraction of the other centers that were an image's
        negatives (r of §3.2), the number of drawn centers, and the number of clusters beyond the
        last one.
        """
        drawn = params["drawn"][TABLE]
        loss, metrics = sampled_cluster_loss(
            self.loss_name,
            outputs["zimg"],
            drawn.rows,
            drawn.mask,
            drawn.columns,
            sampled=drawn.sampled if self.negatives == "sampled" else None,
            scale=self.cosine_scale,
            margin=self.margin,
            mesh=self.mesh,
        )
        outside = self._labels(batch) >= self.num_clusters
        others = jnp.maximum(self.num_clusters - metrics.pop("positives"), 1)
        return loss, metrics | {
            "negative_share": metrics.pop("negatives") / others,
            "cosine_gap": metrics["positive_cosine"] - metrics["negative_cosine"],
            "centers_drawn": drawn.mask.sum().astype(jnp.float32),
            "labels_outside": outside.sum().astype(jnp.float32),
        }
