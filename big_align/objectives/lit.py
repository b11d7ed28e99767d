"""LiT (Zhai et al. 2022): a text tower learns to read out a locked image tower.

The second stage of MLCD (An et al. 2024, §4.1 and A.1): the image encoder is frozen and a text
encoder is trained from scratch by contrastive learning. The loss is CLIP's.
"""

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from big_align.errors import UserError
from big_align.objectives.align import Clip
from big_align.objectives.two_tower import flatten_texts
from big_align.types import Batch, ModelState, Outputs, Params


class Lit(Clip):
    """Trains the text tower, both linear layers there may be and the temperature by CLIP's loss.

    The image tower runs in evaluation mode, once a step and without gradient: nothing of it is kept
    for the backward pass and its statistics stay. Its parameters stay too, as the optimizer
    freezes `frozen`; they should come from `config.init.image`.

    What is locked is the tower. `model.image_projection = False` takes its features as they are for
    the embedding; True adds a linear layer that was no part of it and is trained. Where the
    projection does come with the tower (`config.init.all` from a dual encoder), naming
    "model/project_image" in `config.optimizer.frozen` as well locks it too.

    A batch with `image_embedding` needs no images: float [b f], the tower's pooled features, as the
    tool embed has written them. They may be scaled to unit length where there is no projection.
    Evaluation runs the tower, so its weights are needed all the same.

    Args: as those of `Clip`.
    """

    frozen = ("model/image",)
    """Paths of parameters that the optimizer has to leave alone."""

    def locked_features(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> Float[Array, "b f"]:
        """Returns the pooled features of the image tower, which no gradient reaches.

        Raises:
          UserError: embeddings were given that are not as wide as the tower.
        """
        if "image_embedding" not in batch:
            # Stopped at the parameters, so that differentiation never enters the tower.
            return self.image_features(jax.lax.stop_gradient(params), model_state, batch)
        features, width = batch["image_embedding"], self.model.image.output_dim
        if features.shape[-1] != width:
            raise UserError(
                f"image_embedding has {features.shape[-1]} numbers an image and the image tower "
                f"gives {width}: embed the data with the features of this tower"
            )
        return jax.lax.stop_gradient(features.astype(jax.numpy.float32))

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Returns `zimg` [b d] and `ztxt` [b d], or [b k d] with k texts an image; unit length."""
        variables = {"params": params["model"], **model_state}
        features = self.locked_features(params, model_state, batch)
        zimg = self.model.apply(variables, features, method="embed_features")
        ztxt = self.model.apply(
            variables,
            *flatten_texts(batch),
            train=True,
            rngs={"dropout": rng},
            method="encode_text",
        )
        return {"zimg": zimg, "ztxt": ztxt.reshape(*batch["text"].shape[:-1], -1)}, model_state
