"""Clusters of embeddings, and the nearest of each image: the programs of `tools.cluster`."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from big_align.parallel.meshes import batch_sharding, replicated, unsummed_sharding
from big_align.planning.jobs.requests import ITEM, JobProgram, JobRequest, TracedJob
from big_align.planning.machines import Machine
from big_align.use.clusters import kmeans_init, nearest_centers
from big_align.use.clusters.kmeans import Programs
from big_align.use.clusters.nearest_centers import CenterLayout, Centers

KEY = 12
"""Bytes of the key of an image, such as `000123456.jpg`, about."""


def trace_clusters(request: JobRequest, machine: Machine) -> TracedJob:
    """Traces what clusters and labels all rows."""
    rows, dim, k = request.rows, request.sized("dim"), request.sized("centers")
    mesh = nearest_centers.make_center_mesh(k, dim, list(machine.devices))
    layout = CenterLayout(k, mesh, candidates=request.candidates)
    chunk = nearest_centers.round_chunk(None, rows, mesh)
    taken = min(request.sample or rows, rows)
    passes = -(-rows // chunk), -(-taken // chunk)
    programs = [
        *_trace_start(request, layout),
        *_trace_iteration(request, layout, chunk, passes),
        _trace_labels(request, layout, chunk, passes[0]),
    ]
    share, each = rows * dim * ITEM / machine.hosts, 4.0 * dim
    labels = request.labels
    return TracedJob(
        machine,
        mesh,
        programs,
        held=8 * -(-rows // mesh.size),  # cosine and center of each row of a pass
        host={
            "rows to start from": kmeans_init.count_sample(rows, k) * (each + ITEM * dim),
            "centers": 2 * k * each,
            "a chunk and its labels": chunk * (dim * ITEM / machine.hosts + 8 * labels),
            "drawing the sample": 8.0 * rows if request.sample else 0.0,
        },
        disk={
            "embeddings": rows * (dim * ITEM + KEY),
            "labels": rows * (4 * labels + KEY),
            "centers": k * each,
        },
        read={"a pass over all": share, "labels": share},
        facts={"rows of a host": rows / machine.hosts, "rows of a chunk": chunk},
    )  # fmt: skip


def place_centers(layout: CenterLayout, dim: int) -> Centers:
    """Returns the shapes of centers, and where they are."""
    exact = shape((layout.rows, dim), jnp.float32, layout.placement)
    rest = (shape(x.shape, x.dtype, layout.placement) for x in jax.eval_shape(layout.round, exact))
    return Centers(exact, *rest)


def shape(sizes: tuple[int, ...], dtype: Any, placement: NamedSharding) -> jax.ShapeDtypeStruct:
    """Returns the shape of an array, and where it is."""
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=placement)


def _trace_start(request: JobRequest, layout: CenterLayout) -> list[JobProgram]:
    """Traces k-means++: new centers, as many as are proposed at a time, against the sample."""
    mesh, dim, new = layout.mesh, request.sized("dim"), kmeans_init.PROPOSED_MAX
    count = kmeans_init.count_sample(request.rows, layout.k)
    size, block = kmeans_init.round_sample(count, mesh)
    split = batch_sharding(mesh)
    update, _ = kmeans_init.compile_distances(mesh, block)
    lowered = update.lower(
        shape((new, dim), jnp.float32, replicated(mesh)),
        shape((size, dim), jnp.float32, split),
        shape((size,), jnp.float32, split),
    )
    times = math.ceil(layout.k / new)
    return [JobProgram("k-means++: 4096 more", lowered, times, 2.0 * count * new * dim)]


def _trace_iteration(
    request: JobRequest, layout: CenterLayout, chunk: int, passes: tuple[int, int]
) -> list[JobProgram]:
    """Traces the assignment of a chunk, and the update of the centers."""
    mesh, dim = layout.mesh, request.sized("dim")
    programs, parts = Programs(layout, dim), unsummed_sharding(mesh)
    centers = place_centers(layout, dim)
    sums, counts = (shape(x.shape, x.dtype, parts) for x in jax.eval_shape(programs.zeros))
    x = shape((chunk, dim), jnp.float16, batch_sharding(mesh))
    every, sampled = passes
    iterations, last = request.iterations, int(request.sample is not None)
    useful = 2.0 * request.rows / every * layout.k * dim
    return [
        JobProgram(
            "assign a chunk", programs.assign.lower(centers, sums, counts, x),
            iterations * sampled + last * every, useful, pass_=every,
        ),
        JobProgram(
            "move the centers", programs.move.lower(centers.exact, sums), iterations + last, 0.0,
            pass_=1,
        ),
    ]  # fmt: skip


def _trace_labels(request: JobRequest, layout: CenterLayout, chunk: int, times: int) -> JobProgram:
    """Traces the search of the nearest centers of a chunk."""
    dim = request.sized("dim")
    x = shape((chunk, dim), jnp.float16, batch_sharding(layout.mesh))
    search = nearest_centers.compile_search(layout, request.labels)
    lowered = search.lower(place_centers(layout, dim), x)
    useful = 2.0 * request.rows / times * layout.k * dim
    return JobProgram(f"label a chunk, {request.labels} each", lowered, times, useful)
