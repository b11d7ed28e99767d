"""BERT (Devlin et al., 2019): a transformer with normalisation after every branch."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from big_align.models import layers

VARIANTS = {  # width, depth, mlp_dim, heads
    "mini": (256, 4, 1024, 4),
    "medium": (512, 8, 2048, 8),
    "base": (768, 12, 3072, 12),
    "large": (1024, 24, 4096, 16),
}

LAYER_NORM_EPS = 1e-12


class Block(nn.Module):
    """Transformer block with normalisation after the residual sums.

    Args:
      heads: number of attention heads.
      mlp_dim: hidden width of the perceptron.
      activation: a name in `layers.ACTIVATIONS`.
      dropout: rate on attention weights and at the end of each branch.
      dtype: name of the type of the computation.
    """

    heads: int
    mlp_dim: int
    activation: str
    dropout: float
    dtype: str

    @nn.compact
    def __call__(
        self, x: Float[Array, "b l c"], mask: Bool[Array, "b l"], train: bool
    ) -> Float[Array, "b l c"]:
        """Transforms tokens."""

        def join(x, branch, name):
            branch = nn.Dropout(self.dropout, deterministic=not train)(branch)
            return layers.layer_norm(LAYER_NORM_EPS, self.dtype, name)(x + branch)

        attention = layers.SelfAttention(self.heads, self.dropout, self.dtype, name="attention")
        x = join(x, attention(x, mask, train), "attention_norm")
        mlp = layers.MlpBlock(self.mlp_dim, self.activation, self.dtype, name="mlp")
        return join(x, mlp(x), "mlp_norm")


class Bert(nn.Module):
    """BERT as a text tower.

    Texts have one segment, so the embedding of segment 0 is the only one kept. There is no pooler:
    ALIGN uses the [CLS] token's embedding as it is (§4.1).

    Args:
      variant: "mini", "medium", "base" or "large".
      width: of the tokens, instead of the variant's; likewise for the next three.
      depth: number of blocks.
      mlp_dim: hidden width of the perceptrons.
      heads: number of attention heads.
      vocab_size: number of token ids.
      max_length: number of positions.
      dropout: rate on embeddings, attention weights and every branch.
      activation: "gelu" (exact), "gelu_tanh" or "quick_gelu".
      pool: "cls" for the first token's output, "mean" for the mean over real tokens.
      dtype: name of the type of the computation.
      remat: recompute each block in the backward pass instead of storing its activations.
    """

    variant: str = "base"
    width: int | None = None
    depth: int | None = None
    mlp_dim: int | None = None
    heads: int | None = None
    vocab_size: int = 30522
    max_length: int = 512
    dropout: float = 0.1
    activation: str = "gelu"
    pool: str = "cls"
    dtype: str = "float32"
    remat: bool = False

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Width, depth, mlp_dim and heads: the variant's, unless given."""
        published = layers.choose("variant", self.variant, VARIANTS)
        given = self.width, self.depth, self.mlp_dim, self.heads
        width, depth, mlp_dim, heads = (
            b if a is None else a for a, b in zip(given, published, strict=True)
        )
        return width, depth, mlp_dim, heads

    @property
    def output_dim(self) -> int:
        """Width of the pooled features."""
        return self.sizes[0]

    @nn.compact
    def __call__(
        self, text: Int[Array, "b l"], text_mask: Bool[Array, "b l"], train: bool = False
    ) -> tuple[Float[Array, "b c"], Float[Array, "b l c"]]:
        """Encodes texts.

        Args:
          text: token ids, the first being [CLS].
          text_mask: True on real tokens; padding changes nothing for them.
          train: whether dropout is on.

        Returns:
          The pooled features, and those of every token. They are finite for a text without any
          real token, and mean nothing.

        Raises:
          ValueError: a setting is unknown, or the text has more tokens than there are positions.
        """
        _, depth, mlp_dim, heads = self.sizes
        layers.choose("pool", self.pool, {"cls": None, "mean": None})
        x = nn.Dropout(self.dropout, deterministic=not train)(self._embed(text))

        block_class = nn.remat(Block, static_argnums=(3,)) if self.remat else Block  # 3: train
        for i in range(depth):
            block = block_class(
                heads, mlp_dim, self.activation, self.dropout, self.dtype, name=f"block_{i:02d}"
            )
            x = block(x, text_mask, train)
        if self.pool == "cls":
            return x[:, 0], x
        real = text_mask[:, :, None].astype(x.dtype)
        return (x * real).sum(1) / jnp.maximum(real.sum(1), 1), x

    def _embed(self, text: Int[Array, "b l"]) -> Float[Array, "b l c"]:
        width, dtype = self.sizes[0], layers.compute_dtype(self.dtype)
        length = text.shape[1]
        if length > self.max_length:
            raise ValueError(
                f"a text of {length} tokens is longer than max_length={self.max_length}"
            )
        words = nn.Embed(
            self.vocab_size,
            width,
            dtype=dtype,
            embedding_init=nn.with_logical_partitioning(
                layers.truncated_normal, ("vocab", "embed")
            ),
            name="token_embedding",
        )
        position_init = nn.with_logical_partitioning(
            layers.truncated_normal, ("positions", "embed")
        )
        positions = self.param("position_embedding", position_init, (self.max_length, width))
        segment = self.param("token_type_embedding", layers.truncated_normal, (width,))
        x = words(text) + (positions[:length] + segment).astype(dtype)
        return layers.layer_norm(LAYER_NORM_EPS, self.dtype, "embedding_norm")(x)
