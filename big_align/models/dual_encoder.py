"""An image tower and a text tower that embed into one space of unit-length vectors."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt8

from big_align.core.errors import is_array, make_fault, show_value
from big_align.core.module_paths import split_path
from big_align.core.types import Embeddings, Features
from big_align.models.parts import layers, locking

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Images = UInt8[Array, "b h w 3"] | Float[Array, "b h w 3"]
"""uint8, or float and already standardized."""

TOWERS = ("image", "text")
"""The parts of a dual encoder that can be locked."""


def normalize_image(
    image: Images, mean: tuple[float, float, float], std: tuple[float, float, float]
) -> Float[Array, "b h w 3"]:
    """Standardizes the colors of uint8 images; float images are returned unchanged.

    Means and standard deviations of red, green and blue are on a scale from 0 to 1.
    """
    if jnp.issubdtype(image.dtype, jnp.floating):
        return image
    return (image.astype(jnp.float32) / 255.0 - jnp.array(mean)) / jnp.array(std)


def normalize(x: Float[Array, "b d"]) -> Float[Array, "b d"]:
    """Scales rows to unit length in float32.

    A row of zeros stays zero, and has a gradient of zero. NaN stays NaN.
    """
    x = x.astype(jnp.float32)
    square = jnp.sum(jnp.square(x), -1, keepdims=True)
    zero = square <= jnp.finfo(jnp.float32).tiny
    return jnp.where(zero, 0.0, x * jax.lax.rsqrt(jnp.where(zero, 1.0, square)))


def _check_outputs(part: str, tower: nn.Module, outputs: Any, rows: Any) -> None:
    """Raises a ConfigError if a tower returns something else than it must; rows may be symbolic."""
    width: int = tower.output_dim
    if isinstance(outputs, tuple) and len(outputs) == 2 and all(map(is_array, outputs)):
        pooled, tokens = outputs
        if pooled.shape == (rows, width) and tokens.shape[:-2] == (rows,):
            return
    wanted = (
        f"(float[{rows} {width}], float[{rows} t c]): what it pools, as wide as its output_dim, "
        "and its features at every position"
    )
    raise make_fault(f"config.model.{part}", tower, "__call__", show_value(outputs), wanted)


class DualEncoder(nn.Module):
    """Encodes images and texts with separate towers into one space (ALIGN §4.1).

    A linear layer maps the text tower's features to the embedding, unless they are the embedding
    themselves, as are vectors of classes (UniCL, Table 3). The image tower's features are, unless a
    linear layer also maps them to another size, as in ALIGN's study of smaller towers (§6.1).
    Without a text tower it encodes only images, for objectives that learn from labels.

    A locked tower does not change: it runs in evaluation mode whatever `train` says, and no
    gradient enters it. So its features depend only on its input, and may be computed once in
    advance. A locked module within a tower runs in evaluation mode, too; whether its parameters
    are trained is up to the optimizer.

    Its methods take `image`, uint8, or float and already standardized; `text`, token ids, with
    `text_mask`, True on real tokens; and `train`, the mode of towers and projections. They return
    features, not normalized, and embeddings, of unit length, both float32.

    Args:
      image: the image tower.
      text: the text tower; None for none.
      embedding_dim: size of the embeddings; None for the width of the image tower.
      image_projection: whether there is a linear layer on the image side.
      text_projection: whether there is one on the text side.
      projection_bias: whether the linear layers have a bias; CLIP's have none.
      image_mean: means of red, green and blue of uint8 images, on a scale from 0 to 1.
      image_std: standard deviations, on the same scale.
      locked: which of the towers "image" and "text" are locked, and which modules within them, as
        in "image/block_00"; `*` and `?` match any characters within a name.
      image_dropout: rate on the image tower's features before the linear layer.
      text_dropout: rate on the text tower's features.
      loss_dtype: name of the type in which training passes embeddings to its loss. In "bfloat16"
        a loss need not write its logits to memory on NVIDIA's Hopper GPUs (`losses.blocks`).
    """

    image: nn.Module
    text: nn.Module | None = None
    embedding_dim: int | None = None
    image_projection: bool = False
    text_projection: bool = True
    projection_bias: bool = True
    image_mean: tuple[float, float, float] = IMAGENET_MEAN
    image_std: tuple[float, float, float] = IMAGENET_STD
    locked: tuple[str, ...] = ()
    image_dropout: float = 0.0
    text_dropout: float = 0.0
    loss_dtype: str = "float32"

    def setup(self):
        if strange := [path for path in self.locked if split_path(path)[0] not in TOWERS]:
            raise ValueError(
                f"locked has {strange[0]!r}, which is no tower; there are {', '.join(TOWERS)}"
            )
        dim = self.embedding_dim or self.image.output_dim
        for part, tower, projected in (
            ("image", self.image, self.image_projection),
            ("text", self.text, self.text_projection),
        ):
            if tower is not None and dim != tower.output_dim and not projected:
                raise ValueError(
                    f"embedding_dim={dim} differs from the width of the {part} tower, "
                    f"{tower.output_dim}: set {part}_projection=True, or "
                    f"embedding_dim={tower.output_dim}"
                )

        def linear() -> layers.Dense:
            return layers.Dense(
                dim,
                ("embed", None),
                kernel_init=nn.initializers.lecun_normal(),
                use_bias=self.projection_bias,
            )

        self.drop_image, self.drop_text = map(nn.Dropout, (self.image_dropout, self.text_dropout))
        if self.text is not None and self.text_projection:
            self.project_text = linear()
        if self.image_projection:
            self.project_image = linear()

    def _run(self, part: str, *inputs: Array, train: bool) -> tuple[Array, Array]:
        """Runs a tower, with whatever of it is locked in evaluation mode."""
        with locking.locking(self.path, self.locked):
            outputs = getattr(self, part)(*inputs, train and part not in self.locked)
        _check_outputs(part, getattr(self, part), outputs, inputs[0].shape[0])
        return jax.lax.stop_gradient(outputs) if part in self.locked else outputs

    def image_features(self, image: Images, train: bool = False) -> Features:
        """Returns what the image tower pools, before any projection, not normalized."""
        return self.image_tokens(image, train)[0]

    def image_tokens(
        self, image: Images, train: bool = False
    ) -> tuple[Float[Array, "b f"], Float[Array, "b t c"]]:
        """Returns what the image tower pools, and its features at every position, row by row.

        The latter have the precision of the tower.
        """
        image = normalize_image(image, self.image_mean, self.image_std)
        features, tokens = self._run("image", image, train=train)
        return features.astype(jnp.float32), tokens

    def encode_image(self, image: Images, train: bool = False) -> Embeddings:
        """Embeds images."""
        return self.embed_features(self.image_features(image, train), train)

    def embed_features(self, features: Float[Array, "b f"], train: bool = False) -> Embeddings:
        """Maps pooled features of images to embeddings: the second half of `encode_image`."""
        features = self.drop_image(features, deterministic=not train)
        return normalize(self.project_image(features) if self.image_projection else features)

    def text_features(
        self, text: Int[Array, "b l"], text_mask: Bool[Array, "b l"], train: bool = False
    ) -> Float[Array, "b f"]:
        """Returns what the text tower pools, before the projection, not normalized."""
        if self.text is None:
            raise ValueError(
                "config.model.text is None, but texts are to be encoded: give a text tower, or "
                "use an objective that learns from labels alone"
            )
        features, _ = self._run("text", text, text_mask, train=train)
        return features.astype(jnp.float32)

    def encode_text(
        self, text: Int[Array, "b l"], text_mask: Bool[Array, "b l"], train: bool = False
    ) -> Float[Array, "b d"]:
        """Embeds texts."""
        return self.embed_text_features(self.text_features(text, text_mask, train), train)

    def embed_text_features(self, features: Float[Array, "b f"], train: bool = False) -> Embeddings:
        """Maps pooled features of texts to embeddings: the second half of `encode_text`."""
        features = self.drop_text(features, deterministic=not train)
        return normalize(self.project_text(features) if self.text_projection else features)

    def __call__(
        self,
        image: Images,
        text: Int[Array, "n l"],
        text_mask: Bool[Array, "n l"],
        train: bool = False,
    ) -> tuple[Float[Array, "b d"], Float[Array, "n d"]]:
        """Embeds images and texts."""
        return self.encode_image(image, train), self.encode_text(text, text_mask, train)
