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
import functools
import itertools
import pathlib
import statistics
import sys
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measuring
from benchmarks.measuring import time_once
from big_align.parallel.meshes import make_mesh
from big_align.use.clusters.kmeans import SphericalKMeans
from big_align.use.clusters.kmeans_init import Sample, scale_rows, start_centers
from big_align.use.clusters.nearest_centers import CHUNK_CPU as CHUNK

OURS, SKLEARN, FAISS = "ours", "scikit-learn lloyd", "faiss spherical"
NOISE = 1.0


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
    faiss.omp_set_num_threads(measuring.CORES)

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
    results = {name: call(1) for name, call in calls.items()}  # Compiles, and starts threads.

    def run(name: str, number: int) -> None:
        results[name] = calls[name](number)

    for _, name in itertools.product(range(rounds), calls):
        one, all_ = (time_once(functools.partial(run, name, n)) for n in (1, iterations))
        seconds[name].append((all_ - one) / (iterations - 1))
    return {name: statistics.median(times) for name, times in seconds.items()}, results


def main() -> None:
    """Prints the table."""
    given = dict(count=65536, k=1024, dim=256, iterations=6, rounds=3, chunk=CHUNK)
    parser = measuring.make_parser(__doc__, **given)
    parser.add_argument("--start", choices=("kmeans++", "sampled"), default="kmeans++")
    parser.add_argument("--block", type=int, help="centers per block, in ours")
    parser.add_argument("--candidates", type=int, help="in ours: bfloat16, and again in float32")
    options = parser.parse_args()
    values, starts = draw(options), []
    sample, mesh = Sample(values), make_mesh()
    chosen = time_once(lambda: starts.append(start_centers(sample, options.k, options.start, mesh)))
    (start,) = starts
    calls = {
        "matmul": make_product(values, start, options.chunk),
        OURS: make_ours(values, start, options),
        SKLEARN: make_sklearn(values, start),
    }
    if faiss := make_faiss(values, start):
        calls[FAISS] = faiss
    seconds, centers = time_iterations(calls, options.iterations, options.rounds)
    flops = 2.0 * len(values) * options.k * options.dim

    def describe(name: str) -> tuple:
        taken = seconds[name]
        bound, speed = seconds["matmul"] / taken, seconds[SKLEARN] / taken
        reached = "" if name == "matmul" else f"{measure_objective(values, centers[name]):.5f}"
        return name, taken, f"{flops / taken / 1e9:.0f}", f"{bound:.0%}", speed, reached

    title = f"n = {len(values)}, k = {options.k}, d = {options.dim}, float32, "
    title += f"{measuring.describe_device()}; {options.start}: {chosen:.1f} s, "
    title += f"objective {measure_objective(values, start):.5f}"
    columns = "an iteration", "s", "GFLOP/s", "of bound", "speed", "objective"
    measuring.print_table(columns, map(describe, seconds), title)
    if not faiss:
        print(f"{FAISS} is not measured: faiss is not installed")


if __name__ == "__main__":
    main()
