"""Near-duplicates: the programs that `tools.find_duplicates` runs once images are embedded."""

import jax.numpy as jnp

from big_align.parallel.meshes import batch_sharding
from big_align.planning.jobs.cluster_job import KEY, place_centers, shape
from big_align.planning.jobs.requests import ITEM, JobProgram, JobRequest, TracedJob
from big_align.planning.machines import Machine
from big_align.use.clusters import nearest_centers
from big_align.use.clusters.nearest_centers import CenterLayout
from big_align.use.duplicates.twins import Buckets

CORE_FLOPS = 75e9
"""FLOP/s of NumPy's products in float32 on one core, as measured with two."""


def trace_duplicates(request: JobRequest, machine: Machine) -> TracedJob:
    """Traces what compares all rows with test images, whose number is `centers`.

    The devices find the buckets of each image, and the hosts compare inside of them.
    """
    rows, dim, tests = request.rows, request.sized("dim"), request.sized("centers")
    buckets = Buckets.choose(tests)
    mesh = nearest_centers.make_center_mesh(buckets.count, dim, list(machine.devices))
    compared = tests if buckets.count == 1 else buckets.count
    layout = CenterLayout(compared, mesh)
    chunk = nearest_centers.round_chunk(None, rows, mesh)
    x = shape((chunk, dim), jnp.float16, batch_sharding(mesh))
    search = nearest_centers.compile_search(layout, buckets.probes)
    lowered = search.lower(place_centers(layout, dim), x)
    times = -(-rows // chunk)
    useful = 2.0 * rows / times * compared * dim
    inside = 0.0
    if buckets.count > 1:
        inside = 2.0 * rows * buckets.probes * (tests / buckets.count) * dim
    return TracedJob(
        machine,
        mesh,
        [
            JobProgram(
                f"{buckets.probes} nearest of {compared:,}", lowered, times, useful, pass_=times
            )
        ],
        held=0,
        host={"test images": tests * dim * 8.0, "a chunk": chunk * dim * 4.0 / machine.hosts},
        disk={"embeddings": rows * (dim * ITEM + KEY)},
        read={"a comparison": rows * dim * ITEM / machine.hosts},
        facts={
            "buckets": buckets.count,
            "core-hours of hosts": inside / CORE_FLOPS / 3600,
        },
        notes=["images are embedded before: --job=embed; several test sets are compared in turn"],
    )
