"""What it costs to keep other ids of long texts than the first: texts per second on one core.

    python benchmarks/shortening.py

The bound is the tokenizer, which cuts texts off (`truncate`). Predicted from counting what each way
does in Python: a block costs little, random ids a draw each, and words are tagged and looked up.
"""

import functools
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from benchmarks import input_pipeline, measuring
from big_align.data import boundary
from big_align.data.loading.shuffle import PositionRandom
from big_align.data.sources.tar_source import TarSource
from big_align.data.text import tokenizers
from big_align.data.text.shortening import TRUNCATE, WAYS, Shortener

BATCH = 64  # texts that are tokenized together


def make_shortener(name: str, way: str, options) -> Shortener:
    """Makes what gives a tower its ids, for a tokenizer that has files."""
    if name == "clip":
        made = tokenizers.ClipTokenizer(options.merges, options.length, way)
    else:
        made = tokenizers.WordPieceTokenizer(options.vocabulary, options.length, shorten=way)
    return Shortener(made)


def shorten_all(shortener: Shortener, texts: list[str]) -> None:
    """Makes the ids of texts, with random numbers as the loader makes them."""
    for start in range(0, len(texts), BATCH):
        some = texts[start : start + BATCH]
        places = range(start, start + len(some)) if shortener.draws else ()
        shortener(some, [PositionRandom(0, place).split(0) for place in places])


def main() -> None:
    data = str(input_pipeline.DATA / "flickr8k" / "train-*.tar")
    parser = input_pipeline.make_data_parser(__doc__, data, rounds=5, length=8)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    source = TarSource(options.path, options.caption)
    texts = [
        text
        for shard, size in enumerate(source.shard_sizes.tolist())
        for index in range(size)
        for text in boundary.read_texts(source, shard, index)[0]
    ]
    print(f"{len(texts):,} captions, {options.length} ids")
    for name in input_pipeline.choose_tokenizers(options):
        calls = {
            way: functools.partial(shorten_all, make_shortener(name, way, options), texts)
            for way in WAYS
        }
        seconds = measuring.time_in_turns(calls, options.rounds)
        for way in WAYS:
            rate, more = len(texts) / seconds[way], seconds[way] - seconds[TRUNCATE]
            print(f"{name:>10} {way:>9} {rate:>9,.0f}/s {1e6 * more / len(texts):>6.1f} us more")


if __name__ == "__main__":
    main()
