"""How much of a train step is not the compiled computation, and how near that is to the machine.

  python benchmarks/train_step.py --config=configs/align_flickr8k.py [--steps=40] [--batch_size=N]
  python benchmarks/train_step.py --config=configs/mlcd.py --batch_size=1024

Other arguments change the config, as in main.py: --config.model.image.remat=none. No data are
needed: batches are noise, and lists of classes and tags that are not here are made up.

The loop of big_align/runs/train.py (dispatch, metrics two steps late, finite check) is timed
with its batches already in memory, against the compiled step alone called back to back, in
interleaved rounds. The FLOPs of the step are those that the model needs; their fraction is of a
large float32 (on accelerators bfloat16) matmul measured in the same run.
"""

import itertools
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import numpy as np

from benchmarks import measuring
from big_align.config.overrides import load_config
from big_align.parallel.batches import place_batch
from big_align.planning import stand_ins
from big_align.runs import build
from big_align.runs.cached_features import describe_example
from big_align.runs.check import BlankTokenizer
from big_align.runs.program import build_program
from big_align.training.logs.goodput import Clock
from big_align.training.logs.metrics import Progress
from big_align.training.loop import MetricQueue


def make_random_batch(example: dict[str, np.ndarray], size: int) -> dict[str, np.ndarray]:
    """Makes a batch of noise with the shapes of an example; integers are ids below 100."""
    rng = np.random.default_rng(0)

    def draw(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if dtype.kind == "b":
            return np.ones(shape, bool)
        if name == "label":  # of pairs, of which none has a class
            return np.full(shape, -1, dtype)
        if dtype == np.uint8:
            return rng.integers(0, 256, shape, dtype)
        if np.issubdtype(dtype, np.integer):
            return rng.integers(1, 30 if name == "text" else 100, shape, dtype)
        return rng.standard_normal(shape, dtype)

    return {k: draw(k, (size, *x.shape[1:]), x.dtype) for k, x in example.items()}


def prepare(config, batch_size: int):
    """Returns the compiled step of a config, a state, a placed batch and a device's model FLOPs."""
    mesh = build.build_mesh(config)
    tokenizer = BlankTokenizer(config.tokenizer)
    with tempfile.TemporaryDirectory() as folder:  # for lists of classes and tags that are not here
        for said in stand_ins.fill_in(config, pathlib.Path(folder)):
            print(said)
        objective = build.build_objective(config, mesh, tokenizer)
        example = describe_example(config, tokenizer, objective)
    program = build_program(config, mesh, objective, build.example_batch(config, tokenizer))
    batch = place_batch(make_random_batch(example, batch_size), mesh)
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
    progress = Progress(0, steps, batch["mask"].shape[0], 0.0, Clock())
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
    parser = measuring.make_parser(__doc__, config="configs/quickstart.py", rounds=5)
    parser.add_argument("--steps", type=int, default=40, help="steps per round")
    parser.add_argument("--batch_size", type=int, help="batch size (default: the config's)")
    arguments, overrides = parser.parse_known_args()
    config = load_config(arguments.config, *overrides)
    batch_size = arguments.batch_size or config.batch_size
    compiled, state, batch, flops = prepare(config, batch_size)
    alone, loop = [], []
    state, _ = run_alone(compiled, state, batch, 3)
    for _ in range(arguments.rounds):
        state, seconds = run_alone(compiled, state, batch, arguments.steps)
        alone.append(seconds)
        state, seconds = run_loop(compiled, state, batch, arguments.steps, config.log_every)
        loop.append(seconds)
    best, whole = float(np.median(alone)), float(np.median(loop))
    cpu = jax.default_backend() == "cpu"
    matmul = measuring.measure_matmul("float32" if cpu else "bfloat16")
    rows = {
        "compiled step alone (ms)": 1e3 * best,
        "trainer's loop (ms)": 1e3 * whole,
        "fraction outside the step (target: at most 2%)": f"{max(0.0, 1 - best / whole):.2%}",
        "images per second": f"{batch_size / whole:.0f}",
        "model FLOPs of a step (G)": flops / 1e9,
        "rate of the step (GFLOP/s)": f"{flops / best / 1e9:.1f}",
        "rate of a large matmul (GFLOP/s)": f"{matmul / 1e9:.1f}",
        "fraction of the matmul rate": f"{flops / best / matmul:.2%}",
    }
    if memory := jax.devices()[0].memory_stats():
        rows["memory at the highest (GiB)"] = memory["peak_bytes_in_use"] / 2**30
    device = f"{jax.device_count()} x {measuring.describe_device()}"
    title = f"{arguments.config}, batch {batch_size}, {device}"
    measuring.print_table(("", ""), rows.items(), title)


if __name__ == "__main__":
    main()
