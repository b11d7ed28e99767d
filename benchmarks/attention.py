"""Attention in cuDNN's kernel against the plain one: time and memory of image towers on a GPU.

    python benchmarks/attention.py                 # four blocks of ViT-L/14 and ViT-B/16 and /32
    python benchmarks/attention.py --depth=24 --towers=l/14 --batch=128

The kernel never writes the weights, [b heads n n] in float32, which the plain one passes over some
six times in both directions. Predicted for ViT-L/14 on an H200, before anything was measured: with
n = 257, a block's products are 12 x 1024^2 + 2 x 257 x 1024 multiply-adds a token, 3.4 TFLOP
forward and backward three times that at a batch of 256, about 9 ms at 600 TFLOP/s; its weights are
1.1 GB, and six passes in each direction 13 GB, 3 ms at 4.3 TB/s. So a step should take three
quarters of the time. At n = 50 (ViT-B/32) the weights are a tenth of that, and little changes.

Forward and backward without rematerialization, in bfloat16, in turns; medians. Memory is XLA's
temporaries. The difference is that of the pooled features, over their length.
"""

import argparse
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from big_align.models.parts import attention
from big_align.models.vit import ViT

PIXELS = {"l/14": 224, "b/16": 256, "b/32": 224}


def compile_tower(variant: str, depth: int, batch: int, fused: bool):
    """Returns a call that gives pooled features and gradients, and its compiled program."""
    fits = attention._fits_kernel
    if not fused:
        attention._fits_kernel = lambda query: False
    try:
        tower = ViT(variant, depth=depth, dtype="bfloat16")
        images = jax.random.normal(jax.random.key(0), (batch, PIXELS[variant], PIXELS[variant], 3))
        params = nn.meta.unbox(jax.jit(tower.init)(jax.random.key(1), images))["params"]

        def loss(params):
            pooled, tokens = tower.apply({"params": params}, images, train=True)
            return tokens.mean(dtype=jnp.float32) + pooled.mean(dtype=jnp.float32), pooled

        step = jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(params).compile()
    finally:
        attention._fits_kernel = fits

    return lambda: jax.block_until_ready(step(params)), step


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--towers", nargs="+", choices=PIXELS, default=list(PIXELS))
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    if not attention._has_kernel():
        sys.exit("attention.py: there is no NVIDIA GPU of compute capability 8.0 or more here")
    print(f"{jax.devices()[0].device_kind}, {options.depth} blocks, batch {options.batch}")
    print("| tower | plain (ms) | kernel (ms) | speed | plain (GiB) | kernel (GiB) | difference |")
    print("|---|---|---|---|---|---|---|")
    for variant in options.towers:
        made = [
            compile_tower(variant, options.depth, options.batch, fused) for fused in (False, True)
        ]
        times: list[list[float]] = [[], []]
        for _ in range(options.rounds + 1):
            for (call, _), seconds in zip(made, times, strict=True):
                start = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - start)
        plain, kernel = (statistics.median(x[1:]) for x in times)
        memory = [step.memory_analysis().temp_size_in_bytes / 2**30 for _, step in made]
        x, y = (np.asarray(call()[0][1], np.float32) for call, _ in made)
        difference = np.linalg.norm(x - y) / np.linalg.norm(x)
        print(f"| ViT-{variant.upper()} | {1e3 * plain:.2f} | {1e3 * kernel:.2f} | ", end="")
        print(f"{plain / kernel:.2f} | {memory[0]:.2f} | {memory[1]:.2f} | {difference:.1e} |")


if __name__ == "__main__":
    main()
