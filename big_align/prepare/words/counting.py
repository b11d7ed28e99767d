"""Counts the words of captions on Apache Beam, with the counts of `data/text/word_counts.py`."""

import collections
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from absl import logging
from apache_beam.options.pipeline_options import PipelineOptions

from big_align.config.components.source_flags import find_text_files
from big_align.core.digests import hash_bytes
from big_align.core.errors import UserError
from big_align.data import boundary, examples
from big_align.data.shared import storage
from big_align.data.text import vocabulary
from big_align.data.text.word_counts import TextCounts, count_texts
from big_align.prepare.inputs import FileRows, Inputs, Stretch, find_inputs, list_stretches

BUCKETS = 256
"""Files of counts: each is sorted in the memory of a worker."""
WORDS, TEXTS, BROKEN = "words", "texts", "broken"
"""What is counted: words by language, texts by language, and examples that cannot be read."""
Key = tuple[str, str, str]
"""What is counted, the language, and the word."""


class TextFiles(NamedTuple):
    """Text files with a caption a line; each is counted by one worker."""

    paths: tuple[str, ...]


Corpus = Inputs | TextFiles


def find_corpus(path: str, kind: str | None, arguments: tuple[str, ...]) -> Corpus:
    """Finds the files of captions, as `find_inputs` finds pairs."""
    if (texts := find_text_files(path, kind)) is not None:
        return TextFiles(tuple(texts))
    try:
        return find_inputs(path, kind, arguments)
    except UserError as error:
        raise UserError(str(error).replace("--input", "--source")) from error


def count_words(corpus: Corpus, lowercase: bool, folder: str, options: PipelineOptions) -> None:
    """Counts on Beam, and leaves the counts in a folder that all workers can write to."""
    with beam.Pipeline(options=options) as pipeline:
        (
            pipeline
            | "Files" >> beam.Create(range(len(corpus.paths)))
            | "Spread files" >> beam.Reshuffle()
            | "Open" >> beam.FlatMap(_list_pieces, corpus)
            | "Plain" >> beam.Map(tuple).with_output_types(tuple[int, int, int])
            | "Spread" >> beam.Reshuffle()
            | "Count" >> beam.FlatMap(_count_piece, corpus, lowercase)
            .with_output_types(tuple[Key, int])
            | "Sum" >> beam.CombinePerKey(sum)
            | "Bucket" >> beam.Map(_choose_bucket).with_output_types(tuple[int, Any])
            | "By bucket" >> beam.GroupByKey()
            | "Write" >> beam.Map(_write_bucket, folder)
        )  # fmt: skip


def read_counts(folder: str) -> dict[str, TextCounts]:
    """Reads what `count_words` left: the counts of each language, as `count_texts` returns them."""
    counts: dict[str, TextCounts] = collections.defaultdict(TextCounts)
    broken = 0
    for name in storage.list_names(folder):
        for kind, language, word, count in storage.read_lines(storage.join(folder, name)):
            if kind == WORDS:
                counts[language].words[word] = count
            elif kind == TEXTS:
                counts[language].texts = count
            else:
                broken += count
    if broken:
        logging.warning("%d broken examples were left out", broken)
    if not counts:
        raise UserError("no example has a caption: --source_argument=caption=COLUMN names them")
    return dict(counts)


def _list_pieces(file: int, corpus: Corpus) -> list[Stretch]:
    if isinstance(corpus, TextFiles):
        return [Stretch(file, 0, 0)]
    return list_stretches(file, FileRows(corpus.open(file)).count)


def _count_piece(
    values: tuple[int, int, int], corpus: Corpus, lowercase: bool
) -> Iterator[tuple[Key, int]]:
    """Yields how often a piece of work has each word, how many texts, and how many broken ones."""
    stretch, broken = Stretch(*values), []
    texts = (
        vocabulary.read_file(corpus.paths[stretch.file])
        if isinstance(corpus, TextFiles)
        else _read_captions(corpus, stretch, broken)
    )
    for language, found in count_texts(texts, lowercase).items():
        yield (TEXTS, language, ""), found.texts
        yield from (((WORDS, language, word), count) for word, count in found.words.items())
    if broken:
        yield (BROKEN, "", ""), len(broken)


def _read_captions(inputs: Inputs, stretch: Stretch, broken: list[int]) -> Iterator[str]:
    """Yields the captions of a stretch, and adds what cannot be read to `broken`, line or row."""
    source = inputs.open(stretch.file)
    if stretch.start == 0:
        broken += getattr(source, "bad_lines", {})
    for row, shard, index in FileRows(source).locate(stretch):
        try:
            yield from boundary.read_texts(source, shard, index)[0]
        except examples.BrokenExample:
            broken.append(row)


def _choose_bucket(found: tuple[Key, int]) -> tuple[int, tuple[str, str, str, int]]:
    key, count = found
    return int.from_bytes(hash_bytes("\n".join(key), 4), "big") % BUCKETS, (*key, count)


def _write_bucket(grouped: tuple[int, Iterable[Any]], folder: str) -> None:
    bucket, rows = grouped
    storage.write_lines(storage.join(folder, f"{bucket:03d}.jsonl"), sorted(rows))
