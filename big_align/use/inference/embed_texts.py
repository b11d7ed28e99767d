"""Embeds texts into a folder, shard by shard, and continues where it stopped."""

import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from big_align.core.progress import make_bar
from big_align.data.precomputed import shard_files
from big_align.data.precomputed.shard_files import EMBEDDINGS
from big_align.parallel.distributed import agreement
from big_align.runs.embedding.embed_source import digest_architecture, digest_weights
from big_align.use.inference.loaded_model import LoadedModel
from big_align.use.inference.text_shards import TextShards


def embed_texts(
    model: LoadedModel,
    texts: TextShards,
    folder: pathlib.Path,
    dtype: str = "float16",
    made_by: Mapping[str, Any] | None = None,
) -> int:
    """Writes the embeddings of this process's shards of texts that are not there yet.

    An empty text keeps its row, of zeros, with an empty key. Every process sees the folder. What
    identifies the embeddings is `made_by`, whose `model` is only for readers. Returns how many
    texts were embedded now, including empty ones.
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
    process, processes = jax.process_index(), jax.process_count()
    free = ("model", "tokenizer")  # whose paths may change; the fingerprint may not
    agreement.check_index(index, free)
    shard_files.claim_folder(folder, index, process == 0, free)
    todo, count, total = shard_files.find_work(folder, shards, EMBEDDINGS, process, processes)
    folder.mkdir(parents=True, exist_ok=True)
    with make_bar(total=total, initial=total - count, unit="text", disable=process != 0) as bar:
        for n in todo:
            keys, strings = texts.read(n)
            real = np.array([bool(text) for text in strings])
            rows = np.zeros((len(strings), one.shape[1]), dtype)
            if real.any():
                rows[real] = model.embed_texts([text for text in strings if text])
            named = (key if there else "" for key, there in zip(keys, real.tolist(), strict=True))
            content = shard_files.join_keys(named)
            shard_files.write_shard(folder, shards[n], EMBEDDINGS, rows, content)
            bar.update(len(strings))
    return count


def _digest(texts: TextShards) -> str:
    """Returns a digest of all keys and texts: keys that are numbers of lines do not tell them."""
    digest = hashlib.blake2b(digest_size=8)
    for shard in range(len(texts.shard_sizes)):
        digest.update(json.dumps(texts.read(shard)).encode())
    return digest.hexdigest()
