"""What checksums cost: saving and restoring 1 GB of state, against Orbax alone.

Predicted: reading 1 GB back from the page cache and adding it up takes 0.4 s a core (zlib's CRC-32
does 2.7 GB/s here), behind the writing of files, which takes seconds; so saving takes at most 1.1
times as long, and the step loop waits no longer. Restoring reads the files twice.

  python benchmarks/checkpoint.py --gigabytes=1
"""

import argparse
import contextlib
import pathlib
import shutil
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from flax import struct

from big_align.training.saving import checksums
from big_align.training.saving.checkpoint import Checkpointer


@struct.dataclass
class State:
    """What is saved: arrays and the step."""

    step: jax.Array
    params: dict[str, jax.Array]


def make_state(gigabytes: float, step: int) -> State:
    """Makes arrays of noise, as parameters and moments are: 64 MB each."""
    count = max(1, round(gigabytes * 1e9 / 2**26))
    draw = jax.jit(lambda key: jax.random.normal(key, (4096, 4096)))
    keys = jax.random.split(jax.random.key(step), count)
    return State(jnp.int32(step), {f"kernel_{n:02d}": draw(key) for n, key in enumerate(keys)})


@contextlib.contextmanager
def open_ours(folder: pathlib.Path):
    """Yields what saves and restores with checksums."""
    checkpointer = Checkpointer(str(folder), keep_last=1)
    with contextlib.closing(checkpointer):
        save = lambda state: checkpointer.save(state, {})  # noqa: E731
        yield save, checkpointer._settle, lambda described: checkpointer.restore(described, {})


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
    jax.block_until_ready(restore(jax.eval_shape(lambda: state)))
    return {
        "blocked": blocked,
        "step meanwhile": statistics.median(steps),
        "saved": saved,
        "restored": time.perf_counter() - start,
    }


def main() -> None:
    """Prints the times of both, in turn, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    matrix = jnp.ones((1024, 1024))
    step = jax.jit(lambda: matrix @ matrix @ matrix)
    jax.block_until_ready(step())
    root = pathlib.Path(tempfile.mkdtemp(prefix="checkpoint_", dir="."))
    rounds: dict[str, list[dict[str, float]]] = {"orbax": [], "ours": []}
    try:
        for number in range(given.rounds + 1):  # the first is not counted
            state = jax.block_until_ready(make_state(given.gigabytes, number))
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
    print(f"{size:.2f} GB of state, median of {given.rounds} rounds, seconds")
    print(f"{'':16s} {'orbax':>9s} {'ours':>9s} {'ratio':>7s}")
    for key in rounds["ours"][0]:
        both = [statistics.median(r[key] for r in rounds[name][1:]) for name in ("orbax", "ours")]
        print(f"{key:16s} {both[0]:9.3f} {both[1]:9.3f} {both[1] / both[0]:7.2f}")
    print(f"checking alone: {size / checking:.1f} GB/s")


if __name__ == "__main__":
    main()
