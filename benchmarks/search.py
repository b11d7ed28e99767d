"""Queries a second of an index of a million embeddings: our stores, exact search, faiss.

    python benchmarks/search.py                                  # 1,000,000 x 512
    python benchmarks/search.py --data=uniform --count=200000    # the hard case
    python benchmarks/search.py --count=10000000 --folder=DIR --methods=lancedb    # past a machine

Every method has a process of its own, whose memory is that of the method alone: it builds, and
answers the same queries, many at a time and one alone, in rounds in which the processes take turns.
Approximate methods use the fastest settings of a grid that find the fraction --recall of the 10
nearest. Stores are written and searched through their contract: each row is an image with a name, a
signature and a number from 0 to 99, by which filters leave 1% and 10% of them, but without captions
and thumbnails. Cosines are those of float16 rows on the disk.

Memory is what the process grows by when a method is loaded and has answered, and the peak of
building, both without pages of files that are mapped: these the system drops where others need the
memory. The bound of exact search is its matrix product alone. The update replaces 1% of the rows:
in a folder, everything is written and trained again, in LanceDB files with such rows and codes.

The data are made a part at a time, as a file of float16 rows: `mixture` has directions around 5000
middles in 64 dimensions, mapped to all and with noise on all, as embeddings of images lie in clumps
of low dimension; `uniform` are directions drawn evenly, among which no neighbor is near. Queries
are drawn alike. faiss's rows need faiss-cpu, and are not filtered; its best are chosen among HNSW
and 4-bit product codes in an inverted file, compared again by 8 bits. With --folder, what was built
stays there for the next run, and build times are those of the run that built it, until updated.
"""

import argparse
import ctypes
import functools
import gc
import json
import multiprocessing
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks import measuring
from big_align.use.search.stores import scann_rows
from big_align.use.search.stores.exact_search import search_exactly
from big_align.use.search.stores.recall import measure_recall

K, PART = 10, 50_000
EXACT, PRODUCT, OURS, LANCE = "exact (ours)", "matrix product alone", "ours (ScaNN)", "lancedb"
FLAT, HNSW, CODES = "faiss exact", "faiss HNSW", "faiss IVF-PQ"
FACTORIES = {FLAT: "Flat", CODES: "IVF{leaves},PQ{blocks}x4fs,Refine(SQ8)", HNSW: "HNSW32"}
SHARES = (1, 10)  # percent of the rows that filters leave


class Method(NamedTuple):
    """A way to search."""

    search: Callable[[np.ndarray, int | None], np.ndarray]  # queries, and the percent of the rows
    settings: str = ""  # in words
    update: Callable[[], Any] | None = None  # of 1% of the rows; returns the search of what is new
    filters: bool = True  # whether it can


class Data:
    """The rows in a folder, mapped; the queries, and the true neighbors of each."""

    def __init__(self, folder: pathlib.Path):
        self.rows, self.queries, self.share = (
            np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("rows", "queries", "share")
        )
        self.queries = np.array(self.queries)

    @functools.cached_property
    def allowed(self) -> dict[int | None, np.ndarray | None]:
        """The rows that a filter leaves."""
        return {None: None} | {each: np.flatnonzero(self.share < each) for each in SHARES}


def draw_parts(count: int, dim: int, data: str, seed: int) -> Iterator[np.ndarray]:
    """Yields rows of unit length."""
    rng, shape = np.random.default_rng(seed), np.random.default_rng(7)
    middles = shape.standard_normal((5000, 64), np.float32)
    basis = shape.standard_normal((64, dim), np.float32) / 8
    for first in range(0, count, PART):
        part = rng.standard_normal((min(PART, count - first), dim), np.float32)
        if data == "mixture":
            inner = 0.7 * rng.standard_normal((len(part), 64), np.float32)
            inner += middles[rng.integers(0, len(middles), len(part))]
            part *= 0.3
            part += inner @ basis
        part /= np.linalg.norm(part, axis=1, keepdims=True)
        yield part


def draw(count: int, dim: int, data: str, seed: int) -> np.ndarray:
    """Returns rows of unit length."""
    return np.concatenate(list(draw_parts(count, dim, data, seed)))


def make_data(options: argparse.Namespace, folder: pathlib.Path) -> None:
    """Writes rows, queries and true neighbors, unless they are there."""
    if (folder / "true10.npy").exists():
        return
    shape = options.count, options.dim
    rows = np.lib.format.open_memmap(folder / "rows.npy", "w+", np.float16, shape)
    for number, part in enumerate(draw_parts(*shape, options.data, 0)):
        rows[number * PART :][: len(part)] = part
    rows.flush()
    np.save(folder / "queries.npy", draw(options.queries, options.dim, options.data, 1))
    share = np.random.default_rng(3).integers(0, 100, options.count, np.int8)
    np.save(folder / "share.npy", share)
    data = Data(folder)
    for each, allowed in data.allowed.items():
        true, _ = search_exactly(data.queries, data.rows, K, allowed)
        np.save(folder / f"true{each}.npy", true)


def read_memory() -> float:
    """Returns the memory of the process in MiB, without pages of mapped files."""
    _, resident, of_files, *_ = map(int, pathlib.Path("/proc/self/statm").read_text().split())
    return (resident - of_files) * os.sysconf("SC_PAGE_SIZE") / measuring.MIB


def read_settled_memory() -> float:
    """Returns the memory of the process in MiB; what was freed counts no more."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return read_memory()


def time_and_watch(call: Callable[[], Any]) -> dict[str, float]:
    """Returns the seconds of a call, and how many MiB the process grew by at the most."""
    before, peak, done = read_settled_memory(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, read_memory())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        seconds = measuring.time_once(call)
    finally:
        done.set()
        watching.join()
    return {"seconds": seconds, "peak": max(0, peak - before)}


def measure_size(path: pathlib.Path) -> float:
    """Returns the MiB of a file, or of all in a folder."""
    files = [path, *path.rglob("*")]
    return sum(file.stat().st_size for file in files if file.is_file()) / measuring.MIB


def prepare_store(
    scheme: str,
    method: str,
    data: Data,
    options: argparse.Namespace,
    path: pathlib.Path,
    build: Any,
) -> Method:
    """An index, written through its contract, of images with names and a column of metadata."""
    import pyarrow as pa

    from big_align.use.search.stores import store

    if method == "scann":
        scann_rows.ScannRows.build(np.eye(32, dtype=np.float32))  # imports TensorFlow
    queries, address = data.queries[::2], f"{scheme}{path / 'index'}"
    settings = {"dtype": "float16", "model": "none", "weights": "", "thumbnail": 0}
    settings |= {"transform": None, "architecture": ""}
    goal = store.SearchGoal(
        options.recall, method, lambda *_: {"images": (queries, np.full(len(queries), -1))}
    )

    def bring_up_to_date() -> None:
        now = str(time.time_ns())  # the signature of each hundredth row
        with store.open_writer(address, settings, {}, lambda: data.rows.shape[1]) as to:
            block = to.block or len(data.rows)
            for first in range(0, len(data.rows), block):
                numbers = range(first, min(first + block, len(data.rows)))
                entries = [
                    store.IndexEntry(
                        f"shard-{n // 10_000:05d}.tar: {n:09d}", f"{n:09d}", "", n,
                        "" if n % 100 else now, [], None,
                    )
                    for n in numbers
                ]  # fmt: skip
                known = to.find_images([entry.name for entry in entries])
                new = [entry for entry in entries if not known(entry.name, entry.signature)]
                for start in range(0, len(new), PART):
                    some = new[start : start + PART]
                    rows = data.rows[[entry.number for entry in some]]
                    to.add_images(some, rows, [b""] * len(some))
                to.find_texts([])
                shares = data.share[first : first + len(entries)].astype(np.int64)
                to.end_block(entries, pa.table({"share": shares}), False)
            to.finish([], goal)

    build(bring_up_to_date)

    def reopen() -> tuple[Any, dict[str, Any]]:
        opened = store.open_store(address)

        # Rows of a first build are numbered in their order.
        def search(given: np.ndarray, share: int | None) -> np.ndarray:
            return opened.search("images", given, K, [] if share is None else [f"share<{share}"])[0]

        return search, opened.info["search"]["images"]

    def update() -> Any:
        bring_up_to_date()
        return reopen()[0]

    search, noted = reopen()
    scope = ("leaves", "partitions", "searched", "reordered")
    told = ", ".join(f"{noted[name]} {name}" for name in scope if name in noted)
    return Method(search, told, update)


def prepare_faiss(
    name: str, data: Data, options: argparse.Namespace, path: pathlib.Path, build: Any
) -> Method:
    """An index of faiss."""
    import faiss

    faiss.omp_set_num_threads(measuring.CORES)
    dim, leaves = data.rows.shape[1], scann_rows.count_leaves(len(data.rows))

    def build_once() -> None:
        text = FACTORIES[name].format(leaves=leaves, blocks=dim // 2)
        made = faiss.index_factory(dim, text, faiss.METRIC_INNER_PRODUCT)
        if not made.is_trained:
            made.train(np.float32(data.rows[: scann_rows.TRAINED_ON]))
        for first in range(0, len(data.rows), PART):
            made.add(np.float32(data.rows[first : first + PART]))
        faiss.write_index(made, str(path / "index"))

    build(build_once)
    index, space = faiss.read_index(str(path / "index")), faiss.ParameterSpace()
    half = data.queries[::2]
    true, _ = search_exactly(half, data.rows, K)
    best: Any = None
    for settings in list_settings(name, leaves):
        for field, value in settings.items():
            space.set_index_parameter(index, field, value)
        begin = time.perf_counter()
        reached = measure_recall(index.search(half, K)[1], true)
        seconds = time.perf_counter() - begin
        passes = reached >= options.recall
        rank = passes, -seconds if passes else reached
        if best is None or rank > best[0]:
            best = rank, settings
    for field, value in best[1].items():
        space.set_index_parameter(index, field, value)
    told = ", ".join(f"{field} {value}" for field, value in best[1].items())
    return Method(lambda given, _: index.search(given, K)[1], told, filters=False)


def list_settings(name: str, leaves: int) -> Iterator[dict[str, int]]:
    """Yields the settings that are tried."""
    if name == HNSW:
        yield from ({"efSearch": ef} for ef in (16, 32, 64, 128, 256, 512))
    elif name == CODES:
        for again in (5, 10, 20, 40):
            for share in scann_rows.SEARCHED[:-2]:
                yield {"nprobe": max(1, round(share * leaves)), "k_factor_rf": again}
    else:
        yield {}


def prepare_exact(data: Data, options: Any, path: Any, build: Any) -> Method:
    """All rows of the file, or all that a filter leaves."""
    return Method(lambda given, share: search_exactly(given, data.rows, K, data.allowed[share])[0])


def prepare_product(data: Data, options: Any, path: Any, build: Any) -> Method:
    """All cosines, none of which is kept."""

    def multiply(given: np.ndarray, _: int | None) -> np.ndarray:
        for first in range(0, len(data.rows), 16384):
            given @ np.float32(data.rows[first : first + 16384]).T
        return np.zeros((len(given), 0), np.int64)

    return Method(multiply, filters=False)


PREPARE = {
    PRODUCT: prepare_product,
    EXACT: prepare_exact,
    OURS: functools.partial(prepare_store, "", "scann"),
    LANCE: functools.partial(prepare_store, "lancedb:", "ivf_rq"),
}


def serve(name: str, options: argparse.Namespace, folder: pathlib.Path, connection: Any) -> None:
    """Builds and loads a method, tells of it, and then times what it is asked for."""
    path, data = folder / name.replace(" ", "_"), Data(folder)
    noted, built = path / "built.json", {}

    def build(call: Callable[[], Any]) -> None:
        if not noted.exists():
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
            noted.write_text(json.dumps(time_and_watch(call)))
        built.update(json.loads(noted.read_text()))

    try:
        make = PREPARE.get(name, functools.partial(prepare_faiss, name))
        before = read_settled_memory()
        method = make(data, options, path, build)
    except ImportError as error:
        connection.send(f"{error.name} is not installed")
        return
    asked = (None, *SHARES) if method.filters else (None,)
    recalls = {
        share: measure_recall(
            method.search(data.queries, share), np.load(folder / f"true{share}.npy")
        )
        for share in asked
    }
    facts = built | {"recalls": recalls, "settings": method.settings}
    facts |= {"updates": method.update is not None, "disk": measure_size(path)}
    connection.send(facts | {"memory": read_settled_memory() - before})
    for given, share in iter(connection.recv, None):
        if given == "update":
            noted.unlink()  # what is there is no longer what was built
            begin = time.perf_counter()
            method = method._replace(search=method.update())
            connection.send(time.perf_counter() - begin)
            continue
        few = data.queries[: 20 if given == "alone" else len(data.queries)]
        parts = few[:, None] if given == "alone" else [few]
        begin = time.perf_counter()
        for part in parts:
            method.search(part, share)
        connection.send((time.perf_counter() - begin) / len(few))


class Process:
    """A method in a process of its own."""

    def __init__(self, name: str, options: argparse.Namespace, folder: pathlib.Path):
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        given = name, options, folder, there
        self._process = context.Process(target=serve, args=given, daemon=True)
        self._process.start()
        there.close()
        self.facts = self._here.recv()

    def ask(self, *question: Any) -> float:
        """Returns the seconds of a query: "many" or "alone", or of "update"."""
        self._here.send(question)
        return self._here.recv()

    def end(self) -> None:
        """Ends the process."""
        if self._process.is_alive():
            self._here.send(None)
        self._process.join()


def run(options: argparse.Namespace, folder: pathlib.Path) -> None:
    """Builds and measures, and prints the table."""
    folder = folder / f"{options.data}-{options.count}x{options.dim}"
    folder.mkdir(parents=True, exist_ok=True)
    make_data(options, folder)
    methods = {}
    for name in [PRODUCT, EXACT, *options.methods.split(",")]:
        process = Process(name, options, folder)
        if isinstance(process.facts, str):
            print(f"{name}: not measured, {process.facts}")
            continue
        methods[name] = process
        print(f"{name}: ready", flush=True)
    questions = [(kind, None) for kind in ("many", "alone")]
    questions += [("many", share) for share in SHARES]
    times: dict[str, dict[Any, list[float]]] = {
        name: {question: [] for question in questions} for name in methods
    }
    for _ in range(options.rounds):
        for question in questions:
            for name, process in methods.items():
                if question[1] in process.facts["recalls"]:
                    times[name][question].append(process.ask(*question))
    updates = {name: ("", "") for name in methods}
    for name, process in methods.items():
        if process.facts["updates"]:
            seconds = process.ask("update", None)
            process.ask("many", None)
            after = np.median([process.ask("many", None) for _ in range(options.rounds)])
            updates[name] = f"{seconds:.0f}", f"{1 / after:.0f}"
    for process in methods.values():
        process.end()
    rates = {
        name: {q: 1 / np.median(each) if each else 0 for q, each in asked.items()}
        for name, asked in times.items()
    }
    fastest = max(rates[name][questions[0]] for name in (EXACT, FLAT) if name in rates)

    def describe(name: str) -> tuple:
        facts, rate = methods[name].facts, rates[name]
        filtered = [
            f"{rate['many', share]:.0f} ({found:.3f})"
            if (found := facts["recalls"].get(share))
            else ""
            for share in SHARES
        ]
        built = [f"{facts[each]:.0f}" if each in facts else "" for each in ("seconds", "peak")]
        found = "" if name == PRODUCT else f"{facts['recalls'][None]:.3f}"
        return (
            name, f"{rate['many', None]:.0f}", rate["many", None] / fastest,
            f"{1000 / rate['alone', None]:.1f}", found, *filtered, f"{facts['memory']:.0f}", *built,
            f"{facts['disk']:.0f}", *updates[name], facts["settings"],
        )  # fmt: skip

    title = f"{options.data}, {options.count} x {options.dim}, {options.queries} queries at a "
    title += f"time, recall@{K} of at least {options.recall:g}, {measuring.CORES} cores"
    columns = ("", "queries/s", "x exact", "one alone (ms)", "recall@10", "of 1% (recall)")
    columns += (
        "of 10% (recall)",
        "MiB",
        "built (s)",
        "peak (MiB)",
        "disk (MiB)",
        "1% anew (s)",
        "queries/s then",
        "",
    )
    measuring.print_table(columns, map(describe, methods), title)


def main() -> None:
    """Runs in the folder that is kept, or in one that is not."""
    given = dict(count=1_000_000, dim=512, queries=1000, recall=0.95, rounds=3)
    every = ",".join((FLAT, OURS, LANCE, CODES, HNSW))
    parser = measuring.make_parser(__doc__, **given, methods=every)
    parser.add_argument("--data", choices=("mixture", "uniform"), default="mixture")
    parser.add_argument("--folder", type=pathlib.Path, help="a folder that keeps what was built")
    options = parser.parse_args()
    if options.folder:
        run(options, options.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        run(options, pathlib.Path(folder))


if __name__ == "__main__":
    main()
