"""What the cheaper ways of clustering give up: CIFAR-10's embeddings, each way against the exact.

    python benchmarks/cluster_options.py --embeddings=workdirs/cluster_settings/features

The embeddings are those that the experiment `cluster_settings` clusters: 50,000 images, 1280
numbers each, by the command of `tools.embed` in configs/mlcd_cifar10.py. The first table starts
from the exact centers and only looks for the nearest of them: for how many images are these the
ones found in float32? The second runs the whole of `tools.cluster`: the mean cosine of all images
to their nearest center; normalized mutual information with CIFAR-10's ten classes; the share of
images in the same cluster as by the exact way once clusters are matched one to one, as well as they
can be; and seconds, k-means and labels. Runs from other seeds, of the exact way, show how much of a
difference is chance.
"""

import pathlib
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks import measuring
from big_align.configs.common import data_dir
from big_align.data.precomputed.embedding_files import ClusterFolder, EmbeddingFolder
from big_align.parallel.meshes import make_mesh
from big_align.use.clusters.cluster_embeddings import Plan, find_centers, write_labels
from big_align.use.clusters.nearest_centers import NearestCenters

CANDIDATES = {1: (1, 2, 4), 8: (8, 12, 16)}
"""Candidates by the number of nearest centers: one in k-means, eight for labels."""


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


def list_searches(rows: EmbeddingFolder, centers: np.ndarray) -> Iterator[tuple]:
    """Yields the rows of the first table."""
    for count, numbers in CANDIDATES.items():
        _, exact, whole = search(rows, centers, count)
        for number in numbers:
            _, label, seconds = search(rows, centers, count, number)
            same = (np.sort(label, 1) == np.sort(exact, 1)).all(axis=1).mean()
            yield count, number, f"{same:.3%}", f"{seconds:.1f}", f"{whole:.1f}"


def main() -> None:
    """Prints both tables."""
    from sklearn.metrics import normalized_mutual_info_score

    parser = measuring.make_parser(__doc__, k=1000)
    parser.add_argument("--embeddings", required=True, type=pathlib.Path)
    options = parser.parse_args()
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
    clustered = {"exact": cluster(rows, exact)}
    centers, first, *_ = clustered["exact"]
    columns = "nearest", "candidates", "equal sets", "s", "s in float32"
    title = f"the nearest of {len(centers)} exact centers, of {rows.count} images"
    measuring.print_table(columns, list_searches(rows, centers), title)

    def describe(name: str) -> tuple:
        centers, label, iterations, seconds = clustered.get(name) or cluster(rows, plans[name])
        cosine = search(rows, centers)[0].mean(dtype=np.float64)
        nmi, same = normalized_mutual_info_score(classes, label), match(first, label, k)
        return name, f"{cosine:.5f}", f"{nmi:.4f}", f"{same:.1%}", iterations, f"{seconds:.1f}"

    columns = "", "mean cosine", "NMI with classes", "as exact", "iterations", "s"
    measuring.print_table(columns, map(describe, plans), f"k = {k}, of {rows.count} images")


if __name__ == "__main__":
    main()
