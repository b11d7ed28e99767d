"""Embeds all captions of a source into a folder, shard by shard, and continues where it stopped."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from big_align.core.errors import UserError
from big_align.data import boundary
from big_align.data.examples import BrokenExample, Source
from big_align.data.loading.broken import BrokenTally
from big_align.data.precomputed import shard_files
from big_align.data.precomputed.shard_files import CAPTIONS, Folder
from big_align.data.precomputed.shared_shards import SharedShards
from big_align.data.text.tokenizers import Tokenizer
from big_align.evaluators.embedder import Embedder

BATCHES = 16  # batches of captions that are embedded at a time, those of similar length together


def embed_captions(
    embedder: Embedder,
    tokenizer: Tokenizer,
    dim: int,
    source: Source,
    folder: Folder,
    dtype: str,
    made_by: Mapping[str, Any],
    max_broken_fraction: float,
) -> None:
    """Writes the features of the captions of the shards that no process has written or makes yet.

    It ends when all are there. An example that cannot be read is named in the log; it keeps its
    row, of zeros, with an empty key. `made_by` identifies the features.
    """
    shards = shard_files.list_shards(source)
    tally = BrokenTally(source, max_broken_fraction)
    if not (places := _count_places(source)):
        raise UserError("no example has a caption whose features could be computed")
    index = {
        "dim": dim,
        "dtype": dtype,
        "captions": places,
        "shards": [shard._asdict() for shard in shards],
        "made_by": dict(made_by),
    }
    shard_files.claim_folder(folder, index)
    with SharedShards(folder, shards, CAPTIONS, "example", label="captions") as work:
        for unit in work:
            for number in work.list_missing(unit):
                keys, captions = _read_shard(source, number, shards[number].count, tally)
                values = _embed(embedder, tokenizer, captions, (places, dim), work.advance)
                with np.errstate(over="ignore"):
                    stored = values.astype(dtype)
                if not np.isfinite(stored).all():
                    fits = np.isfinite(values).all()
                    reason = "too large for float16: use float32" if fits else "not finite"
                    raise UserError(f"{shards[number].name}: features of a caption are {reason}")
                work.write(number, stored, shard_files.join_keys(keys))
            work.finish(unit)


def _count_places(source: Source) -> int:
    """Returns the largest number of captions of an example."""
    places = 0
    for shard, count in enumerate(source.shard_sizes.tolist()):
        for number in range(count):
            try:
                places = max(places, len(boundary.read_texts(source, shard, number)[0]))
            except BrokenExample:
                continue
    return places


def _read_shard(
    source: Source, shard: int, count: int, tally: BrokenTally
) -> tuple[list[str], list[list[str]]]:
    """Reads keys and captions of a shard; "" and none if an example is broken."""
    keys, captions = [""] * count, [[]] * count
    for number in range(count):
        try:
            example = boundary.read_without_image(source, shard, number)
            keys[number], captions[number] = example.key, list(example.captions)
        except BrokenExample as error:
            tally.add(shard, number, error)
    tally.count_read(count)
    return keys, captions


def _embed(
    embedder: Embedder,
    tokenizer: Tokenizer,
    captions: Sequence[Sequence[str]],
    shape: tuple[int, int],
    advance: Callable[[int], None],
) -> Float[np.ndarray, "n k f"]:
    """Returns the features of all captions of some examples, zero if there is none."""
    values = np.zeros((len(captions), *shape), np.float32)
    places = [(row, place) for row, texts in enumerate(captions) for place in range(len(texts))]
    step, done = BATCHES * embedder.batch_size, 0
    for first in range(0, len(places), step):
        chosen = places[first : first + step]
        rows, columns = np.array(chosen).T
        values[rows, columns] = embedder.text_features(
            *tokenizer([captions[row][place] for row, place in chosen]), many=1
        )
        now = chosen[-1][0]
        advance(now - done)
        done = now
    advance(len(captions) - done)
    return values
