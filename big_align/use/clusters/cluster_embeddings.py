"""Clusters a folder of embeddings into a folder of clusters, and continues where it stopped."""

import json
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from big_align.core.errors import UserError, check_at_least, check_known
from big_align.core.progress import make_bar
from big_align.core.whole_files import open_whole
from big_align.data.precomputed import embedding_files, shard_files
from big_align.data.precomputed.embedding_files import CENTERS, EmbeddingFolder
from big_align.data.precomputed.shard_files import CLUSTERS, INDEX, Shard
from big_align.parallel.distributed import agreement
from big_align.use.clusters import kmeans_init
from big_align.use.clusters.kmeans import SphericalKMeans, has_converged
from big_align.use.clusters.nearest_centers import NearestCenters

PROGRESS = "progress.npz"
SEARCHES = ("exact", "scann")


class Plan(NamedTuple):
    """How to cluster a folder of embeddings."""

    k: int
    labels_per_image: int = 8  # of the nearest clusters, at most
    min_similarity: float | None = None  # the least cosine of those that are written; None for all
    iterations: int = 20  # of k-means, at most
    tolerance: float = 1e-4  # see `kmeans.has_converged`
    start: str = "kmeans++"  # or "sampled"
    seed: int = 0
    search: str = "exact"  # or "scann", which may miss some of the nearest
    candidates: int | None = None  # see `nearest_centers.nearest_of_all`
    sample: int | None = None  # embeddings to iterate over, before once over all; None for all

    def check(self, rows: EmbeddingFolder) -> None:
        """Raises a UserError that names a value which does not fit, and what would."""
        least = {"k": 1, "labels_per_image": 1, "iterations": 1, "seed": 0, "tolerance": 0}
        least |= {"candidates": 1, "sample": self.k}
        for name, bound in least.items():
            check_at_least(bound, **{name: getattr(self, name)})
        present = rows.count - rows.absent
        if self.k > present:
            raise UserError(f"k = {self.k} is more than the {present} embeddings in {rows.path}")
        if self.labels_per_image > self.k:
            raise UserError(
                f"labels_per_image = {self.labels_per_image} is more than the k = {self.k} clusters"
            )
        if self.min_similarity is not None and not -1 <= self.min_similarity <= 1:
            raise UserError(f"min_similarity = {self.min_similarity} is no cosine, from -1 to 1")
        check_known("search", self.search, SEARCHES)


def describe(rows: EmbeddingFolder, plan: Plan) -> dict[str, Any]:
    """Returns the index of the folder of clusters, except for the objective."""
    settings = plan._asdict()
    return {
        "k": settings.pop("k"),
        "dim": rows.dim,
        "labels_per_image": settings.pop("labels_per_image"),
        "shards": [shard._asdict() for shard in rows.shards],
        "made_by": settings | {"embeddings": dict(rows.index.get("made_by", {}))},
    }


def find_centers(
    rows: EmbeddingFolder,
    plan: Plan,
    folder: pathlib.Path,
    mesh: Mesh,
    block: int | None = None,
    chunk: int | None = None,
    say: Callable[[str], None] = print,
) -> Float[np.ndarray, "k d"]:
    """Runs k-means and writes centers and index, or reads what was found before.

    After every iteration the state is written, so that the same command continues. Every process
    sees the folder and returns the centers; `chunk` rows are read at a time.
    """
    plan.check(rows)
    wanted, first = describe(rows, plan), jax.process_index() == 0
    agreement.check_index(wanted)
    made = (folder / INDEX).is_file()
    centers, objective, empty = (None, [], 0) if made else _read_progress(folder, wanted)
    _check_seen(folder, [made, len(objective)])
    if made:
        there = shard_files.read_index(folder, ("k", "dim", "objective"))
        wanted["objective"] = there["objective"]
        shard_files.claim_folder(folder, wanted, write=False)
        return np.array(embedding_files.read_centers(folder, plan.k, rows.dim))
    taken = kmeans_init.DrawnRows(rows, plan.sample, plan.seed) if plan.sample else rows
    if centers is None:
        say(f"choosing {plan.k} of {taken.count - rows.absent} embeddings to start from")
        centers = kmeans_init.start_centers(taken, plan.k, plan.start, mesh, plan.seed)
    sizes = plan.k, mesh, block, chunk, plan.candidates
    began = time.monotonic()
    iterations = SphericalKMeans(taken, *sizes).iterate(centers, len(objective))
    while len(objective) < plan.iterations and not has_converged(objective, empty, plan.tolerance):
        done = next(iterations)
        objective.append(done.objective)
        empty, centers = done.empty, done.centers()
        if first:
            _write_progress(folder, wanted, centers, objective, empty)
        seconds, began = time.monotonic() - began, time.monotonic()
        say(
            f"iteration {done.number}: mean cosine {done.objective:.6f}"
            + (f", {empty} empty clusters restarted" if empty else "")
            + f", {seconds:.1f} s"
        )
    if taken.count < rows.count:
        done = next(SphericalKMeans(rows, *sizes).iterate(centers))
        objective.append(done.objective)
        centers = done.centers()
        say(f"all {rows.count - rows.absent} embeddings: mean cosine {done.objective:.6f}")
    if first:
        shard_files.write_array(folder / CENTERS, centers)
        shard_files.claim_folder(folder, wanted | {"objective": objective}, write=True)
        (folder / PROGRESS).unlink(missing_ok=True)
    return centers


def _check_seen(folder: pathlib.Path, found: list[Any]) -> None:
    """Checks that all processes find the same; they would wait for each other in k-means."""
    everyone = agreement.gather("centers", found)
    others = [number for number, each in enumerate(everyone) if each != everyone[0]]
    if others:
        raise UserError(
            f"{folder}: process {others[0]} does not see the clusters that process 0 sees there; "
            "it must be on storage that all hosts share"
        )


def _write_progress(
    folder: pathlib.Path, wanted: dict, centers: np.ndarray, objective: list[float], empty: int
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    there = {"centers": centers, "objective": objective, "empty": empty}
    with open_whole(folder / PROGRESS) as file:
        np.savez(file, **there, wanted=json.dumps(wanted))


def _read_progress(
    folder: pathlib.Path, wanted: dict
) -> tuple[Float[np.ndarray, "k d"] | None, list[float], int]:
    """Reads where k-means stopped: centers, the objective of each iteration, empty clusters."""
    path = folder / PROGRESS
    if not path.is_file():
        return None, [], 0
    with np.load(path, allow_pickle=False) as there:
        shard_files.check_same(folder, json.loads(str(there["wanted"])), wanted)
        return there["centers"], there["objective"].tolist(), int(there["empty"])


def write_labels(
    rows: EmbeddingFolder,
    centers: Float[np.ndarray, "k d"],
    plan: Plan,
    folder: pathlib.Path,
    mesh: Mesh,
    block: int | None = None,
    chunk: int | None = None,
) -> float | None:
    """Writes the nearest centers of the rows of every shard that is not there yet.

    Returns how many labels a row has in the shards written now; None if all were there.
    """
    first, shards = jax.process_index() == 0, rows.shards
    if plan.search == "scann":  # each process searches by itself
        shards, first = shards[jax.process_index() :: jax.process_count()], True
    there = [shard_files.has_shard(folder, shard, CLUSTERS) for shard in shards]
    if plan.search == "exact":  # all search together, and one may see a file later than another
        there = agreement.share("labels", there)
    todo = [shard for shard, done in zip(shards, there, strict=True) if not done]
    if not todo:
        return None
    part = rows.part(todo)
    if plan.search == "scann":
        from big_align.use.clusters.scann_search import ScannSearch

        find = ScannSearch(centers, plan.labels_per_image, chunk)
    else:
        find = NearestCenters(centers, mesh, plan.labels_per_image, block, chunk, plan.candidates)
    bar = make_bar(
        total=rows.count, initial=rows.count - part.count, unit="image", dynamic_ncols=True,
        disable=jax.process_index() != 0,
    )  # fmt: skip
    written = 0
    least = -np.inf if plan.min_similarity is None else plan.min_similarity
    found = (np.where(cosine >= least, label, -1) for cosine, label in find(part))
    with bar:
        for shard, labels in shard_files.cut_in_shards(found, todo):
            written += _write(rows, shard, labels, folder, first)
            bar.update(shard.count)
    return written / part.count


def _write(
    rows: EmbeddingFolder, shard: Shard, labels: np.ndarray, folder: pathlib.Path, write: bool
) -> int:
    """Writes the labels of a shard; returns how many there are."""
    present = np.array([bool(key) for key in rows.keys(shard)])
    labels = np.where(present[:, None], labels, -1).astype(np.int32)
    if write:
        shard_files.write_shard(folder, shard, CLUSTERS, labels, rows.key_lines(shard))
    return int((labels >= 0).sum())
