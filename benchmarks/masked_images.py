"""What a training step costs that sees a part of the patches and of the text's tokens.

    python benchmarks/masked_images.py                      # some 10 minutes on two cores
    python benchmarks/masked_images.py --size=b16 --batch=32

Whole steps of CLIP at 224 pixels (gradients and update), all in turn; medians. FLOPs are those of
the model, two for each product of two numbers, three times a forward pass.

Predicted before anything was measured. Of an image's forward pass nearly everything is in products
of its tokens: B/16 has 197 (class token included) and 17.5 G products of two numbers, a quarter of
its patches 50 and 4.3 G; B/32 has 50 and 4.4 G, then 13 and 1.1 G. CLIP's text tower has 2.9 G for
77 tokens and 0.6 G for 16. So keep=0.25 should take 0.36 of the FLOPs for B/16 and 0.56 for B/32;
with 16 tokens of text besides, 0.24 for both. Time should follow within a tenth, since products of
fewer rows still fill two cores, but not the optimizer, which moves as many weights as before: some
0.1 s of the step, for 150 million of them. What is stored for the backward pass falls in the same
proportion as FLOPs; weights, moments and gradients do not.

Bound of a time: the FLOPs of that step at the rate of a large matrix product in the same run.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax

from benchmarks import measuring
from benchmarks.gpu import steps
from big_align.objectives.clip import Clip
from big_align.parallel.batches import place_batch
from big_align.parallel.meshes import make_mesh

SIZES = {"b32": steps.B32, "b16": steps.B16, "tiny": steps.TINY}
SEEN = ((1.0, 1.0), (0.5, 1.0), (0.25, 1.0), (0.25, 0.21))
"""The fractions of the patches and of the tokens of a text."""


def measure(size: str, rows: int, rounds: int) -> None:
    """Prints the table of a size."""
    sizes, mesh = SIZES[size], make_mesh(devices=jax.devices()[:1])
    dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    matmul, product = measuring.make_matmul(dtype)
    made, calls = {}, {"matmul": matmul}
    for keep, fraction in SEEN:
        length = round(fraction * sizes.tokens)
        objective = Clip(steps.make_clip_model(sizes, dtype, keep=keep), mesh)
        batch = place_batch(steps.draw_pairs(rows, sizes, length), mesh)
        call, flops = steps.make_call(objective, batch, mesh)
        made[keep, length] = flops, call.facts["mib"]
        calls[keep, length] = lambda call=call: call.wait(call.start())
    seconds = measuring.time_in_turns(calls, rounds, untimed=1)
    rate = product / seconds.pop("matmul")
    first = next(iter(made))

    def describe(name: tuple) -> tuple:
        (keep, length), (flops, mib) = name, made[name]
        ratios = seconds[name] / seconds[first], flops / made[first][0], mib / made[first][1]
        taken = 1e3 * seconds[name], 1e3 * flops / rate
        return keep, length, *taken, f"{mib:.0f}", *(f"{ratio:.2f}" for ratio in ratios)

    title = f"{size}, batch {rows}, {dtype}, {measuring.describe_device()}; large matrix product "
    columns = ("keep", "tokens of text", "ms", "bound (ms)", "MiB", "time", "FLOPs", "memory")
    measuring.print_table(columns, map(describe, made), f"{title}{rate / 1e9:.0f} GFLOP/s")


def main() -> None:
    """Prints a table for each size."""
    parser = measuring.make_parser(__doc__, size="", batch=16, rounds=3)
    options = parser.parse_args()
    for size in [options.size] if options.size else ["b32", "b16"]:
        measure(size, options.batch, options.rounds)


if __name__ == "__main__":
    main()
