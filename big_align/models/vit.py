"""Vision transformer (Dosovitskiy et al., 2021), pre-norm, learned positions."""

import re

import einops
import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from big_align.models import layers

VARIANTS = {  # width, depth, mlp_dim, heads
    "ti": (192, 12, 768, 3),
    "s": (384, 12, 1536, 6),
    "b": (768, 12, 3072, 12),
    "l": (1024, 24, 4096, 16),
    "h": (1280, 32, 5120, 16),
}


class Block(nn.Module):
    """Transformer block with normalisation before attention and before the perceptron.

    Args:
      heads: number of attention heads.
      mlp_dim: hidden width of the perceptron.
      activation: a name in `layers.ACTIVATIONS`.
      dropout: rate after attention and after the perceptron.
      drop_path: stochastic depth's rate.
      layer_norm_eps: added to the variance.
      dtype: name of the type of the computation.
    """

    heads: int
    mlp_dim: int
    activation: str
    dropout: float
    drop_path: float
    layer_norm_eps: float
    dtype: str

    @nn.compact
    def __call__(self, x: Float[Array, "b l c"], train: bool) -> Float[Array, "b l c"]:
        """Transforms tokens."""

        def join(x, branch):
            branch = nn.Dropout(self.dropout, deterministic=not train)(branch)
            return x + layers.DropPath(self.drop_path)(branch, train)

        y = layers.layer_norm(self.layer_norm_eps, self.dtype, "attention_norm")(x)
        attention = layers.SelfAttention(self.heads, dtype=self.dtype, name="attention")
        x = join(x, attention(y, None, train))
        y = layers.layer_norm(self.layer_norm_eps, self.dtype, "mlp_norm")(x)
        return join(x, layers.MlpBlock(self.mlp_dim, self.activation, self.dtype, name="mlp")(y))


class ViT(nn.Module):
    """Vision transformer as an image tower.

    Args:
      variant: size and patch, such as "b/16": "ti", "s", "b", "l" or "h", and pixels.
      width: of the tokens, instead of the variant's; likewise for the next three.
      depth: number of blocks.
      mlp_dim: hidden width of the perceptrons.
      heads: number of attention heads.
      pool: "cls" for the class token's output, "mean" for the mean over patches, without it.
      dropout: rate after the embedding and at the end of every branch.
      drop_path: stochastic depth's rate at the last block, growing linearly from 0 at the first.
      activation: "gelu" (exact), "gelu_tanh" or "quick_gelu".
      layer_norm_eps: added to the variance.
      dtype: name of the type of the computation.
      remat: recompute each block in the backward pass instead of storing its activations.
    """

    variant: str = "b/16"
    width: int | None = None
    depth: int | None = None
    mlp_dim: int | None = None
    heads: int | None = None
    pool: str = "cls"
    dropout: float = 0.0
    drop_path: float = 0.0
    activation: str = "gelu"
    layer_norm_eps: float = 1e-6
    dtype: str = "float32"
    remat: bool = False

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """Width, depth, mlp_dim, heads (the variant's, unless given) and patch."""
        match = re.fullmatch(r"(\w+)/(\d+)", self.variant)
        if not match:
            raise ValueError(f"variant={self.variant!r} is not of the form 'b/16': size/patch")
        published = layers.choose("variant", match[1], VARIANTS)
        given = self.width, self.depth, self.mlp_dim, self.heads
        width, depth, mlp_dim, heads = (
            b if a is None else a for a, b in zip(given, published, strict=True)
        )
        return width, depth, mlp_dim, heads, int(match[2])

    @property
    def output_dim(self) -> int:
        """Width of the pooled features."""
        return self.sizes[0]

    @nn.compact
    def __call__(
        self, image: Float[Array, "b h w 3"], train: bool = False
    ) -> tuple[Float[Array, "b c"], Float[Array, "b t c"]]:
        """Encodes images.

        Args:
          image: normalised images, of the size that the parameters were made for.
          train: whether dropout and stochastic depth are on.

        Returns:
          The pooled features, and those of every patch, row by row.

        Raises:
          ValueError: a setting is unknown, or the image does not fit the patches or positions.
        """
        _, depth, mlp_dim, heads, _ = self.sizes
        layers.choose("pool", self.pool, {"cls": None, "mean": None})
        x = nn.Dropout(self.dropout, deterministic=not train)(self._embed(image))

        block_class = nn.remat(Block, static_argnums=(2,)) if self.remat else Block  # 2: train
        for i in range(depth):
            block = block_class(
                heads=heads,
                mlp_dim=mlp_dim,
                activation=self.activation,
                dropout=self.dropout,
                drop_path=self.drop_path * i / max(depth - 1, 1),
                layer_norm_eps=self.layer_norm_eps,
                dtype=self.dtype,
                name=f"block_{i:02d}",
            )
            x = block(x, train)
        x = layers.layer_norm(self.layer_norm_eps, self.dtype, "final_norm")(x)
        return (x[:, 0], x[:, 1:]) if self.pool == "cls" else (x.mean(1), x)

    def _embed(self, image: Float[Array, "b h w 3"]) -> Float[Array, "b l c"]:
        width, *_, patch = self.sizes
        if image.shape[1] % patch or image.shape[2] % patch:
            raise ValueError(
                f"an image of {image.shape[1]} x {image.shape[2]} does not divide into patches of "
                f"{patch}; change the image size or variant={self.variant!r}"
            )
        x = einops.rearrange(image, "b (h p) (w q) c -> b (h w) (p q c)", p=patch, q=patch)
        axes = "channels_in", "embed"
        x = layers.dense(width, axes, dtype=self.dtype, name="patch_embedding")(x)
        if self.pool == "cls":
            cls_token = self.param("cls_token", nn.initializers.zeros, (width,))
            x = jnp.concatenate([jnp.broadcast_to(cls_token, x[:, :1].shape).astype(x.dtype), x], 1)

        name, shape = "position_embedding", x.shape[1:]
        if self.has_variable("params", name):
            held = nn.meta.unbox(self.get_variable("params", name)).shape
            if held != shape:
                raise ValueError(
                    f"{name} holds {held[0]} positions, an image of {image.shape[1]} x "
                    f"{image.shape[2]} has {shape[0]}: use the image size of training"
                )
        init = nn.with_logical_partitioning(layers.truncated_normal, ("positions", "embed"))
        return x + self.param(name, init, shape).astype(x.dtype)
