"""EfficientNet B0 to B7, L2 and Lite 0 to 4, channels last.

Tan and Le (2019); L2 is from Xie et al. (2020). Lite is the authors' version for small devices: no
squeeze-excitation, ReLU6, and the stem, the head and the depth of the first and last stages as in
B0.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import numpy as np
from jaxtyping import Array, Float

from big_align.models.parts import blocks, layer_weights, layers
from big_align.models.parts.batch_norm import BatchNorm
from big_align.models.parts.convolution import Convolution
from big_align.models.parts.depthwise import depthwise_conv
from big_align.models.parts.tower import Tower

VARIANTS = {  # width, depth, dropout before the classifier
    "b0": (1.0, 1.0, 0.2),
    "b1": (1.0, 1.1, 0.2),
    "b2": (1.1, 1.2, 0.3),
    "b3": (1.2, 1.4, 0.3),
    "b4": (1.4, 1.8, 0.4),
    "b5": (1.6, 2.2, 0.4),
    "b6": (1.8, 2.6, 0.5),
    "b7": (2.0, 3.1, 0.5),
    "l2": (4.3, 5.3, 0.5),
    "lite0": (1.0, 1.0, 0.2),
    "lite1": (1.0, 1.1, 0.2),
    "lite2": (1.1, 1.2, 0.3),
    "lite3": (1.2, 1.4, 0.3),
    "lite4": (1.4, 1.8, 0.3),
}

IMAGE_SIZES = {
    **{"b0": 224, "b1": 240, "b2": 260, "b3": 300, "b4": 380, "b5": 456, "b6": 528, "b7": 600},
    **{"l2": 800, "lite0": 224, "lite1": 240, "lite2": 260, "lite3": 280, "lite4": 300},
}
"""Size in pixels of the square images that a variant was published for."""

STEM_CHANNELS, HEAD_CHANNELS = 32, 1280

STAGES = (  # repeats, kernel, stride, expansion, channels: at width 1 and depth 1
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)

SQUEEZE_RATIO = 0.25

_AXES = ("channels_in", "channels_out")  # of a 1x1 convolution

# Normal with variance 2 / fan-out.
_conv_init = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
_depthwise_init = nn.initializers.variance_scaling(2.0, "fan_in", "normal")


def scale_channels(channels: int, width: float) -> int:
    """Scales a number of channels to a multiple of 8, never down by more than a tenth."""
    scaled = channels * width
    rounded = max(8, int(scaled + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * scaled else rounded


class InvertedBlock(nn.Module):
    """Mobile inverted bottleneck: expand, depthwise convolution, squeeze and excite, project."""

    channels: int
    kernel: int
    stride: int
    expansion: int  # hidden width over input width; 1 leaves the expansion out
    drop_path: float | Array
    lite: bool
    norm: functools.partial  # makes a batch normalization with a given name
    dtype: str

    @nn.compact
    def __call__(self, x: Float[Array, "b h w c"], train: bool) -> Float[Array, "b h2 w2 c2"]:
        """Transforms activations, and adds the input if the shapes are equal."""
        activate = nn.relu6 if self.lite else nn.swish
        pointwise = functools.partial(_pointwise_conv, dtype=self.dtype)
        inputs, width = x.shape[-1], x.shape[-1] * self.expansion
        if self.expansion != 1:
            x, residual = pointwise(width, "expand_conv")(x), x
            x = self.norm(activation=activate, name="expand_norm")(x, train)
        else:
            residual = x

        axes = (None, None, None, "channels_out")
        kernel_init = nn.with_logical_partitioning(_depthwise_init, axes)
        shape = (self.kernel, self.kernel, 1, width)
        kernel = self.param("depthwise_kernel", kernel_init, shape)
        convolve = functools.partial(depthwise_conv, stride=self.stride)
        x = layer_weights.apply_weight(convolve, x, kernel, axes, x.dtype)
        norm = self.norm(activation=activate, name="depthwise_norm")
        x = norm(x, train) if self.lite else norm(x, train, *self._make_gate(inputs, width))

        x = self.norm(name="project_norm")(pointwise(self.channels, "project_conv")(x), train)
        if x.shape != residual.shape:
            return x
        return residual + layers.DropPath(self.drop_path)(x, train)

    def _make_gate(
        self, inputs: int, width: int
    ) -> tuple[Callable[..., Array], tuple[Array | np.ndarray, ...]]:
        """Makes squeeze and excite: a function of pooled channels and weights, and the weights."""
        squeezed = max(1, int(inputs * SQUEEZE_RATIO))
        make = functools.partial(layers.DenseWeights, axes=_AXES, kernel_init=_conv_init)
        weights = (
            *make(squeezed, name="squeeze_conv")(width),
            *make(width, name="excite_conv")(squeezed),
        )
        apply = functools.partial(layers.apply_dense, axes=_AXES, dtype=self.dtype)

        def gate(pooled: Float[Array, "b c"], *weights: Array) -> Float[Array, "b c"]:
            squeezed = nn.swish(apply(pooled, *weights[:2]))
            return nn.sigmoid(apply(squeezed, *weights[2:]))

        return gate, weights


def _pointwise_conv(channels: int, name: str, dtype: str) -> layers.Dense:
    """Makes a 1x1 convolution as a matrix product: up to five times faster on CPUs."""
    return layers.Dense(channels, _AXES, dtype, _conv_init, use_bias=False, name=name)


class EfficientNet(Tower):
    """EfficientNet as an image tower.

    ALIGN uses it "with global pooling, without training the 1x1 conv layer in the classification
    head" (§4.1). We read this as no head convolution at all: the output of the last block is
    pooled, which gives the paper's embedding sizes, 640 for B7 and 1376 for L2. Published weights
    and parameter counts include the head convolution and its normalization: `head=True`.

    Args:
      variant: "b0" to "b7", "l2", or "lite0" to "lite4"; sets the width and depth coefficients.
      width: multiplier of the channels, instead of the variant's.
      depth: multiplier of the blocks of each stage, instead of the variant's.
      lite: whether there is no squeeze-excitation, ReLU6 instead of swish, and the channels of stem
        and head and the depth of the first and last stages are those at width and depth 1; instead
        of the variant's.
      stem_stride: stride of the first convolution; 1 suits small images.
      head: whether the 1x1 convolution to 1280 (at width 1) channels precedes the pooling.
      dropout: rate on the pooled features; None for the variant's published rate, which belongs to
        its classifier.
      drop_path: rate of stochastic depth; block i of n, counted from 0, has i / n of it, as in the
        authors' code (their drop connect): the last block has slightly less than the full rate.
      group_size: examples that share batch-norm statistics; None for the global batch.
      fixed_statistics: whether to normalize by the running batch-norm statistics in training too,
        and leave them unchanged; for towers that start from weights.
      momentum: momentum of the running batch-norm statistics.
    """

    variant: str = "b0"
    width: float | None = None
    depth: float | None = None
    lite: bool | None = None
    stem_stride: int = 2
    head: bool = False
    dropout: float | None = 0.0
    drop_path: float = 0.2
    group_size: int | None = None
    fixed_statistics: bool = False
    momentum: float = 0.99

    @property
    def resolved(self) -> dict[str, Any]:
        """Width, depth, dropout and whether it is Lite: the variant's, unless given."""
        published = layers.choose("variant", self.variant, VARIANTS)
        names = "width", "depth", "dropout", "lite"
        return self.resolve(names, (*published, self.variant.startswith("lite")))

    @property
    def stage_depths(self) -> tuple[int, ...]:
        """Number of blocks of each stage."""
        depth, lite, ends = self.resolved["depth"], self.resolved["lite"], (0, len(STAGES) - 1)
        return tuple(
            repeats if lite and stage in ends else math.ceil(repeats * depth)
            for stage, (repeats, *_) in enumerate(STAGES)
        )

    @property
    def stem_channels(self) -> int:
        """Width of the first convolution."""
        return self._scale_end(STEM_CHANNELS)

    @property
    def output_dim(self) -> int:
        """Width of the pooled features."""
        if self.head:
            return self._scale_end(HEAD_CHANNELS)
        return scale_channels(STAGES[-1][-1], self.resolved["width"])

    def _scale_end(self, channels: int) -> int:
        sizes = self.resolved
        return channels if sizes["lite"] else scale_channels(channels, sizes["width"])

    @nn.compact
    def __call__(
        self, image: Float[Array, "b h w 3"], train: bool = False
    ) -> tuple[Float[Array, "b c"], Float[Array, "b t c"]]:
        """Encodes images; the pooled features are the mean over all positions."""
        activate = nn.relu6 if self.resolved["lite"] else nn.swish
        norm = functools.partial(
            BatchNorm, self.momentum, group_size=self.group_size, fixed=self.fixed_statistics
        )
        stem = Convolution(
            self.stem_channels,
            3,
            self.stem_stride,
            _conv_init,
            self.dtype,
            same_padding=True,
            name="stem_conv",
        )
        x = norm(activation=activate, name="stem_norm")(stem(image), train)

        settings = [each | {"norm": norm, "dtype": self.dtype} for each in self._block_settings()]
        x = blocks.run_blocks(self, InvertedBlock, settings, x, train=train)
        if self.head:
            x = _pointwise_conv(self.output_dim, "head_conv", self.dtype)(x)
            x = norm(activation=activate, name="head_norm")(x, train)

        pooled = nn.Dropout(self.resolved["dropout"], deterministic=not train)(x.mean((1, 2)))
        return pooled, x.reshape(x.shape[0], -1, x.shape[-1])

    def _block_settings(self) -> list[dict]:
        sizes, settings = self.resolved, []
        stages = zip(self.stage_depths, STAGES, strict=True)
        for depth, (_, kernel, stride, expansion, channels) in stages:
            stage = {
                "channels": scale_channels(channels, sizes["width"]),
                "kernel": kernel,
                "expansion": expansion,
                "lite": sizes["lite"],
            }
            settings += [stage | {"stride": 1 if i else stride} for i in range(depth)]
        count = len(settings)
        return [s | {"drop_path": self.drop_path * i / count} for i, s in enumerate(settings)]


def find_variant(blocks: int, stem: int, last: int, lite: bool) -> str | None:
    """Returns the name of the variant with these sizes, None if there is none.

    They are the blocks, the channels of the first convolution and of the last block's output, and
    whether blocks lack squeeze and excite.
    """
    for variant in VARIANTS:
        tower = EfficientNet(variant)
        sizes = sum(tower.stage_depths), tower.stem_channels, tower.output_dim
        if sizes == (blocks, stem, last) and tower.resolved["lite"] == lite:
            return variant
    return None
