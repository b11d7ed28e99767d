"""Images, texts and labels: UniCL, iCLIP and what they are compared with, on real photographs.

    python benchmarks/image_text_label.py --output=workdirs/comparison              # both
    python benchmarks/image_text_label.py --output=... --tables=all_classes --seeds=3

Every row is trained from scratch by `main.py`, once a seed; a run that is finished is not repeated,
and one that was interrupted continues. The tables:

  unification   UniCL Tables 5 and 6, captions and labels: configs/unicl_flickr8k.py
  all_classes   iCLIP Table 4, batches smaller than the class list: configs/iclip_tiny_imagenet.py

It needs $BIG_ALIGN_DATA, and WordNet in $NLTK_DATA for the descriptions of the last one. Numbers
are percentages: mean and standard deviation over the seeds.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
DESCRIBED = ROOT / "data" / "tiny_imagenet_described.json"


class Row(NamedTuple):
    """One method.

    Attributes:
      name: in the table.
      config: what is trained.
      columns: the metric of each column; "" leaves it empty.
    """

    name: str
    config: str
    columns: tuple[str, ...]


class Table(NamedTuple):
    """Methods that are compared, and the names of the columns."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def _flickr(name: str, method: str, head: str = "", labels: str = "zero_shot/top1") -> Row:
    columns = (labels, head, "linear_probe/accuracy")
    columns += ("retrieval/image_to_text_r10", "retrieval/text_to_image_r10")
    return Row(name, f"configs/unicl_flickr8k.py:{method}", columns)


def _tiny(name: str, method: str) -> Row:
    columns = ("zero_shot/top1", "zero_shot/top5")
    columns += ("retrieval/image_to_text_r10", "retrieval/text_to_image_r10")
    return Row(name, f"configs/iclip_tiny_imagenet.py:{method}", columns)


RETRIEVAL = ("image to text R@10", "text to image R@10")
TABLES = {
    "unification": Table(
        ("202 classes by text", "by a linear head", "linear probe on grocery", *RETRIEVAL),
        (
            _flickr("captions only", "captions"),
            _flickr("labels only", "labels"),
            _flickr("both, UniCL", "both"),
            _flickr("both, separate heads", "multitask", head="classification/top1"),
        ),
    ),
    "all_classes": Table(
        ("202 classes top-1", "top-5", *RETRIEVAL),
        (
            _tiny("UniCL", "unicl"),
            _tiny("iCLIP, names", "iclip_names"),
            _tiny("iCLIP, names and descriptions", "iclip"),
        ),
    ),
}


def describe_classes() -> None:
    """Makes the descriptions of the 202 classes, once."""
    if DESCRIBED.exists():
        return
    DESCRIBED.parent.mkdir(exist_ok=True)
    data = os.environ.get("BIG_ALIGN_DATA", "../shared/data")
    call(
        "-m",
        "big_align.tools.describe_classes",
        f"--classes={data}/tiny_imagenet/classes.json",
        f"--output={DESCRIBED}",
    )


def call(*arguments: str) -> None:
    """Runs Python in the root of the repository and lets it print."""
    command = [sys.executable, *arguments]
    if code := subprocess.run(command, cwd=ROOT).returncode:
        sys.exit(f"failed with exit status {code}: {' '.join(command)}")


def train_config(config: str, workdir: pathlib.Path, *flags: str) -> dict[str, float]:
    """Trains a config, or finds it trained; returns the last value of every metric."""
    finished = workdir / "finished"
    if not finished.exists():
        call("main.py", f"--config={config}", f"--workdir={workdir}", *flags)
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    results = {name: value for line in lines for name, value in line.items()}
    if not any("/" in name for name in results):
        sys.exit(f"{workdir} was stopped before its evaluation; the same command continues")
    finished.touch()
    return results


def train(row: Row, seed: int, output: pathlib.Path, flags: list[str]) -> dict[str, float]:
    """Trains a row, or finds it trained; returns its evaluation."""
    name = pathlib.Path(row.config.split(":")[0]).stem
    workdir = output / f"{name}-{row.config.split(':')[1]}-{seed}"
    return train_config(row.config, workdir, f"--config.seed={seed}", *flags)


def format_cell(values: list[float]) -> str:
    """Returns "mean ± deviation" in percent."""
    percent = [100 * value for value in values]
    spread = f" ± {statistics.stdev(percent):.1f}" if len(percent) > 1 else ""
    return f"{statistics.mean(percent):.1f}{spread}"


def main() -> None:
    """Trains what is missing and prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("flags", nargs="*", help="flags for main.py, after --")
    options = parser.parse_args()
    output = options.output.absolute()
    for name in options.tables:
        table = TABLES[name]
        if name == "all_classes":
            describe_classes()
        found: dict[str, list[dict[str, float]]] = {row.name: [] for row in table.rows}
        for seed in range(options.seeds):
            for row in table.rows:
                found[row.name].append(train(row, seed, output, options.flags))
        print(f"\n{name}, {options.seeds} seeds\n\n| | {' | '.join(table.columns)} |")
        print("|---" * (len(table.columns) + 1) + "|")
        for row in table.rows:
            cells = [
                format_cell([result[metric] for result in found[row.name]]) if metric else ""
                for metric in row.columns
            ]
            print(f"| {row.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
