"""The most images per second that one host's input can reach, however many cores it has.

What decodes and resamples runs outside Python's lock and gets faster with cores; what Python does
for every image in the training process does not. To see it as if cores were free, the work of
Pillow's C code is replaced by a sleep of the same length, in the threads or in the processes, and
everything else stays as it is: reading, headers, draws, copies, captions, tokens, batches. The
CPU time of the training process per image bounds images per second; so do the workers, each of
which makes one image at a time. The mark is 80 microseconds of the training process per photograph
of 500 x 375 with 64 processes.

CPU time is counted, and not that of the clock; but more processes than cores evict each other from
the caches, and CPU time grows. With `--stretch` they sleep longer, so that few are awake at a time.
`here` is what was reached on this machine.

    python benchmarks/input_ceiling.py                    # $BIG_ALIGN_DATA or ../shared/data
    python benchmarks/input_ceiling.py --workers 16 64 --images 5000 --stretch 16    # two cores
"""

import argparse
import dataclasses
import io
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from PIL import Image

from benchmarks import input_pipeline
from benchmarks.measuring import CORES
from big_align.data.loading.image_pipeline import ImagePipeline
from big_align.data.loading.loader import TrainLoader
from big_align.data.loading.rows import RowStream
from big_align.data.loading.stream import ExampleStream
from big_align.data.loading.text_samplers import CaptionSampler
from big_align.data.sources.tar_source import TarSource
from big_align.data.text.tokenizers import Tokenizer

MARK = 80.0  # microseconds
MARK_AT = 64  # processes
SIDE = 289  # of what `input_pipeline.PHOTO` keeps of a photograph
BOX = (40, 30, 40 + 500 * SIDE / 346, 30 + 375 * SIDE / 346)
TICKS = os.sysconf("SC_CLK_TCK")


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    path = str(input_pipeline.DATA / "flickr8k" / "dev-*.tar")
    parser = input_pipeline.make_data_parser(__doc__, path, batch_size=512)
    parser.add_argument("--workers", type=int, nargs="+", default=[16, 64, 200])
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--images", type=int, default=20_000, help="images per row of the table")
    parser.add_argument(
        "--stretch", type=float, default=1.0,
        help="sleep this many times as long, so that many workers do not crowd few cores",
    )  # fmt: skip
    return parser.parse_args()


@dataclasses.dataclass(frozen=True)
class Sleeps:
    """How long Pillow's C code takes for one image, in seconds, mirrored or not."""

    decode: float
    resize: float


class AsleepSource(TarSource):
    """Tar shards, where Pillow's C code sleeps: in every process that has one."""

    def __init__(self, path: str, sleeps: Sleeps, caption: str = "txt"):
        super().__init__(path, caption)
        self._sleeps = sleeps

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        put_to_sleep(self._sleeps)


class _Decoder:
    """Stands for a decoder of Pillow: takes what it is given, sleeps and leaves the pixels."""

    pulls_fd = handles_eof = False

    def __init__(self, seconds: float):
        self._seconds = seconds

    def setimage(self, image: object, extents: tuple[int, ...]) -> None:
        """Takes the memory of the pixels."""

    def decode(self, data: bytes) -> tuple[int, int]:
        """Sleeps, and says that all is decoded."""
        time.sleep(self._seconds)
        return -1, 0

    def cleanup(self) -> None:
        """There is nothing to free."""


def put_to_sleep(sleeps: Sleeps) -> Callable[[], None]:
    """Replaces Pillow's decoding and resampling by sleeps; returns what undoes it."""
    before = Image._getdecoder, Image.Image.resize, Image.Image.transpose
    made: dict[tuple[int, int], Image.Image] = {}

    def resize(self: Image.Image, size: tuple[int, int], *_: object, **__: object) -> Image.Image:
        time.sleep(sleeps.resize)
        return made.get(size) or made.setdefault(size, Image.new("RGB", size))

    Image._getdecoder = lambda *_: _Decoder(sleeps.decode)
    Image.Image.resize = resize
    Image.Image.transpose = lambda self, method: self

    def undo() -> None:
        Image._getdecoder, Image.Image.resize, Image.Image.transpose = before

    return undo


def measure_sleeps(source: TarSource, count: int = 100) -> Sleeps:
    """Measures Pillow's C code on images of a source, in CPU seconds."""
    files = [source.read(0, index).image for index in range(count)]
    opened = [Image.open(io.BytesIO(data)) for data in files]
    started = time.process_time()
    for image in opened:
        image.load()
    decoded = time.process_time()
    for image in opened:
        image.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=BOX)
    return Sleeps((decoded - started) / count, (time.process_time() - decoded) / count)


@dataclasses.dataclass(frozen=True)
class Cost:
    """What an image costs."""

    parent: float  # CPU seconds of the training process
    worker: float  # CPU seconds of the other processes
    busy: float  # seconds of a worker, the sleep apart that stands for Pillow's C code
    rate: float  # images per second that were reached here


@dataclasses.dataclass(frozen=True)
class Input:
    """What is read, and how much of it."""

    path: str
    transform: str
    tokenizer: Tokenizer
    batch_size: int
    images: int


def measure_threads(photos: Input, sleeps: Sleeps, workers: int) -> Cost:
    """Measures the loader with threads."""
    return measure_loader(photos, sleeps, num_threads=workers, num_processes=0)


def measure_processes(photos: Input, sleeps: Sleeps, workers: int) -> Cost:
    """Measures the loader with processes."""
    return measure_loader(photos, sleeps, num_threads=1, num_processes=workers)


SIDES: dict[str, Callable[[Input, Sleeps, int], Cost]] = {
    "threads": measure_threads,
    "processes": measure_processes,
}
"""Each makes the same batches with a number of workers."""


def make_rows(photos: Input, source: TarSource) -> RowStream:
    """Makes the stream of rows of a source."""
    stream = ExampleStream(source, photos.batch_size)
    return RowStream(stream, CaptionSampler(photos.tokenizer), ImagePipeline(photos.transform))


def measure_loader(photos: Input, sleeps: Sleeps, **workers: int) -> Cost:
    """Measures a loader in its steady state."""
    rows = make_rows(photos, AsleepSource(photos.path, sleeps))
    undo = put_to_sleep(sleeps)
    steps = max(8, photos.images // photos.batch_size)
    try:
        with TrainLoader(rows, **workers) as loader:
            batches = loader.iterate(0)
            for _ in range(6):  # every process has started, every block been written to
                next(batches)
            parent, worker, clock = time.process_time(), read_cpu(loader.pids), time.monotonic()
            for _ in range(steps):
                next(batches)
            count = steps * photos.batch_size
            rate = count / (time.monotonic() - clock)
            parent = (time.process_time() - parent) / count
            worker = (read_cpu(loader.pids) - worker) / count
            batches.close()
    finally:
        undo()
    return Cost(parent, worker, worker if loader.num_processes else parent, rate)


def read_cpu(pids: list[int]) -> float:
    """Returns the CPU seconds of processes so far."""
    ticks = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def print_row(side: str, workers: int, cost: Cost, sleeps: Sleeps) -> None:
    """Prints a row of the table with the bounds."""
    by_workers = workers / (cost.busy + sleeps.decode + sleeps.resize)
    by_parent = 1 / cost.parent
    print(
        f"{side:10} {workers:8d} {1e6 * cost.parent:10.1f} {1e6 * cost.worker:10.1f} "
        f"{cost.rate:8.0f} {by_workers:10.0f} {by_parent:10.0f} {min(by_workers, by_parent):8.0f}",
        flush=True,
    )


def main() -> int:
    """Prints the table; returns 1 where the mark is missed."""
    options = parse_arguments()
    source = TarSource(options.path, caption=options.caption)
    name = input_pipeline.choose_tokenizers(options)[0]
    tokenizer = input_pipeline.make_tokenizer(name, options)
    _, transform = input_pipeline.PHOTO
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/photos.tar"
        input_pipeline.write_photos(path, input_pipeline.read_images(source))
        sleeps = measure_sleeps(TarSource(path))
        print(
            f"photographs of 500 x 375 to 289, {name}: C code {1e6 * sleeps.decode:.0f} us to "
            f"decode and {1e6 * sleeps.resize:.0f} us to resample, replaced by sleeps; "
            f"{CORES} cores"
        )
        print(
            f"{'':10} {'':>8} {'CPU us an image':^21} {'images per second':^39}\n"
            f"{'':10} {'workers':>8} {'trainer':>10} {'workers':>10} "
            f"{'here':>8} {'by workers':>10} {'by trainer':>10} {'ceiling':>8}"
        )
        longer = Sleeps(options.stretch * sleeps.decode, options.stretch * sleeps.resize)
        photos = Input(path, transform, tokenizer, options.batch_size, options.images)
        for workers in options.workers:
            for side in options.sides:
                cost = SIDES[side](photos, longer, workers)
                print_row(side, workers, cost, sleeps)
                if side == "processes" and workers == MARK_AT:
                    missed = 1e6 * cost.parent > MARK
                    print(
                        f"{'':10} the mark is {MARK:.0f} us of the trainer: "
                        f"{'missed' if missed else 'met'}"
                    )
    return int(missed)


if __name__ == "__main__":
    from benchmarks import input_ceiling  # processes look for the source in a module of this name

    sys.exit(input_ceiling.main())
