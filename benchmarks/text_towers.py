"""A text tower for image towers that have learned clusters, and are locked: MLCD §4.1, in small.

    python benchmarks/text_towers.py --output=workdirs/text_towers

For each seed an encoder is trained (configs/unicl_flickr8k.py:both), and 11,050 photographs are
embedded by it and clustered. Image towers are trained from scratch on the clusters alone, by each
loss (configs/mlcd_photographs.py: no caption, no label), and then a text tower is trained for each
(configs/lit_flickr8k.py). What is finished is not repeated. It needs $BIG_ALIGN_DATA. Numbers are
percentages: mean and standard deviation over the seeds. All rows have one learning rate;
benchmarks/cluster_settings.py asks which loss is better, on more images and with a rate for each.
"""

import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.image_text_label import call, print_table, train_config
from big_align.configs import common

ENCODER = "configs/unicl_flickr8k.py:both"
CLUSTERS = 1000
LABELS = {"unicom": 1, "mlc": 8, "mlcd": 8}
"""Labels of an image by each loss."""
COLUMNS = {
    "202 classes by text": "zero_shot/top1",
    "image to text R@10": "retrieval/image_to_text_r10",
    "text to image R@10": "retrieval/text_to_image_r10",
}


def make_clusters(seed: int, output: pathlib.Path) -> pathlib.Path:
    """Trains the encoder of a seed, embeds the photographs and clusters them; returns the folder.

    Every part is found again where it was made before.
    """
    encoder, embeddings = output / f"encoder-{seed}", output / f"embeddings-{seed}"
    clusters = output / f"clusters-{CLUSTERS}-{seed}"
    train_config(ENCODER, encoder, f"--config.seed={seed}")
    if not clusters.exists():
        source = f"{common.data_dir()}/{{flickr8k,tiny_imagenet}}/train-*.tar"
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
            f"--k={CLUSTERS}",
            f"--labels_per_image={max(LABELS.values())}",
            f"--seed={seed}",
            f"--output={clusters}",
        )
    return clusters


def train_towers(loss: str, seed: int, output: pathlib.Path) -> dict[str, float]:
    """Trains an image tower on clusters and a text tower for it; returns what it reads out."""
    tower, text = output / f"{loss}-{seed}", output / f"text-{loss}-{seed}"
    train_config(
        "configs/mlcd_photographs.py",
        tower,
        f"--config.seed={seed}",
        f"--config.data.precomputed.clusters={make_clusters(seed, output)}",
        f"--config.objective.num_clusters={CLUSTERS}",
        f"--config.objective.loss={loss}",
        f"--config.objective.labels_per_image={LABELS[loss]}",
    )
    return train_config(
        "configs/lit_flickr8k.py", text, f"--config.seed={seed}", f"--config.init.image={tower}"
    )


def main() -> None:
    """Trains what is missing and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    output = options.output.absolute()
    found = {
        loss.upper(): [train_towers(loss, seed, output) for seed in range(options.seeds)]
        for loss in LABELS
    }
    print_table("text towers", COLUMNS, found)


if __name__ == "__main__":
    main()
