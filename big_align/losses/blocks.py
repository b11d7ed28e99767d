"""How many blocks a device cuts its rows into."""

import math

import jax

from big_align.sharding import Shards

GPU_LOGITS = 2**26
"""Logits of a block on a GPU: 256 MiB of float32."""


def count_blocks(
    rows: int, columns: int, shards: Shards, block: int | None, usual: int = 256
) -> int:
    """Returns into how many blocks a device cuts its rows of a matrix of logits, at least 1.

    On a CPU, a block should fit in the cache. On a GPU, the kernels of a small block take longer to
    start than to run.

    Args:
      rows: rows of the matrix, over all devices.
      columns: columns of the matrix, all of which a device has.
      shards: the devices.
      block: rows of a block; None to choose.
      usual: rows of a block that is chosen, and the least on a GPU.

    Raises:
      ValueError: `block` is not positive.
    """
    if block is None:
        mesh = shards.mesh
        platform = mesh.devices.flat[0].platform if mesh else jax.default_backend()
        block = max(usual, GPU_LOGITS // max(columns, 1)) if platform == "gpu" else usual
    if block < 1:
        raise ValueError(f"block must be at least 1 row, got {block}")
    return max(math.ceil(rows / (block * shards.size)), 1)
