"""CLIP's text tower (Radford et al., 2021, §2.4): a causal transformer, pre-norm."""

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from big_align.models.parts import attention, layers, transformer
from big_align.models.parts.narrow import LayerNorm

VARIANTS = {  # width, depth, mlp_dim, heads; named after the image towers they were published with
    "b": (512, 12, 2048, 8),
    "l": (768, 12, 3072, 12),
    "h": (1024, 24, 4096, 16),
}


class ClipText(transformer.TextTransformer):
    """CLIP's transformer as a text tower.

    The pooled features are those of the last real token. The tokenizer ends every text with one
    end-of-text id and marks nothing after it as real, so this is where the published models pool:
    open_clip at the largest id of a text, which is end-of-text, and transformers at its first
    occurrence, even where padding has the same id.

    Args:
      variant: "b" (ViT-B/32, ViT-B/16), "l" (ViT-L/14) or "h" (ViT-H/14, which has "gelu").
      activation: "gelu" (exact), "gelu_tanh" or "quick_gelu" (OpenAI's weights).
    """

    variant: str = "b"
    activation: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    vocab_size: int = 49408
    max_length: int = 77
    variants: ClassVar = VARIANTS

    @nn.compact
    def __call__(
        self, text: Int[Array, "b l"], text_mask: Bool[Array, "b l"], train: bool = False
    ) -> tuple[Float[Array, "b c"], Float[Array, "b l c"]]:
        """Encodes texts, the last real token being end-of-text; padding does not affect the others.

        Features are those after the final normalization. For a text without any real token, they
        are finite but meaningless.
        """
        x = nn.Dropout(self.dropout, deterministic=not train)(self._embed(text))
        tokens, settings = attention.Tokens(x, text_mask, None), {"causal": True}
        x = self.run_blocks(transformer.TransformerBlock, tokens, settings, train=train)
        x = LayerNorm(self.layer_norm_eps, self.dtype, name="final_norm")(x)
        last = jnp.max(jnp.where(text_mask, jnp.arange(text.shape[1]), 0), axis=1)
        return jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0], x

    def _embed(self, text: Int[Array, "b l"]) -> Float[Array, "b l c"]:
        words, shape = self.look_up(text), (self.max_length, self.output_dim)
        positions = self.param("position_embedding", transformer.init_positions, shape)
        return layers.add_weight(words, positions[: text.shape[1]])
