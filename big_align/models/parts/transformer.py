"""What transformers share: their sizes, their lookup tables, and the pre-norm block."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from big_align.models.parts import attention, layer_weights, layers

SIZES = "width", "depth", "mlp_dim", "heads"
"""What a variant of a transformer decides."""

init_positions = nn.with_logical_partitioning(layers.truncated_normal, ("positions", "embed"))
"""Initializes a table of learned positions, [positions, width]."""

init_grid = nn.with_logical_partitioning(layers.truncated_normal, ("positions", None, "embed"))
"""Initializes learned positions of patches, [rows, columns, width]."""


def resolve_sizes(tower: nn.Module, published: tuple[int, int, int, int]) -> dict[str, int]:
    """Returns the sizes of a tower by name: the variant's, unless given.

    Args:
      tower: a module with an attribute for each of `SIZES`, None if not given.
      published: the sizes of its variant.
    """
    given = {name: getattr(tower, name) for name in SIZES}
    variant = dict(zip(SIZES, published, strict=True))
    return {name: variant[name] if size is None else size for name, size in given.items()}


class TokenEmbedding(nn.Module):
    """Looks up the vectors of token ids.

    Args:
      vocab_size: number of ids.
      width: width of the vectors.
      dtype: name of the type of the computation.
    """

    vocab_size: int
    width: int
    dtype: str

    @nn.compact
    def __call__(self, text: Int[Array, "b l"]) -> Float[Array, "b l c"]:
        """Returns a vector for every id."""
        axes = ("vocab", "embed")
        init = nn.with_logical_partitioning(layers.truncated_normal, axes)
        table = self.param("embedding", init, (self.vocab_size, self.width))
        dtype = layers.compute_dtype(self.dtype)
        return layer_weights.apply_weight(_look_up, text, table, axes, dtype)


def token_embedding(vocab_size: int, width: int, dtype: str) -> TokenEmbedding:
    """Makes the layer that looks up token ids, with the name that all towers give it."""
    return TokenEmbedding(vocab_size, width, dtype, name="token_embedding")


def _look_up(ids, table):
    return jnp.take(table, ids, axis=0)


def check_length(length: int, max_length: int) -> None:
    """Checks that there is a position for every token.

    Raises:
      ValueError: there are more tokens than positions.
    """
    if length > max_length:
        raise ValueError(f"a text of {length} tokens is longer than max_length={max_length}")


class TransformerBlock(nn.Module):
    """Transformer block with normalization before attention and before the perceptron.

    Args:
      heads: number of attention heads.
      mlp_dim: hidden width of the perceptron.
      activation: a name in `narrow.ACTIVATIONS`.
      dropout: rate after attention and after the perceptron.
      drop_path: rate of stochastic depth.
      layer_norm_eps: added to the variance.
      dtype: name of the type of the computation.
      causal: whether a token does not attend to those after it.
      way: how attention is computed, a name in `attention_ways.WAYS`.
      keys: number of the first tokens that are attended to, without a mask; None for all.
    """

    heads: int
    mlp_dim: int
    activation: str
    dropout: float
    drop_path: float | Array
    layer_norm_eps: float
    dtype: str
    causal: bool = False
    way: str = "auto"
    keys: int | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b l c"],
        mask: Bool[Array, "b l"] | None,
        angles: Float[Array, "l half"] | None,
        train: bool,
    ) -> Float[Array, "b l c"]:
        """Transforms tokens; the arguments are those of `attention.SelfAttention`."""

        def join(x, branch):
            branch = nn.Dropout(self.dropout, deterministic=not train)(branch)
            return layers.lay_out_rows(x + layers.DropPath(self.drop_path)(branch, train))

        x, y = layers.fork_norm(self.layer_norm_eps, self.dtype, "attention_norm")(x)
        how = dict(dtype=self.dtype, causal=self.causal, way=self.way, keys=self.keys)
        attend = attention.SelfAttention(self.heads, **how, name="attention")
        x = join(x, attend(y, mask, train, angles))
        x, y = layers.fork_norm(self.layer_norm_eps, self.dtype, "mlp_norm")(x)
        return join(x, layers.MlpBlock(self.mlp_dim, self.activation, self.dtype, name="mlp")(y))
