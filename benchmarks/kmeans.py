"""Time of an iteration of spherical k-means against its matrix product, scikit-learn and faiss.

    python benchmarks/kmeans.py                                 # n = 65536, k = 1024, d = 256
    python benchmarks/kmeans.py --count=1000000 --k=16384 --dim=512 --start=sampled

An iteration compares n rows with k centers: 2 n k d FLOPs, which is the bound. Everything else, the
largest of each row's k cosines and the sums of the rows of each center, passes over memory once. On
rows of unit length, Lloyd's iteration compares the same numbers and differs in that centers are
means instead of directions, so scikit-learn's KMeans and faiss's are the measure of speed.

All start from the same centers, chosen by our k-means++ (timed by itself), and make the same number
of iterations. Time is that of a run of them less that of a run of one, over one less iterations;
runs take turns, and the median counts. The objective is the mean cosine of rows to the nearest
center in the end, computed alike for all. faiss's row needs faiss installed (pip install
faiss-cpu), and its spherical k-means; scikit-learn's its `lloyd`. Data are directions around
2 k middles, as embeddings lie in clumps.
"""

import argparse
import itertools
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import jax
import jax.numpy as jnp
import numpy as np

from big_align.clusters.kmeans import SphericalKMeans
from big_align.clusters.kmeans_init import Sample, scale_rows, start_centers
from big_align.clusters.nearest_centers import CHUNK
from big_align.parallel.meshes import make_mesh

OURS, SKLEARN, FAISS = "ours", "scikit-learn lloyd", "faiss spherical"
NOISE = 1.0


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=65536, help="rows")
    parser.add_argument("--k", type=int, default=1024, help="centers")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument(
        "--iterations", type=int, default=6, help="iterations per timed run, at least 2"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--start", choices=("kmeans++", "sampled"), default="kmeans++")
    parser.add_argument("--block", type=int, help="centers per block, in ours")
    parser.add_argument("--chunk", type=int, default=CHUNK)
    parser.add_argument("--candidates", type=int, help="in ours: bfloat16, and again in float32")
    return parser.parse_args()


def draw(options: argparse.Namespace) -> np.ndarray:
    """Returns unit-length rows around twice as many middles as there are centers."""
    rng = np.random.default_rng(0)
    middles = scale_rows(rng.standard_normal((2 * options.k, options.dim), np.float32))
    noise = rng.standard_normal((options.count, options.dim), np.float32)
    noise *= NOISE / np.sqrt(options.dim)
    return scale_rows(middles[rng.integers(0, len(middles), options.count)] + noise)


def make_ours(values: np.ndarray, start: np.ndarray, options: argparse.Namespace) -> Callable:
    """Returns a call that makes so many iterations and returns the centers."""
    mesh = make_mesh()
    sizes = options.block, options.chunk, options.candidates
    means = SphericalKMeans(Sample(values), len(start), mesh, *sizes)

    def run(iterations: int) -> np.ndarray:
        *_, last = itertools.islice(means.iterate(start), iterations)
        return last.centers()

    return run


def make_sklearn(values: np.ndarray, start: np.ndarray) -> Callable:
    """Returns the same of scikit-learn's KMeans."""
    from sklearn.cluster import KMeans

    def run(iterations: int) -> np.ndarray:
        means = KMeans(len(start), init=start, n_init=1, max_iter=iterations, tol=0)
        return means.fit(values).cluster_centers_

    return run


def make_faiss(values: np.ndarray, start: np.ndarray) -> Callable | None:
    """Returns the same of faiss, or None where it cannot be imported."""
    try:
        import faiss
    except ImportError:
        return None
    faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))

    def run(iterations: int) -> np.ndarray:
        means = faiss.Kmeans(
            values.shape[1], len(start), niter=iterations, spherical=True,
            min_points_per_centroid=1,
            max_points_per_centroid=len(values),
        )  # fmt: skip
        means.train(values, init_centroids=start)
        return means.centroids

    return run


def make_product(values: np.ndarray, start: np.ndarray, chunk: int) -> Callable:
    """Returns a call that makes an iteration's products alone, and sums them."""
    centers = jnp.asarray(start)
    product = jax.jit(lambda x, y: jnp.matmul(x, y.T))
    chunks = [jnp.asarray(values[first : first + chunk]) for first in range(0, len(values), chunk)]

    def run(iterations: int) -> None:
        for _ in range(iterations):
            for x in chunks:
                jax.block_until_ready(product(x, centers))

    return run


def measure_objective(values: np.ndarray, centers: np.ndarray) -> float:
    """Returns the mean cosine of rows to the nearest center, computed by NumPy."""
    centers = scale_rows(centers)
    best = [(values[i : i + CHUNK] @ centers.T).max(axis=1) for i in range(0, len(values), CHUNK)]
    return float(np.concatenate(best).mean(dtype=np.float64))


def time_iterations(
    calls: dict[str, Callable], iterations: int, rounds: int
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Returns the median seconds of an iteration of each, in turns, and what each returned."""
    seconds = {name: [] for name in calls}
    results = {}
    for call in calls.values():
        call(1)  # Compiles, and starts threads.
    for _ in range(rounds):
        for name, call in calls.items():
            times = []
            for number in (1, iterations):
                begin = time.perf_counter()
                results[name] = call(number)
                times.append(time.perf_counter() - begin)
            seconds[name].append((times[1] - times[0]) / (iterations - 1))
    return {name: statistics.median(times) for name, times in seconds.items()}, results


def main() -> None:
    """Prints the table."""
    options = parse_arguments()
    values = draw(options)
    begin = time.perf_counter()
    start = start_centers(Sample(values), options.k, options.start, make_mesh())
    chosen = time.perf_counter() - begin
    calls = {
        "matmul": make_product(values, start, options.chunk),
        OURS: make_ours(values, start, options),
        SKLEARN: make_sklearn(values, start),
    }
    faiss = make_faiss(values, start)
    if faiss:
        calls[FAISS] = faiss
    seconds, centers = time_iterations(calls, options.iterations, options.rounds)
    flops = 2.0 * len(values) * options.k * options.dim
    print(f"n = {len(values)}, k = {options.k}, d = {options.dim}, float32, ", end="")
    print(f"{jax.default_backend()}, {len(os.sched_getaffinity(0))} cores")
    print(f"{options.start}: {chosen:.1f} s, objective {measure_objective(values, start):.5f}")
    titles = [f"{title:>8s}" for title in ("s", "GFLOP/s", "of bound", "speed", "objective")]
    print(" ".join([f"{'an iteration':20s}", *titles]))
    for name, time_of in seconds.items():
        bound, speed = seconds["matmul"] / time_of, seconds[SKLEARN] / time_of
        row = f"{name:20s} {time_of:8.3f} {flops / time_of / 1e9:8.0f} {bound:8.0%} {speed:7.2f}x"
        if name != "matmul":
            row += f" {measure_objective(values, centers[name]):9.5f}"
        print(row)
    if not faiss:
        print(f"{FAISS:20s} not measured: faiss is not installed")


if __name__ == "__main__":
    main()
