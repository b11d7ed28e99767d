import itertools
import json
import threading
import time

import numpy as np
import pytest
from loaders import FLIP, assert_equal, make_stream

from big_align.core.errors import UserError
from big_align.data.labels.classes import ClassList, read_classes
from big_align.data.loading import parallel
from big_align.data.loading.loader import TrainLoader
from big_align.data.loading.mixture import interleave, part_rows, part_seed
from big_align.data.loading.rows import RowStream
from big_align.data.sources.array_source import ArraySource
from big_align.data.sources.tar_source import TarSource
from big_align.data.text.tokenizers import WordTokenizer

WORDS = WordTokenizer(("number", "class", *map(str, range(100))), length=4)
CLASSES = ClassList.from_names([f"class {n}" for n in range(5)])
SIZES = {"labels": 20, "pairs": 45}
WEIGHTS = {"labels": 0.25, "pairs": 0.75}


def make_source(part: str) -> ArraySource:
    """Images that tell their part and number in all their pixels."""
    size, mark = SIZES[part], 1 + list(SIZES).index(part)
    image = np.zeros((size, 8, 8, 3), np.uint8)
    image[..., 0] = np.arange(size)[:, None, None]
    image[..., 1] = mark
    image[..., 2] = np.random.default_rng(mark).integers(0, 256, (size, 8, 8))
    captions = [[f"number {n}"] if part == "pairs" else [] for n in range(size)]
    return ArraySource(image, captions, np.arange(size) % 5)


def make_parts(batch_size=12, weights=WEIGHTS, **choice) -> dict[str, RowStream]:
    choice = {"transform": FLIP, "tokenizer": WORDS, **choice}
    kept = {
        "labels": {"classes": CLASSES, "templates": ("{}",), "label_offset": 10},
        "pairs": {"keep_label": False},
    }
    return {
        name: make_stream(make_source(name), rows, seed=part_seed(0, name), **choice, **kept[name])
        for name, rows in part_rows(weights, batch_size).items()
    }


def make_mixture(
    batch_size=12, rows=None, num_threads=3, weights=WEIGHTS, num_processes=0, **choice
):
    parts = make_parts(batch_size, weights, **choice)
    return TrainLoader(parts, rows, num_threads, num_processes=num_processes)


def marks(batch) -> np.ndarray:
    return batch["image"][:, 0, 0, 1] - 1


def shown(batch, part: int) -> list[int]:
    """The numbers of the examples of a part, in the order of the rows."""
    return batch["image"][marks(batch) == part, 0, 0, 0].tolist()


def test_rows_are_divided_by_largest_remainder():
    assert part_rows({"a": 0.5, "b": 0.5}, 6) == {"a": 3, "b": 3}
    assert part_rows({"a": 1 / 3, "b": 2 / 3}, 192) == {"a": 64, "b": 128}  # iCLIP's third scale
    assert part_rows({"a": 0.2, "b": 0.35, "c": 0.45}, 9) == {"a": 2, "b": 3, "c": 4}
    assert part_rows({"a": 0.1, "b": 0.2, "c": 0.7}, 10) == {"a": 1, "b": 2, "c": 7}
    assert part_rows({"a": 1.0}, 5) == {"a": 5}
    for batch_size in range(3, 200):
        rows = part_rows({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, batch_size)
        assert sum(rows.values()) == batch_size and max(rows.values()) - min(rows.values()) < 2


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 0.5, "b": 0.6}, "must sum to 1 and sum to 1.1: a 0.5, b 0.6"),
        ({"a": 0.5, "b": 0.49999}, "must sum to 1 and sum to 0.99999"),
        ({"a": 1.5, "b": -0.5}, "the weight of b must be above 0; the weights are a 1.5, b -0.5"),
        ({"a": 1.0, "b": 0.0}, "the weight of b must be above 0"),
        ({"a": float("nan"), "b": 1.0}, "the weight of a must be above 0"),
        ({}, "must sum to 1 and sum to 0: none"),
        ({"a": 0.99, "b": 0.01}, "batch_size is 8 and gives no row to b, whose weight is 0.01"),
    ],
)
def test_wrong_weights_are_named(weights, message):
    with pytest.raises(UserError, match=message):
        part_rows(weights, 8)


@pytest.mark.parametrize("counts", [(64, 128), (7, 5), (1, 30), (3, 3, 3), (10, 20, 2), (9,)])
def test_any_stretch_of_rows_has_the_proportions_of_the_whole(counts):
    parts, places = interleave({str(n): count for n, count in enumerate(counts)})
    period = sum(counts) // np.gcd.reduce(counts)
    np.testing.assert_array_equal(parts, np.tile(parts[:period], np.gcd.reduce(counts)))
    for part, count in enumerate(counts):
        np.testing.assert_array_equal(places[parts == part], np.arange(count))
        before = np.cumsum(parts == part)
        due = np.arange(1, sum(counts) + 1) * count / sum(counts)
        assert np.abs(before - due).max() <= 1


def test_every_batch_has_exactly_the_counts_and_each_part_its_own_texts_and_labels():
    names, _ = WORDS([f"class {n}" for n in range(5)])
    with make_mixture() as mixture:
        for batch in itertools.islice(mixture.iterate(0), 20):
            labeled = marks(batch) == 0
            assert labeled.sum() == 3 and (marks(batch)[~labeled] == 1).all()
            labels = np.array(shown(batch, 0)) % 5
            np.testing.assert_array_equal(batch["label"][labeled], 10 + labels)
            np.testing.assert_array_equal(batch["text"][labeled], names[labels])
            assert (batch["label"][~labeled] == -1).all()  # whatever its source says
            texts, _ = WORDS([f"number {n}" for n in shown(batch, 1)])
            np.testing.assert_array_equal(batch["text"][~labeled], texts)
            assert batch["mask"].all()


def test_each_part_has_its_own_epochs():
    with make_mixture() as mixture:
        batches = [mixture.batch(step) for step in range(40)]
        assert mixture.epochs(20) == {"epoch/labels": 3.0, "epoch/pairs": 4.0}
        assert mixture.num_examples == 65
    for part, size in enumerate(SIZES.values()):
        stream = [n for batch in batches for n in shown(batch, part)]
        epochs = [stream[first : first + size] for first in range(0, len(stream) - size + 1, size)]
        assert len(epochs) == (6, 8)[part]
        assert all(sorted(epoch) == list(range(size)) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


@pytest.mark.slow_repeats
@pytest.mark.parametrize("processes", [2, 3, 12])
def test_the_rows_of_processes_join_to_the_global_batch(processes):
    """Also where a process has no row of a part."""
    owner = np.random.default_rng(0).permutation(12) % processes  # as a torus scatters them
    with make_mixture() as whole:
        for process in range(processes):
            rows = np.flatnonzero(owner == process)
            with make_mixture(rows=rows, num_threads=1) as part:
                for step in (0, 3, 7):
                    expected = {name: x[rows] for name, x in whole.batch(step).items()}
                    assert_equal(part.batch(step), expected)


def test_resuming_is_not_stopping():
    with make_mixture() as mixture:
        batches = list(itertools.islice(mixture.iterate(0), 15))
    with make_mixture(num_threads=1) as later:
        for step, batch in zip(range(9, 15), later.iterate(9), strict=False):
            assert_equal(batch, batches[step])


def test_a_part_has_the_stream_it_has_alone():
    pairs = make_parts()["pairs"]
    with make_mixture() as mixture, TrainLoader(pairs, num_threads=1) as alone:
        for step in range(8):
            batch, own = mixture.batch(step), alone.batch(step)
            here = marks(batch) == 1
            for name in ("image", "text", "text_mask"):
                np.testing.assert_array_equal(batch[name][here], own[name])


def test_the_order_of_the_parts_moves_rows_and_no_more():
    turned = dict(reversed(WEIGHTS.items()))
    with make_mixture() as one, make_mixture(weights=turned) as two:
        for step in range(3):
            first, second = one.batch(step), two.batch(step)
            for name in first:
                for part in range(2):
                    np.testing.assert_array_equal(
                        first[name][marks(first) == part], second[name][marks(second) == part]
                    )


def test_parts_of_the_same_examples_have_them_in_different_order():
    seeds = [part_seed(seed, name) for seed in (0, 1, 2) for name in ("a", "b", "c")]
    assert len(set(seeds)) == 9
    streams = {
        name: make_stream(make_source("pairs"), 16, "", WORDS, seed=part_seed(0, name))
        for name in "ab"
    }
    with TrainLoader(streams) as mixture:
        batch = mixture.batch(0)
    a, b = batch["image"][::2, 0, 0, 0], batch["image"][1::2, 0, 0, 0]
    assert (a != b).any() and len(set(a.tolist()) & set(b.tolist())) < 14


@pytest.mark.parametrize("views", [1, 2])
def test_processes_make_what_threads_make(views):
    kept = {"views_per_image": views}
    with make_mixture(**kept) as threads, make_mixture(num_processes=1, **kept) as processes:
        for step, batch in enumerate(itertools.islice(processes.iterate(0), 5)):
            assert batch["image"].shape == ((12, 2, 6, 6, 3) if views == 2 else (12, 6, 6, 3))
            assert_equal(batch, threads.batch(step))


def test_jobs_of_threads_are_mostly_of_one_part_in_turns(monkeypatch):
    """Jobs of 6 rows; in each turn of 12 rows a quarter is labels."""
    monkeypatch.setattr(parallel, "CHUNK_MAX", 6)
    filled = []
    parts = make_parts(batch_size=48)
    for name, part in parts.items():
        fill = part.fill
        record = lambda batch, step, rows, into, name=name, fill=fill: (  # noqa: E731
            filled.append((name, len(rows))),
            fill(batch, step, rows, into),
        )
        monkeypatch.setattr(part, "fill", record)
    with TrainLoader(parts, num_threads=1) as mixture:
        mixture.batch(0)
    assert filled == [("labels", 3), ("pairs", 3), ("pairs", 6)] * 4


def test_parts_must_agree_on_shapes():
    parts = make_parts()
    with pytest.raises(UserError, match=r"shape of image is \(6, 6, 3\) in labels and \(8,"):
        TrainLoader({**parts, "pairs": make_parts(transform="")["pairs"]})
    longer = WordTokenizer(("number",), length=6)
    with pytest.raises(UserError, match=r"shape of text is \(4,\) in labels and \(6,\)"):
        TrainLoader({**parts, "pairs": make_parts(tokenizer=longer)["pairs"]})
    with pytest.raises(UserError, match=r"\(4,\) in labels and \(2, 4\) in pairs"):
        TrainLoader({**parts, "pairs": make_parts(captions_per_image=2)["pairs"]})
    with pytest.raises(ValueError, match="streams = 0 must be at least 1"):
        TrainLoader({})


def test_a_mixture_starts_the_threads_of_one_loader_and_ends_them():
    before = threading.active_count()
    with make_mixture(num_threads=3) as mixture:
        for _ in itertools.islice(mixture.iterate(0), 5):
            assert threading.active_count() <= before + 3
        started = time.monotonic()
    assert time.monotonic() - started < 1 and threading.active_count() == before


@pytest.mark.slow
def test_real_labels_and_captions_in_one_batch(data_dir):
    """Labels of tiny_imagenet against its WordNet ids, captions of Flickr8k, half and half."""
    path = f"{data_dir}/tiny_imagenet"
    classes = read_classes(f"{path}/classes.json")
    with open(f"{path}/classes.json") as file:
        assert classes.ids == tuple(entry["wnid"] for entry in json.load(file))
    words = WordTokenizer(tuple(sorted({w for n in classes.names for w in n.split()})), length=16)
    labeled = TarSource(f"{path}/val-*.tar", caption="json.wnid", label="cls")
    paired = TarSource(f"{data_dir}/flickr8k/dev-*.tar", caption="json.captions")
    rows = part_rows({"labels": 0.5, "pairs": 0.5}, 64)
    kept = {"transform": "resize(16)", "tokenizer": words}
    named = {"classes": classes, "templates": ("{}",)}
    streams = {
        "labels": make_stream(labeled, rows["labels"], **kept, **named),
        "pairs": make_stream(paired, rows["pairs"], **kept, keep_label=False),
    }
    with TrainLoader(streams) as mixture:
        batches = list(itertools.islice(mixture.iterate(0), 4))
        assert mixture.broken == 0 and mixture.num_examples == 4040 + 1000
    names, _ = words(list(classes.names))
    for batch in batches:
        here = batch["label"] >= 0
        assert here.sum() == 32 and here.reshape(16, 4).sum(1).tolist() == [2] * 16
        np.testing.assert_array_equal(batch["text"][here], names[batch["label"][here]])
    for shard, index in ((0, 0), (0, 4039)):  # the label is that of its id
        (wnid,), (label,) = labeled.read_text(shard, index)
        assert classes.ids[label] == wnid
