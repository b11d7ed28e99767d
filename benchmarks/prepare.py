"""Records a second a core of preparing data, by stage, and what a billion pairs would take.

For example:
  python benchmarks/prepare.py --records=20000

Real alt-texts and photographs ($BIG_ALIGN_DATA) are repeated, with a number in each text, up to so
many records of Parquet. First the functions alone are timed, then each pipeline on DirectRunner
with one worker, whose time includes them. The difference is Beam's. ImageHash and datasketch are
timed beside them where they are installed; what they do is not the same: near-duplicates of images
and texts, where the rules count equal ones (and find near images by embeddings).
"""

import argparse
import contextlib
import dataclasses
import io
import os
import pathlib
import resource
import sys
import tarfile
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import pyarrow as pa
import pyarrow.parquet as pq

from big_align.data import boundary
from big_align.prepare import inputs, job, storage, text_rules
from big_align.prepare.examination import Examination, identify_image
from big_align.prepare.plan import JobPlan
from big_align.prepare.rules import Rules
from big_align.prepare.statistics import make_statistics

ALIGN_PAIRS = 1.8e9


def write_records(folder: pathlib.Path, data: pathlib.Path, records: int) -> str:
    """Writes Parquet files of so many pairs, 5000 in a file and 100 in a row group."""
    with tarfile.open(data / "flickr8k" / "dev-00000.tar") as tar:
        names = [member for member in tar if member.name.endswith(".jpg")]
        images = [tar.extractfile(member).read() for member in names]
    texts = (data / "text" / "alt_texts.txt").read_text().splitlines()
    for start in range(0, records, 5000):
        rows = range(start, min(start + 5000, records))
        columns = {
            "jpg": [images[row % len(images)] for row in rows],
            "caption": [f"{texts[row % len(texts)]} {row // len(texts) or ''}" for row in rows],
        }
        path = folder / f"{start // 5000:05d}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=100)
    return f"{folder}/*.parquet"


def time_functions(plan: JobPlan, count: int = 2000) -> dict[str, float]:
    """Returns seconds of a core a record of what is done for each, without Beam."""
    source = plan.inputs.open(0)
    places = [at[1:] for at in inputs.locate(source, inputs.Stretch(0, 0, count))]
    seconds = {}
    started = time.process_time()
    read = [boundary.read_example(source, *at) for at in places]
    seconds["read a record"] = time.process_time() - started
    started = time.process_time()
    for example in read:
        identify_image(example.image)
    seconds["decode an image and hash its pixels"] = time.process_time() - started
    started = time.process_time()
    texts = [text_rules.normalize_text(text) for example in read for text in example.captions]
    seconds["normalize a text"] = time.process_time() - started
    started = time.process_time()
    for text in texts:
        text_rules.pair_up(text_rules.split_unigrams(text))
    seconds["split a text into unigrams and bigrams"] = time.process_time() - started
    seconds |= time_libraries([example.image for example in read], texts)
    return {name: value / len(places) for name, value in seconds.items()}


def time_libraries(images: list[bytes], texts: list[str]) -> dict[str, float]:
    """Returns seconds of a core of what other libraries do for near-duplicates, where installed."""
    seconds = {}
    with contextlib.suppress(ImportError):
        import imagehash
        from PIL import Image

        started = time.process_time()
        for image in images:
            imagehash.phash(Image.open(io.BytesIO(image)))
        seconds["ImageHash: decode an image and phash it"] = time.process_time() - started
    with contextlib.suppress(ImportError):
        import datasketch

        words = [[word.encode() for word in text_rules.split_unigrams(text)] for text in texts]
        started = time.process_time()
        index = datasketch.MinHashLSH(threshold=0.9, num_perm=128)
        for number, hashed in enumerate(datasketch.MinHash.generator(words, num_perm=128)):
            index.insert(number, hashed)
        seconds["datasketch: MinHash of a text, 128 permutations"] = time.process_time() - started
    return seconds


def time_pipelines(plan: JobPlan) -> dict[str, float]:
    """Returns seconds of a core a record of each pipeline on DirectRunner."""
    pipelines = job.import_pipelines()
    options = pipelines.read_options([])
    seconds = {}
    started = time.process_time()
    pipelines.examine(plan, list(range(len(plan.inputs.paths))), options)
    seconds["pipeline: examine, count tokens"] = time.process_time() - started
    started = time.process_time()
    pipelines.decide(plan, options)
    seconds["pipeline: decide"] = time.process_time() - started
    found = make_statistics(plan)
    started = time.process_time()
    pipelines.write(plan, list(range(found["shards"])), options)
    seconds["pipeline: write shards"] = time.process_time() - started
    print(f"{found['kept_pairs']:,} of {found['pairs']:,} pairs kept, {found['shards']} shards")
    return {name: value / found["pairs"] for name, value in seconds.items()}


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000, help="of raw pairs")
    options = parser.parse_args()
    data = pathlib.Path(os.environ.get("BIG_ALIGN_DATA", "../shared/data"))
    rules = dataclasses.replace(Rules(), min_side=100)  # the photographs have 128 pixels
    with tempfile.TemporaryDirectory() as folder:
        raw = pathlib.Path(folder, "raw")
        raw.mkdir()
        found = inputs.find_inputs(write_records(raw, data, options.records))
        plan = JobPlan(found, f"{folder}/out", f"{folder}/work", Examination(), rules)
        with contextlib.redirect_stderr(io.StringIO()):
            seconds = time_functions(plan, min(2000, options.records)) | time_pipelines(plan)
        written = sum(
            os.path.getsize(storage.join(plan.facts, "facts", name))
            for name in storage.list_names(storage.join(plan.facts, "facts"))
        )
    print(f"{'stage':48} {'records/s a core':>17} {'core-hours of 1.8 billion':>26}")
    for name, value in seconds.items():
        print(f"{name:48} {1 / value:17,.0f} {value * ALIGN_PAIRS / 3600:26,.0f}")
    print(f"facts: {written / options.records:.0f} bytes a record")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"memory at its peak: {peak:,.0f} MB")


if __name__ == "__main__":
    main()
