"""Embeds texts into a folder, shard by shard, and continues where it stopped."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from big_align.data.precomputed import shard_files
from big_align.data.precomputed.shard_files import EMBEDDINGS, Folder
from big_align.data.precomputed.shared_shards import SharedShards
from big_align.runs.embedding.embed_source import digest_architecture, digest_weights
from big_align.use.inference.loaded_model import LoadedModel
from big_align.use.inference.text_shards import TextShards


def embed_texts(
    model: LoadedModel,
    texts: TextShards,
    folder: Folder,
    dtype: str = "float16",
    made_by: Mapping[str, Any] | None = None,
    wait: bool = True,
) -> int:
    """Writes the embeddings of the shards of texts that no process has written or makes yet.

    An empty text keeps its row, of zeros, with an empty key. What identifies the embeddings is
    `made_by`, whose `model` is only for readers. With `wait`, it ends when all are there. Returns
    how many texts were embedded here and now, including empty ones.
    """
    shards = shard_files.list_shards(texts)
    one = model.embed_texts(["a"])
    index = {
        "dim": one.shape[1],
        "dtype": dtype,
        "unit_length": True,
        "shards": [shard._asdict() for shard in shards],
        "made_by": {
            **(made_by or {}),
            "weights": digest_weights(model.flat),
            "what": "text",
            "tokenizer": model.tokenizer,
            "texts": _digest(texts),
            "architecture": digest_architecture(model),
            "tokenizer_fingerprint": model.made_tokenizer.fingerprint,
        },
    }
    # paths may change; the fingerprint may not
    shard_files.claim_folder(folder, index, free=("model", "tokenizer"))
    count = 0
    with SharedShards(folder, shards, EMBEDDINGS, "text", wait=wait) as work:
        for unit in work:
            for n in work.list_missing(unit):
                keys, strings = texts.read(n)
                real = np.array([bool(text) for text in strings])
                rows = np.zeros((len(strings), one.shape[1]), dtype)
                if real.any():
                    rows[real] = model.embed_texts([text for text in strings if text])
                there = zip(keys, real.tolist(), strict=True)
                work.write(n, rows, shard_files.join_keys(key if it else "" for key, it in there))
                work.advance(len(strings))
                count += len(strings)
            work.finish(unit)
    return count


def _digest(texts: TextShards) -> str:
    """Returns a digest of all keys and texts: keys that are numbers of lines do not tell them."""
    digest = hashlib.blake2b(digest_size=8)
    for shard in range(len(texts.shard_sizes)):
        digest.update(json.dumps(texts.read(shard)).encode())
    return digest.hexdigest()
