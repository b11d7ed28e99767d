"""Opens the data sets of judgments, in the layouts in which they are distributed."""

from collections.abc import Callable

from big_align.core.errors import UserError
from big_align.suites.benchmark import Benchmark
from big_align.suites.judged.choice_files import read_boxes, read_sugar_crepe, read_winoground
from big_align.suites.judged.judgments import Judged
from big_align.suites.judged.order_tables import read_order_tables
from big_align.suites.judged.rating_files import read_crisscrossed, read_simlex
from big_align.suites.opening import find_layout

_READERS: dict[str, Callable[[str], Judged]] = {
    "sugar_crepe": read_sugar_crepe,
    "winoground": read_winoground,
    "aro_boxes": read_boxes,
    "order_table": read_order_tables,
    "simlex": read_simlex,
}
COCO_SPLITS = {"test": "test", "validation": "val"}


def open_judged(benchmark: Benchmark, split: str, folder: str) -> Judged:
    """Opens a data set of judgments; decodes no image."""
    found = find_layout(benchmark, split, folder)
    try:
        if found.layout.kind == "crisscrossed":
            return read_crisscrossed(found.path, COCO_SPLITS[split])
        return _READERS[found.layout.kind](found.path)
    except UserError as error:
        raise UserError(f"{benchmark.name}: {error}") from error
