"""What all towers share: a variant, the type of the computation, and how blocks run."""

import flax.linen as nn


class Tower(nn.Module):
    """A tower of blocks, with the settings that `blocks.run_blocks` reads.

    Args:
      variant: the published model whose sizes it has.
      dtype: name of the type of the computation.
      remat: what blocks recompute in the backward pass: "none", "attention" (its logits), "dots"
        (all but products), "full", or "auto", the least of these that fits.
      scan: whether equal blocks run in a loop; None: on several GPUs, if they recompute anything.
    """

    variant: str = ""
    dtype: str = "float32"
    remat: str = "none"
    scan: bool | None = None
