"""Records a second a core of preparing data, by stage, and what a billion pairs would take.

For example:
  python benchmarks/prepare.py --records=20000
  python benchmarks/prepare.py --records=1000000 --workers=2 --side=16   # memory
  python benchmarks/prepare.py --records=3000000 --workers=2 --side=0 --megabytes=2048

Real alt-texts and photographs ($BIG_ALIGN_DATA) are repeated, with a number in each text, to make
--records records of Parquet. First the functions alone are timed, then each pipeline on
DirectRunner with one worker, whose time includes them. The difference is Beam's. ImageHash and
datasketch are timed beside them where they are installed; what they do is not the same:
near-duplicates of images and texts, where the rules count equal ones (and find near images by
embeddings).

DirectRunner itself keeps in memory what it groups. With --workers the stages are in other
processes, as they are on a cluster, and the memory of the largest is printed for each pipeline,
beside that of the process that runs them. A job bounds both by going through pairs and shards in
parts, of --megabytes as by its flag --part_megabytes. --side makes the
photographs smaller and all of them different: as many images as records, in minutes. With --side=0
there are no images: what is found out about them is made up, and counted and decided about, which
is faster still.
"""

import collections
import contextlib
import dataclasses
import io
import os
import pathlib
import resource
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from benchmarks import measuring
from big_align.core.digests import hash_bytes
from big_align.data import boundary
from big_align.data.shared import storage
from big_align.prepare import inputs, text_rules
from big_align.prepare.examination import Examination, identify_image
from big_align.prepare.on_beam import job, parts
from big_align.prepare.plan import JobPlan
from big_align.prepare.rules import Rules
from big_align.prepare.statistics import make_statistics

ALIGN_PAIRS = 1.8e9


class Watch(threading.Thread):
    """Notes the most memory of this process and of one that it has started, in MB.

    A fork that has not begun its own program yet is this process once more, and does not count.
    """

    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.own, self._over = 0.0, 0.0, threading.Event()
        self._program = pathlib.Path("/proc/self/cmdline").read_bytes()

    def run(self) -> None:
        """Looks ten times a second."""
        while not self._over.wait(0.1):
            family = measuring.read_family(os.getpid())
            own = family.pop(os.getpid(), {})
            self.own = max(self.own, int(own.get("VmRSS", "0 kB").split()[0]) / 2**10)
            for pid, told in family.items():
                with contextlib.suppress(OSError):  # it has just ended
                    size = int(told.get("VmHWM", "0 kB").split()[0]) / 2**10
                    if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() != self._program:
                        self.peak = max(self.peak, size)

    def __enter__(self) -> "Watch":
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        self.join()


class Cost(NamedTuple):
    """What a pipeline takes."""

    seconds: float  # of a core, per record
    shuffled: float  # bytes per record that are grouped by a key: they go from worker to worker
    memory: float  # of the largest worker at its peak, in MB
    runner: float  # memory of the process that runs them at its peak, in MB
    stages: dict[str, float]  # `memory`, of each grouping


@contextlib.contextmanager
def count_shuffled() -> Iterator[list[int]]:
    """Yields the sizes of what DirectRunner groups by keys meanwhile."""
    from apache_beam.runners.portability.fn_api_runner.execution import GroupingBuffer

    append, sizes = GroupingBuffer.append, []

    def count(buffer: GroupingBuffer, elements: bytes) -> None:
        sizes.append(len(elements))
        append(buffer, elements)

    GroupingBuffer.append = count
    try:
        yield sizes
    finally:
        GroupingBuffer.append = append


@contextlib.contextmanager
def watch_stages() -> Iterator[dict[str, float]]:
    """Yields the memory of the largest worker at its peak, in MB, of each grouping meanwhile."""
    run_once, peaks = parts._run_once, collections.defaultdict(float)

    def watch(path: str, *arguments: Any) -> Any:
        with Watch() as watched:
            notes = run_once(path, *arguments)
        name = pathlib.Path(path).name.rpartition("-")[0]
        peaks[name] = max(peaks[name], watched.peak)
        return notes

    parts._run_once = watch
    try:
        yield peaks
    finally:
        parts._run_once = run_once


@contextlib.contextmanager
def count_cpu(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Notes the CPU seconds of what it encloses."""
    started = time.process_time()
    yield
    seconds[name] = time.process_time() - started


def read_clock() -> float:
    """Returns the CPU seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def number_image(image: Image.Image, row: int) -> bytes:
    """Returns an encoded image whose first pixels hold a number, so that no two are equal."""
    image = image.copy()
    for place in range(2):
        image.putpixel((place, 0), tuple((row >> 24 * place).to_bytes(8, "little")[:3]))
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def write_records(folder: pathlib.Path, data: pathlib.Path, records: int, side: int | None) -> str:
    """Writes Parquet files of so many pairs, 5000 in a file and 100 in a row group."""
    with tarfile.open(data / "flickr8k" / "dev-00000.tar") as tar:
        names = [member for member in tar if member.name.endswith(".jpg")]
        images = [tar.extractfile(member).read() for member in names]
    small = [Image.open(io.BytesIO(x)).resize((side, side)) for x in images] if side else []
    texts = (data / "text" / "alt_texts.txt").read_text().splitlines()
    for start in range(0, records, 5000):
        rows = range(start, min(start + 5000, records))
        columns = {
            "jpg": [
                number_image(small[row % len(small)], row) if side else images[row % len(images)]
                for row in rows
            ],
            "caption": [f"{texts[row % len(texts)]} {row // len(texts) or ''}" for row in rows],
        }
        path = folder / f"{start // 5000:05d}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=100)
    return f"{folder}/*.parquet"


def time_functions(plan: JobPlan, count: int = 2000) -> dict[str, float]:
    """Returns seconds of a core a record of what is done for each, without Beam."""
    source = plan.inputs.open(0)
    places = [at[1:] for at in inputs.FileRows(source).locate(inputs.Stretch(0, 0, count))]
    read, texts, seconds = [], [], {}
    with count_cpu(seconds, "read a record"):
        read += [boundary.read_example(source, *at) for at in places]
    with count_cpu(seconds, "decode an image and hash its pixels"):
        for example in read:
            identify_image(example.image)
    with count_cpu(seconds, "normalize a text"):
        for example in read:
            texts += map(text_rules.normalize_text, example.captions)
    with count_cpu(seconds, "split a text into unigrams and bigrams"):
        for text in texts:
            text_rules.pair_up(text_rules.split_unigrams(text))
    seconds |= time_libraries([example.image for example in read], texts)
    return {name: value / len(places) for name, value in seconds.items()}


def time_libraries(images: list[bytes], texts: list[str]) -> dict[str, float]:
    """Returns seconds of a core of what other libraries do for near-duplicates, where installed."""
    seconds = {}
    with contextlib.suppress(ImportError):
        import imagehash

        with count_cpu(seconds, "ImageHash: decode an image and phash it"):
            for image in images:
                imagehash.phash(Image.open(io.BytesIO(image)))
    with contextlib.suppress(ImportError):
        import datasketch

        words = [[word.encode() for word in text_rules.split_unigrams(text)] for text in texts]
        with count_cpu(seconds, "datasketch: MinHash of a text, 128 permutations"):
            index = datasketch.MinHashLSH(threshold=0.9, num_perm=128)
            for number, hashed in enumerate(datasketch.MinHash.generator(words, num_perm=128)):
                index.insert(number, hashed)
    return seconds


def make_facts(plan: JobPlan, data: pathlib.Path, records: int) -> None:
    """Writes what a job would find out about so many images, without any."""
    texts = (data / "text" / "alt_texts.txt").read_text().splitlines()
    for start in range(0, records, plan.chunk):
        stretch = inputs.Stretch(0, start, min(start + plan.chunk, records))
        facts = [
            {"row": row, "id": hash_bytes(str(row), 16).hex(), "width": 128, "height": 128,
             "bytes": 1000, "texts": [f"{texts[row % len(texts)]} {row // len(texts) or ''}"],
             "labels": [], "flag": "", "languages": []}
            for row in range(stretch.start, stretch.stop)
        ]  # fmt: skip
        storage.write_lines(plan.stretch_path("broken", stretch), [])
        storage.write_lines(plan.stretch_path("facts", stretch), facts)
    stretches = inputs.list_stretches(0, records, plan.chunk)
    about = {"stretches": stretches, "broken": [], "classes": []}
    storage.write_json(plan.file_path(0), about)


def time_pipelines(
    plan: JobPlan, options: Any, records: int, part_bytes: int, images: bool
) -> dict[str, Cost]:
    """Returns what each pipeline takes on DirectRunner."""
    pipelines, costs = job.import_pipelines(), {}

    def measure(name: str, run: Callable[[], None]) -> None:
        started = read_clock()
        with Watch() as watch, count_shuffled() as sizes, watch_stages() as stages:
            run()
        seconds = (read_clock() - started) / records
        costs[name] = Cost(seconds, sum(sizes) / records, watch.peak, watch.own, stages)

    if images:
        files = list(range(len(plan.inputs.paths)))
        measure("examine", lambda: pipelines.examine(plan, files, options))
    size = plan.estimate_pairs() * job.PAIR_BYTES
    count = job._count_parts(size, options, part_bytes)
    measure("count tokens", lambda: pipelines.count(plan, count, options))
    measure("decide", lambda: pipelines.decide(plan, count, options))
    found = make_statistics(plan)
    if images:
        given = plan, pipelines, options, found, part_bytes
        measure("write shards", lambda: job._write_shards(*given))
    kept, pairs = found["kept_pairs"], found["pairs"]
    print(f"{kept:,} of {pairs:,} pairs kept, {found['shards']} shards; {count} parts")
    return costs


def read_options(workers: int) -> Any:
    """Returns Beam's options for DirectRunner with so many processes, or none."""
    flags = ["--direct_running_mode=multi_processing", f"--direct_num_workers={workers}"]
    return job.import_pipelines().read_options(flags if workers else [])


def main() -> None:
    """Prints a table."""
    parser = measuring.make_parser(__doc__, records=20_000)
    parser.add_argument("--workers", type=int, default=0, help="worker processes of the runner")
    parser.add_argument("--side", type=int, help="of the photographs in pixels (as they are)")
    megabytes = job.PART_BYTES // 2**20
    parser.add_argument("--megabytes", type=int, default=megabytes, help="(%(default)s)")
    options = parser.parse_args()
    data = pathlib.Path(os.environ.get("BIG_ALIGN_DATA", "../shared/data"))
    # The photographs have 128 pixels.
    rules = dataclasses.replace(Rules(), min_side=min(100, options.side or 100) - 1)
    images, beam = options.side != 0, read_options(options.workers)
    with tempfile.TemporaryDirectory() as folder:
        raw, count = pathlib.Path(folder, "raw"), options.records if images else 1
        raw.mkdir()
        found = inputs.find_inputs(write_records(raw, data, count, options.side))
        plan = JobPlan(found, f"{folder}/out", f"{folder}/work", Examination(), rules)
        with contextlib.redirect_stderr(io.StringIO()):
            if not images:
                make_facts(plan, data, options.records)
            seconds = time_functions(plan, min(2000, count))
            given = plan, beam, options.records, options.megabytes * 2**20, images
            costs = time_pipelines(*given)
        written = sum(
            os.path.getsize(storage.join(plan.facts, "facts", name))
            for name in storage.list_names(storage.join(plan.facts, "facts"))
        )
    seconds |= {f"pipeline: {name}": cost.seconds for name, cost in costs.items()}
    rows = [
        (name, f"{1 / value:,.0f}", f"{value * ALIGN_PAIRS / 3600:,.0f}")
        for name, value in seconds.items()
    ]
    measuring.print_table(("stage", "records/s a core", "core-hours of 1.8 billion"), rows)
    for name, cost in costs.items():
        told = f"{cost.shuffled:,.0f} bytes a record"
        whole = cost.shuffled * ALIGN_PAIRS / 2**40
        print(f"shuffled, {name}: {told}, {whole:,.2f} TiB of 1.8 billion")
    print(f"facts: {written / options.records:.0f} bytes a record")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"memory of this process at its peak: {peak:,.0f} MB")
    for name, cost in costs.items() if options.workers else ():
        told = f"{cost.memory:,.0f} MB; of the process that runs it: {cost.runner:,.0f} MB"
        print(f"memory of the largest worker, {name}: {told}")
        print(
            "".join(f"  {stage}: {size:,.0f} MB\n" for stage, size in cost.stages.items()), end=""
        )


if __name__ == "__main__":
    main()
