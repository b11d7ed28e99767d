"""Vision transformers, pre-norm: the original (Dosovitskiy et al., 2021), CLIP's and MLCD's."""

import re
from typing import Any, ClassVar

import einops
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from big_align.models.parts import attention, kept_patches, layers, transformer
from big_align.models.parts.narrow import LayerNorm
from big_align.parallel.devices import choices

VARIANTS = {  # width, depth, mlp_dim, heads
    "ti": (192, 12, 768, 3),
    "s": (384, 12, 1536, 6),
    "b": (768, 12, 3072, 12),
    "l": (1024, 24, 4096, 16),
    "h": (1280, 32, 5120, 16),
}
POOLS = dict.fromkeys(("cls", "mean"))
POSITIONS = dict.fromkeys(("learned", "sincos", "rotary"))
BASE = 10_000.0  # of the frequencies of rotary and of fixed positions


def grid_angles(rows: int, columns: int, head_dim: int) -> Float[np.ndarray, "t half"]:
    """Returns the angles in radians by which rotary attention rotates each patch, row by row.

    Rotary positions (Su et al., 2021) in two dimensions, as in MLCD's published models: the first
    half of the angles is proportional to the row, the second half to the column, both with
    frequencies that fall geometrically from 1 toward 1 / `BASE`. Channels of a head are
    rotated in pairs.
    """
    if head_dim % 4:
        raise ValueError(
            f"positions='rotary' needs heads of a multiple of 4 channels, not {head_dim}: "
            f"change width or heads"
        )
    frequencies = BASE ** -(np.arange(0, head_dim // 2, 2) / (head_dim // 2))
    row, column = np.divmod(np.arange(rows * columns), columns)
    angles = [row[:, None] * frequencies, column[:, None] * frequencies]
    return np.concatenate(angles, axis=1).astype(np.float32)


def fixed_positions(rows: int, columns: int, width: int) -> Float[np.ndarray, "t c"]:
    """Returns sines and cosines of the place of each patch, row by row.

    The first half of the channels is of the column and the second of the row, each as Vaswani et
    al. (2017, §3.5) have them for a place in a text, with all sines before the cosines. MoCo v3
    (Chen et al. 2021) trains vision transformers with them.
    """
    if width % 4:
        raise ValueError(f"positions='sincos' needs a width of a multiple of 4, not {width}")
    frequencies = BASE ** -(np.arange(width // 4) / (width // 4))
    places = np.divmod(np.arange(rows * columns), columns)[::-1]
    angles = (place[:, None] * frequencies for place in places)
    waves = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
    return np.concatenate(waves, axis=1).astype(np.float32)


class ViT(transformer.Transformer):
    """Vision transformer as an image tower.

    CLIP's has `input_norm=True, patch_bias=False, layer_norm_eps=1e-5` and OpenAI's weights
    `activation="quick_gelu"`; MLCD's has besides `positions="rotary"` and "gelu".

    Args:
      variant: size and patch, such as "b/16": "ti", "s", "b", "l" or "h", and pixels.
      pool: "cls" for the class token's output, "mean" for the mean over patches, without it.
      positions: "learned", a table added to the tokens; or for images of any size "sincos", sines
        and cosines in its place, or "rotary", angles in attention, of which the class token has
        learned ones of its own.
      patch_bias: whether the patch embedding has a bias.
      input_norm: whether tokens are normalized before the first block.
      drop_path: rate of stochastic depth at the last block, growing linearly from 0 at the first.
      keep: fraction of the patches that training sees, drawn for each image and step, or their
        number (FLIP); 1 for all.
      keep_by: how they are drawn: "random", anywhere; "block", as a rectangle; or "grid", one in
        each cell of a coarser grid.
    """

    variant: str = "b/16"
    pool: str = "cls"
    positions: str = "learned"
    patch_bias: bool = True
    input_norm: bool = False
    drop_path: float = 0.0
    keep: float = 1.0
    keep_by: str = "random"
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
        pooled features. In training, t is the number of patches that are kept.
        """
        layers.choose("pool", self.pool, POOLS)
        layers.choose("positions", self.positions, POSITIONS)
        rotary, grid = self.positions == "rotary", self._find_grid(image)
        kept = self._draw_kept(image, grid, train)
        x, where = self._embed(image, kept), (self._angles if rotary else self._table)(*grid)
        if kept is not None:
            if self.pool == "cls":  # the class token is the first of all
                kept = jnp.pad(kept + 1, ((0, 0), (1, 0)))
            where = kept_patches.take_positions(jnp.asarray(where), kept)
        x = x if rotary else layers.add_weight(x, where)
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        if self.input_norm:
            x = LayerNorm(self.layer_norm_eps, self.dtype, name="input_norm")(x)

        tokens = attention.Tokens(x, None, where if rotary else None)
        block_class = transformer.TransformerBlock
        x = self.run_blocks(block_class, tokens, {}, train=train, drop_path=self.drop_path)
        x = LayerNorm(self.layer_norm_eps, self.dtype, name="final_norm")(x)
        return (x[:, 0], x[:, 1:]) if self.pool == "cls" else (x.mean(1), x)

    @nn.nowrap
    def list_positions(self, size: int) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """Returns what makes a tower with fixed positions one with learned ones: fields and arrays.

        They are for square images of a size; None for a tower that has other positions.
        """
        if self.positions != "sincos":
            return None
        side, width = size // self.patch, self.resolved["width"]
        tables = {"position_embedding": fixed_positions(side, side, width).reshape(side, side, -1)}
        if self.pool == "cls":
            tables["class_position"] = np.zeros(width, np.float32)
        return {"positions": "learned"}, tables

    def _find_grid(self, image: Float[Array, "b h w 3"]) -> tuple[int, int]:
        """Returns the rows and columns of patches of an image."""
        patch = self.patch
        if image.shape[1] % patch or image.shape[2] % patch:
            raise ValueError(
                f"an image of {image.shape[1]} x {image.shape[2]} does not divide into patches of "
                f"{patch}; change the image size or variant={self.variant!r}"
            )
        return image.shape[1] // patch, image.shape[2] // patch

    def _draw_kept(
        self, image: Float[Array, "b h w 3"], grid: tuple[int, int], train: bool
    ) -> Int[Array, "b k"] | None:
        """Draws which patches are kept of each image; None for all."""
        total = grid[0] * grid[1]
        kept = kept_patches.count_kept(self.keep, grid, self.keep_by)
        if not train or kept.count == total:
            return None
        choices.note(f"patches: {kept.count} of {total} are kept in training, {self.keep_by}")
        if self.has_variable(kept_patches.DRAWS, kept_patches.KEYS):
            keys = self.get_variable(kept_patches.DRAWS, kept_patches.KEYS)
        else:
            keys = jax.random.split(self.make_rng("dropout"), image.shape[0])
        return kept_patches.draw_kept(keys, grid, kept, self.keep_by)

    def _embed(
        self, image: Float[Array, "b h w 3"], kept: Int[Array, "b k"] | None
    ) -> Float[Array, "b l c"]:
        """Returns the tokens of patches, after that of the class, if there is one."""
        width, patch = self.resolved["width"], self.patch
        # Cast at once: XLA writes all patches before it gathers from them.
        x = image.astype(layers.compute_dtype(self.dtype))
        x = einops.rearrange(x, "b (h p) (w q) c -> b (h w) (p q c)", p=patch, q=patch)
        if kept is not None:
            x = kept_patches.take_patches(x, kept)
        axes, name = ("channels_in", "embed"), "patch_embedding"
        x = layers.Dense(width, axes, dtype=self.dtype, name=name, use_bias=self.patch_bias)(x)
        if self.pool == "mean":
            return x
        cls_token = self.param("cls_token", nn.initializers.zeros, (width,))
        return jnp.concatenate([jnp.broadcast_to(cls_token, x[:, :1].shape).astype(x.dtype), x], 1)

    def _table(self, rows: int, columns: int) -> Float[Array, "l c"]:
        """Returns what is added to every token, the class token's first.

        Learned positions of patches are a grid, since 2 x 8 patches are as many as 4 x 4 but not in
        their places.
        """
        name, width = "position_embedding", self.resolved["width"]
        if self.positions == "sincos":
            fixed = fixed_positions(rows, columns, width)
            first = np.zeros((int(self.pool == "cls"), width), np.float32)
            return jnp.asarray(np.concatenate([first, fixed]))
        if self.has_variable("params", name):
            held = nn.meta.unbox(self.get_variable("params", name)).shape
            if held[:2] != (rows, columns):
                patch = self.patch
                raise ValueError(
                    f"{name} is for {held[0]} x {held[1]} patches, an image of {rows * patch} x "
                    f"{columns * patch} has {rows} x {columns}: use the image size of training"
                )
        table = jnp.asarray(self.param(name, transformer.init_grid, (rows, columns, width)))
        table = table.reshape(-1, width)
        if self.pool == "mean":
            return table
        first = self.param("class_position", layers.truncated_normal, (width,))
        return jnp.concatenate([jnp.asarray(first)[None], table])

    def _angles(self, rows: int, columns: int) -> Float[Array, "l half"]:
        """Returns the angles of every token, the class token's first."""
        head_dim = self.resolved["width"] // self.resolved["heads"]
        angles = jnp.asarray(grid_angles(rows, columns, head_dim))
        if self.pool == "mean":
            return angles
        shape = (head_dim // 2,)
        init = nn.initializers.normal((head_dim // 2) ** -0.5)  # as in MLCD's published models
        return jnp.concatenate([self.param("class_angles", init, shape)[None], angles])
