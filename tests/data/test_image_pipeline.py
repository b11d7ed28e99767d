"""Images of a batch: in threads, in processes, in several views."""

import itertools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from loaders import FLIP, assert_equal, make_loader
from samples import BROKEN, break_some, encode_image, make_array, make_pixels, write_tar

from big_align.data.images import image_ops
from big_align.data.randomness import PositionRandom
from big_align.data.sources.tar_source import TarSource
from big_align.data.text.tokenizers import WordTokenizer


def children(loader):
    """The processes of a loader of one source."""
    (rows,) = loader._streams.values()
    return [process._child for process in rows._images._images._processes]


@pytest.mark.slow
def test_processes_make_what_threads_make(shards):
    """Encoded images and pixels alike, from any number of processes."""
    for source in (make_array(50), TarSource(shards)):
        with (
            make_loader(source, transform=FLIP, num_processes=0) as threads,
            make_loader(source, transform=FLIP, num_processes=3) as processes,
        ):
            for step in range(4):
                assert_equal(processes.batch(step), threads.batch(step))


def test_errors_of_processes_reach_the_consumer(tmp_path):
    members = []
    for number in range(8):
        image = encode_image(make_pixels(number, size=8 + number))
        members += [(f"{number}.png", image), (f"{number}.txt", b"number")]
    source = TarSource(write_tar(tmp_path / "x.tar", members))
    with make_loader(source, num_processes=1) as loader:
        with pytest.raises(ValueError, match="end it with a resize or a crop"):
            loader.batch(0)
    with make_loader(source, transform="resize(8)", num_processes=1) as loader:
        loader.batch(0)
        children(loader)[0].kill()
        with pytest.raises(RuntimeError, match="a process that decodes images ended with -9"):
            loader.batch(1)


def test_processes_end_with_the_loader():
    with make_loader(make_array(8), num_processes=2) as loader:
        processes = children(loader)
        assert [child.poll() for child in processes] == [None, None]
    assert [child.poll() for child in processes] == [0, 0]


PARENT = """
import itertools, sys
sys.path.insert(0, sys.argv[1])
from loaders import FLIP, make_loader
from samples import make_array

loader = make_loader(make_array(50), transform=FLIP, num_processes=2)
(rows,) = loader._streams.values()
batches = loader.iterate(0)
for step in itertools.count():
    next(batches)
    if step == 3:
        print(*[process._child.pid for process in rows._images._images._processes], flush=True)
"""


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="asks /proc for processes")
def test_processes_end_when_their_parent_is_killed():
    """In the middle of their work, by a signal that leaves the parent no time to end them."""
    command = [sys.executable, "-c", PARENT, os.path.dirname(__file__)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(map(is_running, pids))
        parent.send_signal(signal.SIGKILL)
        assert parent.wait() == -signal.SIGKILL
        deadline = time.monotonic() + 10
        while any(map(is_running, pids)) and time.monotonic() < deadline:
            time.sleep(0.05)
        left = [pid for pid in pids if is_running(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert not left


def test_images_of_different_sizes_are_explained(tmp_path):
    members = []
    for number in range(8):
        image = encode_image(make_pixels(number, size=8 + number))
        members += [(f"{number}.png", image), (f"{number}.txt", b"number")]
    with make_loader(TarSource(write_tar(tmp_path / "x.tar", members))) as loader:
        with pytest.raises(ValueError, match="end it with a resize or a crop"):
            loader.batch(0)


def test_views_of_an_image_are_drawn_one_after_the_other():
    source = make_array(30)
    apply = image_ops.Transform(FLIP)
    with (
        make_loader(source, transform=FLIP) as single,
        make_loader(source, transform=FLIP, views_per_image=3) as several,
    ):
        one, three = single.batch(2), several.batch(2)
        np.testing.assert_array_equal(three["image"][:, 0], one["image"])
        for name in ("text", "text_mask", "label", "mask"):
            np.testing.assert_array_equal(three[name], one[name])
        for row in range(8):
            rng = PositionRandom(0, 2 * 8 + row)
            rng.random()  # the caption
            views = [apply(source._image[one["label"][row]], rng) for _ in range(3)]
            np.testing.assert_array_equal(three["image"][row], views)
        rows = np.array([2, 5])
        with make_loader(source, transform=FLIP, views_per_image=3, rows=rows) as part:
            assert_equal(part.batch(2), {name: x[rows] for name, x in three.items()})
        with make_loader(source, transform=FLIP, views_per_image=3, num_processes=1) as processes:
            assert_equal(processes.batch(2), three)
    assert (three["image"][:, 0] != three["image"][:, 1]).any((1, 2, 3)).mean() > 0.5


def test_broken_examples_are_replaced_in_all_views(tmp_path):
    source = break_some(tmp_path, BROKEN)
    words = WordTokenizer(("number", *map(str, range(200))), length=4)
    kept = {"tokenizer": words, "batch_size": 20, "max_broken_fraction": 0.1}
    with make_loader(source, views_per_image=2, **kept) as loader:
        for batch in itertools.islice(loader.iterate(0), 10):
            shown = batch["text"][:, None, 2] - 4
            np.testing.assert_array_equal(
                batch["image"][:, :, 0, 0, 0], np.broadcast_to(shown, (20, 2))
            )
        assert loader.broken == len(BROKEN)
