"""A learned vector for every text instead of a text encoder (UniCL, Yang et al., 2022)."""

from typing import Any

import flax.linen as nn
from jaxtyping import Array, Bool, Float, Int

from big_align.models.parts import transformer


class EmbeddingTable(nn.Module):
    """The ablation of the text encoder (Table 3): an embedding layer indexed with labels.

    A text is one id, such as its class. Tokenizers that split texts into several tokens do not work
    with it: their first token is the same for every text. The layer is linear by itself; without
    `text_projection` of the dual encoder, no other is behind it.

    Args:
      vocab_size: number of texts.
      width: width of the vectors.
      dtype: name of the type of the result.
    """

    vocab_size: int
    width: int = 512
    dtype: str = "float32"

    @property
    def max_length(self) -> int:
        """Number of tokens of a text."""
        return 1

    @property
    def resolved(self) -> dict[str, Any]:
        """What a variant decides: nothing."""
        return {}

    @property
    def stage_depths(self) -> tuple[int, ...]:
        """Number of blocks, which is none."""
        return (0,)

    @property
    def output_dim(self) -> int:
        """Width of the vectors."""
        return self.width

    @nn.compact
    def __call__(
        self, text: Int[Array, "b l"], text_mask: Bool[Array, "b l"], train: bool = False
    ) -> tuple[Float[Array, "b c"], Float[Array, "b l c"]]:
        """Looks up the vectors of texts [b 1], which are also the features of their only token.

        There is no padding, so mask and `train` have no effect; texts of more tokens are a
        ValueError.
        """
        sizes = self.max_length, self.vocab_size, self.width
        x = transformer.look_up_tokens(text, *sizes, self.dtype)
        return x[:, 0], x
