"""What all towers share: a variant, the type of the computation, and how blocks run."""

from collections.abc import Sequence
from typing import Any, Protocol

import flax.linen as nn


class TowerOfImages(Protocol):
    """A `flax.linen.Module` that is an image tower.

    It is called with normalized images, float [b h w 3], and with `train`, and returns the pooled
    features, float [b output_dim], and those of every position, float [b t c].
    """

    output_dim: int


class TowerOfTexts(Protocol):
    """A `flax.linen.Module` that is a text tower.

    It is called with `text`, int [b l], `text_mask`, bool [b l], and `train`, and returns what an
    image tower does. Token ids are below `vocab_size`, and l is at most `max_length`.
    """

    output_dim: int
    vocab_size: int
    max_length: int


class Tower(nn.Module):
    """A tower of blocks, with the settings that `blocks.run_blocks` reads.

    It is called with normalized images, or with token ids and their mask, and with `train`, whether
    dropout, stochastic depth and batch statistics are on. It returns the pooled features, and those
    of every position: of images row by row. A setting that is unknown, or an input that does not
    fit the settings, is a ValueError.

    Args:
      variant: the published model whose sizes it has.
      dtype: name of the type of the computation.
      remat: what blocks recompute in the backward pass: "none", "attention" (its logits), "dots"
        (all but products), "full", "full:1/3" (the first third of them; the others "dots"), or
        "auto", the least that fits.
      scan: whether equal blocks run in a loop; None: on several GPUs, if `remat` is "full".
    """

    variant: str = ""
    dtype: str = "float32"
    remat: str = "none"
    scan: bool | None = None

    @nn.nowrap
    def resolve(self, names: Sequence[str], published: Sequence[Any]) -> dict[str, Any]:
        """Returns fields by name, each with the value of the variant where it is None."""
        given = zip(names, published, strict=True)
        return {k: x if getattr(self, k) is None else getattr(self, k) for k, x in given}
