"""Eight bytes for a text, where the texts themselves would not fit into memory."""

import hashlib
from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Int


def digest_text(text: str) -> int:
    """Returns a number of 63 bits; among a billion texts, some two share one with odds of 5%."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def find_among(ordered: Int[np.ndarray, "n"], texts: Iterable[str]) -> Bool[np.ndarray, "t"]:
    """Returns which texts have one of the digests, which ascend."""
    digests = np.array(list(map(digest_text, texts)), np.int64)
    if not len(ordered):
        return np.zeros(len(digests), bool)
    places = np.minimum(np.searchsorted(ordered, digests), len(ordered) - 1)
    return ordered[places] == digests
