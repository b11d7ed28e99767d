"""What the cheaper ways of clustering give up: CIFAR-10's embeddings, each way against the exact.

    python benchmarks/cluster_options.py --embeddings=workdirs/cluster_settings/features

The embeddings are those that `benchmarks/cluster_settings.py` clusters: 50,000 images, 1280 numbers
each, by the command of `tools.embed` in configs/mlcd_cifar10.py. The first table starts from the
exact centers and only looks for the nearest of them: for how many images are these the ones found
in float32? The second runs the whole of `tools.cluster`: the mean cosine of all images to their
nearest center; normalized mutual information with CIFAR-10's ten classes; the share of images in
the same cluster as by the exact way once clusters are matched one to one, as well as they can be;
and seconds, k-means and labels. Runs from other seeds, of the exact way, show how much of a
difference is chance.
"""

import argparse
import pathlib
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np

from big_align.clusters.cluster_embeddings import Plan, find_centers, write_labels
from big_align.clusters.nearest_centers import NearestCenters
from big_align.configs.common import data_dir
from big_align.data.precomputed.embedding_files import ClusterFolder, EmbeddingFolder
from big_align.parallel.meshes import make_mesh

CANDIDATES = {1: (1, 2, 4), 8: (8, 12, 16)}
"""Candidates by the number of nearest centers: one in k-means, eight for labels."""


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--embeddings", required=True, type=pathlib.Path)
    parser.add_argument("--k", type=int, default=1000, help="centers (%(default)s)")
    return parser.parse_args()


def read_classes(rows: EmbeddingFolder) -> np.ndarray:
    """Returns the class of each image."""
    classes = {}
    for path in sorted(pathlib.Path(data_dir(), "cifar10").glob("train-*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.endswith(".cls"):
                    classes[member.name.removesuffix(".cls")] = int(tar.extractfile(member).read())
    return np.array([classes[key] for shard in rows.shards for key in rows.keys(shard)])


def cluster(rows: EmbeddingFolder, plan: Plan) -> tuple[np.ndarray, np.ndarray, int, float]:
    """Returns centers, the nearest of each image, iterations, and seconds."""
    mesh = make_mesh()
    with tempfile.TemporaryDirectory() as name:
        folder, begin = pathlib.Path(name), time.perf_counter()
        centers = find_centers(rows, plan, folder, mesh, say=lambda _: None)
        write_labels(rows, centers, plan, folder, mesh)
        seconds = time.perf_counter() - begin
        found = ClusterFolder(folder)
        label = np.concatenate([found.array(shard)[:, 0] for shard in found.shards])
        return centers, label, len(found.index["objective"]), seconds


def search(
    rows: EmbeddingFolder, centers: np.ndarray, count: int = 1, candidates: int | None = None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns cosines and numbers of the nearest centers of each image, and seconds."""
    find = NearestCenters(centers, make_mesh(), count, candidates=candidates)
    next(find(rows))  # compiles
    begin = time.perf_counter()
    cosine, label = (np.concatenate(x) for x in zip(*find(rows), strict=True))
    return cosine, label, time.perf_counter() - begin


def match(label: np.ndarray, other: np.ndarray, k: int) -> float:
    """Returns the share of images in equal clusters, matched one to one as well as they can be."""
    from scipy.optimize import linear_sum_assignment

    counts = np.zeros((k, k), np.int64)
    np.add.at(counts, (label, other), 1)
    return counts[linear_sum_assignment(counts, maximize=True)].sum() / len(label)


def print_search(rows: EmbeddingFolder, centers: np.ndarray) -> None:
    """Prints the first table."""
    print(f"the nearest of {len(centers)} exact centers, of {rows.count} images")
    print("| nearest | candidates | equal sets | s | s in float32 |\n|---|---|---|---|---|")
    for count, numbers in CANDIDATES.items():
        _, exact, whole = search(rows, centers, count)
        for number in numbers:
            _, label, seconds = search(rows, centers, count, number)
            same = (np.sort(label, 1) == np.sort(exact, 1)).all(axis=1).mean()
            print(f"| {count} | {number} | {same:.3%} | {seconds:.1f} | {whole:.1f} |", flush=True)


def main() -> None:
    """Prints both tables."""
    from sklearn.metrics import normalized_mutual_info_score

    options = parse_arguments()
    rows, k = EmbeddingFolder(options.embeddings), options.k
    classes, exact = read_classes(rows), Plan(k=k, labels_per_image=8)
    plans = {
        "exact": exact,
        "exact, seed 1": exact._replace(seed=1),
        "exact, seed 2": exact._replace(seed=2),
        **{f"candidates = {n}": exact._replace(candidates=n) for n in (1, 2, 4)},
        **{f"sample = {n} k": exact._replace(sample=n * k) for n in (32, 16, 8)},
        "sample = 32 k, candidates = 2": exact._replace(sample=32 * k, candidates=2),
    }
    first = None
    for name, plan in plans.items():
        centers, label, iterations, seconds = cluster(rows, plan)
        first = label if first is None else first
        if plan is exact:
            print_search(rows, centers)
            print(f"\nk = {k}, of {rows.count} images")
            print("| | mean cosine | NMI with classes | as exact | iterations | s |")
            print("|---|---|---|---|---|---|")
        cosine = search(rows, centers)[0].mean(dtype=np.float64)
        nmi, same = normalized_mutual_info_score(classes, label), match(first, label, k)
        told = f"{cosine:.5f} | {nmi:.4f} | {same:.1%} | {iterations} | {seconds:.1f}"
        print(f"| {name} | {told} |", flush=True)


if __name__ == "__main__":
    main()
