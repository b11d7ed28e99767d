"""A training step's part at a million class centers: drawn rows against the whole table.

    python benchmarks/class_centers.py              # k = 1,000,000, d = 512, r = 0.1
    python benchmarks/class_centers.py --centers=100000 --batch=512

`dense` is MLCD's loss on all logits [b k], its gradient and an AdamW update of the whole table;
`sparse` draws a fraction r of the rows and the positives, and computes and updates those: negatives
are the sampled rows alone (MLCD §3.2). `drawn` is the same with all drawn rows as negatives. All
update the same table in place, in one process and in turns; times are medians. A turn is two steps,
of which the second counts: the first pays for the memory that the other contender has given back.

With n rows, k or those drawn, no step can do with less than three matrix products of 2 b n d FLOPs
(the logits, and the gradients of both sides), nor with moving less than 7 arrays of n d floats:
values and two moments in and out, and the values once before that for the logits. The bound is the
larger of the two times, at the rates of a large matrix product and of a copy in the same run. Both
are proportional to n, so ten times fewer rows can be at most ten times faster. Ours makes a fourth
product: it computes logits again for the backward pass instead of keeping them.

Extra memory is taken in a fresh process for each: the highest resident size during one step less
that before it (on a GPU: the allocator's). The dense one needs some 12 GB at k = 1,000,000.

The second table has a fixed number of drawn rows at k and at a tenth of k.
"""

import argparse
import functools
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import jax
import jax.numpy as jnp

from big_align.losses.cluster_discrimination import add_margin, combine, log_sum
from big_align.losses.sampled_cluster_discrimination import sampled_cluster_loss
from big_align.parallel.meshes import make_mesh
from big_align.row_tables import Table, draw_rows
from big_align.training.optimizers import make_row_optimizer

DENSE, SPARSE, DRAWN = "dense", "sparse", "drawn"
CONTENDERS = (DENSE, SPARSE, DRAWN)
LABELS, SCALE, MARGIN = 8, 64.0, 0.3
MARK_SPEED, MARK_MEMORY, MARK_GROWTH = 6.0, 1 / 4, 1.2
OPTIMIZER = make_row_optimizer("adamw", weight_decay=0.2)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--centers", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--ratio", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", choices=CONTENDERS, help=argparse.SUPPRESS)
    return parser.parse_args()


def make_table(k: int, dim: int) -> Table:
    """Makes a table on this device; its rows repeat a few thousand random directions."""

    def create() -> Table:
        few = jax.random.normal(jax.random.key(0), (4096, dim)) / dim**0.5
        return OPTIMIZER.init(few[jnp.arange(k) % len(few)])

    return jax.jit(create)()


def draw_batch(batch: int, dim: int, k: int) -> tuple[jax.Array, jax.Array]:
    """Returns unit-length embeddings and the labels of each."""
    zimg = jax.random.normal(jax.random.key(1), (batch, dim))
    labels = jax.random.randint(jax.random.key(2), (batch, LABELS), 0, k)
    return zimg / jnp.linalg.norm(zimg, axis=1, keepdims=True), labels


def dense_loss(zimg: jax.Array, centers: jax.Array, labels: jax.Array) -> jax.Array:
    """MLCD's loss on all logits, with lengths divided out of these and not of the centers."""
    inverse = jax.lax.rsqrt(jnp.square(centers).sum(axis=1))
    cosine = (zimg @ centers.T) * inverse
    own = jnp.arange(len(labels))[:, None], labels
    negative = jnp.ones(cosine.shape, bool).at[own].set(False)
    positives = log_sum(-SCALE * add_margin(cosine[own], MARGIN), labels >= 0)
    return combine("mlcd", log_sum(SCALE * cosine, negative), positives).mean()


def dense_step(
    table: Table, zimg: jax.Array, labels: jax.Array, seed: jax.Array
) -> tuple[Table, jax.Array, jax.Array]:
    """Updates the whole table; returns it, the gradient of the embeddings, and the loss."""
    loss, (zimg_grad, grads) = jax.value_and_grad(dense_loss, argnums=(0, 1))(
        zimg, table.values, labels
    )
    # All rows are updated alike, so the count of one serves all.
    state = jax.tree.map(lambda x: x[0] if x.ndim == 1 else x, table.state)
    updates, state = OPTIMIZER.transformation.update(grads, state, table.values)
    state = jax.tree.map(lambda new, old: jnp.broadcast_to(new, old.shape), state, table.state)
    return Table(table.values + 1e-3 * updates, state), zimg_grad, loss


def sparse_step(
    table: Table,
    zimg: jax.Array,
    labels: jax.Array,
    seed: jax.Array,
    *,
    ratio: float,
    negatives: str = "sampled",
) -> tuple[Table, jax.Array, jax.Array]:
    """Draws rows and updates them; returns what `dense_step` does."""
    mesh, key = make_mesh(devices=jax.devices()[:1]), jax.random.key(seed)
    drawn = draw_rows(table.values, labels, key, num_rows=len(table.values), ratio=ratio, mesh=mesh)

    def loss_of(zimg: jax.Array, rows: jax.Array) -> jax.Array:
        rest = drawn.mask, drawn.columns
        sampled = drawn.sampled if negatives == "sampled" else None
        options = {"sampled": sampled, "scale": SCALE, "margin": MARGIN, "mesh": mesh}
        return sampled_cluster_loss("mlcd", zimg, rows, *rest, **options)[0]

    loss, (zimg_grad, grads) = jax.value_and_grad(loss_of, argnums=(0, 1))(zimg, drawn.rows)
    return OPTIMIZER.update(table, drawn, grads, jnp.float32(1e-3), mesh), zimg_grad, loss


class Stepper:
    """A compiled step, called again and again on a table that others may change between."""

    def __init__(self, step: Callable, holder: dict[str, Table], batch: tuple):
        arguments = jax.eval_shape(lambda: holder["table"]), *batch, jnp.uint32(0)
        self._step = jax.jit(step, donate_argnums=0).lower(*arguments).compile()
        self._holder, self._batch, self._seed = holder, batch, 0
        self.temporaries = self._step.memory_analysis().temp_size_in_bytes

    def __call__(self) -> float:
        self._seed += 1
        table = self._holder.pop("table")
        self._holder["table"], _, loss = jax.block_until_ready(
            self._step(table, *self._batch, jnp.uint32(self._seed))
        )
        return float(loss)


def make_steps(options: argparse.Namespace) -> tuple[dict[str, Callable], dict[str, Table]]:
    """Returns how each contender is compiled, and the table that they share."""
    holder = {"table": make_table(options.centers, options.dim)}
    batch = draw_batch(options.batch, options.dim, options.centers)
    sparse = functools.partial(sparse_step, ratio=options.ratio)
    steps = {DENSE: dense_step, SPARSE: sparse, DRAWN: functools.partial(sparse, negatives=DRAWN)}
    return {k: functools.partial(Stepper, v, holder, batch) for k, v in steps.items()}, holder


def read_memory(field: str) -> int:
    """Returns a size of this process in bytes, by its name in /proc/self/status."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}")


def measure_memory(name: str, options: argparse.Namespace) -> int:
    """Returns the extra bytes that one step needs at its highest, run in a fresh process."""
    steps, holder = make_steps(options)
    step = steps[name]()
    jax.block_until_ready(holder["table"])
    if jax.default_backend() == "gpu":
        before = jax.devices()[0].memory_stats()["bytes_in_use"]
        step()
        return jax.devices()[0].memory_stats()["peak_bytes_in_use"] - before
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # Forgets the highest size so far.
    before = read_memory("VmRSS")
    step()
    return read_memory("VmHWM") - before


def measure_memory_apart(name: str, options: argparse.Namespace) -> int:
    """Returns `measure_memory` of a fresh process."""
    command = [sys.executable, __file__, f"--measure={name}"]
    command += [f"--{k}={getattr(options, k)}" for k in ("centers", "dim", "batch", "ratio")]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout.split()[-1])


def make_matmul() -> tuple[Callable[[], float], float]:
    """Returns a call of a large matrix product, and its FLOPs."""
    rows, inner = 2048, 8192
    x = jnp.ones((inner, rows))
    product = jax.jit(lambda x: jnp.matmul(x.T, x))
    return lambda: float(jax.block_until_ready(product(x))[0, 0]), 2.0 * rows * rows * inner


def make_copy() -> tuple[Callable[[], float], float]:
    """Returns a call that reads and writes a large array, and how many bytes it moves."""
    x = jnp.ones(2**26)
    add = jax.jit(lambda x: x + 1)
    return lambda: float(jax.block_until_ready(add(x))[0]), 2.0 * x.nbytes


def time_in_turns(calls: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Returns the median seconds of each call over rounds in which they take turns."""
    seconds = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def compare(options: argparse.Namespace) -> None:
    """Prints the contenders at one size, and whether the marks are met."""
    k, dim, batch = options.centers, options.dim, options.batch
    memory = {name: measure_memory_apart(name, options) for name in CONTENDERS}
    makers, _ = make_steps(options)
    calls = {name: make() for name, make in makers.items()}
    temporaries = {name: call.temporaries for name, call in calls.items()}
    (matmul, flops), (copy, moved) = make_matmul(), make_copy()
    seconds = time_in_turns(calls | {"matmul": matmul, "copy": copy}, options.rounds)
    rate, bandwidth = flops / seconds["matmul"], moved / seconds["copy"]
    cores = len(os.sched_getaffinity(0))
    print(f"\nk = {k:,}, d = {dim}, b = {batch}, {LABELS} labels, r = {options.ratio}, float32, ")
    print(f"{jax.default_backend()}, {cores} cores: {rate / 1e9:.0f} GFLOP/s, ", end="")
    print(f"{bandwidth / 1e9:.1f} GB/s")
    print(f"{'':8s} {'rows':>9s} {'s':>7s} {'FLOPs':>7s} {'bytes':>7s} {'MiB':>6s} {'temp':>6s}")
    for name in CONTENDERS:
        rows = k if name == DENSE else round(options.ratio * k) + batch * LABELS
        by_flops, by_bytes = 6.0 * batch * rows * dim / rate, 28.0 * rows * dim / bandwidth
        print(f"{name:8s} {rows:9d} {seconds[name]:7.3f} {by_flops:7.3f} {by_bytes:7.3f} ", end="")
        print(f"{memory[name] / 2**20:6.0f} {temporaries[name] / 2**20:6.0f}")
    speed, fraction = seconds[DENSE] / seconds[SPARSE], memory[SPARSE] / memory[DENSE]
    print(f"{speed:.1f} times as fast (mark {MARK_SPEED}: {say(speed >= MARK_SPEED)}), ", end="")
    print(f"{fraction:.2f} of the memory (mark {MARK_MEMORY}: {say(fraction <= MARK_MEMORY)})")
    print(f"{SPARSE} takes {seconds[SPARSE] / seconds[DRAWN]:.2f} times as long as {DRAWN}")


def compare_sizes(options: argparse.Namespace) -> None:
    """Prints a step on as many drawn rows of a large and of a small table."""
    drawn, calls = round(options.ratio * options.centers / 10), {}
    for k in (options.centers, options.centers // 10):
        holder = {"table": make_table(k, options.dim)}
        step = functools.partial(sparse_step, ratio=drawn / k)
        calls[f"{k:,}"] = Stepper(step, holder, draw_batch(options.batch, options.dim, k))
    seconds = time_in_turns(calls, 3 * options.rounds)
    large, small = seconds.values()
    print(f"\n{drawn} sampled rows: ", end="")
    print(", ".join(f"{1e3 * time:.1f} ms at k = {name}" for name, time in seconds.items()))
    met = say(large / small <= MARK_GROWTH)
    print(f"{large / small:.2f} times as long (mark {MARK_GROWTH}: {met})")


def say(met: bool) -> str:
    """Words for a mark."""
    return "met" if met else "NOT met"


def main() -> None:
    """Runs what the command line asks for."""
    options = parse_arguments()
    if options.measure:
        print(measure_memory(options.measure, options))
        return
    compare(options)
    compare_sizes(options)


if __name__ == "__main__":
    main()
