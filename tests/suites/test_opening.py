"""Opening: miniatures of every layout, and what is refused."""

import dataclasses
import json
import shutil
import time

import fsspec
import numpy as np
import pytest
from miniatures import IMAGE, TEXTS, WRITERS, Counted, choose_labels, read_all, write_tar

from big_align.core.errors import UserError
from big_align.data.derived.derived_source import JoinedSource
from big_align.data.derived.relabeled_source import RelabeledSource
from big_align.data.labels.word_net import WordNet
from big_align.data.sources.array_source import ArraySource
from big_align.data.workers import parcel
from big_align.suites import catalog, opening
from big_align.suites.benchmark import JUDGED, Layout

LANGUAGES = ("_en", "_de", "_quz", "_jp", "_zh")
"""Of multilingual data sets, those of which miniatures are made: the others differ in a word."""
NAMES = [
    name for name in catalog.names()
    if catalog.read_benchmark(name).task not in JUDGED
    and (
        not catalog.read_benchmark(name).language or name.endswith(LANGUAGES)
        or name in catalog.expand(["retrieval", "flickr8k", "coco_1k"])
    )
]  # fmt: skip
LAYOUTS = [
    (name, number)
    for name in NAMES
    for number, layout in enumerate(catalog.read_benchmark(name).layouts)
    if layout.kind in WRITERS and not catalog.read_benchmark(name).wordnet
]


def test_every_benchmark_that_is_read_has_a_miniature():
    written = {name for name, _ in LAYOUTS}
    for name in NAMES:
        kinds = {layout.kind for layout in catalog.read_benchmark(name).layouts}
        assert name in written or kinds <= {"tfds"} or name == "imagenet21k", name


@pytest.mark.parametrize("name, number", LAYOUTS, ids=lambda x: str(x))
def test_a_miniature_of_each_layout_opens(tmp_path, name, number):
    benchmark = catalog.read_benchmark(name)
    layout = benchmark.layouts[number]
    WRITERS[layout.kind](tmp_path, layout, "test")
    source = opening.open_split(benchmark, "test", f"{tmp_path}/")
    found = read_all(source)
    assert source.class_names is None
    if benchmark.task == "retrieval":
        least = benchmark.captions
        assert [captions[:least] for captions, _ in found] == [t[:least] for t in TEXTS]
        return
    if layout.kind == "class_folders":
        assert len(found) == sum(position >= 0 for position in layout.order)
        place = dict(zip(layout.own_names, layout.order, strict=True))
        folders = [source.key(*_locate(source, n)).split("/")[-2] for n in range(len(found))]
        named = [place.get(f, place.get(f.replace("_", " "))) for f in folders]
        assert [labels for _, labels in found] == [(label,) for label in named]
        return
    labels = (0, 1, 1) if layout.kind == "json_lines" else choose_labels(layout)
    assert [own for _, own in found] == [(layout.order[label],) for label in labels]
    assert source.read(0, 0).image == IMAGE and source.read(0, 0).labels == found[0][1]


def _locate(source, number):
    ends = np.cumsum(source.shard_sizes)
    shard = int(np.searchsorted(ends, number, side="right"))
    return shard, number - int(ends[shard] - source.shard_sizes[shard])


def write_mini(tmp_path, name, kind):
    benchmark = catalog.read_benchmark(name)
    layout = next(layout for layout in benchmark.layouts if layout.kind == kind)
    WRITERS[kind](tmp_path, layout, "test")
    return benchmark, layout


def refuse(benchmark, folder, split="test", error=UserError):
    with pytest.raises(error) as caught:
        opening.open_split(benchmark, split, str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_list_of_another_order_is_refused_with_the_first_label(tmp_path):
    benchmark, layout = write_mini(tmp_path, "eurosat", "clip_benchmark")
    names = benchmark.classes().names  # CLIP's order, and not that of the shards
    (tmp_path / "wds_vtab-eurosat/classnames.txt").write_text("\n".join(names))
    said = refuse(benchmark, tmp_path)
    assert "label 0 is 'forest'" in said and "'annual crop land'" in said
    assert "the classes are the same in another order" in said


def test_other_names_are_refused(tmp_path):
    benchmark, layout = write_mini(tmp_path, "cifar10", "shards")
    path = tmp_path / "cifar10/classnames.txt"
    path.write_text(path.read_text().replace("cat\n", "lion\n"))
    said = refuse(benchmark, tmp_path)
    assert "label 3 is 'lion', which is no class of cifar10" in said
    assert "1 of its 10 classes are not among the 10 there" in said


def test_case_and_underscores_do_not_count(tmp_path):
    benchmark, layout = write_mini(tmp_path, "dtd", "clip_benchmark")
    path = tmp_path / "wds_vtab-dtd/classnames.txt"
    path.write_text(path.read_text().title().replace("-", "_") + "\n\n")  # nor do lines at the end
    assert read_all(opening.open_split(benchmark, "test", str(tmp_path)))[0][1] == (0,)


def test_a_subset_without_a_mapping_is_refused(tmp_path):
    benchmark, layout = write_mini(tmp_path, "imagenet_a", "clip_benchmark")
    whole = catalog.read_benchmark("imagenet")
    names = "\n".join(whole.classes().names)
    (tmp_path / "wds_imagenet-a/classnames.txt").write_text(names)
    assert "800 of its 1000 classes are not among the 200 there" in refuse(benchmark, tmp_path)


def test_folders_of_a_part_of_the_classes_are_refused(tmp_path):
    benchmark, layout = write_mini(tmp_path, "imagenet_a", "class_folders")
    folder = tmp_path / "imagenet-a" / layout.own_names[5]
    (folder / "0.JPEG").unlink()
    folder.rmdir()
    said = refuse(benchmark, tmp_path)
    assert f"no class '{layout.own_names[5]}'; 1 of 200" in said


def test_folders_of_other_classes_are_refused(tmp_path):
    benchmark, layout = write_mini(tmp_path, "imagenet_a", "class_folders")
    (tmp_path / "imagenet-a/n00000000").mkdir()
    (tmp_path / "imagenet-a/n00000000/0.jpg").write_bytes(IMAGE)
    assert "'n00000000'" in refuse(benchmark, tmp_path)


def test_a_list_with_another_class_is_refused_with_its_line(tmp_path):
    benchmark, layout = write_mini(tmp_path, "fgvc_aircraft", "label_lists")
    path = tmp_path / layout.name / layout.splits["test"]
    source = opening.open_split(benchmark, "test", str(tmp_path))
    assert source.name(0, 1) == "images_variant_test.txt, line 2"
    path.write_text(path.read_text() + "1009 Boeing 707\n")
    assert "line 4: 'Boeing 707' is no class of this data" in refuse(benchmark, tmp_path)
    path.write_text("\n")
    assert "images_variant_test.txt names no image" in refuse(benchmark, tmp_path)


def test_countries_are_in_the_order_of_their_codes():
    layout = next(
        one for one in catalog.read_benchmark("country211").layouts if one.kind == "class_folders"
    )
    names = catalog.read_benchmark("country211").classes().names
    assert list(layout.own_names) == sorted(set(layout.own_names)) and len(names) == 211
    known = {"AD": "Andorra", "CD": "DR Congo", "CH": "Switzerland", "DE": "Germany",
             "GB": "United Kingdom", "SE": "Sweden", "XK": "Kosovo", "ZW": "Zimbabwe"}  # fmt: skip
    found = dict(zip(layout.own_names, (names[position] for position in layout.order), strict=True))
    assert known.items() <= found.items()


def test_shards_that_name_no_classes_are_refused(tmp_path):
    benchmark, layout = write_mini(tmp_path, "eurosat", "clip_benchmark")
    (tmp_path / "wds_vtab-eurosat/classnames.txt").unlink()
    assert "has no classnames.txt" in refuse(benchmark, tmp_path)


def test_shards_that_are_missing_are_told(tmp_path):
    benchmark, layout = write_mini(tmp_path, "eurosat", "clip_benchmark")
    (tmp_path / "wds_vtab-eurosat/test/nshards.txt").write_text("3\n")
    assert "says 3, and 1.tar is not there" in refuse(benchmark, tmp_path)


def test_shards_beyond_the_count_are_left_out_as_is_said(tmp_path, caplog):
    benchmark, layout = write_mini(tmp_path, "eurosat", "clip_benchmark")
    before = read_all(opening.open_split(benchmark, "test", str(tmp_path)))
    folder = tmp_path / "wds_vtab-eurosat/test"
    (folder / "1.tar").write_bytes((folder / "0.tar").read_bytes())
    (folder / "copy of 0.tar").write_bytes((folder / "0.tar").read_bytes())
    assert read_all(opening.open_split(benchmark, "test", str(tmp_path))) == before
    assert "nshards.txt says 1; 2 more shards are left out, such as 1.tar" in caplog.text
    assert f"eurosat: {len(before)} of {benchmark.sizes['test']} test images are" in caplog.text


def test_a_data_set_of_another_type_is_refused(tmp_path):
    benchmark, layout = write_mini(tmp_path, "eurosat", "clip_benchmark")
    (tmp_path / "wds_vtab-eurosat/dataset_type.txt").write_text("retrieval")
    assert "says retrieval" in refuse(benchmark, tmp_path)


def test_a_label_outside_of_the_layout_is_an_error_and_no_broken_example(tmp_path):
    benchmark, layout = write_mini(tmp_path, "eurosat", "clip_benchmark")
    write_tar(tmp_path / "wds_vtab-eurosat/test/0.tar", [{"webp": IMAGE, "cls": b"10"}])
    source = opening.open_split(benchmark, "test", str(tmp_path))
    with pytest.raises(UserError, match="label 10 is none of the labels of eurosat"):
        source.read_text(0, 0)


def test_a_label_that_is_left_out_is_an_error_where_all_must_count():
    source = RelabeledSource(Counted(1, 3), (1, -1, 0), "the set")
    assert source.read_text(0, 0)[1] == (1,) and source.read_text(0, 2)[1] == (0,)
    with pytest.raises(UserError, match="number 1: the label 1 is left out of the set"):
        source.read_text(0, 1)
    fewer = RelabeledSource(Counted(1, 3), (1, -1, 0), "the set", leave_out=True)
    assert fewer.shard_sizes.tolist() == [2] and fewer.name(0, 1) == "number 2"
    assert [fewer.read_text(0, n)[1] for n in range(2)] == [(1,), (0,)]


def test_an_unknown_split_is_refused_with_those_there_are(tmp_path):
    said = refuse(catalog.read_benchmark("cifar10"), tmp_path, split="tset")
    assert "no split 'tset'; it has train, validation, test" in said


def test_data_that_are_not_there_say_how_they_are_got(tmp_path):
    benchmark = catalog.read_benchmark("eurosat")
    said = refuse(benchmark, tmp_path, error=opening.MissingData)
    assert "wds_vtab-eurosat/test/*.tar" in said and "eurosat/rgb/*/dataset_info.json" in said
    assert "tfds build eurosat/rgb" in said and str(tmp_path) in said


@pytest.mark.parametrize(
    "name, texts, said",
    [
        ("flickr8k", ["\n".join(TEXTS[0])], "1 captions"),
        ("flickr8k_multilingual_de", ["\n".join(TEXTS[0])], "several captions in one text"),
        ("flickr8k", TEXTS[0][:4], "4 captions"),
    ],
)
def test_five_captions_in_one_are_refused(tmp_path, name, texts, said):
    benchmark = catalog.read_benchmark(name)
    layout = benchmark.layouts[0]
    data = json.dumps({layout.caption.removeprefix("json."): texts}).encode()
    write_tar(tmp_path / layout.name / "test-00000.tar", [{"jpg": IMAGE, "json": data}])
    found = refuse(benchmark, tmp_path)
    assert said in found or "several captions in one text" in found


def test_karpathy_train_has_restval(tmp_path):
    benchmark, layout = write_mini(tmp_path, "coco", "karpathy")
    source = opening.open_split(benchmark, "train", str(tmp_path))
    names = [source.key(*_locate(source, n)).rpartition("/")[2] for n in range(6)]
    assert names == [f"{s}{n}.jpg" for s in ("train", "restval") for n in range(3)]


@pytest.mark.parametrize("content", ["[1]", "{", '{"images": [{"split": "test"}]}', "{}"])
def test_a_file_that_is_not_karpathys_is_refused(tmp_path, content):
    (tmp_path / "flickr30k").mkdir()
    (tmp_path / "flickr30k/dataset_flickr30k.json").write_text(content)
    assert "dataset_flickr30k.json" in refuse(catalog.read_benchmark("flickr30k"), tmp_path)


def test_files_of_other_lengths_are_refused(tmp_path):
    benchmark, layout = write_mini(tmp_path, "multi30k_de", "lines")
    path = tmp_path / "multi30k/data/task2/raw/test_2016.3.de"
    path.write_text("only one\n")
    assert "test_2016.3.de has 1 lines" in refuse(benchmark, tmp_path)


def test_a_language_that_is_not_there_is_refused(tmp_path):
    write_mini(tmp_path, "crossmodal3600_de", "crossmodal3600")
    said = refuse(catalog.read_benchmark("crossmodal3600_fr"), tmp_path)
    assert "line 1" in said and "'fr'" in said


@pytest.mark.slow
def test_the_classes_of_imagenet_21k_are_the_folders(tmp_path, data_dir):
    for split, ids in (("train", ("n02123045", "n02124075", "n01440764")), ("val", ("n02124075",))):
        for id in ids:
            (tmp_path / f"imagenet21k/{split}/{id}").mkdir(parents=True)
            (tmp_path / f"imagenet21k/{split}/{id}/0.JPEG").write_bytes(IMAGE)
    benchmark = catalog.read_benchmark("imagenet21k")
    words = WordNet(f"{data_dir}/nltk_data")
    classes = opening.read_class_list(benchmark, str(tmp_path), words)
    assert classes.ids == ("n01440764", "n02123045", "n02124075")
    assert classes.names == ("tench", "tabby", "Egyptian cat") and all(classes.descriptions)
    train = opening.open_split(benchmark, "train", str(tmp_path))
    assert [labels for _, labels in read_all(train)] == [(0,), (1,), (2,)]
    (tmp_path / "imagenet21k/train/n99999999").mkdir()
    with pytest.raises(UserError, match="'n99999999' is no id"):
        opening.read_class_list(benchmark, str(tmp_path), words)


@pytest.mark.slow
def test_cifar10_opens_as_it_is(data_dir):
    benchmark = catalog.read_benchmark("cifar10")
    source = opening.open_split(benchmark, "test", str(data_dir))
    assert source.shard_sizes.sum() == benchmark.sizes["test"]
    labels = [labels for _, labels in read_all(source)]
    assert np.bincount(np.ravel(labels)).tolist() == [1000] * 10


@pytest.mark.parametrize("name", catalog.expand(["flickr8k", "flickr8k_multilingual"]))
def test_flickr8k_opens_as_it_is(data_dir, name):
    benchmark = catalog.read_benchmark(name)
    source = opening.open_split(benchmark, "test", str(data_dir))
    assert source.shard_sizes.sum() == benchmark.sizes["test"]
    counts = {len(captions) for captions, _ in read_all(source)}
    assert counts == ({5} if name[-2:] in ("8k", "en", "de") else {1})


@pytest.mark.parametrize(
    "name, kind",
    [("eurosat", "clip_benchmark"), ("cifar10", "shards"), ("objectnet", "class_folders"),
     ("flickr30k", "karpathy"), ("multi30k_de", "lines"), ("hateful_memes", "json_lines"),
     ("crossmodal3600_de", "crossmodal3600")],
)  # fmt: skip
def test_a_layout_opens_from_remote_storage_and_in_other_processes(tmp_path, name, kind):
    benchmark, layout = write_mini(tmp_path, name, kind)
    here = opening.open_split(benchmark, "test", str(tmp_path))
    memory = fsspec.filesystem("memory")
    memory.put(f"{tmp_path}/", f"/{tmp_path.name}/", recursive=True)
    there = opening.open_split(benchmark, "test", f"memory://{tmp_path.name}")
    assert read_all(there) == read_all(here)
    with parcel.pack(here, (), print) as file:
        assert read_all(parcel.unpack(file.fileno())) == read_all(here)


def test_opening_does_not_depend_on_the_number_of_examples(tmp_path, monkeypatch):
    """Labels and captions are looked up when they are read: a million take no longer to open."""

    million = Counted(1000, 1000)
    started = time.perf_counter()
    RelabeledSource(million, range(1000), "the set")
    assert million.reads == 0
    layout = Layout("shards", "flickr8k", {"test": "test"}, caption="json.captions")
    monkeypatch.setitem(opening._OPENERS, "shards", lambda *_: million)
    (tmp_path / "flickr8k").mkdir()
    (tmp_path / "flickr8k/test-0.tar").touch()
    benchmark = dataclasses.replace(catalog.read_benchmark("flickr8k"), layouts=(layout,))
    assert opening.open_split(benchmark, "test", str(tmp_path)) is million
    assert million.reads == 64 and time.perf_counter() - started < 1


def test_images_to_choose_by_are_those_beside_the_images_to_train_on(tmp_path):
    benchmark = catalog.read_benchmark("country211")
    for folder in ("wds_country211/train", "country211/valid/AD"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "wds_country211/train/0.tar").write_bytes(b"")
    assert opening.find_layout(benchmark, "validation", str(tmp_path)).layout.kind == (
        "class_folders"
    )
    assert opening.open_validation(benchmark, str(tmp_path)) is None
    with pytest.raises(opening.MissingData, match="the split train is not in"):
        opening.open_validation(catalog.read_benchmark("sst2"), str(tmp_path))


def test_splits_are_joined_in_order():
    parts = [
        ArraySource(
            np.zeros((n, 2, 2, 3), np.uint8), [[]] * n, np.arange(n) + n, class_names=("a",) * 9
        )
        for n in (2, 3)
    ]
    joined = JoinedSource(parts)
    assert joined.shard_sizes.tolist() == [2, 3] and joined.class_names == ("a",) * 9
    labels = [joined.read(shard, n).label for shard, size in ((0, 2), (1, 3)) for n in range(size)]
    assert labels == [2, 3, 3, 4, 5]
    assert joined.name(1, 2) == parts[1].name(0, 2) and joined.key(1, 2) == parts[1].key(0, 2)
    assert joined.read_text(1, 0) == parts[1].read_text(0, 0)


def test_all_that_is_not_for_testing_is_opened_as_it_lies(tmp_path):
    for split, names in {"train": "ab", "valid": "c"}.items():
        for label in ("negative", "positive"):
            (tmp_path / "rendered-sst2" / split / label).mkdir(parents=True)
            for name in names:
                (tmp_path / "rendered-sst2" / split / label / f"{name}.png").write_bytes(IMAGE)

    def count(split):
        return opening.open_named("sst2", split, str(tmp_path)).shard_sizes.sum()

    assert (count("train"), count("validation"), count("train+validation")) == (4, 2, 6)
    shutil.rmtree(tmp_path / "rendered-sst2" / "valid")
    assert count("train+validation") == 4
