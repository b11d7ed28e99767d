"""Finds which images of an evaluation set are the same to a model."""

from collections.abc import Iterable, Iterator

import numpy as np
from absl import logging
from jaxtyping import Int, UInt8

from big_align.core.digests import hash_bytes
from big_align.core.errors import UserError
from big_align.data.examples import Source
from big_align.data.shard_offsets import ShardOffsets

HASH_BYTES = 8
MOST_COPIES = 100
"""With more copies it is not a picture with many captions: it says "not available"."""


class SameImages:
    """Finds examples with the same pixels as they pass on their way to a model.

    A source with one example per caption repeats its images. Their embeddings are equal, so each
    copy would be ranked before the right one as a wrong candidate. What counts is what the model
    sees, so pixels are compared after the transform; this also finds one image in two files. `rows`
    are those that this process makes of a batch over all.
    """

    def __init__(self, count: int, batch_size: int, rows: Int[np.ndarray, " r"]):
        self._batch_size, self._rows = batch_size, rows
        self.hashes: UInt8[np.ndarray, "n h"] = np.zeros((count, HASH_BYTES), np.uint8)

    def watch(self, batches: Iterable[dict[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
        """Passes on the batches of an `EvalLoader` and notes their images."""
        for step, batch in enumerate(batches):
            numbers = step * self._batch_size + self._rows
            for row in np.flatnonzero(batch["mask"]).tolist():
                pixels = np.ascontiguousarray(batch["image"][row])
                self.hashes[numbers[row]] = np.frombuffer(hash_bytes(pixels, HASH_BYTES), np.uint8)
            yield batch


def find_firsts(hashes: UInt8[np.ndarray, "n h"]) -> Int[np.ndarray, " n"]:
    """Returns, for each example, the first one with the same image, by the hashes of all."""
    packed = np.ascontiguousarray(hashes).view(f"V{hashes.shape[1]}").reshape(-1)
    _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    unread = ~hashes.any(axis=1)
    return np.where(unread, np.arange(len(hashes)), first[inverse.reshape(-1)])


def tell_copies(firsts: Int[np.ndarray, " n"], source: Source, transform: str) -> None:
    """Logs how many examples repeat an image; UserError if one is repeated too often."""
    copies = np.flatnonzero(firsts != np.arange(len(firsts)))
    if not len(copies):
        return
    often = int(np.bincount(firsts).argmax())
    offsets = ShardOffsets(source.shard_sizes)
    first, second = (
        source.name(*offsets.locate_one(int(number)))
        for number in (often, copies[firsts[copies] == often][0])
    )
    times = int((firsts == often).sum())
    if times > MOST_COPIES:
        raise UserError(
            f"{times} examples, such as {first} and {second}, have one and the same image after "
            f"{transform!r}: as one image with all their captions it would be found by chance. "
            "Remove placeholder pictures, or mend the transform"
        )
    logging.warning(
        f"{len(copies)} of {len(firsts)} examples have the same image as an earlier one, such as "
        f"{first} and {second}; they count as one image with all their captions"
    )
