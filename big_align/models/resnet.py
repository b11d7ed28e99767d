"""ResNet (He et al. 2016) with basic or bottleneck blocks, strides in the 3x3 convolution."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float

from big_align.models.parts import blocks, layers
from big_align.models.parts.batch_norm import BatchNorm
from big_align.models.parts.convolution import Convolution
from big_align.models.parts.tower import Tower

VARIANTS = {  # block, blocks of each stage
    "18": ("basic", (2, 2, 2, 2)),
    "34": ("basic", (3, 4, 6, 3)),
    "50": ("bottleneck", (3, 4, 6, 3)),
    "101": ("bottleneck", (3, 4, 23, 3)),
}
STEMS = {"imagenet": (7, 2), "small": (3, 1), "patch": (3, 2), "patch4": (5, 4)}
"""Kernel and stride of the first convolution."""
EXPANSION = {"basic": 1, "bottleneck": 4}

_conv_init = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


class ResidualBlock(nn.Module):
    """A residual block: two 3x3 convolutions, or 1x1, 3x3, 1x1."""

    kind: str  # in `EXPANSION`
    channels: int  # of the 3x3 convolutions
    stride: int  # of the first 3x3 convolution and of the shortcut
    drop_path: float | Array
    norm: functools.partial  # makes a batch normalization with a given name
    dtype: str

    @nn.compact
    def __call__(self, x: Float[Array, "b h w c"], train: bool) -> Float[Array, "b h2 w2 c2"]:
        """Transforms activations and adds them to the shortcut."""
        wide = self.channels * EXPANSION[self.kind]
        if self.kind == "basic":
            kernels = ((self.channels, 3, self.stride), (wide, 3, 1))
        else:
            kernels = ((self.channels, 1, 1), (self.channels, 3, self.stride), (wide, 1, 1))

        y = x
        for i, (channels, kernel, stride) in enumerate(kernels):
            y = Convolution(channels, kernel, stride, _conv_init, self.dtype, name=f"conv_{i}")(y)
            activation = nn.relu if i + 1 < len(kernels) else None  # the last waits for the sum
            y = self.norm(activation=activation, name=f"norm_{i}")(y, train)
        if x.shape[-1] != wide or self.stride != 1:
            x = Convolution(wide, 1, self.stride, _conv_init, self.dtype, name="shortcut_conv")(x)
            x = self.norm(name="shortcut_norm")(x, train)
        return nn.relu(x + layers.DropPath(self.drop_path)(y, train))


class ResNet(Tower):
    """ResNet as an image tower.

    Args:
      variant: "18", "34", "50" or "101"; sets the kind and the number of blocks.
      width: channels of the first stage's 3x3 convolutions; each stage doubles them.
      depths: blocks of each stage, instead of the variant's.
      stem_width: channels of the first convolution; None for `width`.
      stem: "imagenet", a 7x7 convolution of stride 2 and a max pooling of stride 2; for small
        images "small", "patch" or "patch4", one convolution of stride 1, 2 or 4.
      dropout: rate on the pooled features.
      drop_path: rate of stochastic depth at the last block, growing linearly from 0 at the first.
      group_size: examples that share batch-norm statistics; None for the global batch.
      fixed_statistics: whether to normalize by the running batch-norm statistics in training too,
        and leave them unchanged; for towers that start from weights.
      momentum: momentum of the running batch-norm statistics.
      epsilon: added to batch-norm variances.
    """

    variant: str = "50"
    width: int = 64
    depths: tuple[int, ...] | None = None
    stem_width: int | None = None
    stem: str = "imagenet"
    dropout: float = 0.0
    drop_path: float = 0.0
    group_size: int | None = None
    fixed_statistics: bool = False
    momentum: float = 0.9
    epsilon: float = 1e-5

    @property
    def resolved(self) -> dict[str, Any]:
        """The kind of block, the number per stage and the width of the stem, unless given."""
        kind, depths = layers.choose("variant", self.variant, VARIANTS)
        stem_width = self.stem_width or self.width
        return {"kind": kind, "depths": self.depths or depths, "stem_width": stem_width}

    @property
    def stage_depths(self) -> tuple[int, ...]:
        """Number of blocks of each stage."""
        return self.resolved["depths"]

    @property
    def output_dim(self) -> int:
        """Width of the pooled features."""
        kind, depths = self.resolved["kind"], self.stage_depths
        return self.width * 2 ** (len(depths) - 1) * EXPANSION[kind]

    @nn.compact
    def __call__(
        self, image: Float[Array, "b h w 3"], train: bool = False
    ) -> tuple[Float[Array, "b c"], Float[Array, "b t c"]]:
        """Encodes images; the pooled features are the mean over all positions."""
        norm: Callable = functools.partial(
            BatchNorm, self.momentum, self.epsilon, self.group_size, self.fixed_statistics
        )
        kernel, stride = layers.choose("stem", self.stem, STEMS)
        stem_width = self.resolved["stem_width"]
        x = Convolution(stem_width, kernel, stride, _conv_init, self.dtype, name="stem_conv")(image)
        x = norm(activation=nn.relu, name="stem_norm")(x, train)
        if self.stem == "imagenet":
            x = nn.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))

        kind, depths = self.resolved["kind"], self.stage_depths
        last = max(sum(depths) - 1, 1)
        settings = [
            dict(
                kind=kind,
                channels=self.width * 2**stage,
                stride=2 if stage and not i else 1,
                drop_path=self.drop_path * (sum(depths[:stage]) + i) / last,
                norm=norm,
                dtype=self.dtype,
            )
            for stage, depth in enumerate(depths)
            for i in range(depth)
        ]
        x = blocks.run_blocks(self, ResidualBlock, settings, x, train=train)
        pooled = nn.Dropout(self.dropout, deterministic=not train)(x.mean((1, 2)))
        return pooled, x.reshape(x.shape[0], -1, x.shape[-1])
