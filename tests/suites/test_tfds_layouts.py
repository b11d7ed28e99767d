"""Layouts of TFDS: label orders against the package's own files and builders, and miniatures."""

import dataclasses
import importlib.util
import pathlib

import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.data.derived.relabeled_source import ABSENT
from big_align.data.labels.label_names import normalize_name
from big_align.suites import catalog, opening

FOUND = importlib.util.find_spec("tensorflow_datasets")
ROOT = pathlib.Path(FOUND.submodule_search_locations[0]) if FOUND else pathlib.Path()
NAMES = [
    name for name in catalog.names()
    if any(layout.kind == "tfds" for layout in catalog.read_benchmark(name).layouts)
    and not name.endswith(catalog.FEW)
]  # fmt: skip
LABELED = [name for name in NAMES if catalog.read_benchmark(name).class_list]
FROM_DATA = {"cifar10": "airplane automobile bird", "stl10": "airplane bird car", "cifar100": ""}
"""Whose names TFDS reads from what it downloads, and the first of them."""


def layout_of(name):
    layouts = catalog.read_benchmark(name).layouts
    return next(layout for layout in layouts if layout.kind == "tfds")


@pytest.mark.parametrize(
    "name, path",
    [
        ("caltech101", "image_classification/caltech101_labels.txt"),
        ("food101", "image_classification/food-101_classes.txt"),
        ("sun397", "image_classification/sun397_labels.txt"),
        ("vtab_sun397", "image_classification/sun397_labels.txt"),
        ("imagenet", "datasets/imagenet2012/labels.txt"),
        ("imagenet_v2", "datasets/imagenet2012/labels.txt"),
        ("imagenet_a", "datasets/imagenet2012/labels.txt"),
        ("imagenet_r", "datasets/imagenet2012/labels.txt"),
        ("imagenet_sketch", "datasets/imagenet2012/labels.txt"),
    ],
)
def test_own_names_are_those_of_the_label_files(name, path):
    if not (ROOT / path).is_file():
        pytest.skip(f"tensorflow_datasets has no {path} here")
    assert list(layout_of(name).own_names) == (ROOT / path).read_text().split()


def test_ucf101_folders_are_the_labels_of_tfds():
    path = ROOT / "video/ucf101_labels.txt"
    if not path.is_file():
        pytest.skip("tensorflow_datasets has no labels of UCF101 here")
    layout = catalog.read_benchmark("ucf101").layouts[0]
    assert list(layout.own_names) == sorted(path.read_text().split())


def make_builder(name, folder):
    tfds = pytest.importorskip("tensorflow_datasets")
    return tfds.builder(layout_of(name).name, data_dir=str(folder), try_gcs=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", LABELED)
def test_own_names_are_those_of_the_builders(name, tmp_path):
    layout = layout_of(name)
    features = make_builder(name, tmp_path).info.features
    if layout.label in ("clevr_count", "clevr_distance", "kitti_distance"):
        return  # they are made of other features: the miniatures below
    feature = features[layout.label]
    assert feature.num_classes == len(layout.order)
    numbers = [str(number) for number in range(feature.num_classes)]
    if feature.names != numbers:
        own = [normalize_name(own) for own in layout.own_names]
        assert own == [normalize_name(own) for own in feature.names]
    else:
        assert layout.own_names is None or name in FROM_DATA
    if name in FROM_DATA:
        first = " ".join(layout.own_names[:3])
        assert first.startswith(FROM_DATA[name]) and sorted(layout.own_names) == list(
            layout.own_names
        )


def make_value(tfds, feature, number, chosen):
    """A value of a feature: small pictures, and of a class label the one that is chosen."""
    kinds = tfds.features
    if isinstance(feature, kinds.Sequence):
        inner = feature.feature
        if hasattr(inner, "items"):
            return [make_value(tfds, inner, n, chosen) for n in range(3)]
        return [chosen] if isinstance(inner, kinds.ClassLabel) else []
    if isinstance(feature, kinds.FeaturesDict):
        return {key: make_value(tfds, one, number, chosen) for key, one in feature.items()}
    if isinstance(feature, kinds.Image):
        shape = [size or 4 for size in feature.shape]
        return np.full(shape, number % 2, feature.np_dtype)
    if isinstance(feature, kinds.ClassLabel):
        return min(chosen, feature.num_classes - 1)
    if isinstance(feature, kinds.BBoxFeature):
        return kinds.BBox(0.0, 0.0, 1.0, 1.0)
    if isinstance(feature, kinds.Text):
        return f"number {number}"
    return np.zeros([size or 3 for size in feature.shape], feature.np_dtype)


def prepare(name, folder, split, values):
    """Prepares a data set of TFDS that has three examples, as TFDS itself would write it."""
    tfds = pytest.importorskip("tensorflow_datasets")
    builder = make_builder(name, folder)
    layout = layout_of(name)
    if name in FROM_DATA:
        builder.info.features[layout.label].names = list(layout.own_names)
    pathlib.Path(builder.data_dir).mkdir(parents=True)
    writer = tfds.core.SequentialWriter(builder.info, max_examples_per_shard=10)
    writer.initialize_splits([split])
    writer.add_examples({split: values(tfds, builder.info.features)})
    writer.close_all()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_miniature_prepared_by_tfds_opens(tmp_path, name):
    benchmark, layout = catalog.read_benchmark(name), layout_of(name)
    split = layout.splits["test"].partition("[")[0]
    kept = [n for n, p in enumerate(layout.order or (0, 0, 0)) if p != ABSENT]
    labels = [kept[0], kept[1], kept[-1]]

    def values(tfds, features):
        made = [
            {key: make_value(tfds, one, n, label) for key, one in features.items()}
            for n, label in enumerate(labels)
        ]
        if "captions" in features:
            for n, example in enumerate(made):
                texts = [f"{word} {n}" for word in "abcde"]
                inner = features["captions"].feature
                example["captions"] = [
                    {key: text if key == "text" else n for key in inner} for text in texts
                ]
        return made

    prepare(name, tmp_path, split, values)
    layouts = (dataclasses.replace(layout, splits={"test": split}),)
    benchmark = dataclasses.replace(benchmark, layouts=layouts)
    source = opening.open_split(benchmark, "test", str(tmp_path))
    assert source.shard_sizes.sum() == 3
    if benchmark.task == "retrieval":
        assert source.read_text(0, 1)[0] == [f"{word} 1" for word in "abcde"]
    elif layout.label not in ("clevr_count", "clevr_distance", "kitti_distance"):
        found = sorted(source.read_text(0, n)[1] for n in range(3))
        assert found == sorted((layout.order[label],) for label in labels)
    if name.startswith("dsprites"):
        pixels = source.read(0, 1).image
        assert pixels.shape == (64, 64, 3) and set(np.unique(pixels)) <= {0, 255}


@pytest.mark.slow
def test_labels_of_clevr_are_those_of_vtab(tmp_path):
    """Three objects are label 0; the closest at 8.7 lies between 8.5 and 9, which is label 2."""

    def values(tfds, features):
        made = {key: make_value(tfds, one, 0, 0) for key, one in features.items()}
        for one, depth in zip(made["objects"], (11.0, 8.7, 9.9), strict=True):
            one["pixel_coords"] = np.float32([1, 2, depth])
        return [made]

    prepare("clevr_counts", tmp_path, "validation", values)
    for name, label, called in (("clevr_counts", 1, "3"), ("clevr_distance", 2, "near")):
        benchmark = catalog.read_benchmark(name)
        source = opening.open_split(benchmark, "test", str(tmp_path))
        assert source.read_text(0, 0)[1] == (label,)
        assert benchmark.classes().names[label] == called


@pytest.mark.slow
@pytest.mark.parametrize(
    "kinds, depths, label",
    [((0, 3, 1), (9.0, 1.0, 30.0), 1), ((2, 3, 3), (7.9, 1.0, 1.0), 0), ((3, 4, 5), (1, 1, 1), 3),
     ((0, 3, 3), (20.5, 1, 1), 2)],
)  # fmt: skip
def test_labels_of_kitti_are_those_of_vtab(tmp_path, kinds, depths, label):
    """Cars, vans and trucks count; below 8 m is label 0, below 20 label 1, none is label 3."""

    def values(tfds, features):
        made = {key: make_value(tfds, one, 0, 0) for key, one in features.items()}
        for one, kind, depth in zip(made["objects"], kinds, depths, strict=True):
            one |= {"type": kind, "location": np.float32([0, 0, depth])}
        return [made]

    prepare("kitti", tmp_path, "test", values)
    source = opening.open_split(catalog.read_benchmark("kitti"), "test", str(tmp_path))
    assert source.read_text(0, 0)[1] == (label,)


@pytest.mark.slow
def test_tfds_with_other_names_is_refused(tmp_path):
    prepare("cifar10", tmp_path, "test", lambda tfds, features: [
        {key: make_value(tfds, one, n, n) for key, one in features.items()} for n in range(3)
    ])  # fmt: skip
    benchmark = catalog.read_benchmark("cifar10")
    assert opening.open_split(benchmark, "test", str(tmp_path)).shard_sizes.sum() == 3
    path = next(tmp_path.glob("cifar10/*/label.labels.txt"))
    lines = path.read_text().split()
    path.write_text("\n".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(UserError, match="label 0 is 'automobile'.*in another order"):
        opening.open_split(benchmark, "test", str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_splits_are_those_that_tfds_reads(name):
    tfds = pytest.importorskip("tensorflow_datasets")
    layouts = [layout_of(name)]
    if name + catalog.FEW in catalog.expand(["vtab1k"]):
        layouts += catalog.read_benchmark(name + catalog.FEW).layouts
    for layout in layouts:
        for spec in layout.splits.values():
            assert tfds.core.ReadInstruction.from_spec(spec)
