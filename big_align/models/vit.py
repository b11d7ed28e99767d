"""Vision transformers, pre-norm: the original (Dosovitskiy et al., 2021), CLIP's and MLCD's."""

import re
from typing import ClassVar

import einops
import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from big_align.models.parts import attention, layers, transformer
from big_align.models.parts.narrow import LayerNorm

VARIANTS = {  # width, depth, mlp_dim, heads
    "ti": (192, 12, 768, 3),
    "s": (384, 12, 1536, 6),
    "b": (768, 12, 3072, 12),
    "l": (1024, 24, 4096, 16),
    "h": (1280, 32, 5120, 16),
}
POOLS = dict.fromkeys(("cls", "mean"))
POSITIONS = dict.fromkeys(("learned", "rotary"))
ROTARY_BASE = 10_000.0


def grid_angles(rows: int, columns: int, head_dim: int) -> Float[np.ndarray, "t half"]:
    """Returns the angles in radians by which rotary attention rotates each patch, row by row.

    Rotary positions (Su et al., 2021) in two dimensions, as in MLCD's published models: the first
    half of the angles is proportional to the row, the second half to the column, both with
    frequencies that fall geometrically from 1 toward 1 / `ROTARY_BASE`. Channels of a head are
    rotated in pairs.
    """
    if head_dim % 4:
        raise ValueError(
            f"positions='rotary' needs heads of a multiple of 4 channels, not {head_dim}: "
            f"change width or heads"
        )
    frequencies = ROTARY_BASE ** -(np.arange(0, head_dim // 2, 2) / (head_dim // 2))
    row, column = np.divmod(np.arange(rows * columns), columns)
    angles = [row[:, None] * frequencies, column[:, None] * frequencies]
    return np.concatenate(angles, axis=1).astype(np.float32)


class ViT(transformer.Transformer):
    """Vision transformer as an image tower.

    CLIP's has `input_norm=True, patch_bias=False, layer_norm_eps=1e-5` and OpenAI's weights
    `activation="quick_gelu"`; MLCD's has besides `positions="rotary"` and "gelu".

    Args:
      variant: size and patch, such as "b/16": "ti", "s", "b", "l" or "h", and pixels.
      pool: "cls" for the class token's output, "mean" for the mean over patches, without it.
      positions: "learned", a table added to the tokens; or "rotary", angles in attention, for
        images of any size. The class token then has learned angles of its own.
      patch_bias: whether the patch embedding has a bias.
      input_norm: whether tokens are normalized before the first block.
      drop_path: rate of stochastic depth at the last block, growing linearly from 0 at the first.
    """

    variant: str = "b/16"
    pool: str = "cls"
    positions: str = "learned"
    patch_bias: bool = True
    input_norm: bool = False
    drop_path: float = 0.0
    variants: ClassVar = VARIANTS

    @property
    def patch(self) -> int:
        """Pixels along an edge of a patch."""
        return int(self._split_variant()[1])

    @property
    def size(self) -> str:
        """The variant without its patch."""
        return self._split_variant()[0]

    def _split_variant(self) -> tuple[str, str]:
        match = re.fullmatch(r"(\w+)/([1-9]\d*)", self.variant)
        if not match:
            raise ValueError(f"variant={self.variant!r} is not of the form 'b/16': size/patch")
        return match[1], match[2]

    @nn.compact
    def __call__(
        self, image: Float[Array, "b h w 3"], train: bool = False
    ) -> tuple[Float[Array, "b c"], Float[Array, "b t c"]]:
        """Encodes images; learned positions are for those of one size.

        The final normalization is applied to the pooled features and to those of every patch; the
        published CLIP and MLCD apply it only to the class token, which makes no difference for the
        pooled features.
        """
        layers.choose("pool", self.pool, POOLS)
        layers.choose("positions", self.positions, POSITIONS)
        x = nn.Dropout(self.dropout, deterministic=not train)(self._embed(image))
        if self.input_norm:
            x = LayerNorm(self.layer_norm_eps, self.dtype, name="input_norm")(x)
        angles = self._angles(image) if self.positions == "rotary" else None

        tokens, block_class = attention.Tokens(x, None, angles), transformer.TransformerBlock
        x = self.run_blocks(block_class, tokens, {}, train=train, drop_path=self.drop_path)
        x = LayerNorm(self.layer_norm_eps, self.dtype, name="final_norm")(x)
        return (x[:, 0], x[:, 1:]) if self.pool == "cls" else (x.mean(1), x)

    def _embed(self, image: Float[Array, "b h w 3"]) -> Float[Array, "b l c"]:
        width, patch = self.resolved["width"], self.patch
        if image.shape[1] % patch or image.shape[2] % patch:
            raise ValueError(
                f"an image of {image.shape[1]} x {image.shape[2]} does not divide into patches of "
                f"{patch}; change the image size or variant={self.variant!r}"
            )
        x = einops.rearrange(image, "b (h p) (w q) c -> b (h w) (p q c)", p=patch, q=patch)
        axes, name = ("channels_in", "embed"), "patch_embedding"
        x = layers.Dense(width, axes, dtype=self.dtype, name=name, use_bias=self.patch_bias)(x)
        if self.pool == "cls":
            cls_token = self.param("cls_token", nn.initializers.zeros, (width,))
            x = jnp.concatenate([jnp.broadcast_to(cls_token, x[:, :1].shape).astype(x.dtype), x], 1)
        return x if self.positions == "rotary" else layers.add_weight(x, self._table(image))

    def _table(self, image: Float[Array, "b h w 3"]) -> Float[Array, "l c"]:
        """Returns the learned position of every token, the class token's first.

        Those of patches are a grid, since 2 x 8 patches are as many as 4 x 4 but not in their
        places.
        """
        name, width = "position_embedding", self.resolved["width"]
        grid = image.shape[1] // self.patch, image.shape[2] // self.patch
        if self.has_variable("params", name):
            held = nn.meta.unbox(self.get_variable("params", name)).shape
            if held[:2] != grid:
                raise ValueError(
                    f"{name} is for {held[0]} x {held[1]} patches, an image of {image.shape[1]} x "
                    f"{image.shape[2]} has {grid[0]} x {grid[1]}: use the image size of training"
                )
        table = jnp.asarray(self.param(name, transformer.init_grid, (*grid, width)))
        table = table.reshape(-1, width)
        if self.pool == "mean":
            return table
        first = self.param("class_position", layers.truncated_normal, (width,))
        return jnp.concatenate([jnp.asarray(first)[None], table])

    def _angles(self, image: Float[Array, "b h w 3"]) -> Float[Array, "l half"]:
        """Returns the angles of every token, the class token's first."""
        head_dim = self.resolved["width"] // self.resolved["heads"]
        rows, columns = image.shape[1] // self.patch, image.shape[2] // self.patch
        angles = jnp.asarray(grid_angles(rows, columns, head_dim))
        if self.pool == "mean":
            return angles
        shape = (head_dim // 2,)
        init = nn.initializers.normal((head_dim // 2) ** -0.5)  # as in MLCD's published models
        return jnp.concatenate([self.param("class_angles", init, shape)[None], angles])
