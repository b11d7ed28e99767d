"""Swin transformer (Liu et al., 2021): attention inside windows that are shifted every other block.

Feature maps that windows do not divide are padded with zeros on the right and at the bottom, after
the normalization. As in the published models, the padding takes part in attention (with its biases
for keys and values); only the mask of shifted windows, applied to the padded map, keeps tokens
apart.
"""

import functools
from typing import Any

import einops
import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from big_align.models.parts import attention, blocks, layers
from big_align.models.parts.narrow import Fork, LayerNorm
from big_align.models.parts.tower import Tower
from big_align.parallel.devices.rematerialization import keep_result

VARIANTS = {  # width, blocks and heads of each stage
    "tiny": (96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "small": (96, (2, 2, 18, 2), (3, 6, 12, 24)),
    "base": (128, (2, 2, 18, 2), (4, 8, 16, 32)),
    "large": (192, (2, 2, 18, 2), (6, 12, 24, 48)),
}
PATCH = 4
MLP_RATIO = 4


def choose_window(grid: tuple[int, int], window: int, shift: int) -> tuple[int, int]:
    """Returns window and shift for a map: one no larger than a window is not split or shifted.

    A full window has an edge of `window` tokens and is shifted toward the top left.
    """
    return (min(grid), 0) if min(grid) <= window else (window, shift)


@functools.lru_cache
def index_offsets(window: int, table_window: int) -> Int[np.ndarray, "q k"]:
    """Returns the index of the bias for every pair of tokens of a window, in a table.

    The table has one row per offset (rows, columns) of query minus key, from -(table_window - 1) to
    table_window - 1, columns fastest. A window smaller than the table's uses its middle.
    """
    rows, columns = np.divmod(np.arange(window**2), window)
    row = rows[:, None] - rows + table_window - 1
    column = columns[:, None] - columns + table_window - 1
    return row * (2 * table_window - 1) + column


@functools.lru_cache
def mask_shifted(grid: tuple[int, int], window: int, shift: int) -> Bool[np.ndarray, "n q k"]:
    """Returns, for every window of a shifted map, which tokens were together before the shift.

    The padded map, a multiple of the window, was rolled toward the top left by less than a window.
    """

    def label(size: int) -> np.ndarray:
        """Labels whole windows 0, of the last one the part that stayed 1, and what wrapped 2."""
        place = np.arange(size)
        return (place >= size - window).astype(int) + (place >= size - shift)

    regions = 3 * label(grid[0])[:, None] + label(grid[1])
    regions = einops.rearrange(regions, "(h p) (w q) -> (h w) (p q)", p=window, q=window)
    return regions[:, :, None] == regions[:, None, :]


class WindowAttention(nn.Module):
    """Multi-head self-attention in windows, with a learned bias for every offset."""

    heads: int
    window: int
    table_window: int  # edge of the window that the bias table is for
    dtype: str
    way: str = "auto"

    @nn.compact
    def __call__(
        self, x: Float[Array, "b n l c"], mask: Bool[np.ndarray, "n l l"] | None
    ) -> Float[Array, "b n l c"]:
        """Lets every token attend to its window: a query to the keys where its mask is True."""
        init = nn.with_logical_partitioning(layers.truncated_normal, ("positions", None))
        shape = ((2 * self.table_window - 1) ** 2, self.heads)
        table = self.param("relative_position_bias", init, shape)
        offsets = index_offsets(self.window, self.table_window)
        bias = einops.rearrange(jnp.asarray(table)[offsets], "q k h -> 1 h q k")
        if mask is not None:
            bias = jnp.where(mask[:, None], bias, attention.AWAY)
        # To attention, each window is an example.
        heads = attention.project_heads(x.reshape(-1, *x.shape[2:]), self.heads, self.dtype)
        y = attention.attend(*heads, None, bias=bias, way=self.way).reshape(x.shape)
        return layers.Dense(x.shape[-1], ("heads", "embed"), dtype=self.dtype, name="out")(y)


class SwinBlock(nn.Module):
    """Transformer block whose attention sees a window, with normalization before each branch."""

    grid: tuple[int, int]
    heads: int
    window: int
    shift: int
    activation: str
    dropout: float
    drop_path: float | Array
    layer_norm_eps: float
    dtype: str
    way: str = "auto"

    @nn.compact
    def __call__(self, x: Float[Array, "b l c"], train: bool) -> Float[Array, "b l c"]:
        """Transforms the tokens of a map, row by row."""

        def join(x, branch):
            branch = nn.Dropout(self.dropout, deterministic=not train)(branch)
            return keep_result(x + layers.DropPath(self.drop_path)(branch, train))

        x, y = Fork(self.layer_norm_eps, self.dtype, name="attention_norm")(x)
        x = join(x, self._attend(y))
        x, y = Fork(self.layer_norm_eps, self.dtype, name="mlp_norm")(x)
        hidden = MLP_RATIO * x.shape[-1]
        return join(x, layers.MlpBlock(hidden, self.activation, self.dtype, name="mlp")(y))

    def _attend(self, x: Float[Array, "b l c"]) -> Float[Array, "b l c"]:
        """Splits the map into windows, attends within each, and joins them again."""
        window, shift = choose_window(self.grid, self.window, self.shift)
        rows, columns = self.grid
        below, right = -rows % window, -columns % window
        x = x.reshape(-1, rows, columns, x.shape[-1])
        x = jnp.pad(x, ((0, 0), (0, below), (0, right), (0, 0)))
        x = jnp.roll(x, (-shift, -shift), (1, 2)) if shift else x
        mask = mask_shifted(x.shape[1:3], window, shift) if shift else None

        sizes = dict(h=x.shape[1] // window, p=window, q=window)
        x = einops.rearrange(x, "b (h p) (w q) c -> b (h w) (p q) c", **sizes)
        settings = self.heads, window, self.window, self.dtype, self.way
        x = WindowAttention(*settings, name="attention")(x, mask)
        x = einops.rearrange(x, "b (h w) (p q) c -> b (h p) (w q) c", **sizes)

        x = jnp.roll(x, (shift, shift), (1, 2)) if shift else x
        return x[:, :rows, :columns].reshape(x.shape[0], -1, x.shape[-1])


class Merge(nn.Module):
    """Merges each 2 x 2 tokens into one of twice the width; an odd edge is padded with zeros."""

    layer_norm_eps: float
    dtype: str

    @nn.compact
    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c2"]:
        """Merges the tokens of a map."""
        channels = x.shape[-1]
        x = jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, x.shape[2] % 2), (0, 0)))
        # Columns outermost: the order in which the published weights expect the four tokens.
        x = einops.rearrange(x, "b (h p) (w q) c -> b h w (q p c)", p=2, q=2)
        x = LayerNorm(self.layer_norm_eps, self.dtype, name="norm")(x)
        axes = "channels_in", "embed"
        dense = layers.Dense(2 * channels, axes, dtype=self.dtype, name="reduce", use_bias=False)
        return dense(x)


class Swin(Tower):
    """Swin transformer as an image tower, for images of any size.

    Args:
      variant: "tiny", "small", "base" or "large".
      width: width of the first stage's tokens, instead of the variant's; each stage doubles it.
      depths: blocks of each stage, instead of the variant's.
      heads: attention heads of each stage, instead of the variant's.
      window: tokens along an edge of a window.
      dropout: rate after the embedding and at the end of every branch.
      drop_path: rate of stochastic depth at the last block, growing linearly from 0 at the first.
      activation: "gelu" (exact), "gelu_tanh" or "quick_gelu".
      layer_norm_eps: added to the variance.
      attention: how attention is computed, a name in `kernels.attention_ways.WAYS`.
    """

    variant: str = "tiny"
    width: int | None = None
    depths: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    window: int = 7
    dropout: float = 0.0
    drop_path: float = 0.0
    activation: str = "gelu"
    layer_norm_eps: float = 1e-5
    attention: str = "auto"

    @property
    def resolved(self) -> dict[str, Any]:
        """Width, depths and heads: the variant's, unless given."""
        published = layers.choose("variant", self.variant, VARIANTS)
        return self.resolve(("width", "depths", "heads"), published)

    @property
    def stage_depths(self) -> tuple[int, ...]:
        """Blocks of each stage."""
        return self.resolved["depths"]

    @property
    def output_dim(self) -> int:
        """Width of the pooled features."""
        return self.resolved["width"] * 2 ** (len(self.stage_depths) - 1)

    @nn.compact
    def __call__(
        self, image: Float[Array, "b h w 3"], train: bool = False
    ) -> tuple[Float[Array, "b c"], Float[Array, "b t c"]]:
        """Encodes images, padded with zeros to whole patches; pools the mean of the last stage."""
        depths, heads = self.stage_depths, self.resolved["heads"]
        if len(depths) != len(heads):
            raise ValueError(f"depths={depths} and heads={heads} must have an entry for each stage")
        x = self._embed(image)
        x = nn.Dropout(self.dropout, deterministic=not train)(x)

        number, last = 0, max(sum(depths) - 1, 1)
        for stage, depth in enumerate(depths):
            if stage:
                x = Merge(self.layer_norm_eps, self.dtype, name=f"merge_{stage - 1}")(x)
            grid = x.shape[1:3]
            x = x.reshape(x.shape[0], -1, x.shape[-1])
            settings = [
                dict(
                    grid=grid,
                    heads=heads[stage],
                    window=self.window,
                    shift=self.window // 2 if i % 2 else 0,
                    activation=self.activation,
                    dropout=self.dropout,
                    drop_path=self.drop_path * (number + i) / last,
                    layer_norm_eps=self.layer_norm_eps,
                    dtype=self.dtype,
                    way=self.attention,
                )
                for i in range(depth)
            ]
            x = blocks.run_blocks(self, SwinBlock, settings, x, start=number, train=train)
            number += depth
            x = x.reshape(x.shape[0], *grid, -1)
        x = LayerNorm(self.layer_norm_eps, self.dtype, name="final_norm")(x)
        return x.mean((1, 2)), x.reshape(x.shape[0], -1, x.shape[-1])

    def _embed(self, image: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 c"]:
        below, right = -image.shape[1] % PATCH, -image.shape[2] % PATCH
        x = jnp.pad(image, ((0, 0), (0, below), (0, right), (0, 0)))
        x = einops.rearrange(x, "b (h p) (w q) c -> b h w (p q c)", p=PATCH, q=PATCH)
        width, axes = self.resolved["width"], ("channels_in", "embed")
        x = layers.Dense(width, axes, dtype=self.dtype, name="patch_embedding")(x)
        return LayerNorm(self.layer_norm_eps, self.dtype, name="patch_norm")(x)
