"""Clusters embeddings by spherical k-means and labels every image with its nearest centers.

For example:
  python -m big_align.tools.cluster --embeddings=embeddings --k=1000000 --output=clusters
  python -m big_align.tools.cluster --embeddings=embeddings --k=1000 --labels_per_image=32 \\
      --min_similarity=0.91 --output=clusters

The embeddings come from big_align.tools.embed; they are streamed from disk, and the centers are
split over all devices. The output holds the centers and, for each shard, the numbers of the nearest
centers of each image, nearest first, -1 where there are fewer (MLCD, 3.2 and Table 5c, d). Running
the same command again continues after the last iteration that was finished, on any number of
processes. With --distributed, all hosts must share both folders.
"""

import argparse
import sys

from big_align.tools import command


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = command.make_parser("cluster", __doc__)
    add = parser.add_argument
    add("--embeddings", required=True, help="the folder that big_align.tools.embed wrote")
    add("--k", required=True, type=int, help="number of clusters")
    add("--output", required=True, type=command.local_path, help="the folder to write")
    add("--labels_per_image", type=int, default=8, help="most centers per image (%(default)s)")
    add("--min_similarity", type=float, help="minimum cosine of a center to keep (default: all)")
    add("--iterations", type=int, default=20, help="most iterations of k-means (%(default)s)")
    add("--tolerance", type=float, default=1e-4,
        help="stop when an iteration closes less than this fraction of the gap between the mean "
        "cosine and 1 (%(default)s)")  # fmt: skip
    add("--start", default="kmeans++", choices=("kmeans++", "sampled"),
        help="how to choose the first centers among the embeddings (%(default)s)")  # fmt: skip
    add("--seed", type=int, default=0, help="random seed of the first centers (%(default)s)")
    add("--search", default="exact", choices=("exact", "scann"),
        help="how to find the nearest centers at the end: exact compares with all centers on the "
        "devices; scann runs on CPUs, and is faster but may miss some (%(default)s)")  # fmt: skip
    add(
        "--candidates", type=int,
        help="compare in bfloat16, and so many of the nearest again in float32: faster on "
        "accelerators, but misses a center that is not among them (default: all in float32)",
    )  # fmt: skip
    add("--sample", type=int,
        help="how many embeddings, drawn evenly, k-means iterates over, before one iteration over "
        "all (default: all throughout)")  # fmt: skip
    add(
        "--chunk", type=int, help="embeddings to read at a time (4096 on CPUs, else 16384 a device)"
    )
    add("--block", type=int, help="centers to compare with at a time (256 on CPUs, else 8192)")
    add("--distributed", action="store_true", help="run as one of several processes, see launch/")
    return command.run(cluster, parser.parse_args(arguments))


def cluster(options: argparse.Namespace) -> None:
    """Clusters, and prints what was done."""
    from big_align.data.precomputed.embedding_files import EmbeddingFolder
    from big_align.parallel.distributed import agreement
    from big_align.use.clusters import cluster_embeddings
    from big_align.use.clusters.nearest_centers import make_center_mesh

    command.begin_processes(options.distributed)
    fields = cluster_embeddings.Plan._fields
    plan = cluster_embeddings.Plan(**{name: getattr(options, name) for name in fields})
    rows = EmbeddingFolder(options.embeddings)
    mesh = make_center_mesh(plan.k, rows.dim)
    sizes = options.block, options.chunk
    centers = cluster_embeddings.find_centers(rows, plan, options.output, mesh, *sizes, say=say)
    labels = cluster_embeddings.write_labels(rows, centers, plan, options.output, mesh, *sizes)
    # With scann each process has its own shards: JAX ends all some minutes after one has exited.
    agreement.gather("labels", None)
    many = "labels were there" if labels is None else f"{labels:.2f} labels an image"
    say(f"{options.output}: {rows.count} images in {plan.k} clusters; {many}")


def say(text: str) -> None:
    """Prints a line, from the first process only."""
    import jax

    if jax.process_index() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
