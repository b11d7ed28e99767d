"""Memory of batches: aligned, taken by JAX without a copy, and used again only when it is free."""

import gc
import itertools
import mmap
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loaders import FLIP, assert_equal, make_loader
from samples import make_array

from big_align.data.workers.batch_memory import (
    ALIGNMENT,
    BatchLayout,
    BatchMemory,
    MappedBatches,
)
from big_align.parallel.batches import place_batch
from big_align.parallel.meshes import make_mesh

ROW = {"image": ((5, 5, 3), np.uint8), "text": ((7,), np.int32), "mask": ((), bool)}


@pytest.fixture(params=[False, True], ids=["private", "shared"])
def memory(request):
    memory = BatchMemory(BatchLayout.of(ROW, 16), keep=2, shared=request.param)
    yield memory
    memory.close()


def test_arrays_are_aligned_and_do_not_overlap(memory):
    _, batch = memory.acquire()
    for value, (name, array) in enumerate(batch.items()):
        assert array.ctypes.data % ALIGNMENT == 0 and array.flags.c_contiguous
        assert (array.shape[1:], array.dtype) == ROW[name] and len(array) == 16
        array[...] = value
    for value, array in enumerate(batch.values()):
        assert (array == np.array(value).astype(array.dtype)).all()


def test_a_block_is_free_when_nothing_refers_to_it(memory):
    first, batch = memory.acquire()
    view = batch["image"][3:5, :, 1]
    del batch
    second, other = memory.acquire()
    assert first != second
    del view
    gc.collect()
    third, batch = memory.acquire()
    assert third == first and memory.count == 2


@pytest.mark.skipif(not hasattr(mmap, "MADV_REMOVE"), reason="the system cannot take it back")
def test_the_memory_of_blocks_that_are_not_kept_goes_back():
    """What was written to 6 blocks is gone from 4 of them, and they can be used again."""
    memory = BatchMemory(BatchLayout.of(ROW, 16), keep=2, shared=True)
    held = [memory.acquire() for _ in range(6)]
    for _, batch in held:
        batch["text"][:] = 7
    del held, batch
    gc.collect()
    again = [memory.acquire()[1] for _ in range(6)]
    assert sorted(batch["text"].max() for batch in again) == [0] * 4 + [7] * 2
    assert memory.count == 6
    memory.close()


def test_another_process_sees_what_is_written():
    memory = BatchMemory(BatchLayout.of(ROW, 16), keep=2, shared=True)
    mapped = MappedBatches(memory.descriptor, memory.layout)
    for _ in range(3):
        number, batch = memory.acquire()
        mapped[number]["text"][4] = 3
        assert (batch["text"][4] == 3).all()
    memory.close()


@pytest.mark.parametrize("num_processes", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_batch_that_is_held_never_changes(num_processes):
    """As arrays, as parts of them, and as JAX arrays that have its memory."""
    kept = {"transform": FLIP, "batch_size": 16, "prefetch": 2, "num_processes": num_processes}
    mesh = make_mesh(devices=jax.devices()[:1])
    source = make_array(60)
    with make_loader(source, **kept) as loader, make_loader(source, 16, FLIP) as own:
        whole, parts, placed = [], [], []
        for step, batch in zip(range(12), loader.iterate(0), strict=False):
            if step % 3 == 0:
                whole.append((step, batch))
            elif step % 3 == 1:
                parts.append((step, batch["image"][3, ::2]))
            else:
                placed.append((step, place_batch(batch, mesh)))
        del batch
        gc.collect()
        for _ in itertools.islice(loader.iterate(20), 20):
            pass
        for step, batch in [*whole, *placed]:
            assert_equal({name: np.asarray(x) for name, x in batch.items()}, own.batch(step))
        for step, part in parts:
            np.testing.assert_array_equal(part, own.batch(step)["image"][3, ::2])
        assert loader._memory.count <= 12 + 3 + 5  # held; of the first iterator; of the second


@pytest.mark.parametrize("num_processes", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_what_is_computed_of_batches_that_were_dropped_is_right(num_processes):
    """JAX computes later; until then the memory is its own."""
    mesh = make_mesh(devices=jax.devices()[:1])

    @jax.jit
    def digest(image):
        x = image.reshape(len(image), -1).astype(jnp.float32)
        return jax.lax.fori_loop(0, 50, lambda _, y: y @ (x.T @ x) / 1e7, x).sum(), x.sum()

    kept = {"transform": FLIP, "batch_size": 48, "prefetch": 1, "num_processes": num_processes}
    with make_loader(make_array(60), **kept) as loader:
        found = []
        for batch in itertools.islice(loader.iterate(0), 30):
            found.append(digest(place_batch(batch, mesh)["image"]))
            del batch
        for step, (_, total) in enumerate(found):
            assert int(total) == loader.batch(step)["image"].sum()


@pytest.mark.parametrize("num_processes", [0, 1])
def test_jax_takes_a_batch_without_a_copy(num_processes):
    kept = {"transform": FLIP, "batch_size": 64, "num_processes": num_processes}
    with make_loader(make_array(64), **kept) as loader:
        batch = loader.batch(0)
        for devices in (1, 2):
            mesh = make_mesh(devices=jax.devices()[:devices])
            placed = place_batch(batch, mesh)
            for name, array in batch.items():
                rows = array.nbytes // devices
                if rows % ALIGNMENT:
                    continue
                there = [s.data.unsafe_buffer_pointer() for s in placed[name].addressable_shards]
                assert there == [array.ctypes.data + n * rows for n in range(devices)], name
        assert {"image", "text", "label"} <= {n for n, x in batch.items() if x.nbytes % 128 == 0}


@pytest.mark.parametrize("num_processes", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_number_of_batches(num_processes):
    kept = {"transform": FLIP, "prefetch": 3, "num_processes": num_processes}
    with make_loader(make_array(60), **kept) as loader:
        for _ in itertools.islice(loader.iterate(0), 60):
            pass
        assert loader._memory.count <= 3 + 3  # ahead; taken, taken before, and being started


MEMORY = """
import os, sys
sys.path.insert(0, sys.argv[1])
from huge_images import HugeSource
from loaders import make_loader

source = HugeSource(12)
with make_loader(source, 8, "resize(32)", num_threads=1, num_processes=int(sys.argv[2])) as loader:
    loader.batch(0)
    for pid in [os.getpid(), *loader.pids]:
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        print(int(fields["VmHWM"].split()[0]) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="asks /proc for memory")
@pytest.mark.parametrize("num_processes", [0, 1])
def test_a_thread_holds_one_huge_image_at_a_time(num_processes):
    """Of 50 megapixels in a file of 40 MB: a decoded one has 150 MB, the files of a job 320."""
    command = [sys.executable, "-c", MEMORY, os.path.dirname(__file__), str(num_processes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peaks = list(map(int, done.stdout.split()))
    assert len(peaks) == 1 + num_processes and max(peaks) > 200
    assert max(peaks) < 100 + 2 * 40 + 200, peaks
