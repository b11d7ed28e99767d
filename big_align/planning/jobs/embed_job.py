"""Embedding images with the towers of a config: the program that `tools.embed` runs."""

import pathlib

import jax
import numpy as np

from big_align.config.overrides import load_config
from big_align.core.errors import UserError
from big_align.evaluators.embedder import Embedder
from big_align.parallel.meshes import make_mesh, replicated
from big_align.planning import host_speed, stand_ins
from big_align.planning.jobs.cluster_job import KEY
from big_align.planning.jobs.requests import ITEM, JobProgram, JobRequest, TracedJob
from big_align.planning.machines import Machine, find_machine, one_host
from big_align.planning.tracing import place_shapes
from big_align.runs import build
from big_align.runs.check import BlankTokenizer
from big_align.runs.initial_weights import take_settings
from big_align.runs.program import build_program
from big_align.training import flops

ROWS = 256
"""Images that a device embeds at a time, as `tools.embed` chooses."""

IMAGE_BYTES = 48_000
"""Bytes of a photograph as img2dataset stores those of LAION-5B, at 384 pixels: 240 TB in all."""


def trace_embedding(request: JobRequest, machine: Machine, folder: pathlib.Path) -> TracedJob:
    """Traces what embeds all images; each host works by itself."""
    config = take_settings(load_config(request.config, *request.overrides))
    notes = stand_ins.fill_in(config, folder)
    # Devices of a part of a slice cannot be compiled for.
    host = find_machine(one_host(machine.name))
    mesh = make_mesh(1, list(host.devices))
    batch_size = request.batch_size or ROWS * mesh.size
    if batch_size % mesh.size:
        raise UserError(f"--batch_size={batch_size} must be a multiple of {mesh.size} devices")
    tokenizer = BlankTokenizer(config.tokenizer)
    objective = build.build_objective(config, mesh, tokenizer)
    example = build.example_batch(config, tokenizer)
    state = build_program(config, mesh, objective, example).state
    given = {name: example[name] for name in ("image",)} | {"mask": np.ones(1, bool)}
    batch = place_shapes(given, batch_size, mesh)
    whole = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(mesh)),
        (state.params, state.model_state),
    )
    embed = Embedder(objective, mesh, batch_size).compile_verbs(("embed_image",))
    traced = embed.trace(*whole, batch)
    dim = traced.out_info[0].shape[1]
    hosts, rows = machine.hosts, request.rows
    useful = flops.count_program(flops.drop_unused(traced.jaxpr.jaxpr))
    speed = host_speed.measure_images_per_core(config.data.transform)
    return TracedJob(
        host,
        mesh,
        [JobProgram(f"embed {batch_size} images", traced.lower(),
                    -(-rows // (hosts * batch_size)), useful, pass_=1)],
        held=0,
        host={"images on the way": 4.0 * batch_size * example["image"][0].nbytes},
        disk={"images": float(rows * IMAGE_BYTES), "embeddings": rows * (dim * ITEM + KEY)},
        read={"images": rows * IMAGE_BYTES / hosts},
        facts={"numbers of an embedding": dim, "images_per_core": speed},
        notes=[*notes, f"an image has {IMAGE_BYTES:,} bytes"],
    )  # fmt: skip
