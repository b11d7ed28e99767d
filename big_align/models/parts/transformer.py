"""What transformers share: their sizes, their lookup tables, how blocks run, the pre-norm block."""

from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from big_align.models.parts import attention, blocks, layer_weights, layers
from big_align.models.parts.attention import Tokens
from big_align.models.parts.narrow import Fork
from big_align.models.parts.tower import Tower
from big_align.parallel.devices.rematerialization import keep_result

SIZES = "width", "depth", "mlp_dim", "heads"
"""What a variant of a transformer decides."""

init_positions = nn.with_logical_partitioning(layers.truncated_normal, ("positions", "embed"))
"""Initializes a table of learned positions, [positions, width]."""

init_grid = nn.with_logical_partitioning(layers.truncated_normal, ("positions", None, "embed"))
"""Initializes learned positions of patches, [rows, columns, width]."""


class TokenEmbedding(nn.Module):
    """Looks up the vectors of token ids."""

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


def look_up_tokens(
    text: Int[Array, "b l"], max_length: int, vocab_size: int, width: int, dtype: str
) -> Float[Array, "b l c"]:
    """Looks up token ids by a layer with the name that all towers give it; at most `max_length`."""
    if text.shape[1] > max_length:
        raise ValueError(f"a text of {text.shape[1]} tokens is longer than max_length={max_length}")
    return TokenEmbedding(vocab_size, width, dtype, name="token_embedding")(text)


def _look_up(ids, table):
    return jnp.take(table, ids, axis=0)


class Transformer(Tower):
    """A transformer as a tower, with the sizes of a variant.

    Args:
      width: width of the tokens, instead of the variant's; likewise for the next three.
      depth: number of blocks.
      mlp_dim: hidden width of the perceptrons.
      heads: number of attention heads.
      dropout: rate after the embedding and at the end of every branch.
      activation: "gelu" (exact), "gelu_tanh" or "quick_gelu".
      layer_norm_eps: added to the variance.
      attention: how attention is computed, a name in `kernels.attention_ways.WAYS`.
    """

    width: int | None = None
    depth: int | None = None
    mlp_dim: int | None = None
    heads: int | None = None
    dropout: float = 0.0
    activation: str = "gelu"
    layer_norm_eps: float = 1e-6
    attention: str = "auto"
    variants: ClassVar[Mapping[str, tuple[int, int, int, int]]] = {}

    @property
    def size(self) -> str:
        """The key of `variants`."""
        return self.variant

    @property
    def resolved(self) -> dict[str, Any]:
        """Width, depth, mlp_dim and heads: the variant's, unless given."""
        return self.resolve(SIZES, layers.choose("variant", self.size, self.variants))

    @property
    def stage_depths(self) -> tuple[int, ...]:
        """Number of blocks, which are one stage."""
        return (self.resolved["depth"],)

    @property
    def output_dim(self) -> int:
        """Width of the pooled features."""
        return self.resolved["width"]

    @nn.nowrap  # so that programs name the blocks, not this method
    def run_blocks(
        self,
        block_class: type[nn.Module],
        tokens: Tokens,
        settings: Mapping[str, Any],
        *,
        train: bool,
        drop_path: float | None = None,
        dropped: bool = False,
    ) -> Float[Array, "b l c"]:
        """Runs all blocks, with the tower's own settings and others.

        Stochastic depth grows linearly from 0 at the first block to `drop_path` at the last, if
        blocks have it. `dropped` says whether dropout is applied to the weights of attention.
        """
        sizes, count = self.resolved, tokens.x.shape[1]
        heads, causal = sizes["heads"], settings.get("causal", False)
        tokens = attention.pad_tokens(tokens, heads, dropped, causal, self.attention)
        shared = {
            "heads": heads,
            "mlp_dim": sizes["mlp_dim"],
            "activation": self.activation,
            "dropout": self.dropout,
            "layer_norm_eps": self.layer_norm_eps,
            "dtype": self.dtype,
            "way": self.attention,
            "keys": tokens.keys,
            **settings,
        }
        each, last = [shared] * sizes["depth"], max(sizes["depth"] - 1, 1)
        if drop_path is not None:
            each = [shared | {"drop_path": drop_path * i / last} for i in range(sizes["depth"])]
        given = tokens.mask, tokens.angles
        return blocks.run_blocks(self, block_class, each, tokens.x, *given, train=train)[:, :count]


class TextTransformer(Transformer):
    """A transformer as a text tower.

    Args:
      vocab_size: number of token ids.
      max_length: number of positions.
    """

    vocab_size: int = 0
    max_length: int = 0

    @nn.nowrap
    def look_up(self, text: Int[Array, "b l"]) -> Float[Array, "b l c"]:
        """Looks up the vectors of token ids; raises a ValueError if they are too many."""
        width = self.resolved["width"]
        return look_up_tokens(text, self.max_length, self.vocab_size, width, self.dtype)


class TransformerBlock(nn.Module):
    """Transformer block with normalization before attention and before the perceptron."""

    heads: int
    mlp_dim: int
    activation: str
    dropout: float  # at the end of each branch
    layer_norm_eps: float
    dtype: str
    drop_path: float | Array = 0.0
    causal: bool = False
    way: str = "auto"
    keys: int | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b l c"],
        mask: Bool[Array, "b l"] | None,
        angles: Float[Array, "*b l half"] | None,
        train: bool,
    ) -> Float[Array, "b l c"]:
        """Transforms tokens; the arguments are those of `attention.SelfAttention`."""

        def join(x, branch):
            branch = nn.Dropout(self.dropout, deterministic=not train)(branch)
            branch = layers.DropPath(self.drop_path)(branch, train)
            return keep_result(layers.lay_out_rows(x + branch))

        x, y = Fork(self.layer_norm_eps, self.dtype, name="attention_norm")(x)
        how = dict(dtype=self.dtype, causal=self.causal, way=self.way, keys=self.keys)
        attend = attention.SelfAttention(self.heads, **how, name="attention")
        x = join(x, attend(y, mask, train, angles))
        x, y = Fork(self.layer_norm_eps, self.dtype, name="mlp_norm")(x)
        return join(x, layers.MlpBlock(self.mlp_dim, self.activation, self.dtype, name="mlp")(y))
