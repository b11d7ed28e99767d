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
import pathlib
import sys
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import measuring
from benchmarks.measuring import MIB
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

    Returns a call that computes loss and gradients and returns the loss, and the bytes of the
    compiled program's temporaries.
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
    torch.set_num_threads(measuring.CORES)
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


def measure_memory(name: str, batch: int, options: argparse.Namespace) -> int:
    """Returns the extra bytes that one call needs at its highest, run in a process of its own."""
    if name == OPEN_CLIP:
        run = make_open_clip(batch, options)
    else:
        make_jax(name, 64, options)[0]()  # Starts what JAX starts on first use.
        run, _ = make_jax(name, batch, options)
    if name == OPEN_CLIP and jax.default_backend() == "gpu":
        import torch

        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    return measuring.measure_memory(run)


def measure_memory_apart(name: str, batch: int, options: argparse.Namespace) -> int:
    """Returns `measure_memory` of a fresh process."""
    given = dict(dim=options.dim, dtype=options.dtype, block=options.block)
    return measuring.run_apart(measure=name, batch=batch, **given)


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
    matmul, flops = measuring.make_matmul(options.dtype)
    seconds = measuring.time_in_turns(calls | {"matmul": matmul}, options.rounds)
    rate = flops / seconds["matmul"]
    memory = {name: measure_memory_apart(name, batch, options) for name in calls}

    def describe(name: str) -> list:
        row = [name, 1e3 * seconds[name], 1e3 * PRODUCTS[name] * 2 * batch**2 * dim / rate]
        row += [f"{memory[name] / MIB:.0f}", f"{temporaries.get(name, 0) / MIB:.0f}"]
        if not open_clip:
            return [*row, "", ""]
        return [*row, seconds[OPEN_CLIP] / seconds[name], memory[name] / memory[OPEN_CLIP]]

    columns = ["", "ms", "bound (ms)", "MiB", "temporaries (MiB)", "speed", "memory"]
    device = f"{measuring.describe_device()}; {rate / 1e9:.0f} GFLOP/s"
    title = f"B = {batch}, d = {dim}, {options.dtype}, {device}"
    measuring.print_table(columns, map(describe, calls), title)
    print(f"losses differ by {max(losses.values()) / min(losses.values()) - 1:.1e} at most")
    if not open_clip:
        print(f"{OPEN_CLIP} is not measured: it or torch is not installed for this device")
        return
    ours = TILES if tiles else KEPT
    speed, fraction = seconds[OPEN_CLIP] / seconds[ours], memory[ours] / memory[OPEN_CLIP]
    measuring.tell_mark(f"{MARK_SPEED} times open_clip's speed", speed >= MARK_SPEED)
    measuring.tell_mark("a third of its memory", fraction <= MARK_MEMORY)


def run_large(options: argparse.Namespace) -> None:
    """Prints ours alone at a batch whose logits would not fit."""
    batch = options.large
    name = TILES if has_tiles(batch, options) else RECOMPUTED
    run, temporaries = make_jax(name, batch, options)
    seconds = measuring.time_in_turns({name: run}, rounds=1)[name]
    extra = measure_memory_apart(name, batch, options)
    print(f"\nB = {batch}, d = {options.dim}: {name} {1e3 * seconds:.1f} ms, ", end="")
    print(f"{extra / MIB:.0f} MiB extra, {temporaries / MIB:.0f} MiB of temporaries")
    measuring.tell_mark("inside 2 GiB", extra <= MARK_LARGE_BYTES)


def plan(options: argparse.Namespace) -> None:
    """Prints what XLA makes of ours for a GPU that is not there: kernels, bytes, products."""
    from jax._src.mesh import AbstractDevice  # what Pallas asks for the number of multiprocessors
    from jax.sharding import AbstractMesh

    from big_align.parallel.devices import traced
    from big_align.parallel.meshes import batch_sharding, make_mesh, replicated
    from big_align.planning import executed, gpu_topologies, hlo, traffic

    (gpu,) = gpu_topologies.describe_gpus(options.plan, 1, 1)
    cores = gpu_topologies.TARGETS[options.plan].processors
    described = AbstractDevice(gpu.device_kind, cores, "gpu")
    mesh, rows = make_mesh(devices=[gpu]), (options.batch, options.dim)
    pair = jax.ShapeDtypeStruct(rows, options.dtype, sharding=batch_sharding(mesh))
    scale = jax.ShapeDtypeStruct((), jnp.float32, sharding=replicated(mesh))
    blocks = [options.block or max(256, GPU_LOGITS // options.batch)]
    rows_of = []
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
        memory = made.memory_analysis().temp_size_in_bytes / MIB
        size = traffic.count_traffic(program) / 1e9
        rows_of.append((block, kernels, f"{size:.1f}", f"{products:.1f}", f"{memory:.0f}"))
    columns = "rows of a block", "kernels", "GB moved", "products", "temporaries (MiB)"
    measuring.print_table(columns, rows_of)


def main() -> None:
    """Runs what the command line asks for."""
    parser = measuring.make_parser(__doc__, batch=8192, dim=512, rounds=7)
    add = parser.add_argument
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--block", type=int, help="rows of logits at a time, in ours")
    add("--large", type=int, default=32768, help="batch size for ours alone; 0 for none")
    add("--plan", metavar="GPU", help="compile ours for h100 or h200, without one, and count")
    add("--measure", choices=PRODUCTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plan:
        return plan(options)
    if options.measure:
        return print(measure_memory(options.measure, options.batch, options))
    compare(options)
    if options.large:
        run_large(options)


if __name__ == "__main__":
    main()
