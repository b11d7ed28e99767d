"""CLIP's text tower (Radford et al., 2021, §2.4): a causal transformer, pre-norm."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from big_align.models.parts import attention, blocks, layers, transformer

VARIANTS = {  # width, depth, mlp_dim, heads; named after the image towers they were published with
    "b": (512, 12, 2048, 8),
    "l": (768, 12, 3072, 12),
    "h": (1024, 24, 4096, 16),
}


class ClipText(nn.Module):
    """CLIP's transformer as a text tower.

    The pooled features are those of the last real token. The tokenizer ends every text with one
    end-of-text id and marks nothing after it as real, so this is where the published models pool:
    open_clip at the largest id of a text, which is end-of-text, and transformers at its first
    occurrence, even where padding has the same id.

    Args:
      variant: "b" (ViT-B/32, ViT-B/16), "l" (ViT-L/14) or "h" (ViT-H/14, which has "gelu").
      width: width of the tokens, instead of the variant's; likewise for the next three.
      depth: number of blocks.
      mlp_dim: hidden width of the perceptrons.
      heads: number of attention heads.
      vocab_size: number of token ids.
      max_length: number of positions.
      dropout: rate on embeddings and at the end of every branch.
      activation: "gelu" (exact), "gelu_tanh" or "quick_gelu" (OpenAI's weights).
      layer_norm_eps: added to the variance.
      dtype: name of the type of the computation.
      remat: what blocks recompute in the backward pass: "none", "attention" (its logits), "dots"
        (all but products), "full", or "auto", the least of these that fits.
      scan: whether equal blocks run in a loop; None: on several GPUs, if they recompute anything.
      attention: how attention is computed, a name in `kernels.attention_ways.WAYS`.
    """

    variant: str = "b"
    width: int | None = None
    depth: int | None = None
    mlp_dim: int | None = None
    heads: int | None = None
    vocab_size: int = 49408
    max_length: int = 77
    dropout: float = 0.0
    activation: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    dtype: str = "float32"
    remat: str | bool = "none"
    scan: bool | None = None
    attention: str = "auto"

    @property
    def resolved(self) -> dict[str, Any]:
        """Width, depth, mlp_dim and heads: the variant's, unless given."""
        published = layers.choose("variant", self.variant, VARIANTS)
        return transformer.resolve_sizes(self, published)

    @property
    def stage_depths(self) -> tuple[int, ...]:
        """Number of blocks, which are one stage."""
        return (self.resolved["depth"],)

    @property
    def output_dim(self) -> int:
        """Width of the pooled features."""
        return self.resolved["width"]

    @nn.compact
    def __call__(
        self, text: Int[Array, "b l"], text_mask: Bool[Array, "b l"], train: bool = False
    ) -> tuple[Float[Array, "b c"], Float[Array, "b l c"]]:
        """Encodes texts.

        Args:
          text: token ids, the last real one being end-of-text.
          text_mask: True on real tokens; padding does not affect them.
          train: whether dropout is on.

        Returns:
          The pooled features, and those of every token, after the final normalization. For a text
          without any real token, they are finite but meaningless.

        Raises:
          ValueError: a setting is unknown, or the text has more tokens than there are positions.
        """
        x = nn.Dropout(self.dropout, deterministic=not train)(self._embed(text))
        sizes = self.resolved
        tokens = attention.Tokens(x, text_mask, None)
        tokens = attention.pad_tokens(tokens, sizes["heads"], False, True, self.attention)
        settings = dict(
            heads=sizes["heads"],
            mlp_dim=sizes["mlp_dim"],
            activation=self.activation,
            dropout=self.dropout,
            drop_path=0.0,
            layer_norm_eps=self.layer_norm_eps,
            dtype=self.dtype,
            way=self.attention,
            causal=True,
        )
        each = [settings] * sizes["depth"]
        block_class = transformer.TransformerBlock
        x = blocks.run_blocks(self, block_class, each, tokens.x, tokens.mask, None, train=train)
        x = x[:, : text.shape[1]]
        x = layers.layer_norm(self.layer_norm_eps, self.dtype, "final_norm")(x)
        last = jnp.max(jnp.where(text_mask, jnp.arange(text.shape[1]), 0), axis=1)
        return jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0], x

    def _embed(self, text: Int[Array, "b l"]) -> Float[Array, "b l c"]:
        width, length = self.resolved["width"], text.shape[1]
        transformer.check_length(length, self.max_length)
        words = transformer.token_embedding(self.vocab_size, width, self.dtype)(text)
        shape = self.max_length, width
        positions = self.param("position_embedding", transformer.init_positions, shape)
        return layers.add_weight(words, positions[:length])
