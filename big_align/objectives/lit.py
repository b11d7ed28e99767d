"""LiT (Zhai et al. 2022): a text tower learns to read out a locked image tower.

The second stage of MLCD (An et al. 2024, §4.1 and A.1): the image encoder is frozen and a text
encoder is trained from scratch by contrastive learning. The loss is CLIP's.
"""

from big_align.objectives.clip import Clip


class Lit(Clip):
    """Trains the text tower, up to two linear projections, and the temperature with CLIP's loss.

    The tower itself is locked; its parameters come from `config.init.image`. With
    `model.image_projection = False` its features are the embedding; True adds a linear layer that
    was not part of it and is trained. If the projection does come with the tower
    (`config.init.all` from a dual encoder), "model/project_image" in `config.optimizer.frozen`
    locks it too.

    A batch with `image_embedding` needs no images: float [b f], the tower's pooled features, as
    written by the tool embed. They may be scaled to unit length if there is no projection.
    Evaluation runs the tower, so its weights are needed anyway. The arguments are those of `Clip`.
    """

    locked = ("image",)
