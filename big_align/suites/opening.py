"""Opens a benchmark: the layout that exists, with its labels bound to the benchmark's classes."""

import dataclasses
import glob
from collections.abc import Callable, Sequence
from typing import NamedTuple

from absl import logging

from big_align.core.errors import UserError
from big_align.data import examples, files, listing
from big_align.data.derived.derived_source import JoinedSource
from big_align.data.derived.relabeled_source import ABSENT, RelabeledSource
from big_align.data.labels.classes import ClassList
from big_align.data.labels.descriptions import read_descriptions, take_descriptions
from big_align.data.labels.word_net import WordNet
from big_align.data.sources.folder_source import FolderSource
from big_align.data.sources.record_source import TFDSSource
from big_align.data.sources.rows_source import RowsSource
from big_align.data.sources.tar_source import TarSource
from big_align.suites import caption_files, catalog, label_binding, label_lists, tfds_labels
from big_align.suites.benchmark import JUDGED, Benchmark, Layout

WHOLE = "train+validation"
"""The name of a split and the one beside it that settings are chosen by, if there is one."""
KARPATHY = "dataset_*.json"
"""Pattern of the files with Karpathy's splits."""


class MissingData(UserError):
    """The data of a benchmark are missing; the message says how to get them."""


def open_split(
    benchmark: Benchmark, split: str, folder: str, index_dir: str | None = None
) -> examples.Source:
    """Opens a split of a benchmark in the first of its layouts that exists; decodes no image.

    It warns if the test images are not as many as the data set has. The folder has the data of all
    benchmarks, each in a folder with its layout's name; labels are positions in
    `benchmark.classes()`, or in `read_class_list`.
    """
    if benchmark.task in JUDGED:
        raise UserError(f"{benchmark.name} is opened by judged.layouts.open_judged")
    source = _open(benchmark, find_layout(benchmark, split, folder), index_dir)
    images, whole = int(source.shard_sizes.sum()), benchmark.sizes.get(split)
    if split == "test" and whole not in (None, images):
        logging.warning(
            "%s: %d of %d test images are here, so its numbers are of another data set than those "
            "that are published", benchmark.name, images, whole,
        )  # fmt: skip
    return source


def find_layout(benchmark: Benchmark, split: str, folder: str) -> "FoundLayout":
    """Finds the first layout of a benchmark that has files of a split."""
    if split not in benchmark.splits:
        known = ", ".join(benchmark.splits)
        raise UserError(f"{benchmark.name} has no split {split!r}; it has {known}")
    return _find_files(benchmark, [split], folder.rstrip("/") or "/")[0]


def open_validation(
    benchmark: Benchmark, folder: str, index_dir: str | None = None
) -> examples.Source | None:
    """Opens the images that settings are chosen by, if they are where the training images are.

    In another layout the same images may be among those to train on.
    """
    train = find_layout(benchmark, "train", folder)
    for root, pattern in _list_places(train.layout, "validation", train.folder):
        if root == train.root and _glob(root, pattern):
            found = train._replace(split=train.layout.splits["validation"])
            return _open(benchmark, found, index_dir)
    return None


def open_named(
    benchmark: str, split: str, data: str, index_dir: str | None = None
) -> examples.Source:
    """Opens a split of a benchmark by name, as a source of a config.

    Args:
      benchmark: the name of the data set, as in `python -m big_align.tools.benchmark --list`.
      split: "train", "validation" or "test"; or "train+validation" for all that is not for testing,
        whether or not it is divided where it lies.
      data: the folder with all data sets, each in a folder of its own.
      index_dir: a folder that keeps scans of shards for the next start.

    Returns:
      A source whose labels are those of the class list of the benchmark.

    Raises:
      UserError: as for `open_split`, or there is no such benchmark.
    """
    named = catalog.read_benchmark(benchmark)
    if split != WHOLE:
        return open_split(named, split, data, index_dir)
    train = open_split(named, "train", data, index_dir)
    validation = open_validation(named, data, index_dir)
    return train if validation is None else JoinedSource([train, validation])


def read_class_list(
    benchmark: Benchmark, folder: str, word_net: WordNet | None = None
) -> ClassList:
    """Returns the classes of a benchmark; if they are WordNet ids, from the folders of the data.

    Their descriptions are those of FOLDER/descriptions/LIST.json, if it is there, which
    `descriptions.read_descriptions` reads: such as the class list that the tool `describe_classes`
    makes of the list of the package that the benchmark has.
    """
    folder = folder.rstrip("/")
    if not benchmark.wordnet:
        path = f"{folder}/descriptions/{benchmark.class_list}.json"
        classes = dataclasses.replace(benchmark.classes(), described_in=path)
        there = files.exists(path)
        return take_descriptions(classes, read_descriptions(path)) if there else classes
    word_net = word_net or WordNet()
    ids = _list_ids(benchmark, folder)
    names = tuple(word_net.name_id(id) for id in ids)
    return ClassList(names, tuple(word_net.describe_id(id) for id in ids), ids)


class FoundLayout(NamedTuple):
    """The location of a layout, and the split that is meant."""

    layout: Layout
    split: str  # the layout's name of it
    folder: str  # of all benchmarks
    root: str  # of the data set

    @property
    def path(self) -> str:
        """The location of the split in its folder."""
        return f"{self.root}/{self.split}"


def _list_places(layout: Layout, split: str, folder: str) -> list[tuple[str, str]]:
    """Returns the folders that a layout may have, each with what it must contain."""
    if split not in layout.splits:
        return []
    own, path = layout.splits[split], f"{folder}/{layout.name}"
    if layout.kind == "clip_benchmark":
        return [(f"{folder}/wds_{layout.name}", f"{own}/*.tar"), (path, f"{own}/*.tar")]
    patterns = {
        "tfds": "*/dataset_info.json",
        "class_folders": f"{own}/*/" if own else "*/",
        "shards": f"{own}-*.tar",
        "karpathy": KARPATHY,
    }
    return [(path, patterns.get(layout.kind, own))]


def _glob(root: str, pattern: str) -> list[str]:
    return listing.find(f"{glob.escape(root)}/{pattern}")


def _find_files(
    benchmark: Benchmark, splits: Sequence[str], folder: str
) -> tuple[FoundLayout, list[str]]:
    """Returns the first layout that has files of the first split that exists, and the files."""
    tried = []
    for split in splits:
        for layout in benchmark.layouts:
            for root, pattern in _list_places(layout, split, folder):
                tried.append(f"{root}/{pattern}".removeprefix(f"{folder}/"))
                if found := _glob(root, pattern):
                    return FoundLayout(layout, layout.splits[split], folder, root), found
    raise MissingData(
        f"{benchmark.name}: the split {splits[0]} is not in {folder} (looked for "
        f"{', '.join(tried)}); get it: {benchmark.get}"
    )


def _open(benchmark: Benchmark, found: FoundLayout, index_dir: str | None) -> examples.Source:
    layout = found.layout
    try:
        source = _OPENERS[layout.kind](found, benchmark.task, index_dir)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{benchmark.name}: {error}") from error
    if benchmark.wordnet:
        ids = _list_ids(benchmark, found.folder)
        order = label_binding.match_whole(source.class_names or (), ids, found.root, benchmark.name)
        return RelabeledSource(source, order, benchmark.name)
    if layout.order is None:
        label_binding.check_captions(source, benchmark.captions, benchmark.name)
        return source
    order = label_binding.bind_labels(source, layout, found.root, benchmark.name)
    # folders give labels without reading; in other layouts, all examples must count
    leave_out = layout.kind == "class_folders" and ABSENT in order
    return RelabeledSource(source, order, benchmark.name, leave_out)


def _open_tfds(found: FoundLayout, task: str, index_dir: str | None) -> examples.Source:
    layout, where = found.layout, (found.layout.name, found.split, found.folder)
    if layout.label in tfds_labels.RULES:
        return tfds_labels.RuledSource(*where, layout.label, index_dir)
    kind = tfds_labels.DspritesSource if layout.name == "dsprites" else TFDSSource
    return kind(*where, **_list_texts(layout), index_dir=index_dir)


def _open_clip_benchmark(found: FoundLayout, task: str, index_dir: str | None) -> examples.Source:
    folder = found.path
    shards = _glob(folder, "*.tar")
    count = _read_word(f"{folder}/nshards.txt")
    if count.isdecimal():
        listed = {path.rpartition("/")[2]: path for path in shards}
        wanted = [f"{n}.tar" for n in range(int(count))]
        if missing := [name for name in wanted if name not in listed]:
            raise UserError(f"{folder}: nshards.txt says {count}, and {missing[0]} is not there")
        if others := [name for name in listed if name not in wanted]:
            told = "%s: nshards.txt says %s; %d more shards are left out, such as %s"
            logging.warning(told, folder, count, len(others), others[0])
        shards = [listed[name] for name in wanted]
    kind = _read_word(f"{found.root}/dataset_type.txt") or "classification"
    if kind != ("retrieval" if task == "retrieval" else "classification"):
        raise UserError(f"{found.root}/dataset_type.txt says {kind}, and this is for {task}")
    texts = _list_texts(found.layout)
    return TarSource(shards, **texts, index_dir=index_dir, caption_lines=True)


def _read_word(path: str) -> str:
    """Returns the content of a small file, or "" if it does not exist."""
    try:
        return files.read_text(path).strip().lower()
    except FileNotFoundError:
        return ""


_OPENERS: dict[str, Callable[["FoundLayout", str, str | None], examples.Source]] = {
    "tfds": _open_tfds,
    "clip_benchmark": _open_clip_benchmark,
    "class_folders": lambda found, task, index_dir: FolderSource(found.path.rstrip("/")),
    "label_lists": lambda found, task, index_dir: label_lists.read_label_list(
        found.path, found.layout.own_names or ()
    ),
    "shards": lambda found, task, index_dir: TarSource(
        _glob(found.root, f"{found.split}-*.tar"), **_list_texts(found.layout), index_dir=index_dir
    ),
    "json_lines": lambda found, task, index_dir: RowsSource(
        found.path, caption="", label=found.layout.label
    ),
    "karpathy": lambda found, task, index_dir: caption_files.read_karpathy(
        _glob(found.root, KARPATHY)[0], found.split
    ),
    "lines": lambda found, task, index_dir: caption_files.read_lines(
        found.root, _glob(found.root, found.split)[0], found.layout.caption
    ),
    "crossmodal3600": lambda found, task, index_dir: caption_files.read_crossmodal(
        found.path, found.layout.caption
    ),
}
"""What makes a source of what was found, the benchmark's task, and `index_dir`, by kind."""


def _list_texts(layout: Layout) -> dict[str, str | None]:
    return {"caption": layout.caption or None, "label": layout.label or None}


def _list_ids(benchmark: Benchmark, folder: str) -> tuple[str, ...]:
    """Lists the WordNet ids that are folders of the first split that exists."""
    _, paths = _find_files(benchmark, benchmark.splits, folder)
    return tuple(path.rstrip("/").rpartition("/")[2] for path in paths)
