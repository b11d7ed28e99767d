"""Batches of one source: what they hold, in which order, in threads."""

import itertools
import threading
import time

import numpy as np
import pytest
from loaders import FLIP, WORDS, assert_equal, make_loader, make_stream
from samples import make_array

from big_align.core.errors import BrokenDataError
from big_align.data.loading import parallel
from big_align.data.loading.loader import TrainLoader
from big_align.data.sources.array_source import ArraySource
from big_align.data.sources.tar_source import TarSource


def numbers(batch) -> list[int]:
    """Which example stands in each row, told by its image, which its caption must agree with."""
    shown = batch["image"][:, 0, 0, 0].astype(int)
    np.testing.assert_array_equal(batch["text"][:, 2] - 5, shown)
    return shown.tolist()


def test_a_batch_holds_images_captions_and_labels_of_the_same_examples(shards):
    with make_loader(TarSource(shards, "json.captions", "json.about.label")) as loader:
        batch = loader.batch(0)
        np.testing.assert_array_equal(batch["label"], np.array(numbers(batch)) % 10)
        assert {name: (x.shape, x.dtype.name) for name, x in batch.items()} == {
            "image": ((8, 8, 8, 3), "uint8"),
            "text": ((8, 4), "int32"),
            "text_mask": ((8, 4), "bool"),
            "label": ((8,), "int32"),
            "mask": ((8,), "bool"),
        }
        assert batch["mask"].all() and loader.steps_per_epoch == 27 / 8


def test_an_epoch_has_every_example_once(shards):
    with make_loader(TarSource(shards), batch_size=9) as loader:
        for epoch in range(3):
            batches = [loader.batch(step) for step in range(3 * epoch, 3 * epoch + 3)]
            assert sorted(n for batch in batches for n in numbers(batch)) == list(range(27))


def test_iterate_yields_the_batches_of_its_steps():
    with make_loader(make_array(50), transform=FLIP) as loader:
        for start in (0, 5, 23):
            batches = list(itertools.islice(loader.iterate(start), 9))
            for step, batch in enumerate(batches, start):
                assert_equal(batch, loader.batch(step))
            assert len(batches) == 9
    with make_loader(make_array(50), transform=FLIP, num_threads=1) as other:
        assert_equal(other.batch(31), batch)


@pytest.mark.parametrize("processes", [2, 4])
def test_the_rows_of_processes_join_to_the_global_batch(processes):
    source = make_array(30)
    owner = np.random.default_rng(0).permutation(8) % processes  # as a torus scatters them
    with make_loader(source, transform=FLIP, seed=3) as whole:
        for step in (0, 3, 4):
            expected = whole.batch(step)
            for process in range(processes):
                rows = np.flatnonzero(owner == process)
                with make_loader(source, transform=FLIP, seed=3, rows=rows) as loader:
                    part = loader.batch(step)
                assert_equal(part, {name: x[rows] for name, x in expected.items()})


def test_every_visit_draws_caption_and_augmentation_anew():
    with make_loader(make_array(64), batch_size=64, transform="flip_horizontal") as loader:
        batches = list(itertools.islice(loader.iterate(0), 40))
    order = [np.argsort(batch["label"]) for batch in batches]
    first = np.stack([b["text"][o, 1] for b, o in zip(batches, order, strict=True)]) == 3
    assert abs(first.mean() - 0.5) < 0.05
    assert (first.mean(0) > 0).all() and (first.mean(0) < 1).all()
    images = np.stack([b["image"][o] for b, o in zip(batches, order, strict=True)])
    flipped = (images != images[:1]).any((2, 3, 4)).mean(0)
    assert (flipped > 0).all() and (flipped < 1).all()


def test_seeds_differ():
    with make_loader(make_array(50), seed=0) as one, make_loader(make_array(50), seed=1) as two:
        assert numbers(one.batch(0)) != numbers(two.batch(0))


@pytest.mark.parametrize("rows", [[6, 8], [-1, 3], [3, 2], [3, 3], []])
def test_wrong_rows_are_refused(rows):
    with pytest.raises(ValueError, match="are not ascending rows of a batch of batch_size=8"):
        make_loader(make_array(20), rows=np.array(rows, int))


def test_what_a_thread_raises_reaches_the_consumer_and_no_thread_is_left():
    reads = itertools.count()

    class Failing(ArraySource):
        def read(self, shard, index):
            if next(reads) == 13:
                raise OSError("the disk is gone")
            return super().read(shard, index)

    before = threading.active_count()
    array = make_array(20)
    source = Failing(array._image, array._captions)
    with make_loader(source, batch_size=5, max_broken_fraction=0.0) as loader:
        with pytest.raises(BrokenDataError, match="disk is gone"):
            for _ in itertools.islice(loader.iterate(0), 5):
                pass
    assert threading.active_count() == before


@pytest.mark.parametrize("closed", ["loader", "iterator"])
def test_close_in_the_middle_drops_what_is_not_filled_yet(closed):
    reads = []

    class Slow(ArraySource):
        def read(self, shard, index):
            reads.append(index)
            time.sleep(0.002)
            return super().read(shard, index)

    array = make_array(50)
    before = threading.active_count()
    loader = make_loader(Slow(array._image, array._captions), batch_size=50, prefetch=20)
    batches = loader.iterate(0)
    next(batches)
    if closed == "iterator":
        batches.close()
        loader.batch(0)  # waits in the queue behind what was to be filled
    loader.close()
    assert threading.active_count() == before
    assert len(reads) < 10 * 50  # of 21 batches that were to be filled


@pytest.mark.parametrize(
    ("cores", "num_threads", "num_processes", "expected"),
    [
        (2, None, None, (2, 0)),
        (8, None, None, (8, 0)),
        (9, None, None, (1, 9)),
        (200, None, None, (1, 64)),  # the rows
        (200, None, 0, (200, 0)),
        (200, 3, 0, (3, 0)),
        (200, 2, None, (2, 64)),
        (2, None, 4, (1, 4)),
    ],
)
def test_threads_and_processes_follow_the_machine(
    monkeypatch, cores, num_threads, num_processes, expected
):
    monkeypatch.setattr(parallel, "count_cores", lambda: cores)
    assert parallel.choose_workers(num_threads, num_processes, rows=64) == expected


@pytest.mark.parametrize(
    ("files", "processes", "expected"),
    [
        ({}, None, 96),
        ({"cpu.max": "max 100000"}, None, 96),
        ({"cpu.max": "350000 100000"}, None, 4),
        ({"cpu.max": "9900000 100000"}, None, 96),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "50000"}, None, 8),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None, 96),
        ({}, "8", 12),
        ({"cpu.max": "1600000 100000"}, "8", 2),
        ({"cpu.max": "400000 100000"}, "8", 1),
    ],
)
def test_cores_are_those_of_a_container_shared_by_its_processes(
    tmp_path, monkeypatch, files, processes, expected
):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(parallel, "CGROUP", tmp_path)
    monkeypatch.setattr(parallel.os, "sched_getaffinity", lambda process: set(range(96)))
    if processes:
        monkeypatch.setenv(parallel.LOCAL_PROCESSES, processes)
    else:
        monkeypatch.delenv(parallel.LOCAL_PROCESSES, raising=False)
    assert parallel.count_cores() == expected


def test_a_mixture_of_one_is_that_one():
    streams = [make_stream(make_array(50), 8, FLIP, WORDS) for _ in range(2)]
    with TrainLoader(streams[0]) as one, TrainLoader({"name": streams[1]}) as named:
        for step in (0, 7, 20):
            assert_equal(one.batch(step), named.batch(step))
        assert one.epochs(20) == {"epoch": 160 / 50} == {"epoch": named.epochs(20)["epoch/name"]}
        assert one.shards == {"shard 0": "array (50 examples)"}
        assert named.shards == {"name, shard 0": "array (50 examples)"}


def test_prefetching_is_bounded():
    reads = []

    class Counting(ArraySource):
        def read(self, shard, index):
            reads.append(index)
            return super().read(shard, index)

    array = make_array(50)
    with make_loader(Counting(array._image, array._captions), batch_size=10, prefetch=3) as loader:
        batches = loader.iterate(0)
        next(batches)
        expected = 1 + 10 * (1 + 4)  # one for the shape, the batch taken, those ahead
        deadline = time.monotonic() + 30
        while len(reads) < expected and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert len(reads) == expected
