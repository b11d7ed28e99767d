"""MLCD, MLC and UNICOM on real photographs: the tables of the paper's ablations, in small.

    python benchmarks/clusters.py --output=workdirs/clusters                       # all tables
    python benchmarks/clusters.py --output=... --tables losses labels --seeds=3

For each seed an encoder is trained (configs/unicl_flickr8k.py:both), 11,050 photographs are
embedded by it and clustered, and image towers are trained from scratch on the clusters alone
(configs/mlcd_photographs.py: no caption, no label). Their frozen features are measured by a linear
probe and by the nearest neighbor. What is finished is not repeated. The tables:

  losses    MLCD Table 6 and 7: eq. 5, eq. 4 and the nearest center alone, and the encoder itself
  clusters  Table 5a: k        labels  Table 5c: l, the labels of an image
  texts     §4.1: a text tower for each locked tower of `losses` (configs/lit_flickr8k.py)

It needs $BIG_ALIGN_DATA. Numbers are percentages: mean and standard deviation over the seeds. All
rows have one learning rate; benchmarks/cluster_settings.py tunes each, on more images, and asks for
r, the scale and labels by similarity as well.
"""

import argparse
import json
import os
import pathlib
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.image_text_label import call, format_cell, train_config

ENCODER = "configs/unicl_flickr8k.py:both"
LABELS = 16
"""Nearest centers that are kept of each image: the most that any row uses."""


class Row(NamedTuple):
    """A tower trained on clusters; the default is what the paper settles on, but for k.

    Attributes:
      name: in the table.
      loss: of the objective.
      clusters: k.
      labels: l.
    """

    name: str
    loss: str = "mlcd"
    clusters: int = 1000
    labels: int = 8

    @property
    def folder(self) -> str:
        """What its workdir is called, without the seed."""
        return f"{self.loss}-k{self.clusters}-l{self.labels}"


LOSSES = (
    Row("UNICOM, the nearest center", "unicom", labels=1),
    Row("MLC, eq. 4", "mlc"),
    Row("MLCD, eq. 5"),
)
TABLES = {
    "losses": LOSSES,
    "clusters": tuple(Row(f"k = {k}", clusters=k) for k in (100, 300, 1000, 3000)),
    "labels": tuple(Row(f"l = {n}", labels=n) for n in (1, 4, 8, 16)),
    "texts": LOSSES,
}
PROBES = {
    "linear probe, tiny_imagenet": "tiny_imagenet/accuracy",
    "k-NN": "tiny_imagenet_knn/r1",
    "linear probe, grocery": "grocery/accuracy",
    "k-NN ": "grocery_knn/r1",
}
READ_OUT = {
    "202 classes by text": "zero_shot/top1",
    "image to text R@10": "retrieval/image_to_text_r10",
    "text to image R@10": "retrieval/text_to_image_r10",
}


def data_dir() -> str:
    """Returns the folder of data sets."""
    return os.environ.get("BIG_ALIGN_DATA", "../shared/data")


def make_clusters(row: Row, seed: int, output: pathlib.Path) -> pathlib.Path:
    """Trains the encoder of a seed, embeds the photographs and clusters them; returns the folder.

    Every part is found again where it was made before.
    """
    encoder, embeddings = output / f"encoder-{seed}", output / f"embeddings-{seed}"
    clusters = output / f"clusters-{row.clusters}-{seed}"
    train_config(ENCODER, encoder, f"--config.seed={seed}")
    if not clusters.exists():
        source = f"{data_dir()}/{{flickr8k,tiny_imagenet}}/train-*.tar"
        call(
            "-m",
            "big_align.tools.embed",
            f"--model={encoder}",
            f"--source={source}",
            f"--output={embeddings}",
        )
        call(
            "-m",
            "big_align.tools.cluster",
            f"--embeddings={embeddings}",
            f"--k={row.clusters}",
            f"--labels_per_image={LABELS}",
            f"--seed={seed}",
            f"--output={clusters}",
        )
    return clusters


def train_tower(row: Row, seed: int, output: pathlib.Path) -> dict[str, float]:
    """Trains the tower of a row and returns its probes."""
    clusters = make_clusters(row, seed, output)
    return train_config(
        "configs/mlcd_photographs.py",
        output / f"{row.folder}-{seed}",
        f"--config.seed={seed}",
        f"--config.data.precomputed.clusters={clusters}",
        f"--config.objective.num_clusters={row.clusters}",
        f"--config.objective.loss={row.loss}",
        f"--config.objective.labels_per_image={row.labels}",
    )


def train_text(row: Row, seed: int, output: pathlib.Path) -> dict[str, float]:
    """Trains a text tower on the locked tower of a row and returns what it reads out."""
    train_tower(row, seed, output)
    tower = output / f"{row.folder}-{seed}"
    workdir = output / f"text-{row.folder}-{seed}"
    return train_config(
        "configs/lit_flickr8k.py", workdir, f"--config.seed={seed}", f"--config.init.image={tower}"
    )


def probe_encoder(seed: int, output: pathlib.Path) -> dict[str, float]:
    """Measures the encoder that made the clusters as the towers are measured, once."""
    path = output / f"encoder-{seed}" / "probes.json"
    if not path.exists():
        from big_align.configs import mlcd_photographs, unicl_flickr8k
        from big_align.runs import build
        from big_align.runs.evaluate import evaluate_all, load_embedder

        config = unicl_flickr8k.get_config("both")
        tokenizer = build.build_tokenizer(config)
        embedder, _ = load_embedder(config, str(path.parent), tokenizer)
        evaluators = build.build_evaluators(mlcd_photographs.get_config(), tokenizer)
        path.write_text(json.dumps(evaluate_all(evaluators, embedder)))
    return json.loads(path.read_text())


def print_table(
    name: str, columns: dict[str, str], rows: dict[str, list[dict[str, float]]]
) -> None:
    """Prints a table, a row a method."""
    seeds = len(next(iter(rows.values())))
    print(f"\n{name}, {seeds} seeds\n\n| | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for title, found in rows.items():
        cells = [format_cell([each[metric] for each in found]) for metric in columns.values()]
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Trains what is missing and prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    output, seeds = options.output.absolute(), range(options.seeds)
    for name in options.tables:
        run = train_text if name == "texts" else train_tower
        rows = TABLES[name]
        found = {row.name: [] for row in rows}
        for seed in seeds:
            for row in rows:
                found[row.name].append(run(row, seed, output))
        if name == "losses":
            found = {"the encoder": [probe_encoder(seed, output) for seed in seeds]} | found
        print_table(name, READ_OUT if name == "texts" else PROBES, found)


if __name__ == "__main__":
    main()
