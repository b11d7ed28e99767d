"""Named benchmarks against CLIP_benchmark: the same weights, the same shards, every number of both.

    python -m venv /tmp/clip_benchmark               # torch's side has an environment of its own
    /tmp/clip_benchmark/bin/pip install torch 'numpy<2.4' pillow scikit-learn tqdm webdataset \\
        transformers regex ftfy huggingface-hub safetensors requests
    /tmp/clip_benchmark/bin/pip install --no-deps torchvision timm clip-benchmark open_clip_torch
    python benchmarks/clip_benchmark.py --theirs=/tmp/clip_benchmark/bin/python --limit=200
    python benchmarks/clip_benchmark.py --theirs=/tmp/clip_benchmark/bin/python   # all images

The data are made from $BIG_ALIGN_DATA in CLIP_benchmark's layout: CIFAR-10 with its 10,000 test
images, Flickr8k's test split, and 25 small data sets. These have the names, the classes, the order
of labels and the templates of those that they are called after, and other pictures: photographs of
ten classes of `tiny_imagenet` and `grocery`, each class in one data set alone, with labels from the
first to the last of its own. So their numbers say nothing about a model and everything about the
two programs.

The weights are exported by `tools.convert --format=open_clip`: `--model=small` is trained on
Flickr8k for two minutes, `--model=b32` is a ViT-B/32 and its text tower as they are drawn. Both
sides compute in float32 (`--no_amp` there), in processes of their own, one after the other; the
seconds are those of whole commands, imports, compilation and loading of weights among them.

What is compared. Zero-shot classification and retrieval: every number of CLIP_benchmark is held to
0.05 points. Linear probe: CLIP_benchmark's is ten epochs of AdamW on unit-length embeddings, ours
CLIP's logistic regression on features before the projection, at its minimum. These are two
estimators, whose numbers are shown and held to nothing; ours is held to scikit-learn's logistic
regression on open_clip's features at the same strength, to 0.05 points. Both search their strength
on a fifth of the training images and fit again on all.

What had to be done to CLIP_benchmark: its probe asserts CUDA and calls `.cuda()`. Here it runs with
`python -O`, which leaves assertions out, and `.cuda()` returns its object. torchvision's operators
nms and qnms are defined without a body where its build does not have them; captioning's
pycocoevalcap is an empty module. None of them is used.

Predicted before it was timed. A forward pass of ViT-B/32 on two cores is 1.7 to 1.9 times as fast
as torch's (encoders.py), decoding and resizing are the same library on both sides, and theirs
reads weights and starts workers anew for each data set, while ours compiles once, about 15 s. So
zero-shot 1.5 with `b32` on all images, and 1.5 with `small`, where starting counts most; retrieval
1.3, of one data set; the linear probe 3, as it is 20 trainings of ten epochs there; everything in
one command 2.5, since ours embeds test images once and CLIP_benchmark for each task. The bound of
embedding is the FLOPs of a forward pass over the rate of a large matmul, and decoding beside it.
"""

import argparse
import json
import pathlib
import shutil
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from benchmarks import measuring
from benchmarks.clip_benchmark_data import (
    SIZES,
    choose_sets,
    describe_texts,
    make_data,
    make_model,
)
from benchmarks.measuring import ROOT, run_python

THEIRS = ROOT / "benchmarks" / "clip_benchmark_theirs.py"
POINTS = 0.05
PROBE_WORKERS = 0
"""Of CLIP_benchmark's probe: with more of them it forks in each of its 200 epochs."""
TASKS = {
    "zero_shot": "zeroshot_classification",
    "retrieval": "zeroshot_retrieval",
    "linear_probe": "linear_probe",
}
"""Ours, and what CLIP_benchmark calls them."""
Row = tuple[str, str, float, float, bool]
"""A data set, the name of a number, theirs, ours, and whether they must be equal."""


def run_ours(
    model: pathlib.Path,
    data: pathlib.Path,
    names: list[str],
    tasks: list[str],
    output: pathlib.Path,
) -> tuple[float, dict[tuple[str, str], dict[str, float]]]:
    """Measures with big_align from scratch; returns the seconds, and numbers by set and task."""
    shutil.rmtree(output, ignore_errors=True)
    seconds = run_python(
        "-m", "big_align.tools.benchmark", f"--model={model}", f"--benchmarks={','.join(names)}",
        f"--tasks={','.join(tasks)}", f"--data={data}", f"--output={output}/results.csv",
    )  # fmt: skip
    rows = json.loads((output / "results.json").read_text())
    return seconds, {(row["dataset"], row["task"]): row["metrics"] for row in rows}


def run_theirs(python: str, job: dict[str, Any], output: pathlib.Path) -> float:
    """Runs a job in CLIP_benchmark's environment; returns the seconds."""
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    (output / "job.json").write_text(json.dumps(job | {"output": str(output)}))
    return run_python("-O", str(THEIRS), str(output / "job.json"), python=python)


def read_theirs(folder: pathlib.Path, name: str) -> dict[str, float]:
    """Returns the numbers of a data set that CLIP_benchmark wrote."""
    metrics = json.loads((folder / f"{name}.json").read_text())["metrics"]
    numbers = ("acc", "mean_per_class", "lp_", "image_retrieval", "text_retrieval")
    return {k: v for k, v in metrics.items() if k.startswith(numbers) and v == v}


def compare(rows: list[Row]) -> int:
    """Prints every number of both; returns how many of those that are held differ too much."""
    apart = [100 * abs(ours - theirs) for _, _, theirs, ours, held in rows if held]
    wrong = sum(not points <= POINTS for points in apart)

    def describe(row: Row) -> tuple:
        name, number, theirs, ours, held = row
        points = 100 * abs(ours - theirs)
        told = "another estimator" if not held else "" if points <= POINTS else "differs"
        return name, number, f"{100 * theirs:.2f}", f"{100 * ours:.2f}", f"{points:.3f}", told

    columns = "data set", "number", "theirs", "ours", "points", ""
    measuring.print_table(columns, map(describe, rows))
    print(f"\n{len(apart)} numbers are held to {POINTS} points; the largest difference is ", end="")
    print(f"{max(apart, default=0.0):.4f}; {wrong} differ by more")
    return wrong


def measure(options: argparse.Namespace) -> int:
    """Runs both sides task by task, ours once more with all of them, and prints the tables."""
    output = options.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    model = make_model(options.model, output)
    data = output / f"data_{options.limit or 'all'}"
    make_data(data, options.limit)
    layouts = dict(list(choose_sets().items())[: options.sets])
    names, texts = describe_texts(layouts)
    shared = {"model": str(model), "data": str(data), "names": names, "texts": texts}
    labeled, seconds, rows = {n: x.name for n, x in layouts.items()}, {}, []
    for task in options.tasks:
        own = {"flickr8k": "flickr8k"} if task == "retrieval" else labeled
        workers = PROBE_WORKERS if task == "linear_probe" else options.workers
        job = shared | {"task": TASKS[task], "sets": list(own.values()), "workers": workers}
        folder = output / f"theirs_{task}"
        theirs = run_theirs(options.theirs, job, folder)
        ours, found = run_ours(model, data, list(own), [task], output / f"ours_{task}")
        seconds[task] = theirs, ours
        print(f"{task}: theirs {theirs:.1f} s, ours {ours:.1f} s", flush=True)
        for name, shards in own.items():
            for number, value in read_theirs(folder, shards).items():
                mine = found[name, TASKS[task]][number]
                rows.append((name, number, value, mine, task != "linear_probe"))
        if task == "linear_probe":
            numbers = {shards: found[name, task] for name, shards in own.items()}
            rows += compare_probe(options.theirs, shared, numbers, output / "probe")
    if len(options.tasks) > 1:
        every = [*labeled, *(["flickr8k"] if "retrieval" in options.tasks else [])]
        ours, _ = run_ours(model, data, every, options.tasks, output / "ours")
        seconds["all (ours: one command)"] = sum(theirs for theirs, _ in seconds.values()), ours
    wrong = compare(rows)
    ratios = ([task, theirs, ours, theirs / ours] for task, (theirs, ours) in seconds.items())
    measuring.print_table(("", "theirs (s)", "ours (s)", "ratio"), ratios)
    return int(wrong > 0)


def compare_probe(
    python: str, shared: dict[str, Any], numbers: dict[str, dict], output: pathlib.Path
) -> list[Row]:
    """Fits scikit-learn's logistic regression at the strengths that ours has chosen."""
    strengths = {shards: mine["lp_strength"] for shards, mine in numbers.items()}
    run_theirs(python, shared | {"task": "probe", "sets": strengths}, output)
    theirs = json.loads((output / "probe.json").read_text())
    title = "lp_acc1, scikit-learn"
    return [(name, title, theirs[name], mine["lp_acc1"], True) for name, mine in numbers.items()]


def main() -> int:
    """Makes what is missing, measures with both, and prints the tables."""
    parser = measuring.make_parser(__doc__)
    add = parser.add_argument
    add("--theirs", required=True, help="the Python of CLIP_benchmark's environment")
    add("--output", type=pathlib.Path, default=ROOT / "workdirs/clip_benchmark")
    add("--model", choices=SIZES, default="small")
    add("--limit", type=int, help="about how many images per split (default: all)")
    add("--sets", type=int, help="how many data sets with classes (default: all 26)")
    add("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    add("--workers", type=int, default=2, help="CLIP_benchmark's, that read images (%(default)s)")
    return measure(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
