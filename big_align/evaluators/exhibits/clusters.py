"""Images that share a cluster (MLCD, An et al. 2024, Fig. 2 and 7)."""

from collections.abc import Collection, Iterable

import numpy as np
from jaxtyping import Int

from big_align.data.examples import Source
from big_align.data.precomputed.embedding_files import ClusterFolder
from big_align.data.precomputed.shard_files import list_shards
from big_align.evaluators.exhibits.exhibit import Examples, Finding, Item
from big_align.evaluators.exhibits.pixels import Pixels, read_pixels

Place = tuple[int, int]
"""The number of a shard, and a row in it."""
SEARCHED = 200_000
"""Number of images that are searched for those of a cluster, so a larger set takes no longer."""


def find_examples(
    shards: Iterable[Int[np.ndarray, "_ p"]], wanted: Collection[int], count: int
) -> dict[int, list[Place]]:
    """Finds images of clusters, at most `count` of each, in order.

    Those whose first label is the cluster come first. Shards have the labels of each image, nearest
    first, -1 for none; they are read as far as needed.
    """
    found: dict[int, list[tuple[int, Place]]] = {cluster: [] for cluster in wanted}
    numbers = np.array(sorted(found))
    for shard, clusters in enumerate(shards):
        rows, ranks = np.nonzero(np.isin(clusters, numbers))
        for row, rank in zip(rows.tolist(), ranks.tolist(), strict=True):
            found[int(clusters[row, rank])].append((rank, (shard, row)))
        found = {cluster: sorted(places)[:count] for cluster, places in found.items()}
        if all([rank for rank, _ in places] == [0] * count for places in found.values()):
            break
    return {cluster: [place for _, place in places] for cluster, places in found.items()}


def show_clusters(source: Source, folder: ClusterFolder) -> list[Examples]:
    """Shows a few images of a source, each with other images of its nearest cluster."""
    there = {shard.name: shard for shard in folder.shards}
    labels = []
    for shard in list_shards(source):
        empty = np.zeros((0, folder.labels_per_image), np.int32)
        labels.append(folder.array(there[shard.name]) if shard.count else empty)
        if sum(map(len, labels)) >= SEARCHED:
            break
    return [choose_members(labels, read_pixels(source), count=6, others=9, seed=0)]


def choose_members(
    shards: list[Int[np.ndarray, "_ p"]], pixels: Pixels, count: int, others: int, seed: int
) -> Examples:
    """Draws `count` images with a cluster, and finds `others` more of that cluster.

    The shards, the first ones of a set, hold the labels of images, nearest first, -1 for none.
    """
    begin = np.cumsum([0, *map(len, shards)])
    first = np.concatenate([shard[:, 0] for shard in shards])
    some = np.flatnonzero(first >= 0)
    chosen = np.random.default_rng(seed).permutation(some)[:count].tolist()
    wanted = {int(first[number]) for number in chosen}
    places = find_examples(shards, wanted, others + 1) if wanted else {}
    rows = []
    for number in chosen:
        cluster = int(first[number])
        members = [int(begin[shard] + row) for shard, row in places[cluster]]
        members = [member for member in members if member != number][:others]
        query = Item(pixels(number), f"cluster {cluster}")
        rows.append(Finding(query, [Item(pixels(member)) for member in members]))
    note = "Images drawn at random, and others of the cluster that is nearest to each."
    return Examples("Clusters of the training data", note, rows)
