"""The catalog: every file is whole, suites are those of the papers, wrong names are told."""

import pathlib
import re

import pytest

from big_align.core.errors import UserError
from big_align.data.derived.relabeled_source import ABSENT
from big_align.data.labels.label_names import normalize_name
from big_align.evaluators.scores import SCORES
from big_align.suites import catalog
from big_align.suites.benchmark import KINDS

METRICS = {*SCORES, "mean_recall", "group_accuracy", "mean_of_categories", "spearman"}
ALL = catalog.names()


def test_every_benchmark_is_whole():
    for name in ALL:
        check_benchmark(name)


def check_benchmark(name):
    benchmark = catalog.read_benchmark(name)
    assert benchmark.name == name and "test" in benchmark.splits, name
    assert benchmark.metric in METRICS and benchmark.title, name
    assert benchmark.page.startswith("http") and benchmark.license.startswith("http"), name
    assert benchmark.get and "\n" not in benchmark.get, name
    assert set(benchmark.sizes) <= set(benchmark.splits), name
    if benchmark.class_list:
        count = len(benchmark.classes())
        assert benchmark.classes().templates, name
        for layout in benchmark.layouts:
            assert layout.order_source and layout.label, (name, layout.name)
            # every class has a label, or the data set is not the whole benchmark
            assert set(layout.order) - {ABSENT} == set(range(count)), (name, layout.name)


def test_every_name_stands_once_and_every_suite_is_described():
    assert len(set(ALL)) == len(ALL) > 120
    for name, about in catalog.suites().items():
        assert about and catalog.expand([name]) and name not in ALL


def test_the_manual_has_every_suite_and_every_layout():
    page = pathlib.Path(__file__).parents[2].joinpath("docs", "evaluation.md").read_text()
    page = page.partition("## Named benchmarks: the data")[2].partition("\n## ")[0]
    for word in {*catalog.suites(), *KINDS}:
        assert f"`{word}`" in page, word


@pytest.mark.parametrize(
    "suite, count",
    [("clip", 27), ("mlcd26", 26), ("mlcd25", 25), ("kornblith12", 12), ("unicl14", 14),
     ("unicl18", 18), ("idea9", 9), ("elevater", 20), ("vtab", 19), ("vtab1k", 19),
     ("vtab+", 36), ("robustness", 10)],
)  # fmt: skip
def test_suites_have_as_many_as_the_papers_say(suite, count):
    assert len(catalog.expand([suite])) == count


def test_suites_contain_each_other_as_the_papers_say():
    clip, mlcd = set(catalog.expand(["clip"])), set(catalog.expand(["mlcd26"]))
    assert clip - mlcd == {"imagenet"} and mlcd - set(catalog.expand(["mlcd25"])) == {"fer2013"}
    for part in ("kornblith12", "unicl14", "unicl18", "idea9", "elevater"):
        assert set(catalog.expand([part])) < clip, part


def test_names_expand_each_once_and_in_order():
    assert catalog.expand(["cifar10", "kornblith12", "cifar10"])[:3] == [
        "cifar10", "food101", "cifar100",
    ]  # fmt: skip
    languages = catalog.expand(["flickr8k_multilingual"])
    assert languages == [f"flickr8k_multilingual_{x}" for x in ("en", "de", "fr", "cs")]
    assert len(catalog.expand(["crossmodal3600"])) == 36 and len(catalog.expand(["xtd"])) == 11


@pytest.mark.parametrize("name, near", [("cifar11", "cifar10"), ("vtabb", "vtab"), ("xdt", "xtd")])
def test_a_wrong_name_is_told_with_the_nearest(name, near):
    with pytest.raises(UserError, match=f"{name}.*did you mean '{near}'"):
        catalog.expand([name])


def test_a_name_that_is_no_benchmark_is_refused():
    with pytest.raises(UserError, match="no benchmark 'eurosatt'.*'eurosat'"):
        catalog.read_benchmark("eurosatt")


def test_tables_come_from_the_suites():
    tables = catalog.read_benchmark("food101").tables
    assert {"CLIP Table 11", "ALIGN Table 7", "UniCL Table 6", "MLCD Table 1"} <= set(tables)
    assert "ALIGN Table 6" not in tables  # VTAB has no Food-101
    assert {"ALIGN Table 5", "IDEA Table 2"} <= set(catalog.read_benchmark("imagenet").tables)
    assert catalog.read_benchmark("cxc").tables == ("ALIGN Table 2", "ALIGN Table 3")
    assert catalog.read_benchmark("dtd_1k").tables == ("ALIGN Table 6",)
    assert catalog.read_benchmark("multi30k_translations_fr").tables == ("ALIGN Table 11",)


def test_vtab_1k_trains_on_1000_images():
    few = catalog.read_benchmark("dtd_1k")
    splits = few.layouts[0].splits
    assert splits == {"train": "train[:800]", "validation": "validation[:200]", "test": "test"}
    assert {layout.kind for layout in few.layouts} == {"tfds"} and few.sizes["train"] == 800
    for name in catalog.expand(["vtab1k"]):
        spans = [
            re.fullmatch(r"\w+\[(\d*):(\d+)\]", catalog.read_benchmark(name).layouts[0].splits[s])
            for s in ("train", "validation")
        ]
        sizes = [int(span[2]) - int(span[1] or 0) for span in spans]
        assert sizes == [800, 200], name
        assert catalog.read_benchmark(name).metric == "accuracy", name  # also Caltech-101
    assert catalog.read_benchmark("caltech101").metric == "mean_per_class"


def test_folds_divide_the_split():
    coco = catalog.read_benchmark("coco_1k")
    assert coco.folds == 5 and coco.sizes["test"] % 5 == 0
    assert catalog.read_benchmark("coco").folds == 1


def own_and_class(name, kind):
    """The own name and the class of each label of a layout."""
    benchmark = catalog.read_benchmark(name)
    layout = next(layout for layout in benchmark.layouts if layout.kind == kind)
    classes = benchmark.classes()
    return [
        (own, classes.names[position], classes.ids[position])
        for own, position in zip(layout.own_names, layout.order, strict=True)
        if position != ABSENT
    ]


NUMBERS = {
    "clevr_counts", "dsprites_orientation", "dsprites_position", "smallnorb_azimuth",
    "smallnorb_elevation",
}  # fmt: skip
"""Whose layouts have numbers, or words for them, as names."""
RENAMED = {("", "moderately distant"), ("ball moss", "air plant"),
           ("pink-yellow dahlia?", "pink and yellow dahlia")}  # fmt: skip


def test_every_label_of_clip_benchmark_names_the_right_class():
    checked = []
    for name in sorted(set(ALL) - NUMBERS):
        layouts = catalog.read_benchmark(name).layouts
        if any(layout.kind == "clip_benchmark" and layout.own_names for layout in layouts):
            checked.append(name)
            for own, wanted, _ in own_and_class(name, "clip_benchmark"):
                same = normalize_name(own) == normalize_name(wanted)
                assert same or (own, wanted) in RENAMED, (name, own, wanted)
    assert len(checked) > 20


@pytest.mark.parametrize(
    "name, in_list_order, count",
    [("eurosat", 0, 10), ("clevr_counts", 0, 8), ("pets", 4, 37), ("fer2013", 4, 7),
     ("voc2007_objects", 12, 20)],
)  # fmt: skip
def test_the_lists_of_clip_alone_would_name_wrong_classes(name, in_list_order, count):
    """Label by label CLIP's lists are right as often as said here; in the order bound, always."""
    benchmark = catalog.read_benchmark(name)
    layout = next(x for x in benchmark.layouts if x.kind == "clip_benchmark")
    assert sum(n == position for n, position in enumerate(layout.order)) == in_list_order
    assert sorted(layout.order) == list(range(count))


def test_labels_that_are_numbers_are_the_classes_they_say():
    counts = own_and_class("clevr_counts", "clip_benchmark")
    assert " ".join(own for own, _, _ in counts) == "three four five six seven eight nine ten"
    assert [int(name) for _, name, _ in counts] == list(range(3, 11))
    azimuths = own_and_class("smallnorb_azimuth", "clip_benchmark")
    assert [(own, name) for own, name, _ in azimuths][9] == ("9", "180 degrees")
    elevations = own_and_class("smallnorb_elevation", "clip_benchmark")
    assert [name for _, name, _ in elevations][::8] == ["30 degrees", "70 degrees"]
    turned = [name for _, name, _ in own_and_class("dsprites_orientation", "clip_benchmark")]
    # floor(16 label / 40): labels 0, 1 and 2 are class 0, 3 and 4 class 1, 39 class 15
    assert len(turned) == 40 and turned[0] == turned[2] != turned[3] == turned[4] != turned[5]
    assert turned[0] == "9 degrees" and turned[39] == "355 degrees"  # 0, 9.2, 18.5; 350.8, 360
    places = [name for _, name, _ in own_and_class("dsprites_position", "clip_benchmark")]
    assert len(places) == 32 and places[0] == places[1] == "2%" and places[31] == "98%"


def test_names_of_tensorflow_datasets_are_bound_to_those_of_clip():
    pairs = {own: name for own, name, _ in own_and_class("eurosat", "tfds")}
    assert pairs["HerbaceousVegetation"] == "brushland or shrubland"
    assert pairs["SeaLake"] == "lake or sea" and pairs["River"] == "river"
    pairs = {own: name for own, name, _ in own_and_class("caltech101", "tfds")}
    assert pairs["faces_easy"] == "centered face" and pairs["faces"] == "off-center face"
    assert pairs["background_google"] == "background"
    food = [name for _, name, _ in own_and_class("food101", "tfds")]
    assert food[16:18] == ["cheesecake", "cheese plate"]  # CLIP's list has them the other way
    scenes = own_and_class("sun397", "tfds")
    assert all(own[3:].replace("/", " ").replace("_", " ") == name for own, name, _ in scenes)


def test_classes_of_imagenet_a_are_found_by_their_ids():
    for name in ("imagenet_a", "imagenet_r"):
        for kind in ("tfds", "class_folders"):
            found = own_and_class(name, kind)
            assert len(found) == 200 and all(own == id for own, _, id in found)
    v2 = own_and_class("imagenet_v2", "class_folders")
    assert [own for own, _, _ in v2[:3]] == ["0", "1", "2"] and v2[10][1] == "brambling"


def test_objectnet_says_which_folders_count():
    found = own_and_class("objectnet", "class_folders")
    layout = catalog.read_benchmark("objectnet").layouts[0]
    assert len(layout.own_names) == 313 and len(found) == 113
    assert all(own == id for own, _, id in found)
    pairs = {own: name for own, name, _ in found}
    assert pairs["full_sized_towel"] == "bath towel"
    assert pairs["hand_towel_or_rag"] == "dishrag or hand towel"
    assert "squeegee" not in pairs


def test_fer2013_keeps_the_synonyms_of_clip():
    classes = catalog.read_benchmark("fer2013").classes()
    more = dict(zip(classes.names, classes.synonyms, strict=True))
    assert more["surprised"] == ("shocked", "spooked") and more["angry"] == ()
    assert sum(map(len, classes.synonyms)) == 5
