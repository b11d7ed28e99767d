"""Captions, labels and both in one model: UniCL and what it is compared with, on real photographs.

    python benchmarks/image_text_label.py --output=workdirs/comparison

Every row is trained from scratch by `main.py` with configs/unicl_flickr8k.py, once a seed; a run
that is finished is not repeated, and one that was interrupted continues. It needs $BIG_ALIGN_DATA.
Numbers are percentages: mean and standard deviation over the seeds.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent


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


def _flickr(name: str, method: str, head: str = "") -> Row:
    columns = ("zero_shot/top1", head, "linear_probe/accuracy")
    columns += ("retrieval/image_to_text_r10", "retrieval/text_to_image_r10")
    return Row(name, f"configs/unicl_flickr8k.py:{method}", columns)


COLUMNS = (
    *("202 classes by text", "by a linear head", "linear probe on grocery"),
    *("image to text R@10", "text to image R@10"),
)
ROWS = (
    _flickr("captions only", "captions"),
    _flickr("labels only", "labels"),
    _flickr("both, UniCL", "both"),
    _flickr("both, separate heads", "multitask", head="classification/top1"),
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


def print_table(
    name: str, columns: dict[str, str], rows: dict[str, list[dict[str, float]]]
) -> None:
    """Prints a table with a row for each method."""
    seeds = len(next(iter(rows.values())))
    print(f"\n{name}, {seeds} seeds\n\n| | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for title, found in rows.items():
        cells = [format_cell([each[metric] for each in found]) for metric in columns.values()]
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Trains what is missing and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("flags", nargs="*", help="flags for main.py, after --")
    options = parser.parse_args()
    output = options.output.absolute()
    found: dict[str, list[dict[str, float]]] = {row.name: [] for row in ROWS}
    for seed in range(options.seeds):
        for row in ROWS:
            found[row.name].append(train(row, seed, output, options.flags))
    print(f"\n{options.seeds} seeds\n\n| | {' | '.join(COLUMNS)} |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for row in ROWS:
        cells = [
            format_cell([result[metric] for result in found[row.name]]) if metric else ""
            for metric in row.columns
        ]
        print(f"| {row.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
