"""Saving and restoring a state, against Orbax alone: 1 GB, or many small arrays on many devices.

Predicted: reading 1 GB back from the page cache and adding it up takes 0.4 s a core (zlib's CRC-32
does 2.7 GB/s here), behind the writing of files, which takes seconds; so saving takes at most 1.1
times as long, and the step loop waits no longer. Restoring reads the files twice.

Orbax alone has every device write a slice of every array that all of them have. Small arrays are
written whole here. Predicted: on 8 devices an eighth of the programs, files' entries and reads, so
that the step loop waits for at most a third of the time, and saving takes a third.

  python benchmarks/checkpoint.py --gigabytes=1
  python benchmarks/checkpoint.py --gigabytes=0.01 --arrays=1000 --devices=8
"""

import contextlib
import math
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from flax import struct

from benchmarks import measuring
from big_align.training.saving import checksums
from big_align.training.saving.checkpoint import Checkpointer


@struct.dataclass
class State:
    """What is saved: arrays and the step."""

    step: jax.Array
    params: dict[str, jax.Array]


def make_state(gigabytes: float, arrays: int, step: int) -> State:
    """Makes arrays of noise, as parameters and moments are, which all devices have."""
    side = 8 * max(1, round(math.sqrt(gigabytes * 1e9 / 4 / arrays) / 8))
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    everywhere = jax.NamedSharding(mesh, jax.P())
    draw = jax.jit(lambda key: jax.random.normal(key, (side, side)), out_shardings=everywhere)
    keys = jax.random.split(jax.random.key(step), arrays)
    kernels = {f"kernel_{n:03d}": draw(key) for n, key in enumerate(keys)}
    return State(jax.device_put(jnp.int32(step), everywhere), kernels)


def describe(array: jax.Array) -> jax.ShapeDtypeStruct:
    """Returns what is restored in the place of an array."""
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


@contextlib.contextmanager
def open_ours(folder: pathlib.Path):
    """Yields what saves and restores with checksums."""
    checkpointer = Checkpointer(str(folder), keep_last=1)
    with contextlib.closing(checkpointer):
        save = lambda state: checkpointer.save(state, {})  # noqa: E731
        yield save, checkpointer.settle, lambda described: checkpointer.restore(described, {})


@contextlib.contextmanager
def open_orbax(folder: pathlib.Path):
    """Yields what saves and restores without them."""
    options = ocp.CheckpointManagerOptions(max_to_keep=1)
    manager = ocp.CheckpointManager(folder, options=options)

    def restore(described):
        options = ocp.checkpoint_utils.construct_restore_args(described, strict=False)
        arguments = ocp.args.PyTreeRestore(item=described, restore_args=options)
        return manager.restore(manager.latest_step(), args=arguments)

    with contextlib.closing(manager):
        save = lambda state: manager.save(  # noqa: E731
            int(state.step), args=ocp.args.PyTreeSave(state)
        )
        yield save, manager.wait_until_finished, restore


def time_saving(opened, state: State, work) -> dict[str, float]:
    """Saves a state while steps go on; then restores it."""
    save, wait, restore = opened
    start = time.perf_counter()
    save(state)
    blocked = time.perf_counter() - start
    steps = []
    for _ in range(20):
        begin = time.perf_counter()
        jax.block_until_ready(work())
        steps.append(time.perf_counter() - begin)
    wait()
    saved = time.perf_counter() - start
    start = time.perf_counter()
    jax.block_until_ready(restore(jax.tree.map(describe, state)))
    return {
        "blocked": blocked,
        "step meanwhile": statistics.median(steps),
        "saved": saved,
        "restored": time.perf_counter() - start,
    }


def main() -> None:
    """Prints the times of both, in turn, and their ratios."""
    parser = measuring.make_parser(__doc__, gigabytes=1.0, rounds=5)
    parser.add_argument("--arrays", type=int, default=15, help="among which it is divided")
    parser.add_argument("--devices", type=int, default=1, help="virtual ones of the CPU")
    given = parser.parse_args()
    devices = f"--xla_force_host_platform_device_count={given.devices}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {devices}"
    matrix = jnp.ones((1024, 1024))
    step = jax.jit(lambda: matrix @ matrix @ matrix)
    jax.block_until_ready(step())
    root = pathlib.Path(tempfile.mkdtemp(prefix="checkpoint_", dir="."))
    rounds: dict[str, list[dict[str, float]]] = {"orbax": [], "ours": []}
    try:
        for number in range(given.rounds + 1):  # the first is not counted
            state = jax.block_until_ready(make_state(given.gigabytes, given.arrays, number))
            sides = ("orbax", open_orbax), ("ours", open_ours)
            for name, opener in sides if number % 2 else sides[::-1]:  # the second may pay for both
                with opener((root / f"{name}_{number}").resolve()) as opened:
                    rounds[name].append(time_saving(opened, state, step))
            folder = root / f"ours_{number}" / "checkpoints" / str(number)
            start = time.perf_counter()
            assert checksums.find_fault(epath.Path(folder), number) is None
            checking = time.perf_counter() - start
            for name in rounds:
                shutil.rmtree(root / f"{name}_{number}")
    finally:
        shutil.rmtree(root)
    size = sum(x.nbytes for x in jax.tree.leaves(state)) / 1e9
    what = f"{size:.3g} GB of state in {given.arrays} arrays on {given.devices} devices"

    def describe(key: str) -> tuple:
        both = [statistics.median(r[key] for r in rounds[name][1:]) for name in ("orbax", "ours")]
        return key, *both, both[1] / both[0]

    title = f"{what}, median of {given.rounds} rounds, seconds"
    columns = "", "orbax", "ours", "ratio"
    measuring.print_table(columns, map(describe, rounds["ours"][0]), title)
    print(f"checking alone: {size / checking:.1f} GB/s")


if __name__ == "__main__":
    main()
