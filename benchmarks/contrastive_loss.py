"""Speed and memory of the contrastive loss, forward and backward, against open_clip's.

    python benchmarks/contrastive_loss.py                        # B = 8192 and 32768, d = 512
    python benchmarks/contrastive_loss.py --batch=4096 --large=0
    python benchmarks/contrastive_loss.py --batch=32768 --dtype=bfloat16 --large=0    # on a GPU
    python benchmarks/contrastive_loss.py --batch=32768 --dtype=bfloat16 --plan=h200  # without one

One matrix product of the batch is 2 B^2 d FLOPs. open_clip's ClipLoss computes the logits once per
direction and so makes 2 products forward and 4 backward; a plain loss makes 1 + 2; ours makes 1 + 2
where it keeps the logits and 2 + 2 where it computes them again. Where products dominate, ours is
thus expected to be 2 or 1.5 times as fast as open_clip before counting the passes over [B B] that
it does not make: its blocks stay in the cache, while open_clip writes and reads some ten such
matrices. It needs memory for one [B B] matrix or none, against four or more: a quarter or less.
In tiles it makes 2 + 2 and writes one such matrix in bfloat16, a stripe at a time. Tiles take part,
and stand for ours in the marks, where the loss chooses them itself.

Times are medians over rounds that take turns, in one process. Extra memory is taken in a fresh
process per contender: the highest resident size during one call less that before it, gradients
included (on a GPU: the allocator's). open_clip's row needs torch and open_clip installed. On a GPU
both sides multiply float32 in TF32, JAX's default and what open_clip's training sets.
"""

import argparse
import importlib.util
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
import numpy as np
import optax

from big_align.losses.blocks import GPU_LOGITS, choose_blocks
from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.parallel.shards import Shards

OPEN_CLIP, PLAIN, KEPT, RECOMPUTED, TILES = (
    "open_clip ClipLoss",
    "plain jnp",
    "ours, logits kept",
    "ours, recomputed",
    "ours, in tiles",
)
PRODUCTS = {OPEN_CLIP: 6, PLAIN: 3, KEPT: 3, RECOMPUTED: 4, TILES: 4}
SCALE = 14.0
MARK_SPEED, MARK_MEMORY, MARK_LARGE_BYTES = 2.5, 1 / 3, 2**31


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--block", type=int, help="rows of logits at a time, in ours")
    parser.add_argument(
        "--large", type=int, default=32768, help="batch size for ours alone; 0 for none"
    )
    parser.add_argument(
        "--plan", metavar="GPU", help="compile ours for h100 or h200, without one, and count"
    )
    parser.add_argument("--measure", choices=PRODUCTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def draw(batch: int, dim: int) -> list[np.ndarray]:
    """Returns unit-length image and text embeddings."""
    rng = np.random.default_rng(0)
    pair = [rng.standard_normal((batch, dim), np.float32) for _ in range(2)]
    return [x / np.linalg.norm(x, axis=1, keepdims=True) for x in pair]


def plain_loss(zimg: jax.Array, ztxt: jax.Array, scale: jax.Array) -> jax.Array:
    """Returns the mean of both directions, as it is usually written."""
    logits = scale * zimg @ ztxt.T
    label = jnp.arange(len(zimg))
    cross_entropy = optax.softmax_cross_entropy_with_integer_labels
    return (cross_entropy(logits, label).mean() + cross_entropy(logits.T, label).mean()) / 2


def choose_block(batch: int) -> int:
    """Returns the rows of a block in memory that the loss would choose."""
    return max(256, GPU_LOGITS // batch) if jax.default_backend() == "gpu" else 256


def has_tiles(batch: int, options: argparse.Namespace) -> bool:
    """Returns whether the loss would choose tiles."""
    dtype = jnp.dtype(options.dtype)
    return bool(choose_blocks("loss", batch, batch, Shards.over(None), None, dtype).compare)


def make_jax(name: str, batch: int, options: argparse.Namespace) -> tuple[Callable[[], float], int]:
    """Compiles one of the JAX losses at a batch size.

    Returns:
      A call that computes loss and gradients and returns the loss, and the bytes of the compiled
      program's temporaries.
    """

    def ours(zimg: jax.Array, ztxt: jax.Array, scale: jax.Array) -> jax.Array:
        keep = 4 * batch**2 if name == KEPT else 0
        block = "tiles" if name == TILES else options.block or choose_block(batch)
        rest = {"block": block, "keep_logits_bytes": keep}
        return sum(blockwise_contrastive_loss(zimg, ztxt, scale, **rest)) / 2

    pair = [jnp.asarray(x, options.dtype) for x in draw(batch, options.dim)]
    arrays = *pair, jnp.float32(SCALE)
    loss = plain_loss if name == PLAIN else ours
    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2))).lower(*arrays).compile()

    def run() -> float:
        return float(jax.block_until_ready(compiled(*arrays))[0])

    return run, compiled.memory_analysis().temp_size_in_bytes


def make_open_clip(batch: int, options: argparse.Namespace) -> Callable[[], float] | None:
    """Makes a call of open_clip's own loss, or None where it or torch cannot be imported."""
    package = importlib.util.find_spec("open_clip")
    if package is None or importlib.util.find_spec("torch") is None:
        return None
    import torch

    # Its loss imports nothing but torch, while the package imports torchvision, timm and more.
    file = pathlib.Path(package.submodule_search_locations[0]) / "loss.py"
    spec = importlib.util.spec_from_file_location("open_clip_loss", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    on_gpu = jax.default_backend() == "gpu"
    if on_gpu and not torch.cuda.is_available():
        return None
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.backends.cuda.matmul.allow_tf32 = True
    dtype = getattr(torch, options.dtype)
    loss = module.ClipLoss()

    def make(batch: int) -> Callable[[], float]:
        pair = [torch.from_numpy(x).to(dtype) for x in draw(batch, options.dim)]
        arrays = [*pair, torch.tensor(SCALE)]
        arrays = [x.to("cuda" if on_gpu else "cpu").requires_grad_() for x in arrays]

        def run() -> float:
            for x in arrays:
                x.grad = None
            value = loss(*arrays)
            value.backward()
            return value.item()

        return run

    make(64)()  # Starts what torch starts on first use.
    return make(batch)


def read_memory(field: str) -> int:
    """Returns a size of this process in bytes, by its name in /proc/self/status."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}")


def measure_memory(name: str, batch: int, options: argparse.Namespace) -> int:
    """Returns the extra bytes that one call needs at its highest, run in a process of its own."""
    if name == OPEN_CLIP:
        run = make_open_clip(batch, options)
    else:
        make_jax(name, 64, options)[0]()  # Starts what JAX starts on first use.
        run, _ = make_jax(name, batch, options)
    if jax.default_backend() == "gpu":
        if name == OPEN_CLIP:
            import torch

            before = torch.cuda.memory_allocated()
            run()
            return torch.cuda.max_memory_allocated() - before
        before = jax.devices()[0].memory_stats()["bytes_in_use"]
        run()
        return jax.devices()[0].memory_stats()["peak_bytes_in_use"] - before
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # Forgets the highest size so far.
    before = read_memory("VmRSS")
    run()
    return read_memory("VmHWM") - before


def measure_memory_apart(name: str, batch: int, options: argparse.Namespace) -> int:
    """Returns `measure_memory` of a fresh process."""
    command = [sys.executable, __file__, f"--measure={name}", f"--batch={batch}"]
    command += [f"--dim={options.dim}", f"--dtype={options.dtype}"]
    command += [f"--block={options.block}"] if options.block else []
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout.split()[-1])


def make_matmul(dtype: str) -> tuple[Callable[[], float], float]:
    """Returns a call of a large matrix product, and its FLOPs."""
    rows, inner = (2048, 8192) if jax.default_backend() == "cpu" else (16384, 8192)
    x, y = (jnp.asarray(z, dtype) for z in draw(inner, rows))
    product = jax.jit(lambda x, y: jnp.matmul(x.T, y))
    return lambda: float(jax.block_until_ready(product(x, y))[0, 0]), 2.0 * rows * rows * inner


def time_in_turns(calls: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Returns the median seconds of each call over rounds in which they take turns."""
    seconds = {name: [] for name in calls}
    for index in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if index > 0:  # The first round warms up.
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def compare(options: argparse.Namespace) -> None:
    """Prints all contenders at one batch size, and whether the marks are met."""
    batch, dim = options.batch, options.dim
    calls, temporaries = {}, {}
    open_clip = make_open_clip(batch, options)
    if open_clip:
        calls[OPEN_CLIP] = open_clip
    tiles = (TILES,) if has_tiles(batch, options) else ()
    for name in (PLAIN, KEPT, RECOMPUTED, *tiles):
        calls[name], temporaries[name] = make_jax(name, batch, options)
    losses = {name: call() for name, call in calls.items()}
    matmul, flops = make_matmul(options.dtype)
    seconds = time_in_turns(calls | {"matmul": matmul}, options.rounds)
    rate = flops / seconds["matmul"]
    memory = {name: measure_memory_apart(name, batch, options) for name in calls}

    device = jax.devices()[0].device_kind
    print(f"\nB = {batch}, d = {dim}, {options.dtype}, {device}; {rate / 1e9:.0f} GFLOP/s")
    print(
        f"{'':20s} {'ms':>8s} {'bound':>8s} {'MiB':>6s} {'temp':>6s} {'speed':>6s} {'memory':>7s}"
    )
    if open_clip is None:
        print(f"{OPEN_CLIP:20s} not measured: torch or open_clip is not installed for this device")
    for name in calls:
        bound = PRODUCTS[name] * 2 * batch**2 * dim / rate
        temp = f"{temporaries[name] / 2**20:6.0f}" if name in temporaries else f"{'':6s}"
        row = f"{name:20s} {1e3 * seconds[name]:8.2f} {1e3 * bound:8.2f} "
        row += f"{memory[name] / 2**20:6.0f} {temp}"
        if open_clip:
            row += f" {seconds[OPEN_CLIP] / seconds[name]:5.2f}x"
            row += f" {memory[name] / memory[OPEN_CLIP]:7.2f}"
        print(row)
    print(f"losses differ by {max(losses.values()) / min(losses.values()) - 1:.1e} at most")
    if open_clip:
        ours = TILES if tiles else KEPT
        speed = seconds[OPEN_CLIP] / seconds[ours]
        fraction = memory[ours] / memory[OPEN_CLIP]
        print(f"mark: {MARK_SPEED} times open_clip's speed: {say(speed >= MARK_SPEED)}; ", end="")
        print(f"a third of its memory: {say(fraction <= MARK_MEMORY)}")


def run_large(options: argparse.Namespace) -> None:
    """Prints ours alone at a batch whose logits would not fit."""
    batch = options.large
    name = TILES if has_tiles(batch, options) else RECOMPUTED
    run, temporaries = make_jax(name, batch, options)
    seconds = time_in_turns({name: run}, rounds=1)[name]
    extra = measure_memory_apart(name, batch, options)
    print(f"\nB = {batch}, d = {options.dim}: {name} {1e3 * seconds:.1f} ms, ", end="")
    print(f"{extra / 2**20:.0f} MiB extra, {temporaries / 2**20:.0f} MiB of temporaries")
    print(f"mark: inside 2 GiB: {say(extra <= MARK_LARGE_BYTES)}")


def say(met: bool) -> str:
    """Words for a mark."""
    return "met" if met else "NOT met"


def plan(options: argparse.Namespace) -> None:
    """Prints what XLA makes of ours for a GPU that is not there: kernels, bytes, products."""
    from jax._src.mesh import AbstractDevice  # what Pallas asks for the number of multiprocessors
    from jax.sharding import AbstractMesh

    from big_align.devices import traced
    from big_align.parallel.meshes import batch_sharding, make_mesh, replicated
    from big_align.planning import executed, gpu_topologies, hlo, traffic

    (gpu,) = gpu_topologies.describe_gpus(options.plan, 1, 1)
    cores = gpu_topologies.TARGETS[options.plan].processors
    described = AbstractDevice(gpu.device_kind, cores, "gpu")
    mesh, rows = make_mesh(devices=[gpu]), (options.batch, options.dim)
    pair = jax.ShapeDtypeStruct(rows, options.dtype, sharding=batch_sharding(mesh))
    scale = jax.ShapeDtypeStruct((), jnp.float32, sharding=replicated(mesh))
    blocks = [options.block or max(256, GPU_LOGITS // options.batch)]
    print("| rows of a block | kernels | GB read and written | products | temporaries (MiB) |")
    print("|---|---|---|---|---|")
    for block in blocks + ["tiles"] * (options.dtype == "bfloat16"):

        def loss(zimg: jax.Array, ztxt: jax.Array, scale: jax.Array, block=block) -> jax.Array:
            with traced.weights_on(mesh):
                both = blockwise_contrastive_loss(
                    zimg, ztxt, scale, block=block, keep_logits_bytes=0
                )
            return sum(both) / 2

        with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=described)):
            step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2))).trace(pair, pair, scale)
            made = step.lower(lowering_platforms=("cuda",)).compile()
        program = hlo.parse_program(made.as_text())
        kernels = sum(run.times for run, _ in traffic.walk_kernels(program))
        flops = executed.count_executed_flops(program).total()
        products = flops / (2 * options.batch**2 * options.dim)
        memory = made.memory_analysis().temp_size_in_bytes / 2**20
        size = traffic.count_traffic(program) / 1e9
        print(f"| {block} | {kernels} | {size:.1f} | {products:.1f} | {memory:.0f} |")


def main() -> None:
    """Runs what the command line asks for."""
    options = parse_arguments()
    if options.plan:
        plan(options)
        return
    if options.measure:
        print(measure_memory(options.measure, options.batch, options))
        return
    compare(options)
    if options.large:
        run_large(options)


if __name__ == "__main__":
    main()
