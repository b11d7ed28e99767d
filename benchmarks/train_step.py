"""How much of a train step is not the compiled computation, and how near that is to the machine.

  python benchmarks/train_step.py [--config=configs/quickstart.py] [--steps=40] [--batch_size=N]

The loop of big_align/runs/train.py (dispatch, metrics two steps late, finite check) is timed
with its batches already in memory, against the compiled step alone called back to back, in
interleaved rounds. The FLOPs of the step are those that the model needs; their fraction is of a
large float32 (on accelerators bfloat16) matmul measured in the same run.
"""

import argparse
import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np

from big_align import sharding
from big_align.runs import build
from big_align.runs.check import BlankTokenizer
from big_align.runs.command_line import load_config
from big_align.runs.program import build_program
from big_align.training.logs.goodput import Clock
from big_align.training.logs.metrics import Progress
from big_align.training.loop import MetricQueue


def measure_matmul(size: int = 4096) -> float:
    """Returns the FLOP/s of a square matmul."""
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    x = jnp.ones((size, size), dtype)
    multiply = jax.jit(jnp.dot)
    multiply(x, x).block_until_ready()
    start = time.perf_counter()
    for _ in range(3):
        y = multiply(x, x)
    y.block_until_ready()
    return 3 * 2 * size**3 / (time.perf_counter() - start)


def make_random_batch(example: dict[str, np.ndarray], size: int) -> dict[str, np.ndarray]:
    """Makes a batch of noise with the shapes of an example."""
    rng = np.random.default_rng(0)
    shape = lambda name: (size, *example[name].shape[1:])  # noqa: E731
    return {
        "image": rng.integers(0, 256, shape("image")).astype(np.uint8),
        "text": rng.integers(1, 30, shape("text")).astype(np.int32),
        "text_mask": np.ones(shape("text_mask"), bool),
        "label": np.full(shape("label"), -1, np.int32),
        "mask": np.ones(shape("mask"), bool),
    }


def prepare(config, batch_size: int):
    """Returns the compiled step of a config, a state, a placed batch and a device's model FLOPs."""
    mesh = build.build_mesh(config)
    tokenizer = BlankTokenizer(config.tokenizer)
    example = build.example_batch(config, tokenizer)
    objective = build.build_objective(config, mesh, tokenizer)
    program = build_program(config, mesh, objective, example)
    batch = sharding.place_batch(make_random_batch(example, batch_size), mesh)
    compiled, flops = program.compile_and_count(batch)
    return compiled, program.create(), batch, flops


def run_alone(compiled, state, batch, steps: int):
    """Calls the compiled step back to back; returns the state and seconds a step."""
    start = time.perf_counter()
    for _ in range(steps):
        state, _ = compiled(state, batch)
    jax.block_until_ready(state)
    return state, (time.perf_counter() - start) / steps


def run_loop(compiled, state, batch, steps: int, log_every: int):
    """Runs the trainer's loop over batches in memory; returns the state and seconds a step."""
    progress = Progress(0, steps, batch["image"].shape[0], 0.0, Clock())
    queue = MetricQueue(depth=2)
    batches = itertools.repeat(batch)
    start = time.perf_counter()
    for step in range(1, steps + 1):
        state, metrics = compiled(state, progress.wait_for(batches))
        progress.advance()
        for done, scalars in queue.push(step, metrics):
            progress.finish()
            if done % log_every == 0:
                progress.show(scalars | progress.rates())
    for _ in queue.flush():
        pass
    seconds = (time.perf_counter() - start) / steps
    progress.close()
    return state, seconds


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="configs/quickstart.py")
    parser.add_argument("--steps", type=int, default=40, help="steps per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch_size", type=int, help="batch size (default: the config's)")
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    batch_size = arguments.batch_size or config.batch_size
    compiled, state, batch, flops = prepare(config, batch_size)
    alone, loop = [], []
    state, _ = run_alone(compiled, state, batch, 3)
    for _ in range(arguments.rounds):
        state, seconds = run_alone(compiled, state, batch, arguments.steps)
        alone.append(seconds)
        state, seconds = run_loop(compiled, state, batch, arguments.steps, config.log_every)
        loop.append(seconds)
    best, whole, matmul = np.median(alone), np.median(loop), measure_matmul()
    device = jax.devices()[0].device_kind
    print(f"{arguments.config}, batch {batch_size}, {jax.device_count()} x {device}")
    print(f"  compiled step alone        {best * 1e3:10.2f} ms")
    print(f"  trainer's loop             {whole * 1e3:10.2f} ms")
    print(f"  fraction outside the step  {max(0.0, 1 - best / whole):10.2%}   (target: at most 2%)")
    print(f"  model FLOPs of a step      {flops / 1e9:10.2f} G")
    print(f"  rate of the step           {flops / best / 1e9:10.1f} GFLOP/s")
    print(f"  rate of a large matmul     {matmul / 1e9:10.1f} GFLOP/s")
    print(f"  fraction of the matmul rate   {flops / best / matmul:10.2%}")


if __name__ == "__main__":
    main()
