"""How many blocks a device cuts its rows into."""

import math

import jax
from jax.sharding import Mesh

GPU_LOGITS = 2**26
"""Logits of a block on a GPU: 256 MiB of float32."""


def count_blocks(
    rows: int, columns: int, mesh: Mesh | None, block: int | None, usual: int = 256
) -> int:
    """Returns the number of blocks, at least 1, of a matrix of logits of one device.

    On a CPU, a block should fit in the cache. On a GPU, the kernels of a small block take longer to
    start than to run.

    Args:
      rows: rows of the matrix.
      columns: columns of the matrix.
      mesh: the devices; None for JAX's default one.
      block: rows of a block; None to choose.
      usual: rows of a block that is chosen, and the least on a GPU.

    Raises:
      ValueError: `block` is not positive.
    """
    if block is None:
        platform = mesh.devices.flat[0].platform if mesh else jax.default_backend()
        block = max(usual, GPU_LOGITS // max(columns, 1)) if platform == "gpu" else usual
    if block < 1:
        raise ValueError(f"block must be at least 1 row, got {block}")
    return max(math.ceil(rows / block), 1)
