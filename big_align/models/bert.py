"""BERT (Devlin et al., 2019) and RoBERTa: transformers with normalization after every branch."""

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from big_align.models.parts import attention, layers, transformer
from big_align.models.parts.narrow import LayerNorm
from big_align.parallel.devices.rematerialization import keep_result

VARIANTS = {  # width, depth, mlp_dim, heads
    "mini": (256, 4, 1024, 4),
    "medium": (512, 8, 2048, 8),
    "base": (768, 12, 3072, 12),
    "large": (1024, 24, 4096, 16),
}

PADDING_POSITION = 1
"""RoBERTa numbers positions like token ids: real tokens start after the id of padding."""


class BertBlock(nn.Module):
    """Transformer block with normalization after the residual sums."""

    heads: int
    mlp_dim: int
    activation: str
    dropout: float  # on attention weights and at the end of each branch
    layer_norm_eps: float
    dtype: str
    way: str = "auto"
    keys: int | None = None

    @nn.compact
    def __call__(
        self, x: Float[Array, "b l c"], mask: Bool[Array, "b l"], angles: None, train: bool
    ) -> Float[Array, "b l c"]:
        """Transforms tokens; positions are part of them, so there are no angles."""

        def join(x, branch, name):
            branch = nn.Dropout(self.dropout, deterministic=not train)(branch)
            return LayerNorm(self.layer_norm_eps, self.dtype, name=name)(keep_result(x + branch))

        how = dict(way=self.way, keys=self.keys, name="attention")
        attend = attention.SelfAttention(self.heads, self.dropout, self.dtype, **how)
        x = join(x, attend(x, mask, train), "attention_norm")
        mlp = layers.MlpBlock(self.mlp_dim, self.activation, self.dtype, name="mlp")
        return join(x, mlp(x), "mlp_norm")


class Bert(transformer.TextTransformer):
    """BERT as a text tower.

    Texts have one segment, so only the embedding of segment 0 is kept. There is no pooler: ALIGN
    uses the [CLS] token's embedding directly (§4.1).

    Args:
      variant: "mini", "medium", "base" or "large".
      dropout: rate on embeddings, attention weights and every branch.
      pool: "cls" for the first token's output, "mean" for the mean over real tokens.
    """

    variant: str = "base"
    dropout: float = 0.1
    layer_norm_eps: float = 1e-12
    vocab_size: int = 30522
    max_length: int = 512
    pool: str = "cls"
    variants: ClassVar = VARIANTS

    @nn.compact
    def __call__(
        self, text: Int[Array, "b l"], text_mask: Bool[Array, "b l"], train: bool = False
    ) -> tuple[Float[Array, "b c"], Float[Array, "b l c"]]:
        """Encodes texts; the first token is [CLS], and padding does not affect the others.

        For a text without any real token, features are finite but meaningless.
        """
        layers.choose("pool", self.pool, {"cls": None, "mean": None})
        x = nn.Dropout(self.dropout, deterministic=not train)(self._embed(text, text_mask))
        tokens, dropped = attention.Tokens(x, text_mask, None), train and self.dropout > 0
        x = self.run_blocks(BertBlock, tokens, {}, train=train, dropped=dropped)
        if self.pool == "cls":
            return x[:, 0], x
        # Counts and sums need float32: bfloat16 has no number between 256 and 258.
        real = text_mask[:, :, None].astype(jnp.float32)
        mean = (x.astype(jnp.float32) * real).sum(1) / jnp.maximum(real.sum(1), 1)
        return mean.astype(x.dtype), x

    def _embed(
        self, text: Int[Array, "b l"], text_mask: Bool[Array, "b l"]
    ) -> Float[Array, "b l c"]:
        words, positions = self.look_up(text), self._positions(text_mask)
        shape = (self.output_dim,)
        segment = self.param("token_type_embedding", layers.truncated_normal, shape)
        x = layers.add_weight(words, positions + segment)
        return LayerNorm(self.layer_norm_eps, self.dtype, name="embedding_norm")(x)

    def _positions(
        self, text_mask: Bool[Array, "b l"]
    ) -> Float[Array, "l c"] | Float[Array, "b l c"]:
        """Looks up the position of every token."""
        return self._position_table(self.max_length)[: text_mask.shape[1]]

    def _position_table(self, rows: int) -> Float[Array, "rows c"]:
        shape = rows, self.output_dim
        return jnp.asarray(self.param("position_embedding", transformer.init_positions, shape))


class Roberta(Bert):
    """RoBERTa (Liu et al., 2019) as a text tower.

    It differs from BERT in its positions: they count real tokens only and start at 2, and padding
    has position 1. So the table has two more rows than `max_length`, which is the number of tokens;
    row 0 is never used. The arguments are those of `Bert`.
    """

    vocab_size: int = 50265
    layer_norm_eps: float = 1e-5
    rows_before_positions: ClassVar[int] = PADDING_POSITION + 1

    def _positions(self, text_mask: Bool[Array, "b l"]) -> Float[Array, "b l c"]:
        table = self._position_table(self.max_length + self.rows_before_positions)
        real = text_mask.astype(jnp.int32)
        return table[jnp.cumsum(real, axis=1) * real + PADDING_POSITION]
