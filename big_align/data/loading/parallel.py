"""Batches filled by threads, several batches ahead of the consumer."""

import collections
import concurrent.futures
import itertools
import math
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, SupportsIndex

import numpy as np
from jaxtyping import Int

from big_align.core.errors import UserError
from big_align.data.workers.batch_memory import HostBatch
from big_align.parallel.distributed.variables import read_number

CHUNK_MAX = 32  # rows of one job: enough for a tokenizer call to pay off; more would block threads
CHUNK_MIN = 16  # of a process's job, if the batch has them: each job has a cost for the parent

THREADS_SUFFICE = 8
"""Cores up to which threads fill batches by default: with more, they wait for Python's lock."""

LOCAL_PROCESSES = "BIG_ALIGN_LOCAL_PROCESSES"
"""Variable that says how many processes of a run share this machine's cores (launch/local.sh)."""
CGROUP = pathlib.Path("/sys/fs/cgroup")
"""Where a container's limits are."""


class Filling(NamedTuple):
    """A batch whose rows are being filled by some jobs."""

    batch: HostBatch
    jobs: list[concurrent.futures.Future]

    def result(self) -> HostBatch:
        """Waits for all rows; raises what a job raised."""
        try:
            for job in self.jobs:
                job.result()
        finally:
            self.cancel()
        return self.batch

    def cancel(self) -> None:
        """Drops the jobs that have not begun."""
        for job in self.jobs:
            job.cancel()


def count_cores() -> int:
    """Returns how many cores this process may use: its share of what the machine allows."""
    known = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
    sharing = read_number(LOCAL_PROCESSES, least=1, default=1)
    return max(1, math.ceil(min(cores, _read_quota())) // sharing)


def _read_quota() -> float:
    """Returns how many cores' time a container may use, as `docker --cpus` sets it."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # cgroup 2, 1
        try:
            quota, period = " ".join((CGROUP / name).read_text() for name in names).split()
            if int(quota) > 0:  # -1 is no limit
                return int(quota) / int(period)
        except (OSError, ValueError):  # no such file, or the quota is "max"
            continue
    return math.inf


def choose_workers(
    num_threads: int | None, num_processes: int | None, rows: int
) -> tuple[int, int]:
    """Returns the number of threads of each process, and of processes; 0 is only this one.

    With None there is one thread in each process, or one per core if there is only this one; and
    one process per core above eight, but no more than rows of a batch are made here.
    """
    cores = count_cores()
    if num_processes is None:
        num_processes = min(cores, rows) if cores > THREADS_SUFFICE else 0
    return num_threads or (1 if num_processes else cores), num_processes


class Workers:
    """Threads that fill batches; decoding and resampling run outside Python's lock.

    Args:
      num_threads: None takes one for each core that this process may use.
      least: the fewest rows of a job, if there are that many.
    """

    def __init__(self, num_threads: int | None, least: int = 1):
        self._least = least
        self.num_threads = num_threads or count_cores()
        self._pool = concurrent.futures.ThreadPoolExecutor(self.num_threads, "data")

    def fill(
        self, batch: HostBatch, rows: int, job: Callable[[HostBatch, int, int], None]
    ) -> Filling:
        """Starts `job(batch, first, end)` on chunks of rows."""
        chunk = min(CHUNK_MAX, max(self._least, -(-rows // self.num_threads)))
        futures = [
            self._pool.submit(job, batch, first, min(first + chunk, rows))
            for first in range(0, rows, chunk)
        ]
        return Filling(batch, futures)

    def close(self) -> None:
        """Drops waiting jobs, waits for running ones and ends the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def take_ahead(started: Iterator[Filling], depth: int) -> Iterator[HostBatch]:
    """Yields finished batches in order while up to `depth` later ones are being filled."""
    queue = collections.deque(itertools.islice(started, depth))
    try:
        while queue:
            filling = queue.popleft()
            queue.extend(itertools.islice(started, 1))
            yield filling.result()
    finally:
        for filling in queue:
            filling.cancel()


def check_rows(
    rows: Sequence[SupportsIndex] | Int[np.ndarray, " r"] | None, batch_size: int
) -> Int[np.ndarray, " r"]:
    """Returns the rows of a batch that a process makes, all for None; or raises a UserError."""
    given = np.arange(batch_size) if rows is None else np.asarray(rows)
    whole = given.ndim == 1 and given.size > 0 and given.dtype.kind in "iu"
    if not whole or given[0] < 0 or given[-1] >= batch_size or (np.diff(given) < 1).any():
        raise UserError(
            f"rows {given.tolist()} are not ascending rows of a batch of batch_size={batch_size}"
        )
    return given
