"""What a named data set is: its classes, its metric, and the layouts in which it is distributed."""

import dataclasses
import functools
from collections.abc import Mapping

from big_align.core.errors import UserError, check_known
from big_align.data.labels.classes import ClassList, read_classes

TASKS = ("classification", "multilabel", "retrieval", "composition", "similarity")
KINDS = ("tfds", "clip_benchmark", "class_folders", "label_lists", "shards", "json_lines",
         "karpathy", "lines", "crossmodal3600", "sugar_crepe", "winoground", "aro_boxes",
         "order_table", "crisscrossed", "simlex")  # fmt: skip
JUDGED = ("composition", "similarity")
"""The tasks whose data are human judgments (`judged/`)."""
SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Layout:
    """One form in which a data set is stored on disk.

    Attributes:
      kind: how it is read, one of `KINDS`.
      name: TFDS name with its config, or the folder.
      splits: what the layout calls `train`, `validation` and `test`; in TFDS this may be a part of
        a split, and for class folders it is "" if they are in the folder itself.
      own_names: the layout's own names for its labels, in order; None if it has none.
      order: for each label of the layout, the position of its class in `Benchmark.classes()`, or
        `ABSENT`. Several labels may have the same class. None if there are no labels.
      order_source: where the order of the labels is documented.
      label: the feature or member that holds the class.
      caption: the feature or member that holds the texts.
    """

    kind: str
    name: str
    splits: Mapping[str, str]
    own_names: tuple[str, ...] | None = None
    order: tuple[int, ...] | None = None
    order_source: str = ""
    label: str = ""
    caption: str = ""

    def __post_init__(self):
        check_known("kind", self.kind, KINDS)
        if unknown := set(self.splits) - set(SPLITS):
            raise ValueError(f"{self.name} has the splits {sorted(unknown)}, which are no {SPLITS}")
        if (self.order is None) != (not self.order_source):
            raise ValueError(f"{self.name}: an order of labels and its source go together")
        if self.own_names is not None and len(self.own_names) != len(self.order or ()):
            raise ValueError(f"{self.name} has {len(self.own_names)} names for its labels")


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A data set, and how a table in a paper measures it.

    Attributes:
      name: its name on a command line.
      title: its name for people.
      task: one of `TASKS`.
      metric: the number that the papers report: a score of `evaluators/scores.py`, or
        `mean_recall`.
      layouts: the layouts to look for, in this order.
      license: URL of its license or terms.
      page: URL of its home page.
      get: how to get the data, in one line.
      tables: the tables and figures of papers that it belongs to, as in "CLIP Table 11".
      class_list: a list of the package; None if there are no classes, or they are in the data.
      subset: positions in the list of the classes that count, in the benchmark's order; None for
        all.
      wordnet: whether the classes are WordNet ids named by the data, as in ImageNet-21K.
      captions: least number of captions per image.
      language: the language of the captions, "" if there are none.
      folds: number of parts of equal length into which a split is cut, each measured separately.
      sizes: number of examples in the splits of the whole data set, where known.
    """

    name: str
    title: str
    task: str
    metric: str
    layouts: tuple[Layout, ...]
    license: str
    page: str
    get: str
    tables: tuple[str, ...]
    class_list: str | None = None
    subset: tuple[int, ...] | None = None
    wordnet: bool = False
    captions: int = 0
    language: str = ""
    folds: int = 1
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        check_known(f"{self.name}: task", self.task, TASKS)
        if self.task in ("classification", "multilabel") and not (self.class_list or self.wordnet):
            raise ValueError(f"{self.name} has no class list")
        if self.subset is not None and len(set(self.subset)) < len(self.subset):
            raise ValueError(f"{self.name} has a class twice in its subset")

    def classes(self) -> ClassList:
        """Returns the classes in the order of the labels, with their templates.

        Those that are in the data are read by `opening.read_class_list`.
        """
        if self.class_list is None:
            raise UserError(f"{self.name} has no class list of the package")
        return take_classes(self.class_list, self.subset)

    @property
    def has_images(self) -> bool:
        """Whether there are images: SimLex-999 has only words."""
        return self.layouts[0].kind != "simlex"

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that some layout has."""
        return tuple(s for s in SPLITS if any(s in layout.splits for layout in self.layouts))


@functools.lru_cache(maxsize=256)
def take_classes(name: str, subset: tuple[int, ...] | None) -> ClassList:
    """Returns the classes at given positions of a list of the package, or all classes for None."""
    classes = read_classes(name)
    if subset is None:
        return classes
    outside = [position for position in subset if not 0 <= position < len(classes)]
    if outside:
        raise UserError(f"the class list {name} has no position {outside[0]} of {len(classes)}")
    return classes.take(subset)
