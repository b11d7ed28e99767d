"""Draws what clusters stand for and how a model sees images (MLCD, Fig. 2, 3, 6 and 7) as PNG.

    python -m big_align.tools.show_clusters --source='data/train-*.tar' --clusters=clusters \\
        --embeddings step_1000 step_2000 --centers workdirs/mlcd/checkpoints/{1000,2000} \\
        --model=workdirs/mlcd --output=pictures

The flags decide what is drawn:
  labels.png   with --clusters and --source: images, and beside each its nearest clusters with
               other images of these clusters.
  cosines.png  with --clusters and --embeddings: histograms of the cosines of images with their
               labels and with other centers; several folders show how they change in training.
  patches.png  with --model and --source: images and the principal components of their patches.
"""

import argparse
import functools
import os
import random
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from big_align.config.components.source_flags import add_source_flags, open_source
from big_align.core.errors import UserError, WrongValue
from big_align.core.regular_files import map_array
from big_align.data.boundary import name_example
from big_align.data.examples import Source
from big_align.data.images.image_ops import Transform
from big_align.data.precomputed.embedding_files import ClusterFolder, EmbeddingFolder
from big_align.data.precomputed.shard_files import list_shards
from big_align.evaluators.exhibits.clusters import Place, find_examples
from big_align.pages.plots import cluster_pictures
from big_align.runs import workdir
from big_align.tools import command

BATCH = 1024


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = command.make_parser("show_clusters", __doc__)
    add = parser.add_argument
    add("--output", required=True, help="the folder for the pictures")
    add_source_flags(parser, required=False)
    add("--clusters", help="a folder that big_align.tools.cluster wrote")
    add("--embeddings", nargs="+", default=[], help="folders that big_align.tools.embed wrote")
    add("--centers", nargs="+", default=[],
        help="centers [k d]: a file (.npy), a workdir or WORKDIR/checkpoints/STEP; one for all "
        "--embeddings, or one for each if the centers are trained too (default: those of "
        "--clusters)")  # fmt: skip
    add("--model", help="a workdir, or anything else that big_align.tools.convert reads")
    add("--images", type=int, default=4, help="number of images to show (%(default)s)")
    add("--labels", type=int, default=3, help="number of labels per image (%(default)s)")
    add("--examples", type=int, default=6, help="number of other images per label (%(default)s)")
    add("--samples", type=int, default=20_000, help="images in the histograms (%(default)s)")
    add("--negatives", type=int, default=1024, help="other centers in the histograms (%(default)s)")
    add("--seed", type=int, default=0, help="random seed (%(default)s)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return command.run(show, parse_arguments(arguments))


def show(options: argparse.Namespace) -> None:
    """Draws the pictures, writes them and prints where they are."""
    command.check_least(options, images=1, labels=1, examples=1, samples=1, negatives=1)
    figures = draw(options)
    os.makedirs(options.output, exist_ok=True)
    for name, figure in figures.items():
        path = os.path.join(options.output, f"{name}.png")
        figure.savefig(path, dpi=100)
        print(path)


def draw(options: argparse.Namespace) -> dict[str, Figure]:
    """Draws the pictures for which the options suffice; returns them by name."""
    given = options.source, options.source_name, options.source_argument
    source = open_source(*given)[0] if options.source else None
    clusters = ClusterFolder(options.clusters) if options.clusters else None
    if clusters and source and clusters.shards != list_shards(source):
        raise UserError(
            f"{clusters.path} has other shards than the source: it was made of other examples"
        )
    chosen = choose_images(options, source, clusters) if source else []
    figures = {}
    if source and clusters:
        figures["labels"] = draw_labels(options, source, clusters, chosen)
    if clusters and options.embeddings:
        figures["cosines"] = draw_cosines(options, clusters)
    if source and options.model:
        figures["patches"] = draw_patches(options.model, source, chosen)
    if not figures:
        raise WrongValue(
            "give --source with --clusters or --model, or --clusters with --embeddings: there is "
            "nothing to draw"
        )
    return figures


def choose_images(
    options: argparse.Namespace, source: Source, clusters: ClusterFolder | None
) -> list[Place]:
    """Chooses images at random; if there are clusters, images that have labels."""
    ends = np.cumsum(source.shard_sizes)
    # More than are shown, as some may have no label.
    tries = min(int(ends[-1]), 20 * options.images)
    numbers = np.random.default_rng(options.seed).choice(int(ends[-1]), tries, replace=False)
    chosen = []
    for number in numbers.tolist():
        shard = int(np.searchsorted(ends, number, side="right"))
        place = shard, int(number - ends[shard] + source.shard_sizes[shard])
        if clusters is None or clusters.array(clusters.shards[shard])[place[1], 0] >= 0:
            chosen.append(place)
    return chosen[: options.images]


def draw_labels(
    options: argparse.Namespace, source: Source, clusters: ClusterFolder, chosen: list[Place]
) -> Figure:
    """Draws the labels of the chosen images (Fig. 2, 7)."""
    nothing = np.zeros((0, clusters.labels_per_image), np.int32)
    arrays = (clusters.array(shard) if shard.count else nothing for shard in clusters.shards)
    labels = {}
    for shard, row in chosen:
        nearest = clusters.array(clusters.shards[shard])[row, : options.labels]
        labels[shard, row] = nearest[nearest >= 0].tolist()
    wanted = {label for some in labels.values() for label in some}
    # One more than are shown, as the image itself may be among them.
    examples = find_examples(arrays, wanted, options.examples + 1)
    show = Transform("resize_small(160)|central_crop(160)")
    keys = functools.lru_cache(lambda shard: clusters.keys(clusters.shards[shard]))

    def pixels(place: Place) -> np.ndarray:
        with name_example(source, *place):
            example, key = source.read(*place), keys(place[0])[place[1]]
            if example.key != key:
                raise UserError(
                    f"{source.name(*place)} has the key {example.key!r}, but in {clusters.path} it "
                    f"is {key!r}: the clusters are of other examples"
                )
            return show(example.image, random.Random(0))

    return cluster_pictures.draw_labels(labels, examples, pixels, options.examples)


def draw_cosines(options: argparse.Namespace, clusters: ClusterFolder) -> Figure:
    """Draws the cosines of each folder of embeddings (Fig. 3)."""
    paths, centers = options.embeddings, options.centers
    if len(centers) not in (0, 1, len(paths)):
        raise WrongValue(f"--centers names {len(centers)} files for {len(paths)} --embeddings")
    tables = [read_centers(path) for path in centers] or [clusters.centers]
    tables *= len(paths) // len(tables)
    names = [os.path.basename(os.path.normpath(path)) for path in paths]
    titles = names if len(set(names)) == len(paths) else paths
    measured = {}
    for path, title, table in zip(paths, titles, tables, strict=True):
        folder = EmbeddingFolder(path)
        check_examples(folder, clusters)
        numbers = np.linspace(0, folder.count - 1, min(options.samples, folder.count), dtype=int)
        batches = (
            (folder.take(some), take_labels(clusters, some))
            for some in np.array_split(numbers, -(-len(numbers) // BATCH))
        )
        measured[title] = cluster_pictures.measure_cosines(
            batches, table, options.negatives, options.seed
        )
    return cluster_pictures.draw_cosines(measured)


def read_centers(path: str) -> np.ndarray:
    """Opens centers [k d]: a file, or those that were trained, from a checkpoint."""
    if os.path.isdir(path):
        return workdir.TrainedRun(Path(path)).read_centers()
    centers = map_array(path)
    if centers.ndim != 2:
        raise UserError(f"{path} is {list(centers.shape)}; centers are [k d]")
    return centers


def check_examples(folder: EmbeddingFolder, clusters: ClusterFolder) -> None:
    """Checks that two folders are of the same examples."""
    for one, other in zip(folder.shards, clusters.shards, strict=False):
        if one != other or (one.count and folder.key_lines(one) != clusters.key_lines(other)):
            raise UserError(
                f"the shard {one.name} of {folder.path} holds other examples than {other.name} of "
                f"{clusters.path}"
            )
    if len(folder.shards) != len(clusters.shards):
        raise UserError(
            f"{folder.path} has {len(folder.shards)} shards and {clusters.path} "
            f"{len(clusters.shards)}: they are of other examples"
        )


def take_labels(clusters: ClusterFolder, numbers: np.ndarray) -> np.ndarray:
    """Reads the labels of chosen rows."""
    places = map(clusters.locate, numbers.tolist())
    return np.stack([clusters.array(shard)[index] for shard, index in places])


def draw_patches(model: str, source: Source, chosen: list[Place]) -> Figure:
    """Draws the components of the patches of the chosen images (Fig. 6)."""
    pretrained = workdir.read_pretrained(model)
    prepare = Transform(cluster_pictures.find_preprocessing(pretrained).transform)
    images = []
    for place in chosen:
        with name_example(source, *place):
            images.append(prepare(source.read(*place).image, random.Random(0)))
    pixels = np.stack(images)
    return cluster_pictures.draw_patches(
        pixels, cluster_pictures.patch_features(pretrained, pixels)
    )


if __name__ == "__main__":
    sys.exit(main())
