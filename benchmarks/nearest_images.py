"""Seconds to find near-duplicates among embeddings: ours, exact and by buckets, and faiss's.

    python benchmarks/nearest_images.py                          # a few minutes
    python benchmarks/nearest_images.py --rows=200000 --others=100000      # 20 minutes

Of each row the nearest of the others is asked for, as `tools.prepare --test_images` does, and what
counts is that those with a cosine above 0.975 are found. Rows and others lie around common middles
in 64 dimensions, as embeddings of images do (benchmarks/search.py); one row in ten is one of the
others with noise, at a cosine of 0.98 on average. faiss's inverted file has as many buckets as
ours and looks into as many. Both sides take turns, and building is counted: it is done once for
these rows. The bound is the matrix product of the exact search alone, at the speed of numpy's.
"""

import argparse
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import numpy as np
from search import draw

from big_align.duplicates.twins import Buckets, find_nearest
from big_align.parallel.meshes import make_mesh

NEAR, PLANTED, NOISE = 0.975, 0.1, 0.2


class Rows:
    """Rows in memory."""

    def __init__(self, values: np.ndarray):
        self.count, self.dim = values.shape
        self.read = lambda first, end: values[first:end]
        self.take = lambda numbers: values[numbers]


def plant(rows: np.ndarray, others: np.ndarray, seed: int = 2) -> None:
    """Makes one row in ten a noisy copy of one of the others, in place."""
    rng = np.random.default_rng(seed)
    copies = rng.choice(len(rows), round(PLANTED * len(rows)), replace=False)
    values = others[rng.integers(0, len(others), len(copies))]
    noise = rng.standard_normal(values.shape, np.float32) / np.sqrt(np.float32(values.shape[1]))
    values = values + NOISE * noise
    rows[copies] = values / np.linalg.norm(values, axis=1, keepdims=True)


def search_ours(rows: np.ndarray, others: np.ndarray, buckets: Buckets) -> np.ndarray:
    """Returns the cosine of each row with the nearest that is found."""
    mesh = make_mesh()
    return np.concatenate(
        [b.cosine for _, b in find_nearest(Rows(rows), Rows(others), buckets, mesh)]
    )


def search_faiss(rows: np.ndarray, others: np.ndarray, buckets: Buckets) -> np.ndarray:
    """Returns the same of faiss: a flat index, or an inverted file of float32 rows."""
    import faiss

    text = "Flat" if buckets.count == 1 else f"IVF{buckets.count},Flat"
    index = faiss.index_factory(others.shape[1], text, faiss.METRIC_INNER_PRODUCT)
    index.train(others)
    index.add(others)
    if buckets.count > 1:
        index.nprobe = buckets.probes
    return index.search(rows, 1)[0][:, 0]


def multiply(rows: np.ndarray, others: np.ndarray, _: Buckets) -> np.ndarray:
    """Computes all cosines and keeps the largest of a block."""
    for first in range(0, len(others), 16384):
        for start in range(0, len(rows), 16384):
            rows[start : start + 16384] @ others[first : first + 16384].T
    return np.full(len(rows), -1, np.float32)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50_000, help="training images")
    parser.add_argument("--others", type=int, default=60_000, help="test images")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    others = draw(options.others, options.dim, "mixture", 0)
    rows = draw(options.rows, options.dim, "mixture", 1)
    plant(rows, others)
    exact, chosen = Buckets(1, 1), Buckets.choose(options.others)
    methods: dict[str, tuple[Callable[..., np.ndarray], Buckets]] = {
        "matrix product alone": (multiply, exact),
        "ours, exact": (search_ours, exact),
        "ours, buckets": (search_ours, chosen),
    }
    try:
        import faiss  # noqa: F401

        methods |= {"faiss, exact": (search_faiss, exact), "faiss, buckets": (search_faiss, chosen)}
    except ImportError:
        print("faiss is not measured: it is not installed")
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    cosines = {}
    for _ in range(options.rounds):
        for name, (search, buckets) in methods.items():
            begin = time.perf_counter()
            cosines[name] = search(rows, others, buckets)
            seconds[name].append(time.perf_counter() - begin)
    near = cosines["ours, exact"] > NEAR
    print(f"{options.rows} rows, {options.others} others, {options.dim} numbers,", end=" ")
    print(f"{chosen.count} buckets of which {chosen.probes} are looked into; {near.sum()} near")
    print("| | seconds | x ours, exact | found of those near |\n|---|---|---|---|")
    whole = statistics.median(seconds["ours, exact"])
    for name, cosine in cosines.items():
        took, found = statistics.median(seconds[name]), (cosine[near] > NEAR).mean()
        told = "" if name == "matrix product alone" else f"{found:.3%}"
        print(f"| {name} | {took:.1f} | {whole / took:.2f} | {told} |")


if __name__ == "__main__":
    main()
