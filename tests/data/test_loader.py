import itertools
import threading
import time

import numpy as np
import pytest
from samples import encode_image, make_members, make_pixels, write_tar

from big_align.data.images import image_ops
from big_align.data.labels import label_check
from big_align.data.labels.classes import ClassList, read_classes
from big_align.data.loading.loader import EvalLoader, TrainLoader
from big_align.data.randomness import PositionRandom
from big_align.data.sources.array_source import ArraySource
from big_align.data.sources.tar_source import TarSource
from big_align.data.text.tokenizers import WordTokenizer
from big_align.errors import BrokenDataError, UserError

WORDS = WordTokenizer(("number", "n", *map(str, range(100))), length=4)
FLIP = "resize(8)|random_crop(6)|flip_horizontal"


def make_loader(source, batch_size=8, **choice):
    choice = {"transform": "", "tokenizer": WORDS, "num_threads": 3, **choice}
    return TrainLoader(source, batch_size=batch_size, **choice)


def make_array(size: int) -> ArraySource:
    noise = np.random.default_rng(0).integers(0, 256, (size, 8, 8, 3), np.uint8)
    noise[:, 0, 0, 0] = np.arange(size)
    captions = [[f"number {number}", f"n {number}"] for number in range(size)]
    return ArraySource(noise, captions, np.arange(size))


def numbers(batch) -> list[int]:
    """Which example stands in each row, told by its image, which its caption must agree with."""
    shown = batch["image"][:, 0, 0, 0].astype(int)
    np.testing.assert_array_equal(batch["text"][:, 2] - 5, shown)
    return shown.tolist()


def assert_equal(one, two):
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])


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
            for step, batch in zip(range(start, start + 9), loader.iterate(start), strict=False):
                assert_equal(batch, loader.batch(step))
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


def test_processes_make_what_threads_make(shards):
    """Encoded images and pixels alike, from any number of processes."""
    for source in (make_array(50), TarSource(shards)):
        with (
            make_loader(source, transform=FLIP, num_processes=0) as threads,
            make_loader(source, transform=FLIP, num_processes=3) as processes,
        ):
            for step, batch in zip(range(4), processes.iterate(0), strict=False):
                assert_equal(batch, threads.batch(step))


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
        loader._images._processes[0]._child.kill()
        with pytest.raises(RuntimeError, match="a process that decodes images ended with -9"):
            loader.batch(1)


def test_processes_end_with_the_loader_and_with_their_parent():
    with make_loader(make_array(8), num_processes=2) as loader:
        children = [process._child for process in loader._images._processes]
        assert [child.poll() for child in children] == [None, None]
    assert [child.poll() for child in children] == [0, 0]


def test_seeds_differ():
    with make_loader(make_array(50), seed=0) as one, make_loader(make_array(50), seed=1) as two:
        assert numbers(one.batch(0)) != numbers(two.batch(0))


def break_some(tmp_path, broken, total=200):
    """Shards of 40 examples in which some images are cut off, or captions are not UTF-8."""
    for shard in range(0, total, 40):
        members = []
        for number in range(shard, shard + 40):
            image, text, *_ = make_members(number)
            if number in broken and number % 2:
                image = (image[0], image[1][:45])
            elif number in broken:
                text = (text[0], b"number \xff")
            members += [image, text]
        write_tar(tmp_path / f"train-{shard // 40:02d}.tar", members)
    return TarSource(f"{tmp_path}/train-*.tar")


BROKEN = {3, 4, 77, 120, 121, 122}


@pytest.mark.parametrize("num_processes", [0, 2])
def test_broken_examples_are_replaced_and_counted(tmp_path, caplog, num_processes):
    source = break_some(tmp_path, BROKEN)
    words = WordTokenizer(("number", *map(str, range(200))), length=4)
    kept = {"tokenizer": words, "batch_size": 20, "max_broken_share": 0.1}
    processes = {"num_processes": num_processes}
    with make_loader(source, **kept, **processes) as loader, caplog.at_level("WARNING"):
        seen = []
        for batch in itertools.islice(loader.iterate(0), 10):
            shown = (batch["text"][:, 2] - 4).tolist()
            np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], shown)
            assert len(set(shown)) == 20  # no example is its own negative
            seen += shown
        assert loader.broken == len(BROKEN)
        assert set(range(200)) - set(seen) == BROKEN
        assert len(seen) == 200
        rows = np.array([5, 6, 9, 12, 13])
        with make_loader(source, rows=rows, num_threads=1, **kept) as part:
            for step in range(10):
                whole = loader.batch(step)
                assert_equal(part.batch(step), {name: x[rows] for name, x in whole.items()})
    for shard, number in ((0, 3), (1, 77), (3, 122)):
        assert f"train-{shard:02d}.tar: {number:06d}" in caplog.text


def test_two_broken_rows_of_a_batch_never_share_a_substitute(tmp_path):
    source = break_some(tmp_path, set(range(0, 200, 3)))
    words = WordTokenizer(("number", *map(str, range(200))), length=4)
    kept = {"tokenizer": words, "batch_size": 40, "max_broken_share": 1.0}
    with make_loader(source, **kept) as loader:
        for batch in itertools.islice(loader.iterate(0), 5):
            assert len(set(batch["text"][:, 2].tolist())) == 40


def test_too_many_broken_examples_stop_and_name_the_shard(tmp_path):
    source = break_some(tmp_path, {3, 77, *range(120, 130)})
    words = WordTokenizer(("number",), length=4)
    with make_loader(source, tokenizer=words, batch_size=20, max_broken_share=0.05) as loader:
        # the eleventh stops the run; another thread may have found the last one by then
        message = "1[12] of 200 examples.*train-03.tar.*raise max_broken_share"
        with pytest.raises(BrokenDataError, match=message):
            for _ in itertools.islice(loader.iterate(0), 100):
                pass


def test_a_shard_lost_while_indexing_stops_at_the_start(tmp_path):
    break_some(tmp_path, set())
    shard = tmp_path / "train-02.tar"
    shard.write_bytes(shard.read_bytes()[:5000])
    source = TarSource(f"{tmp_path}/train-*.tar")
    for make in (make_loader, lambda source, **_: EvalLoader(source, "", batch_size=4)):
        with pytest.raises(BrokenDataError, match="train-02.tar") as error:
            make(source, max_broken_share=0.01)
        assert "max_broken_share=0.01" in str(error.value)


def test_nothing_but_broken_examples_stops(tmp_path):
    source = break_some(tmp_path, set(range(200)))
    with pytest.raises(BrokenDataError, match="broken"):
        make_loader(source, max_broken_share=1.0)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="batch_size is 9 and the source has 8 examples"):
        make_loader(make_array(8), batch_size=9)


@pytest.mark.parametrize("rows", [[6, 8], [-1, 3], [3, 2], [3, 3], []])
def test_wrong_rows_are_refused(rows):
    with pytest.raises(ValueError, match="are not ascending rows of a batch of batch_size=8"):
        make_loader(make_array(20), rows=np.array(rows, int))


def test_images_of_different_sizes_are_explained(tmp_path):
    members = []
    for number in range(8):
        image = encode_image(make_pixels(number, size=8 + number))
        members += [(f"{number}.png", image), (f"{number}.txt", b"number")]
    with make_loader(TarSource(write_tar(tmp_path / "x.tar", members))) as loader:
        with pytest.raises(ValueError, match="end it with a resize or a crop"):
            loader.batch(0)


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
    with make_loader(source, batch_size=5) as loader, pytest.raises(OSError, match="disk is gone"):
        for _ in itertools.islice(loader.iterate(0), 5):
            pass
    assert threading.active_count() == before


def test_close_in_the_middle_ends_soon():
    class Slow(ArraySource):
        def read(self, shard, index):
            time.sleep(0.002)
            return super().read(shard, index)

    array = make_array(50)
    before = threading.active_count()
    loader = make_loader(Slow(array._image, array._captions), batch_size=50, prefetch=20)
    next(loader.iterate(0))
    started = time.monotonic()
    loader.close()
    assert time.monotonic() - started < 1
    assert threading.active_count() == before


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
        time.sleep(0.2)
        assert len(reads) <= 1 + 10 * (1 + 4)  # one for the shape, the batch taken, those ahead


def test_evaluation_counts_every_example_once_in_order(shards):
    source = TarSource(shards, "json.captions", "json.about.label")
    image, mask = np.zeros((4, 8, 4, 4, 3), np.uint8), np.zeros((4, 8), bool)
    for rows in (np.array([0, 1, 6, 7]), np.array([2, 3, 4, 5])):
        with EvalLoader(source, "central_crop(4)", batch_size=8, rows=rows) as loader:
            for number, part in enumerate(loader.images()):
                image[number, rows], mask[number, rows] = part["image"], part["mask"]
            assert number == 3
            assert loader.captions() == [[f"number {n}", f"n {n}"] for n in range(27)]
            np.testing.assert_array_equal(loader.labels(), np.arange(27) % 10)
    image, mask = image.reshape(32, 4, 4, 3), mask.reshape(32)
    assert mask.tolist() == [True] * 27 + [False] * 5
    assert image[:27, 0, 0, 0].tolist() == list(range(27))
    assert not image[27:].any() and image.shape == (32, 4, 4, 3)


def test_evaluation_masks_broken_examples(tmp_path):
    source = break_some(tmp_path, BROKEN)
    with EvalLoader(source, "", batch_size=64, max_broken_share=0.5) as loader:
        mask = np.concatenate([batch["mask"] for batch in loader.images()])[:200]
        assert set(np.flatnonzero(~mask)) == BROKEN == set(range(200)) - set(np.flatnonzero(mask))
        captions = loader.captions()
        assert loader.broken == len(BROKEN)
    assert [n for n, texts in enumerate(captions) if not texts] == [4, 120, 122]
    with EvalLoader(source, "", batch_size=64, max_broken_share=0.01) as loader:
        with pytest.raises(BrokenDataError, match="most are in train-0[03].tar"):
            list(loader.images())


def test_several_captions_of_an_image_are_different_and_missing_ones_are_masked():
    noise = np.zeros((6, 8, 8, 3), np.uint8)
    captions = [[f"{n}", f"n {n}", f"number {n}"][: 1 + n % 3] for n in range(6)]
    source = ArraySource(noise, captions, np.arange(6))
    with make_loader(source, batch_size=6, captions_per_image=2) as loader:
        seen = [set() for _ in range(6)]
        for step in range(20):
            batch = loader.batch(step)
            assert batch["text"].shape == batch["text_mask"].shape == (6, 2, 4)
            for label, texts, masks in zip(
                batch["label"], batch["text"], batch["text_mask"], strict=True
            ):
                drawn = [tuple(t[m]) for t, m in zip(texts, masks, strict=True) if m.any()]
                assert len(set(drawn)) == len(drawn) == min(2, len(captions[label]))
                seen[label] |= set(drawn)
    text, text_mask = WORDS([c for row in captions for c in row])
    every = [tuple(t[m]) for t, m in zip(text, text_mask, strict=True)]
    assert [len(s) for s in seen] == [1, 2, 3, 1, 2, 3] and set().union(*seen) == set(every)


CLASSES = ClassList(
    tuple(f"number {n}" for n in range(10)), ("", *["n"] * 9), tuple(f"n{n:08d}" for n in range(10))
)


def make_labeled(labels, class_names=None) -> ArraySource:
    noise = np.random.default_rng(0).integers(0, 256, (len(labels), 8, 8, 3), np.uint8)
    return ArraySource(noise, [[]] * len(labels), labels, class_names=class_names)


def test_the_text_of_a_labeled_image_is_a_template_with_its_class():
    templates = ("{}", "n {} n")
    source = make_labeled(np.arange(40) % 10)
    kept = {"classes": CLASSES, "templates": templates, "label_offset": 100}
    with make_loader(source, batch_size=40, **kept) as loader:
        batches = [loader.batch(step) for step in range(20)]
        rows = np.arange(7, 21)
        with make_loader(source, batch_size=40, rows=rows, num_threads=1, **kept) as part:
            assert_equal(part.batch(3), {name: x[rows] for name, x in batches[3].items()})
    filled = [[t.replace("{}", name) for name in CLASSES.names] for t in templates]
    texts = np.stack([WORDS(row)[0] for row in filled])
    chosen = []
    for batch in batches:
        label = batch["label"] - 100
        assert sorted(label.tolist()) == sorted(list(range(10)) * 4)
        matches = (texts[:, label] == batch["text"]).all(-1)
        assert (matches.sum(0) == 1).all()
        chosen.append(matches[1])
    assert abs(np.mean(chosen) - 0.5) < 0.06  # either template as often


def test_templates_and_descriptions_of_a_class_list():
    source = make_labeled([3] * 8)
    words = WordTokenizer(("a", "photo", "of", "number", "n", "3", ",", "."), length=9)

    def text_of(**choice):
        with make_loader(source, tokenizer=words, **choice) as loader:
            return loader.batch(0)["text"][0].tolist()

    assert text_of(classes=CLASSES) == words(["a photo of a number 3."])[0][0].tolist()
    own = ClassList(CLASSES.names, CLASSES.descriptions, CLASSES.ids, ("of {}",))
    assert text_of(classes=own) == words(["of number 3"])[0][0].tolist()
    described = text_of(classes=own, describe_classes=True)
    assert described == words(["of number 3, n"])[0][0].tolist()
    with make_loader(
        source, tokenizer=words, classes=CLASSES, templates=("{}", "a {}"), captions_per_image=3
    ) as loader:
        batch = loader.batch(0)  # different templates, and a third that is not there
    both, _ = words(["number 3", "a number 3"])
    for row, mask in zip(batch["text"].tolist(), batch["text_mask"], strict=True):
        assert sorted(row[:2]) == sorted(both.tolist())
        assert mask.any(1).tolist() == [True, True, False]
    with pytest.raises(ValueError, match="needs one {} where the class name goes"):
        make_loader(source, classes=CLASSES, templates=("a photo",))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 10, 3], r"array: 1 has the label 10, .* its 10 classes are the labels 0 to 9"),
        ([0, 3, -1], r"array: 2 has no label, and a class list of 10 is set: let the source"),
        ([0, 3, -7], r"array: 2 has the label -7, which is not in the class list"),
        (None, r"array: 0 has no label"),
    ],
)
def test_wrong_labels_stop_before_anything_is_read(labels, message):
    class Unread(ArraySource):
        def read(self, shard, index):
            raise AssertionError("an image was read")

    source = Unread(np.zeros((3, 8, 8, 3), np.uint8), [[]] * 3, labels)
    with pytest.raises(UserError, match=message):
        make_loader(source, batch_size=3, classes=CLASSES)


def test_labels_are_looked_at_evenly_and_the_rest_as_it_is_read(monkeypatch):
    monkeypatch.setattr(label_check, "CHECKED_FIRST", 50)
    asked = []

    class Watching(ArraySource):
        def read_text(self, shard, index):
            asked.append(index)
            return super().read_text(shard, index)

    labels = np.zeros(200, int)
    labels[101] = 10
    source = Watching(np.zeros((200, 8, 8, 3), np.uint8), [[]] * 200, labels)
    label_check.check_labels(source, 10)
    assert sorted(asked) == list(range(0, 200, 4))
    with make_loader(source, batch_size=20, classes=CLASSES) as loader:
        with pytest.raises(UserError, match="array: 101 has the label 10"):
            for _ in itertools.islice(loader.iterate(0), 10):
                pass


def test_a_label_that_is_no_number_is_an_error_only_with_a_class_list(tmp_path):
    members = [part for n in range(200) for part in make_members(n)]
    members = [(name, b"cat" if name == "000007.cls" else data) for name, data in members]
    source = TarSource(write_tar(tmp_path / "x.tar", members), label="cls")
    with make_loader(source, batch_size=8) as loader:
        for _ in itertools.islice(loader.iterate(0), 25):
            pass
        assert loader.broken == 1
    with pytest.raises(UserError, match="x.tar: 000007: the label is 'cat', not an integer"):
        make_loader(source, batch_size=8, classes=CLASSES)


def test_sources_that_disagree_with_the_class_list():
    names = CLASSES.names
    for agreeing in (names, CLASSES.ids, [n.upper().replace(" ", "_") for n in names]):
        source = make_labeled(np.arange(10), tuple(agreeing))
        make_loader(source, classes=CLASSES).close()
    mixed = (*names[:4], *CLASSES.ids[4:])
    for class_names, message in (
        (names[:9], "has 9 classes and the class list has 10"),
        (
            (*names[:4], "cat", "dog", *names[6:]),
            r"label 4 is 'cat' in the source of array and 'number 4' \(n00000004\) in the class "
            "list; 2 of 10 classes differ. Write the class list as",
        ),
        (
            (mixed[1], mixed[0], *mixed[2:]),
            "label 0 is 'number 1' .*2 of 10 classes differ: they are the same in another order",
        ),
    ):
        with pytest.raises(UserError, match=message):
            make_loader(make_labeled(np.arange(10), class_names), classes=CLASSES)


def test_an_empty_source_is_refused():
    for choice in ({}, {"classes": CLASSES}):
        with pytest.raises(UserError, match="the source has no examples"):
            make_loader(ArraySource(np.zeros((0, 8, 8, 3), np.uint8), []), **choice)


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
    kept = {"tokenizer": words, "batch_size": 20, "max_broken_share": 0.1}
    with make_loader(source, views_per_image=2, **kept) as loader:
        for batch in itertools.islice(loader.iterate(0), 10):
            shown = batch["text"][:, None, 2] - 4
            np.testing.assert_array_equal(
                batch["image"][:, :, 0, 0, 0], np.broadcast_to(shown, (20, 2))
            )
        assert loader.broken == len(BROKEN)


def test_class_lists_of_real_data_fit_their_labels(data_dir):
    for folder, shards in (("grocery", "iconic-*.tar"), ("tiny_imagenet", "val-*.tar")):
        classes = read_classes(f"{data_dir}/{folder}/classes.json")
        source = TarSource(f"{data_dir}/{folder}/{shards}", caption="", label="cls")
        words = WordTokenizer(("a",), length=12)
        kept = {"tokenizer": words, "transform": "resize(8)", "classes": classes}
        with make_loader(source, batch_size=16, **kept) as loader:
            batch = loader.batch(0)
        assert (batch["label"] >= 0).all() and (batch["label"] < len(classes)).all()
        short = ClassList.from_names(classes.names[:-1])
        with pytest.raises(UserError, match=f"which is not in the class list: its {len(short)}"):
            make_loader(source, batch_size=16, **{**kept, "classes": short})
