"""CLIP_benchmark's side of clip_benchmark.py: a job, in an environment of its own.

It needs torch, open_clip and clip_benchmark, and nothing of big_align; clip_benchmark.py says what
is done to them, and why.
"""

import importlib.machinery
import json
import pathlib
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:] = [path for path in sys.path if pathlib.Path(path).resolve() != HERE]  # same names

import numpy as np
import torch

NEWTON_WEIGHTS = 5000
"""Up to so many weights the whole matrix of second derivatives is used."""
OPERATORS = ("nms", "qnms")
"""Of torchvision, which it looks up when it is imported."""


class Absent:
    """Finds modules that CLIP_benchmark imports and does not use here: they are empty."""

    def find_spec(self, name: str, path: Any = None, target: Any = None):
        """Tells who makes a module."""
        absent = name.partition(".")[0] == "pycocoevalcap"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if absent else None

    def create_module(self, spec: Any) -> None:
        """Leaves it to Python."""

    def exec_module(self, module: Any) -> None:
        """Gives every public name something."""
        module.PTBTokenizer = module.Bleu = module.Meteor = object
        module.Rouge = module.Cider = module.Spice = object


def work(job: dict[str, Any]) -> None:
    """Does a job in CLIP_benchmark's environment: one of its tasks, or scikit-learn's probe."""
    operators = torch.library.Library("torchvision", "FRAGMENT")
    for name in OPERATORS:
        operators.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    sys.meta_path.append(Absent())
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_, **__: self
    if job["task"] == "probe":
        probe(job)
        return
    from clip_benchmark import cli

    output = job["output"]
    files = []
    for flag, value in (("classname", job["names"]), ("template", job["texts"])):
        path = f"{output}/{flag}.json"
        pathlib.Path(path).write_text(json.dumps(value))
        files += [f"--custom_{flag}_file", path]
    sys.argv = [
        "clip_benchmark", "eval", "--dataset", *(f"wds/{name}" for name in job["sets"]),
        "--dataset_root", f"{job['data']}/wds_{{dataset}}", "--task", job["task"],
        "--model", f"local-dir:{job['model']}", "--pretrained", "", "--no_amp", "--quiet",
        "--num_workers", str(job["workers"]), "--batch_size", "64", "--recall_k", "1", "5", "10",
        "--train_split", "fit", "--val_split", "val", "--feature_root", f"{output}/features",
        "--output", f"{output}/{{dataset}}.json", *files,
    ]  # fmt: skip
    cli.main()


def probe(job: dict[str, Any]) -> None:
    """Fits scikit-learn's logistic regression on features of open_clip, at the given strengths."""
    import open_clip
    from clip_benchmark.datasets.builder import build_dataset
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{job['model']}")
    model.eval().visual.proj = None
    found = {}
    for name, strength in job["sets"].items():
        root, parts = f"{job['data']}/wds_{name}", []
        for split in ("train", "test"):
            source = build_dataset(f"wds/{name}", root, transform, split)
            with torch.no_grad():
                rows = [(model.encode_image(x).double().numpy(), y) for x, y in source.batched(64)]
            parts += [np.concatenate(column) for column in zip(*rows, strict=True)]
        x, y, test, label = parts
        # Of two classes it has one vector v, where ours has v / 2 and -v / 2: half the penalty.
        inverse = (2 if len(set(y)) == 2 else 1) / strength
        # Its L-BFGS can need more than 10,000 iterations, where features are nearly dependent.
        few = x.shape[1] * len(set(y)) <= NEWTON_WEIGHTS
        solver = "newton-cholesky" if few else "newton-cg"
        with threadpool_limits(1):  # on busy cores more threads wait for each other
            fit = LogisticRegression(C=inverse, max_iter=1000, tol=1e-8, solver=solver).fit(x, y)
        found[name] = float((fit.predict(test) == label).mean())
    pathlib.Path(job["output"], "probe.json").write_text(json.dumps(found))


if __name__ == "__main__":
    work(json.loads(pathlib.Path(sys.argv[1]).read_text()))
