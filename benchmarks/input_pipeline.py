"""Images per second of the whole input pipeline against decoding and resizing alone.

The pipeline reads tar shards, decodes, resizes, crops, flips, draws a caption, tokenizes it and
fills batches. What it is compared with has the same bytes in memory already and does nothing but
decode and resize them, with the same library, the same filter and as many threads, in alternating
rounds of the same run. The mark is a ratio of at least 0.85 for the better of the two settings:
threads (fewest cycles an image; best where cores are few or busy, or images large) or processes
(no shared lock; best where images are small, or cores many).

Finding tags is measured apart, where WordNet is ($NLTK_DATA): captions per second of one thread,
looking for all nouns of WordNet, and the images per second of the pipeline with it against
without. The mark is that one thread finds the tags of as many captions as it makes images.

    python benchmarks/input_pipeline.py                # $BIG_ALIGN_DATA or ../shared/data
    python benchmarks/input_pipeline.py --path='data/train-*.tar' --caption=txt
"""

import argparse
import concurrent.futures
import contextlib
import importlib.util
import io
import math
import os
import pathlib
import statistics
import sys
import tarfile
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from PIL import Image

from benchmarks import measuring
from benchmarks.measuring import ROOT
from big_align.core.errors import UserError
from big_align.data.labels.word_net import WordNet
from big_align.data.loading.extra_fields import ExtraFields
from big_align.data.loading.image_pipeline import ImagePipeline
from big_align.data.loading.loader import TrainLoader
from big_align.data.loading.rows import RowStream
from big_align.data.loading.stream import ExampleStream
from big_align.data.loading.text_samplers import CaptionSampler
from big_align.data.sources import tar_source
from big_align.data.tags import tag_counting, tag_extraction
from big_align.data.text import tokenizers

DATA = pathlib.Path(os.environ.get("BIG_ALIGN_DATA", ROOT.parent / "shared" / "data"))
SMALL = (72, "resize(72)|random_crop(64)|flip_horizontal")
PHOTO = (346, "resize(346)|random_crop(289)|flip_horizontal")  # ALIGN §5
PHOTO_SIZE = (500, 375)
PHOTO_COUNT = 600


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    given = dict(threads=measuring.CORES, batch_size=256, rounds=5)
    parser = make_data_parser(__doc__, str(DATA / "flickr8k" / "train-*.tar"), **given)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per round and side")
    return parser.parse_args()


def make_data_parser(description: str, path: str, **defaults) -> argparse.ArgumentParser:
    """Makes a command line that also names shards, their captions and a tokenizer."""
    merges = str(DATA / "text/clip_bpe_simple_vocab_16e6.txt.gz")
    words = str(DATA / "text/bert-base-uncased-vocab.txt")
    texts = dict(path=path, caption="json.captions", merges=merges, vocabulary=words)
    parser = measuring.make_parser(description, **texts, **defaults)
    parser.add_argument("--tokenizer", choices=("clip", "wordpiece", "words"), nargs="*")
    return parser


def make_tokenizer(name: str, options: argparse.Namespace) -> tokenizers.Tokenizer:
    """Makes a tokenizer by its name; WordPiece imports TensorFlow where it is installed."""
    if name == "clip":
        return tokenizers.ClipTokenizer(options.merges)
    if name == "wordpiece":
        return tokenizers.WordPieceTokenizer(options.vocabulary, length=64)
    return tokenizers.WordTokenizer(("a", "dog", "man", "the"), length=64)


def choose_tokenizers(options: argparse.Namespace) -> list[str]:
    """Returns those asked for, or those whose files and packages are there."""
    found = []
    if os.path.isfile(options.merges):
        found.append("clip")
    if os.path.isfile(options.vocabulary) and importlib.util.find_spec("tensorflow_text"):
        found.append("wordpiece")
    return options.tokenizer or found or ["words"]


def read_images(source: tar_source.TarSource) -> list[bytes]:
    """Reads the encoded images of a source into memory."""
    return [
        source.read(shard, index).image
        for shard, size in enumerate(source.shard_sizes.tolist())
        for index in range(size)
    ]


def write_photos(path: str, images: list[bytes]) -> None:
    """Writes a shard of the images enlarged to the size of photographs on the web."""
    with tarfile.open(path, "w") as tar:
        for number, data in enumerate(images[:PHOTO_COUNT]):
            photo = io.BytesIO()
            enlarged = Image.open(io.BytesIO(data)).convert("RGB").resize(PHOTO_SIZE)
            enlarged.save(photo, "JPEG", quality=90)
            caption = f"photograph number {number} of a dog that runs on the beach".encode()
            for kind, member in (("jpg", photo.getvalue()), ("txt", caption)):
                info = tarfile.TarInfo(f"{number:06d}.{kind}")
                info.size = len(member)
                tar.addfile(info, io.BytesIO(member))


def decode_and_resize(images: list[bytes], side: int) -> None:
    """Does what no pipeline can leave out."""
    for data in images:
        image = Image.open(io.BytesIO(data))
        if image.mode != "RGB":  # converting would copy
            image = image.convert("RGB")
        image.resize((side, side), Image.Resampling.BICUBIC)


def time_bare(pool: concurrent.futures.Executor, images: list[bytes], side: int, count: int):
    """Returns images per second of decoding and resizing `count` images in threads."""
    chosen = [images[number % len(images)] for number in range(count)]
    chunks = [chosen[first : first + 64] for first in range(0, count, 64)]
    started = time.perf_counter()
    list(pool.map(lambda chunk: decode_and_resize(chunk, side), chunks))
    return count / (time.perf_counter() - started)


def time_pipeline(train: TrainLoader, start: int, steps: int, batch_size: int) -> float:
    """Returns images per second of `steps` batches, in the steady state of prefetching."""
    batches = train.iterate(start)
    next(batches)
    started = time.perf_counter()
    for _ in range(steps):
        next(batches)
    rate = steps * batch_size / (time.perf_counter() - started)
    batches.close()
    train.batch(start)  # waits in the queue behind what was being filled ahead
    return rate


def compare(title: str, work, tokenizer, options, num_processes: int) -> float:
    """Prints a row of the table and returns the ratio."""
    source, images, (side, transform) = work
    batch_size = min(options.batch_size, len(images) // 8)
    num_threads = None if num_processes else options.threads
    texts = CaptionSampler(tokenizer)
    rows = RowStream(ExampleStream(source, batch_size), texts, ImagePipeline(transform))
    with (
        TrainLoader(rows, num_threads=num_threads, num_processes=num_processes) as train,
        concurrent.futures.ThreadPoolExecutor(options.threads) as pool,
    ):
        rate = time_bare(pool, images, side, 4 * batch_size)
        # many more than are filled ahead, so that those weigh little
        steps = max(16, round(rate * options.seconds / batch_size))
        time_pipeline(train, 0, steps, batch_size)  # warms caches and fills the batches ahead
        before, rows = measuring.read_memory("VmHWM"), []
        for turn in range(options.rounds):
            whole = time_pipeline(train, turn * steps, steps, batch_size)
            bare = time_bare(pool, images, side, steps * batch_size)
            rows.append((whole, bare, whole / bare))
        growth = (measuring.read_memory("VmHWM") - before) / measuring.MIB
    whole, bare, ratio = (statistics.median(column) for column in zip(*rows, strict=True))
    seen = options.rounds * (steps + 6) * batch_size
    print(
        f"{title:40} {len(images):8d} {whole:10.0f} {bare:10.0f} {ratio:7.3f} "
        f"{seen:9d} {growth:10.1f}",
        flush=True,
    )
    return ratio


def compare_tags(source: tar_source.TarSource, options: argparse.Namespace) -> float:
    """Prints what finding tags costs; returns captions over images per second of one thread."""
    dictionary = WordNet()
    nouns = tag_counting.list_nouns(dictionary)
    extract = tag_extraction.TagExtractor(nouns, 16)
    captions = list(tag_counting.read_captions(source))
    rates = []
    for _ in range(2):  # words are new, then known
        started = time.perf_counter()
        for caption in captions:
            extract([caption])
        rates.append(len(captions) / (time.perf_counter() - started))
    steps, rows = 16, []
    words = tokenizers.WordTokenizer(("a", "dog"), length=64)
    taggers = tag_extraction.Tagger(extract), None
    with contextlib.ExitStack() as stack:
        streams = [
            RowStream(
                ExampleStream(source, options.batch_size),
                CaptionSampler(words),
                ImagePipeline(SMALL[1]),
                ExtraFields(tagger=tagger),
            )
            for tagger in taggers
        ]
        loaders = [
            stack.enter_context(TrainLoader(each, num_threads=1, num_processes=0))
            for each in streams
        ]
        for turn in range(options.rounds):
            rows.append(
                [time_pipeline(one, turn * steps, steps, options.batch_size) for one in loaders]
            )
    tagged, bare = (statistics.median(column) for column in zip(*rows, strict=True))
    print(
        f"tags of {len(nouns)} nouns: {rates[0]:.0f} captions/s at first, then {rates[1]:.0f}, one "
        f"thread; pipeline of one thread {tagged:.0f} images/s with tags, {bare:.0f} without"
    )
    return rates[1] / bare


def main() -> int:
    """Prints the table; returns 1 where a ratio is below the mark."""
    options = parse_arguments()
    source = tar_source.TarSource(options.path, caption=options.caption)
    images = read_images(source)
    print(f"{options.threads} threads, batches of {options.batch_size}, {options.rounds} rounds")
    print(
        f"{'':40} {'examples':>8} {'pipeline':>10} {'bare':>10} {'ratio':>7} {'seen':>9} "
        f"{'growth MiB':>10}"
    )
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        write_photos(f"{folder}/photos.tar", images)
        photos = tar_source.TarSource(f"{folder}/photos.tar")
        photo_images = read_images(photos)
        for name in choose_tokenizers(options):
            tokenizer = make_tokenizer(name, options)
            for title, *work in (
                ("as stored, to 64", source, images, SMALL),
                ("500 x 375, to 289", photos, photo_images, PHOTO),
            ):
                title = f"{title}, {name}"
                threads = compare(f"{title}, threads", work, tokenizer, options, 0)
                processes = compare(
                    f"{title}, processes", work, tokenizer, options, options.threads
                )
                ratios.append(max(threads, processes))
    print(f"smallest ratio of the better setting {min(ratios):.3f}, mark 0.85")
    tag_ratio = math.inf
    try:
        tag_ratio = compare_tags(source, options)
        print(f"captions with tags found, over images made: {tag_ratio:.1f}, mark 1")
    except UserError as error:
        print(f"tags are not measured: {error}")
    print(f"tensorflow {'was' if 'tensorflow' in sys.modules else 'was not'} imported")
    return int(min(ratios) < 0.85 or tag_ratio < 1)


if __name__ == "__main__":
    sys.exit(main())
