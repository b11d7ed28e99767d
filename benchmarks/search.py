"""Queries a second of an index of a million embeddings: ScaNN as we set it, exact search, faiss.

    python benchmarks/search.py                                  # 1,000,000 x 512, 10 GB of memory
    python benchmarks/search.py --data=uniform --count=200000    # the hard case

Every method answers the same queries, many at a time, in rounds that take turns. Approximate
methods use the fastest settings of a grid that find the fraction --recall of the 10 nearest. What
is ours is what an index does: ScaNN's candidates, and their cosines from float16 rows on the disk.
Memory is what the process grows by when a method is loaded and has answered, without pages of files
that are mapped: these the system drops where others need the memory. The bound of exact search is
its matrix product alone.

The data are made: `mixture` has directions around 5000 middles in 64 dimensions, mapped to all and
with noise on all, as embeddings of images lie in clumps of low dimension; `uniform` are directions
drawn evenly, among which no neighbor is near. Queries are drawn alike. faiss's rows need faiss-cpu;
its best are chosen among HNSW and 4-bit product codes in an inverted file, compared again by 8
bits. With --folder, what was built stays there for the next run; build times are then those of the
run that built it.
"""

import argparse
import ctypes
import functools
import gc
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks import measuring
from big_align.use.search.stores import scann_rows
from big_align.use.search.stores.exact_search import rescore, search_exactly
from big_align.use.search.stores.scann_rows import ScannRows, ScannSettings, measure_recall

K = 10
EXACT, PRODUCT, OURS = "exact (ours)", "matrix product alone", "ours (ScaNN)"
FLAT, HNSW, CODES = "faiss exact", "faiss HNSW", "faiss IVF-PQ"
FACTORIES = {FLAT: "Flat", CODES: "IVF{leaves},PQ{blocks}x4fs,Refine(SQ8)", HNSW: "HNSW32"}


class Method(NamedTuple):
    """A way to search."""

    search: Callable[[np.ndarray], np.ndarray]  # from queries to the numbers of the nearest rows
    recall: float  # of the 10 nearest
    megabytes: float
    build: float  # seconds
    settings: str  # in words


def draw(count: int, dim: int, data: str, seed: int) -> np.ndarray:
    """Returns rows of unit length, made a part at a time."""
    rng, shape = np.random.default_rng(seed), np.random.default_rng(7)
    middles = shape.standard_normal((5000, 64), np.float32)
    basis = shape.standard_normal((64, dim), np.float32) / 8
    rows = np.empty((count, dim), np.float32)
    for first in range(0, count, 50_000):
        part = rows[first : first + 50_000]
        part[:] = rng.standard_normal(part.shape, np.float32)
        if data == "mixture":
            inner = 0.7 * rng.standard_normal((len(part), 64), np.float32)
            inner += middles[rng.integers(0, len(middles), len(part))]
            part *= 0.3
            part += inner @ basis
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return rows


def read_memory() -> float:
    """Returns the memory of the process in MiB."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # what was freed counts no more
    _, resident, of_files, *_ = map(int, pathlib.Path("/proc/self/statm").read_text().split())
    return (resident - of_files) * os.sysconf("SC_PAGE_SIZE") / 2**20


def build_once(path: pathlib.Path, build: Callable[[], None]) -> float:
    """Builds what is not there; returns the seconds that it took, now or then."""
    noted = path.with_name(f"{path.name}.seconds.json")
    if not noted.exists():
        noted.write_text(json.dumps(measuring.time_once(build)))
    return json.loads(noted.read_text())


def prepare_ours(rows, queries, true, options, folder) -> Method:
    """Builds, loads and tunes ScaNN; candidates are compared with float16 rows of a file."""
    path, stored = folder / "scann", folder / "rows.npy"
    seconds = build_once(path, lambda: ScannRows.build(rows).save(path))
    if not stored.exists():
        np.save(stored, rows.astype(np.float16))
    leaves = scann_rows.count_leaves(len(rows))
    own = np.full(len(queries), -1)
    most = ScannSettings(leaves, leaves, scann_rows.REORDERED[-1])
    ScannRows.load(path, most)  # imports TensorFlow, which is not the index's memory
    before = read_memory()
    found = ScannRows.load(path, most)
    mapped = np.load(stored, mmap_mode="r")
    half = len(queries) // 2  # one half chooses, both measure
    given = {"images": (queries[:half], own[:half])}
    chosen, _ = scann_rows.choose_settings(found, rows, given, options.recall)

    def search(values: np.ndarray) -> np.ndarray:
        return rescore(values, mapped, found.search(values, K + 1, chosen.settings), K)[0]

    recall = measure_recall(search(queries), true)
    _, searched, reordered = chosen.settings
    told = f"{searched} of {leaves} leaves, {reordered * K} again"
    return Method(search, recall, read_memory() - before, seconds, told)


def prepare_faiss(name, rows, queries, true, options, folder) -> Method:
    """Builds, loads and tunes an index of faiss."""
    import faiss

    faiss.omp_set_num_threads(measuring.CORES)
    path, dim = folder / name.replace(" ", "_"), rows.shape[1]
    leaves = scann_rows.count_leaves(len(rows))

    def build() -> None:
        text = FACTORIES[name].format(leaves=leaves, blocks=dim // 2)
        made = faiss.index_factory(dim, text, faiss.METRIC_INNER_PRODUCT)
        if not made.is_trained:
            made.train(rows[: scann_rows.TRAINED_ON])
        made.add(rows)
        faiss.write_index(made, str(path))

    seconds = build_once(path, build)
    before = read_memory()
    index = faiss.read_index(str(path))

    def search(values: np.ndarray) -> np.ndarray:
        return index.search(values, K)[1]

    half = len(queries) // 2
    best: tuple[float, float, dict[str, int]] | None = None
    space = faiss.ParameterSpace()
    for settings in list_settings(name, leaves):
        for field, value in settings.items():
            space.set_index_parameter(index, field, value)
        begin = time.perf_counter()
        recall = measure_recall(search(queries[:half]), true[:half])
        here = time.perf_counter() - begin
        passes = recall >= options.recall
        if best is None or (passes, -here if passes else recall) > (
            best[0] >= options.recall, -best[1] if best[0] >= options.recall else best[0],
        ):  # fmt: skip
            best = recall, here, settings
    for field, value in best[2].items():
        space.set_index_parameter(index, field, value)
    recall = measure_recall(search(queries), true)
    told = ", ".join(f"{field} {value}" for field, value in best[2].items())
    return Method(search, recall, read_memory() - before, seconds, told)


def list_settings(name: str, leaves: int) -> Iterator[dict[str, int]]:
    """Yields the settings that are tried."""
    if name == HNSW:
        yield from ({"efSearch": ef} for ef in (16, 32, 64, 128, 256, 512))
    elif name == CODES:
        fractions = scann_rows.SEARCHED[:-2]
        for again in (5, 10, 20, 40):
            for share in fractions:
                probes = max(1, round(share * leaves))
                yield {"nprobe": probes, "k_factor_rf": again}
    else:
        yield {}


def multiply(rows: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Computes all cosines and keeps none."""
    for first in range(0, len(rows), 16384):
        queries @ rows[first : first + 16384].T
    return np.zeros((len(queries), 0), np.int64)


def time_methods(
    methods: dict[str, Method], queries: np.ndarray, rounds: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the queries a second of each, many at a time, and the seconds of one alone."""
    calls = {name: functools.partial(each.search, queries) for name, each in methods.items()}
    many = measuring.time_in_turns(calls, rounds)

    def search_each(method: Method) -> None:
        for number in range(5):
            method.search(queries[number : number + 1])

    single = {name: functools.partial(search_each, each) for name, each in methods.items()}
    alone = measuring.time_in_turns(single, rounds)
    rates = {name: len(queries) / seconds for name, seconds in many.items()}
    return rates, {name: seconds / 5 for name, seconds in alone.items()}


def run(options: argparse.Namespace, folder: pathlib.Path) -> None:
    """Builds and measures, and prints the table."""
    folder = folder / f"{options.data}-{options.count}x{options.dim}"
    folder.mkdir(parents=True, exist_ok=True)
    rows = draw(options.count, options.dim, options.data, 0)
    queries = draw(options.queries, options.dim, options.data, 1)
    true, _ = search_exactly(queries, rows, K)
    size = rows.nbytes / 2**20
    methods = {
        PRODUCT: Method(lambda q: multiply(rows, q), 1.0, size, 0, ""),
        EXACT: Method(lambda q: search_exactly(q, rows, K)[0], 1.0, size, 0, "float32"),
    }
    given = rows, queries, true, options, folder
    for name in options.methods.split(","):
        try:
            prepared = prepare_ours(*given) if name == OURS else prepare_faiss(name, *given)
        except ImportError:
            print(f"{name}: not measured, faiss is not installed")
            continue
        methods[name] = prepared
        print(f"{name}: built in {prepared.build:.0f} s, recall {prepared.recall:.3f}", flush=True)
    if options.build_only:
        return
    rates, alone = time_methods(methods, queries, options.rounds)
    fastest = max(rates[name] for name in (EXACT, FLAT) if name in rates)

    def describe(name: str) -> tuple:
        _, recall, megabytes, build, told = methods[name]
        found = "" if name == PRODUCT else f"{recall:.3f}"
        speed = f"{rates[name]:.0f}", rates[name] / fastest, f"{1000 * alone[name]:.1f}"
        return name, *speed, found, f"{megabytes:.0f}", megabytes / size, f"{build:.0f}", told

    title = f"{options.data}, {options.count} x {options.dim}, {options.queries} queries at a "
    title += f"time, recall@{K} of at least {options.recall:g}, {measuring.CORES} cores"
    columns = "", "queries/s", "x exact", "one alone (ms)", "recall@10", "MiB", "memory"
    measuring.print_table((*columns, "built (s)", ""), map(describe, methods), title)


def main() -> None:
    """Runs in the folder that is kept, or in one that is not."""
    given = dict(count=1_000_000, dim=512, queries=1000, recall=0.95, rounds=3)
    parser = measuring.make_parser(__doc__, **given, methods=",".join((FLAT, OURS, CODES, HNSW)))
    parser.add_argument("--data", choices=("mixture", "uniform"), default="mixture")
    parser.add_argument("--folder", type=pathlib.Path, help="a folder that keeps what was built")
    parser.add_argument("--build_only", action="store_true", help="stop after building")
    options = parser.parse_args()
    if options.folder:
        run(options, options.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        run(options, pathlib.Path(folder))


if __name__ == "__main__":
    main()
