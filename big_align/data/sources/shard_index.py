"""Where the examples of each shard begin, found once and kept on disk."""

import concurrent.futures
import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from big_align.core.digests import fingerprint
from big_align.core.errors import UserError, pass_unreachable, put_in_a_line
from big_align.core.regular_files import open_given
from big_align.core.whole_files import open_whole
from big_align.data import array_files, files

INDEX_THREADS = 16  # scans wait for storage, not for the processor


@dataclasses.dataclass
class ShardIndex:
    """The places of the examples of one shard."""

    table: np.ndarray  # unsigned [examples, columns], offsets and sizes as the format counts
    keys: np.ndarray  # bytes [examples], the names of the examples, or empty
    broken: int = 0  # examples that lack a part
    fault: str = ""  # why the scan stopped before the proper end
    reason: str = ""  # why the first of the broken examples is broken


def index_shards(
    paths: list[str], scan: Callable[[Any, int], ShardIndex], settings: str, index_dir: str | None
) -> list[ShardIndex]:
    """Scans shards in threads, or loads what an earlier scan of the same bytes found.

    `scan` takes an open file and its size in bytes; `settings` are whatever else decides what it
    finds. A local folder `index_dir` keeps indexes; None keeps nothing.
    """
    started = logged = time.monotonic()
    indexes = []
    with concurrent.futures.ThreadPoolExecutor(INDEX_THREADS) as pool:
        for index in pool.map(lambda path: _index_shard(path, scan, settings, index_dir), paths):
            indexes.append(index)
            if time.monotonic() - logged > 10:
                logged = time.monotonic()
                logging.info("indexed %d of %d shards", len(indexes), len(paths))
    for path, index in zip(paths, indexes, strict=True):
        if index.fault:
            fault = put_in_a_line(index.fault)
            logging.warning("%s: %s; everything before it is used", path, fault)
        if index.broken:
            logging.warning(
                "%s: %d examples are left out; of the first %s",
                path, index.broken, put_in_a_line(index.reason),
            )  # fmt: skip
    count, seconds = sum(len(index.table) for index in indexes), time.monotonic() - started
    logging.info("%d examples in %d shards, indexed in %.1f s", count, len(paths), seconds)
    return indexes


def _index_shard(path: str, scan: Callable, settings: str, index_dir: str | None) -> ShardIndex:
    system = files.files_of(path)
    size, changed = system.stamp(path)
    name = f"{os.path.basename(path)}-{fingerprint(path, 16)}.npz"
    cache = os.path.join(index_dir, name) if index_dir else None
    stamp = f"3 {size} {changed} {settings}"
    index = _load(cache, stamp) if cache else None
    if index is None:
        try:
            with system.open(path) as file:
                index = scan(file, size)
        except OSError as error:
            pass_unreachable(error)
            raise UserError(f"{path} cannot be read: {error}") from error
        if cache:
            _save(cache, stamp, index)
    return index


def _load(cache: str, stamp: str) -> ShardIndex | None:
    try:
        with open_given(cache) as file:
            saved = array_files.read_arrays(file, ("stamp", *ShardIndex.__dataclass_fields__))
        if str(saved["stamp"]) != stamp:
            return None
        texts = str(saved["fault"]), str(saved["reason"])
        return ShardIndex(saved["table"], saved["keys"], int(saved["broken"]), *texts)
    except Exception:  # absent, incomplete, or not written by us: each raises its own kind
        return None  # scan again


def _save(cache: str, stamp: str, index: ShardIndex) -> None:
    """Writes an index whole, so that another process never reads half of it."""
    folder = os.path.dirname(cache)
    try:
        os.makedirs(folder, exist_ok=True)
        with open_whole(cache) as file:
            np.savez(file, stamp=stamp, **dataclasses.asdict(index))
    except OSError as error:
        raise UserError(f"index_dir {folder} cannot be written: {error}") from error


def count_broken(indexes: list[ShardIndex]) -> np.ndarray:
    """Counts the broken examples of each shard, including those lost with a truncated end.

    What a truncated shard has lost cannot be seen, so its full size is taken to be the median of
    the whole shards.
    """
    whole = [len(index.table) for index in indexes if not index.fault]
    usual = int(np.median(whole)) if whole else 0
    lost = [max(1, usual - len(index.table)) if index.fault else 0 for index in indexes]
    return np.array([index.broken for index in indexes], np.int64) + np.array(lost, np.int64)


def list_faults(paths: list[str], indexes: list[ShardIndex]) -> tuple[str, ...]:
    """Returns why examples of shards are left out, a line for each shard that lost some."""
    found = []
    for path, index in zip(paths, indexes, strict=True):
        reasons = [index.reason] * bool(index.broken) + [index.fault] * bool(index.fault)
        if reasons:
            found.append(put_in_a_line(f"{os.path.basename(path)}: {'; '.join(reasons)}"))
    return tuple(found)
