"""Small class lists, tag lists and folders of embeddings, and what can be wrong with them."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from example_kinds import DEEP, SIZE, VICTIM, Path, Utf8Tokenizer, arrays, read_examples, vary

from big_align.data.labels.classes import read_classes
from big_align.data.precomputed.embedding_files import EmbeddingFolder
from big_align.data.precomputed.shard_files import (
    EMBEDDINGS,
    claim_folder,
    join_keys,
    list_shards,
    write_shard,
)
from big_align.data.sources.array_source import ArraySource
from big_align.data.tags.tag_list import read_tag_list


def write_classes(ending: str) -> Callable[..., None]:
    def write(folder: Path, rng: Any = None, **change: str) -> None:
        told = [dict(name=f"class {n}", description=f"the {n}th", label=n) for n in range(SIZE)]
        if ending == "json":
            entries = [{key: json.dumps(x) for key, x in each.items()} for each in told]
            entries[VICTIM] |= change
            rows = ("{" + ", ".join(f'"{k}": {x}' for k, x in e.items()) + "}" for e in entries)
            text = '{"classes": [' + ", ".join(rows) + '], "templates": ["a {}"]}'
        elif ending == "csv":
            rows = (",".join(map(str, each.values())) for each in told)
            text = "name,description,label\n" + "".join(f"{row}\n" for row in rows)
        else:
            text = "".join(each["name"] + "\n" for each in told)
        (folder / f"x.{ending}").write_text(text)

    return write


def read_class_list(ending: str) -> Callable[[Path], tuple[Any, int]]:
    def read(folder: Path) -> tuple[Any, int]:
        classes = read_classes(f"{folder}/x.{ending}")
        Utf8Tokenizer()(classes.phrases())
        return [classes.names, classes.descriptions, classes.ids, classes.templates], 0

    return read


CLASSES = (
    {"name": '"\\ud800"'}, {"name": "7"}, {"name": "null"}, {"name": '" _"'}, {"label": "true"},
    {"label": "2.9"}, {"label": "1e999"}, {"label": "9" * 5000}, {"description": "7"},
    {"description": '"\\udfff"'}, {"other": DEEP}, {"name": "[" + '"a"' + "]"},
)  # fmt: skip


def write_tags(folder: Path, rng: Any = None, **change: str) -> None:
    entries = []
    for number in range(SIZE):
        tokens = list(f" tag{number}".encode())
        told = dict(name=f"tag{number}", count=9 - number, weight=1.0, tokens=tokens)
        entries.append({key: json.dumps(x) for key, x in told.items()})
    head = {key: change.pop(key) for key in ("format", "removed", "tokenizer") if key in change}
    entries[VICTIM] |= change
    rows = ("{" + ", ".join(f'"{k}": {x}' for k, x in e.items()) + "}" for e in entries)
    head = {"format": "1", "tokenizer": '"utf-8"', "removed": "[]"} | head
    fields = [f'"{key}": {x}' for key, x in head.items()] + ['"tags": [' + ", ".join(rows) + "]"]
    (folder / "x.json").write_text("{" + ", ".join(fields) + "}")


def read_tags(folder: Path) -> tuple[Any, int]:
    tags = read_tag_list(f"{folder}/x.json")
    tags.check_tokenizer(Utf8Tokenizer())
    read = [tags.names, tags.counts.tolist(), tags.weights.tolist(), tags.tokens.tolist()]
    return [*read, tags.fingerprint, list(tags.removed)], 0


TAGS = (
    {"weight": "NaN"}, {"weight": "-1"}, {"weight": "Infinity"}, {"weight": "1e999"},
    {"weight": "true"}, {"weight": '"1"'}, {"weight": "9" * 5000}, {"count": "2.7"},
    {"count": "-1"}, {"count": "true"}, {"count": "1e30"}, {"count": '"1_0"'}, {"count": "null"},
    {"tokens": "[1099511627776]"}, {"tokens": "[-7]"}, {"tokens": "[1.5]"}, {"tokens": "[256]"},
    {"tokens": "[true]"}, {"tokens": "[]"}, {"tokens": '"12"'}, {"tokens": "[[1]]"},
    {"name": "null"}, {"name": "7"}, {"name": '""'}, {"name": '"tag1"'}, {"name": '"\\ud800"'},
    {"other": DEEP}, {"removed": "7"}, {"removed": "[7]"}, {"tokenizer": "7"}, {"format": "true"},
)  # fmt: skip


def embedded_source() -> ArraySource:
    made = arrays()
    captions = [[text] for text in made["caption"].tolist()]
    return ArraySource(made["image"], captions, made["label"], title="x.npz")


def write_embedded(folder: Path, rng: Any = None, row: Any = None, **index: Any) -> None:
    rows = np.arange(SIZE * 4, dtype=np.float32).reshape(SIZE, 4)
    if row is not None:
        rows[VICTIM] = row
    shards = list_shards(embedded_source())
    told = dict(dim=4, dtype="float32", shards=[shard._asdict() for shard in shards], made_by={})
    with contextlib.suppress(FileNotFoundError):
        (folder / "x" / "index.json").unlink()
    claim_folder(folder / "x", told | index, write=True)
    keys = join_keys(str(number) for number in range(SIZE))
    write_shard(folder / "x", shards[0], EMBEDDINGS, rows, keys)


def read_embedded(folder: Path) -> tuple[Any, int]:
    joins = {"image_embedding": str(folder / "x")}
    rows, broken = read_examples(source=embedded_source(), joins=joins)
    every = EmbeddingFolder(folder / "x")
    return [rows, every.read(0, every.count).tolist(), every.take(np.arange(SIZE)).tolist()], broken


INDEXES = (
    {"dim": "x"}, {"dim": 3}, {"dim": -1}, {"dim": 2**70}, {"dim": None}, {"dtype": "x"},
    {"dtype": 7}, {"dtype": "int32"}, {"shards": 7}, {"shards": [7]}, {"shards": []},
    {"shards": [{"name": "x.npz", "file": "000000-x.npz", "count": "6"}]},
    {"shards": [{"name": "x.npz", "file": "000000-x.npz", "count": -6}]},
    {"shards": [{"name": "x.npz", "file": "000000-x.npz", "count": 2**70}]},
    {"shards": [{"name": "x.npz", "file": 7, "count": 6}]},
    {"shards": [{"name": "x.npz", "file": "a\0b", "count": 6}]},
    {"shards": [{"name": "x.npz", "file": "x" * 300, "count": 6}]},
    {"shards": [{"name": "x.npz", "count": 6}]},
    {"shards": [{"name": "x.npz", "file": "000000-x.npz", "count": 6, "more": 1}]},
)  # fmt: skip

CLASS_FAULTS = vary(write_classes("json"), CLASSES)
TAG_FAULTS = vary(write_tags, TAGS)
EMBEDDING_FAULTS = [
    *vary(write_embedded, [{"row": x} for x in (np.nan, np.inf, [1, 2, 3, np.nan])]),
    *vary(write_embedded, INDEXES),
]
