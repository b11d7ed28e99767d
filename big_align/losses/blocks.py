"""How a device compares its rows with all columns: in how many blocks, and where logits are."""

import dataclasses
import math
from typing import Literal

import jax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from big_align.core.errors import check_at_least
from big_align.losses.explicit_axes import vary_like
from big_align.losses.tile_functions import Compare
from big_align.parallel.devices import choices, traced
from big_align.parallel.devices.chips import find_chip
from big_align.parallel.kernels import pair_tiles
from big_align.parallel.kernels.pair_tiles import Results, Sides, TileFunction
from big_align.parallel.shards import Shards

Block = int | Literal["tiles"] | None
"""Rows of logits that a device computes at a time, or "tiles", or None to choose."""

GPU_LOGITS = 2**26
"""Logits of a block on a GPU: 256 MiB of float32."""

STRIPE_SLOPES, STRIPE_ROWS = 2**28, 1024
"""Slopes that are in memory at a time beside tiles, 512 MiB of bfloat16, and the fewest rows."""

LEAST_TILES = 2**22
"""Pairs below which a kernel of tiles is not worth its start."""

TILED_CHIPS = ("h100", "h200")


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Blocks of the rows of a device.

    `compare` compares rows with columns in tiles that are not written to memory; it is None where a
    block's logits are in memory.
    """

    shards: Shards
    count: int
    compare: Compare | None = None

    @property
    def tile(self) -> tuple[int, int, int]:
        """What the rows of a block, the columns and the channels must be multiples of."""
        if self.compare is None:
            return 1, 1, 1
        return pair_tiles.PAIR_ROWS, pair_tiles.COLUMNS, pair_tiles.CHANNELS

    @property
    def multiples(self) -> tuple[int, int, int]:
        """The same for all rows and columns, over all devices."""
        rows, columns, channels = self.tile
        return self.shards.size * self.count * rows, self.shards.size * columns, channels

    def cut(self, x: Array) -> Array:
        """Cuts the rows of a device into blocks."""
        return x.reshape(self.count, -1, *x.shape[1:])


def choose_blocks(
    name: str,
    rows: int,
    columns: int,
    shards: Shards,
    block: Block,
    dtype: DTypeLike,
    usual: int = 256,
) -> Blocks:
    """Chooses how a loss compares rows with columns, by the kind of the devices, type and size.

    Rows and columns are counted over all devices; each device has all columns. `name` is that of
    the loss, for what is noted; `usual` is as `count_blocks` takes it.

    Raises:
      ValueError: `block` is not positive, or there are no tiles for the type.
    """
    compare = _choose_tiles(rows * columns // shards.size, shards, block, dtype)
    if compare is None:
        count = count_blocks(rows, columns, shards, None if block == "tiles" else block, usual)
        choices.note(f"{name}: {count} blocks of logits for {rows} x {columns} of {dtype}")
        return Blocks(shards, count)
    stripe = max(STRIPE_ROWS, STRIPE_SLOPES // max(columns, 1))
    choices.note(f"{name}: logits in registers for {rows} x {columns} of {dtype}")
    return Blocks(shards, max(math.ceil(rows / (stripe * shards.size)), 1), compare)


def _choose_tiles(pairs: int, shards: Shards, block: Block, dtype: DTypeLike) -> Compare | None:
    """Returns what compares rows with columns in tiles, None if they are not to be used."""
    device = shards.mesh.devices.flat[0] if shards.mesh else traced.traced_device()
    chip = find_chip(device.device_kind)
    there = chip is not None and chip.name in TILED_CHIPS and jax.__version_info__ >= (0, 11)
    if block != "tiles":
        wanted = block is None and there and dtype == "bfloat16" and pairs >= LEAST_TILES
        return compare_in_registers if wanted else None
    if dtype != "bfloat16" and (there or dtype != "float32"):
        raise ValueError(f'block = "tiles" needs embeddings of bfloat16, got {dtype}')
    return compare_in_registers if there else pair_tiles.compare_plainly


def compare_in_registers(
    function: TileFunction, x: Float[Array, "m d"], y: Float[Array, "n d"], sides: Sides
) -> Results:
    """Does what `compare_plainly` does, on the GPUs that have tiles."""
    from big_align.parallel.kernels import hopper_tiles  # Only here: it takes seconds.

    # The kernel's results do not say that they vary in `jax.shard_map`.
    return vary_like(hopper_tiles.compare(function, x, y, sides), (x, y, sides))


def count_blocks(
    rows: int, columns: int, shards: Shards, block: int | None, usual: int = 256
) -> int:
    """Returns into how many blocks a device cuts its rows of a matrix of logits, at least 1.

    If `block` is None, a block has `usual` rows, which should fit in the cache of a CPU. On a GPU,
    where the kernels of a small block take longer to start than to run, it has more, up to
    `GPU_LOGITS` logits.

    Raises:
      ValueError: `block` is not positive.
    """
    if block is None:
        mesh = shards.mesh
        platform = (mesh.devices.flat[0] if mesh else traced.traced_device()).platform
        block = max(usual, GPU_LOGITS // max(columns, 1)) if platform == "gpu" else usual
    check_at_least(1, block=block)
    return max(math.ceil(rows / (block * shards.size)), 1)
