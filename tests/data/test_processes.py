"""Processes that make rows: equal to threads, errors that arrive, and an end in every case."""

import functools
import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from loaders import FLIP, WORDS, assert_equal, make_loader, make_stream
from samples import BROKEN, break_some, encode_image, make_array, make_pixels, write_tar

from big_align.core.errors import BrokenDataError, UserError
from big_align.data.labels.classes import ClassList
from big_align.data.loading.loader import TrainLoader
from big_align.data.sources.array_source import ArraySource, read_npz
from big_align.data.sources.folder_source import FolderSource
from big_align.data.sources.rows_source import RowsSource
from big_align.data.sources.tar_source import TarSource
from big_align.data.text.shortening import Shortener
from big_align.data.text.tokenizers import WordPieceTokenizer, WordTokenizer

CLASSES = ClassList.from_names([f"number {n}" for n in range(10)])
NUMBERS = WordTokenizer(("number", *map(str, range(200))), length=4)


class ErrorSource(ArraySource):
    """A source that fails, for tests, in the way that its captions tell."""

    def read(self, shard, index):
        example = super().read(shard, index)
        kind, *message = example.captions or [""]
        if kind == "modules":
            imported = {"jax", "tensorflow"} & sys.modules.keys()
            raise UserError(" ".join(imported) or "none")
        if kind == "pid":
            time.sleep(0.01)
            example.captions = [str(os.getpid())]
            return example
        errors = {"os": OSError, "user": UserError, "value": ValueError, "odd": OddError}
        if kind in errors and self.armed:
            raise errors[kind](*message)
        return example

    armed = False


class OddError(Exception):
    """An error that pickle cannot make again."""

    def __init__(self, message):
        super().__init__(f"odd: {message}", 3)


class CachingSource(ArraySource):
    """A source with a lock, a cache and a mapped array, as those from outside may have."""

    def __init__(self, path, size):
        super().__init__(make_array(size)._image, make_array(size)._captions, np.arange(size))
        self._lock = threading.Lock()
        self._shade = functools.lru_cache(maxsize=4)(self._find_shade)
        self._shades = np.load(path, mmap_mode="r")

    def _find_shade(self, index):
        return self._shades[index]

    def read(self, shard, index):
        with self._lock:
            example = super().read(shard, index)
            example.image = np.full((8, 8, 3), self._shade(index))
            example.image[0, 0, 0] = index
            return example


def failing(kind: str, message: str) -> ErrorSource:
    array = make_array(20)
    return ErrorSource(array._image, [[kind, message]] * 20)


@pytest.mark.slow
def test_a_mixture_with_broken_examples_is_that_of_threads(tmp_path, caplog):
    """Rows of one host of several; broken images and captions, counted and named once."""
    source = break_some(tmp_path, BROKEN)
    named = {"classes": CLASSES, "templates": ("{}", "a {}"), "label_offset": 5}

    def make(num_processes):
        streams = {
            "labels": make_stream(
                ArraySource(make_array(20)._image, [[]] * 20, np.arange(20) % 10),
                6, "random_crop(6)|flip_horizontal", NUMBERS, **named,
            ),
            "pairs": make_stream(
                source, 14, "random_crop(6)|flip_horizontal", NUMBERS, keep_label=False,
                max_broken_fraction=0.1,
            ),
        }  # fmt: skip
        rows = np.array([0, 1, 2, 3, 5, 6, 7, 8, 11, 12, 13, 14, 15, 17, 19])
        return TrainLoader(streams, rows, 3 - num_processes, num_processes=num_processes)

    logs = []
    with make(0) as threads, make(2) as processes:
        for loader in (threads, processes):
            caplog.clear()
            with caplog.at_level("WARNING"):
                # Rows are made ahead, so only after all are found is it certain which those are.
                batches = list(itertools.islice(loader.iterate(4), 80))
            names = {record.getMessage().split(" (")[0] for record in caplog.records}
            logs.append((batches, names, loader.broken))
        assert processes.num_processes == 2 and threads.num_processes == 0
    (one, names, broken), (other, other_names, other_broken) = logs
    for first, second in zip(one, other, strict=True):
        assert_equal(first, second)
    assert names == other_names and broken == other_broken == len(names) == len(BROKEN)


def make_sources(folder):
    """A source of each kind, of some 30 examples."""
    rng = np.random.default_rng(0)
    members, lines = [], ["image,caption,label"]
    for number in range(30):
        name = f"{'ab'[number % 2]}/{number:03d}.png"
        (folder / name).parent.mkdir(exist_ok=True)
        image = encode_image(rng.integers(0, 256, (8, 8, 3), np.uint8))
        (folder / name).write_bytes(image)
        members += [(f"{number}.png", image), (f"{number}.txt", b"number %d" % number)]
        lines.append(f"{name},number {number},{number % 10}")
    (folder / "list.csv").write_text("\n".join(lines))
    array = make_array(30)
    captions = np.array(array._captions)
    np.savez(folder / "x.npz", image=array._image, caption=captions, label=np.arange(30) % 10)
    np.save(folder / "shades.npy", rng.integers(0, 256, 30, np.uint8))
    return {
        "array": array,
        "npz": read_npz(str(folder / "x.npz")),
        "tar": TarSource(write_tar(folder / "x.tar", members)),
        "remote tar": TarSource(f"file://{folder}/x.tar"),
        "csv": RowsSource(str(folder / "list.csv"), label="label", caption="caption"),
        "folder": FolderSource(str(folder)),
        "with a cache and a lock": CachingSource(folder / "shades.npy", 30),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["array", "npz", "tar", "remote tar", "csv", "folder", "with a cache and a lock"]
)
def test_every_source_gives_processes_what_it_gives_threads(name, tmp_path):
    source = make_sources(tmp_path)[name]
    texts = {"captions_per_image": 0} if name == "folder" else {}
    kept = {"transform": FLIP, "views_per_image": 2, **texts}
    with (
        make_loader(source, num_processes=0, **kept) as threads,
        make_loader(source, num_processes=2, num_threads=2, **kept) as processes,
    ):
        for step, batch in zip(range(2, 11), processes.iterate(2), strict=False):
            assert_equal(batch, threads.batch(step))


@pytest.mark.slow
def test_records_give_processes_what_they_give_threads(tmp_path):
    tf = pytest.importorskip("tensorflow")
    from big_align.data.sources.record_source import TFRecordSource

    def feature(value):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    with tf.io.TFRecordWriter(str(tmp_path / "x.tfrecord")) as writer:
        for number in range(30):
            image = encode_image(make_pixels(number))
            features = {"image": feature(image), "caption": feature(b"number %d" % number)}
            record = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(record.SerializeToString())
    source = TFRecordSource(str(tmp_path / "x.tfrecord"))
    with (
        make_loader(source, transform=FLIP) as threads,
        make_loader(source, transform=FLIP, num_processes=1, num_threads=1) as processes,
    ):
        for step in range(4):
            assert_equal(threads.batch(step), processes.batch(step))


@pytest.mark.slow
def test_tags_and_word_pieces_of_processes_are_those_of_threads(data_dir):
    from big_align.data.tags.tag_extraction import TagExtractor, Tagger

    source = TarSource(f"{data_dir}/flickr8k/dev-*.tar", caption="json.captions")
    extract = TagExtractor(("dog", "man", "woman", "grass"), 3, str(data_dir / "nltk_data"))
    pieces = WordPieceTokenizer(str(data_dir / "text/bert-base-uncased-vocab.txt"), length=24)
    kept = {"tagger": Tagger(extract, truth=True), "transform": "resize(16)", "tokenizer": pieces}
    with (
        make_loader(source, 64, **kept) as threads,
        make_loader(source, 64, **kept, num_processes=2, num_threads=1) as processes,
    ):
        for step in range(3):
            assert_equal(threads.batch(step), processes.batch(step))


def test_only_the_work_is_done_elsewhere_and_all_processes_do_it():
    array = make_array(64)
    source = ErrorSource(array._image, [["pid"]] * 64)
    pids = WordTokenizer(tuple(map(str, range(10))), length=3)
    with make_loader(source, 32, FLIP, pids, num_processes=2, num_threads=1) as loader:
        seen = []
        staying = loader._processes._staying
        (number,) = (n for n, each in enumerate(staying) if isinstance(each, Shortener))
        keep = lambda texts, draws: (seen.extend(texts), pids(texts))[1]  # noqa: E731
        loader._processes._staying = (*staying[:number], keep, *staying[number + 1 :])
        loader.batch(0)
        assert set(map(int, seen)) == set(loader._processes.pids)


def test_processes_import_neither_jax_nor_tensorflow():
    array = make_array(8)
    source = ErrorSource(array._image, [["a"]] * 8)
    stream = make_stream(source, 8, "", WORDS)
    source._captions = [["modules"]] * 8
    with TrainLoader(stream, num_processes=1) as loader, pytest.raises(UserError, match="^none$"):
        loader.batch(0)


@pytest.mark.parametrize(
    ("kind", "error"),
    [("os", BrokenDataError), ("value", BrokenDataError), ("odd", BrokenDataError)]
    + [("user", UserError)],
)
def test_an_error_has_the_type_and_message_that_it_has_in_threads(kind, error):
    def catch(num_processes: int) -> list[tuple[type, str]]:
        stream = make_stream(failing(kind, "the disk is gone"), 4, "", WORDS)
        stream.examples.source.armed = True
        found = []
        with TrainLoader(stream, num_threads=1, num_processes=num_processes) as loader:
            for _ in range(2):  # and the process goes on
                with pytest.raises(UserError) as caught:
                    loader.batch(0)
                found.append((type(caught.value), str(caught.value)))
        return found

    threads, processes = catch(0), catch(1)
    assert processes == threads
    assert all(kind is error and "the disk is gone" in text for kind, text in processes)


def test_too_many_broken_examples_end_processes_as_they_end_threads(tmp_path):
    source = break_some(tmp_path, set(range(60, 90)))
    kept = {"tokenizer": NUMBERS, "batch_size": 20, "max_broken_fraction": 0.1}
    for num_processes in (0, 2):
        with make_loader(source, num_processes=num_processes, **kept) as loader:
            with pytest.raises(BrokenDataError, match="2. of 200 examples are broken.*train-01"):
                for _ in itertools.islice(loader.iterate(0), 20):
                    pass


def test_all_substitutes_broken_is_said_by_processes_too():
    array = make_array(8)
    source = ErrorSource(array._image, [["a"]] * 8)
    stream = make_stream(source, 8, "", WORDS, max_broken_fraction=1.0)
    source._captions = [[]] * 8
    for num_processes in (0, 1):
        with TrainLoader(stream, num_threads=1, num_processes=num_processes) as loader:
            with pytest.raises(BrokenDataError, match="position . of the stream and all its subst"):
                loader.batch(0)


def test_images_of_different_sizes_are_explained(tmp_path):
    members = []
    for number in range(8):
        image = encode_image(make_pixels(number, size=8 + number))
        members += [(f"{number}.png", image), (f"{number}.txt", b"number")]
    source = TarSource(write_tar(tmp_path / "x.tar", members))
    with make_loader(source, num_processes=1) as loader:
        with pytest.raises(ValueError, match="end it with a resize or a crop"):
            loader.batch(0)


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_rows_of_a_process_that_is_killed_are_made_again(threads, capfd):
    source = make_array(50)
    kwargs = dict(transform=FLIP, num_threads=threads)
    with (
        make_loader(source, num_processes=2, **kwargs) as loader,
        make_loader(source, **kwargs) as expected,
    ):
        for step in range(6):
            if step in (1, 3, 4):
                os.kill(loader._processes.pids[step % 2], signal.SIGKILL)
            assert_equal(loader.batch(step), expected.batch(step))
    assert "a process that makes rows ended with -9; the system kills" in capfd.readouterr().err


class Deadly(ArraySource):
    """An example ends the process that decodes it."""

    def read(self, shard, index):
        if os.environ["DEADLY"] != str(os.getpid()):
            os._exit(7)
        return super().read(shard, index)


@pytest.mark.slow
def test_rows_that_end_every_process_are_an_error(monkeypatch, capfd):
    array = make_array(8)
    monkeypatch.setenv("DEADLY", str(os.getpid()))  # to all but this process
    source = Deadly(array._image, array._captions)
    with make_loader(source, num_processes=1) as loader:
        with pytest.raises(RuntimeError, match="ended with 7, 3 times over the same rows"):
            loader.batch(0)
    assert capfd.readouterr().err.count("ended with 7; another makes them") == 2


def test_processes_end_with_the_loader():
    with make_loader(make_array(8), num_processes=2) as loader:
        children = [process.child for process in loader._processes._processes]
        assert [child.poll() for child in children] == [None, None]
    assert [child.poll() for child in children] == [0, 0]


def test_what_cannot_be_sent_is_an_error_or_makes_threads(monkeypatch, caplog):
    class Local(ArraySource):
        pass

    array = make_array(50)
    stream = make_stream(Local(array._image, array._captions), 8, FLIP, WORDS)
    with pytest.raises(UserError, match="num_processes = 2: .*Local.* cannot be sent to processes"):
        TrainLoader(stream, num_processes=2)
    monkeypatch.setattr("big_align.data.loading.parallel.count_cores", lambda: 9)
    with caplog.at_level("WARNING"), TrainLoader(stream) as loader:
        assert (loader.num_threads, loader.num_processes) == (9, 0)
        assert "threads fill the batches" in caplog.text
        with make_loader(ArraySource(array._image, array._captions), transform=FLIP) as other:
            assert_equal(loader.batch(3), other.batch(3))


PARENT = """
import itertools, sys
sys.path.insert(0, sys.argv[1])
from loaders import FLIP, make_loader
from samples import make_array

loader = make_loader(make_array(50), transform=FLIP, num_processes=2)
batches = loader.iterate(0)
for step in itertools.count():
    next(batches)
    if step == 3:
        print(*loader._processes.pids, flush=True)
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


def test_signals_to_the_whole_group_leave_processes_to_their_parent():
    """Ctrl-C and SIGTERM, at once after the start and later."""
    source = make_array(50)
    with (
        make_loader(source, transform=FLIP, num_processes=2) as loader,
        make_loader(source, transform=FLIP) as threads,
    ):
        for step in range(2):
            for pid in loader._processes.pids:
                os.kill(pid, signal.SIGINT)
                os.kill(pid, signal.SIGTERM)
            assert_equal(loader.batch(step), threads.batch(step))
