"""Error of the losses and their gradients on this device, against float64 on its host.

    python benchmarks/loss_precision.py          # on a GPU or TPU; a CPU multiplies in float32
    python benchmarks/loss_precision.py --batch=512 --dim=128

Accelerators round the factors of a float32 product: GPUs to TF32 (10 bits after the point), TPUs to
bfloat16 (7 bits). `jax.default_matmul_precision("highest")` asks for all 23. Embeddings in bfloat16
are rounded before the loss sees them, so their error is that of the loss alone: the reference
takes the rounded ones.

A cosine of unit vectors of d numbers, each factor with a relative error of at most e, is off by at
most 2 e, and by about e / sqrt(d) if the errors are independent. The logit is off by `scale` times
that. Expected at d = 512 and a scale of 100, before anything was measured: 0.004 per logit in TF32,
less in the mean over a batch.

Pairs are easy: the text is the image with noise, at a cosine of 0.25, and the loss is near the end
of a training, where it is a small difference of large numbers. The error of a value is absolute;
that of a gradient is the length of the difference over the length of the gradient, for the worst
of the arguments.
"""

import itertools
import os
import pathlib
import sys
from collections.abc import Iterator

# The host computes the reference; a list of platforms that has no CPU would hide it.
if "cpu" not in (platforms := os.environ.get("JAX_PLATFORMS", "cpu")):
    os.environ["JAX_PLATFORMS"] = f"{platforms},cpu"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measuring
from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.losses.cluster_discrimination import mlcd_loss
from big_align.losses.contrastive import contrastive_loss
from big_align.losses.sampled_cluster_discrimination import sampled_cluster_loss
from big_align.losses.sigmoid import blockwise_sigmoid_loss, sigmoid_loss
from big_align.losses.supervised_contrastive import (
    blockwise_supervised_contrastive_loss,
    supervised_contrastive_loss,
)

LABELS, CENTERS = 4, 4096
COSINE = 0.25


def draw(batch: int, dim: int) -> dict[str, np.ndarray]:
    """Returns embeddings of pairs, centers, and labels, in float64."""
    rng = np.random.default_rng(0)

    def unit(*shape: int) -> np.ndarray:
        x = rng.standard_normal(shape)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    zimg, centers = unit(batch, dim), unit(CENTERS, dim)
    ztxt = COSINE * zimg + (1 - COSINE**2) ** 0.5 * unit(batch, dim)
    labels = rng.integers(0, CENTERS, (batch, LABELS))
    near = zimg + 0.5 * centers[labels].sum(axis=1)  # images lie near their centers
    return {
        "zimg": zimg,
        "ztxt": ztxt / np.linalg.norm(ztxt, axis=-1, keepdims=True),
        "near": near / np.linalg.norm(near, axis=-1, keepdims=True),
        "centers": centers,
        "labels": labels,
    }


def list_losses(drawn: dict[str, np.ndarray], scale: float) -> dict[str, tuple]:
    """Returns by name: ours, the plain formula, and the arrays to differentiate."""
    pair = drawn["zimg"], drawn["ztxt"]
    views = np.concatenate(pair)
    label = jnp.tile(jnp.arange(len(pair[0]), dtype=jnp.int32) // 2, 2)
    labels = jnp.asarray(drawn["labels"], jnp.int32)

    def total(loss, **rest):
        return lambda *arrays: sum(jax.tree.leaves(loss(*arrays, scale, **rest)))

    def ours_of_clusters(zimg, centers):
        real = jnp.ones(len(centers), bool)
        return sampled_cluster_loss("mlcd", zimg, centers, real, labels, scale=scale)[0]

    def plain_of_clusters(zimg, centers):
        return mlcd_loss(zimg, centers, labels, scale=scale)

    return {
        "contrastive, plain": (total(contrastive_loss), total(contrastive_loss), pair),
        "contrastive": (total(blockwise_contrastive_loss), total(contrastive_loss), pair),
        "sigmoid": (
            total(blockwise_sigmoid_loss, bias=-10.0),
            total(sigmoid_loss, bias=-10.0),
            pair,
        ),
        "supervised contrastive": (
            lambda z: blockwise_supervised_contrastive_loss(z, label, scale),
            lambda z: supervised_contrastive_loss(z, label, scale),
            (views,),
        ),
        "MLCD": (ours_of_clusters, plain_of_clusters, (drawn["near"], drawn["centers"])),
    }


def differentiate(loss, arrays, device: jax.Device):
    """Returns the value and the gradients of a loss on a device, as float64 arrays of NumPy."""
    arrays = [jax.device_put(x, device) for x in arrays]
    with jax.default_device(device):
        value, grads = jax.jit(jax.value_and_grad(loss, argnums=tuple(range(len(arrays)))))(*arrays)
    return float(value), [np.asarray(x, np.float64) for x in grads]


def measure(losses: dict[str, tuple], device: jax.Device, host: jax.Device) -> Iterator[tuple]:
    """Yields the rows of the table."""
    ways = ("float32", "default"), ("float32", "highest"), ("bfloat16", "default")
    for (name, (ours, plain, arrays)), (dtype, precision) in itertools.product(
        losses.items(), ways
    ):
        rounded = [np.asarray(jnp.asarray(x, dtype)) for x in arrays]
        value, grads = differentiate(plain, [x.astype(np.float64) for x in rounded], host)
        with jax.default_matmul_precision(precision):
            found, slopes = differentiate(ours, rounded, device)
        errors = [
            np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in zip(slopes, grads, strict=True)
        ]
        errors = f"{abs(found - value):.1e}", f"{max(errors):.1e}"
        yield name, dtype, precision, f"{value:.6f}", *errors


def main() -> None:
    """Prints the table."""
    options = measuring.make_parser(__doc__, batch=2048, dim=512, scale=100.0).parse_args()
    device, host = jax.devices()[0], jax.devices("cpu")[0]
    jax.config.update("jax_enable_x64", True)
    losses = list_losses(draw(options.batch, options.dim), options.scale)
    columns = "loss", "embeddings", "precision of products", "value", "error", "of the gradient"
    title = f"{device.device_kind}, batch {options.batch}, d = {options.dim}, scale "
    title += f"{options.scale:g}"
    measuring.print_table(columns, measure(losses, device, host), title)


if __name__ == "__main__":
    main()
