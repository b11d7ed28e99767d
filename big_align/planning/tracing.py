"""Traces the real train step of a config for a machine, and passes it to the compiler.

It runs as a separate process (`compilation.compile_step`), since the number of virtual devices is
fixed when JAX starts, and since a compiler can only be stopped with its process:
  python -m big_align.planning.tracing FOLDER
FOLDER/request.json says what to do; results go to FOLDER/traced.json, the compiler's own output to
FOLDER/dump, and error messages to FOLDER/failed.json.
"""

import functools
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from big_align.config.overrides import load_config
from big_align.config.plain_fields import check_batch, check_values
from big_align.core.errors import UserError
from big_align.core.nodes import find_node
from big_align.core.whole_files import write_whole
from big_align.parallel.devices import choices
from big_align.parallel.devices.compilation import compile_lowered
from big_align.parallel.devices.compiler_flags import choose_effort
from big_align.parallel.devices.rematerialization import auto_is, find_least
from big_align.parallel.meshes import batch_sharding, make_mesh
from big_align.planning import gpu_topologies, stand_ins
from big_align.planning.machines import Machine, find_machine
from big_align.runs import build
from big_align.runs.cached_features import describe_example
from big_align.runs.check import BlankTokenizer
from big_align.runs.initial_weights import take_settings
from big_align.runs.program import build_program
from big_align.training import flops


def main(folder: Path) -> int:
    """Runs one request; returns the exit status."""
    request = json.loads((folder / "request.json").read_text())
    try:
        config = take_settings(load_config(request["config"], *request["overrides"]))
        config = find_node(config, request["place"])
        machine = find_machine(request["topology"], request["slices"])
        traced, lowered = trace(config, machine, folder, request["level"], request["room"])
        _write(folder / "traced.json", traced)
        options = _options(machine, traced["options"], request["effort"], folder)
        compiled = compile_lowered(lowered, options)
        _write(folder / "compiled.json", _describe(compiled))
    except UserError as error:
        named = f"config.{request['place']}.".replace("..", ".")
        message = str(error).replace("config.", named, 1)
        _write(folder / "failed.json", {"kind": "user", "message": message})
        return 1
    except jax.errors.JaxRuntimeError as error:
        kind = "memory" if "RESOURCE_EXHAUSTED" in str(error) else "compiler"
        _write(folder / "failed.json", {"kind": kind, "message": str(error)})
        return 1
    except ValueError as error:
        _write(folder / "failed.json", {"kind": "user", "message": " ".join(str(error).split())})
        raise
    return 0


def _write(path: Path, content: Any) -> None:
    """Writes JSON so that a process that sees the file sees all of it."""
    write_whole(path, json.dumps(content).encode())


def _describe(compiled: jax.stages.Compiled) -> dict[str, Any]:
    """Returns XLA's own count of bytes, and the memory of the finished program."""
    stats = compiled.memory_analysis()
    memory = {
        "arguments": stats.argument_size_in_bytes,
        "outputs": stats.output_size_in_bytes - stats.alias_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "code": stats.generated_code_size_in_bytes,
    }
    memory["peak"] = sum(memory.values())
    return {"bytes": (compiled.cost_analysis() or {}).get("bytes accessed"), "memory": memory}


def _options(
    machine: Machine, given: dict[str, Any], effort: float | None, folder: Path
) -> dict[str, Any]:
    """Returns the options of the run, and those that the plan needs in addition."""
    options = given | {"xla_dump_to": str(folder / "dump"), "xla_dump_hlo_as_text": True}
    if machine.stands_in:
        # Nothing is run, so what LLVM makes of the program does not matter.
        return options | {"xla_backend_optimization_level": 0}
    if effort is None or machine.chip.name in gpu_topologies.TARGETS:
        return options
    return options | choose_effort(effort)


def trace(
    config: ConfigDict, machine: Machine, folder: Path, level: str, room: int
) -> tuple[dict[str, Any], jax.stages.Lowered]:
    """Traces the step of a config; makes nothing but shapes.

    Files that the config names need not exist: the folder is for their placeholders. Towers whose
    `remat` is "auto" recompute the least, from a level on, with which what they store has room, in
    bytes. Returns what is known without compiling, as JSON values, and the traced step.
    """
    start = time.perf_counter()
    check_values(config)
    check_batch(config, "batch_size", len(machine.devices), config.microbatches)
    assumed = stand_ins.fill_in(config, folder) + stand_ins.tell_vocabulary(config)
    mesh_node = {name: value for name, value in config.mesh.items() if value is not None}
    mesh = make_mesh(**mesh_node, devices=list(machine.devices))
    tokenizer = BlankTokenizer(config.tokenizer)
    objective = build.build_objective(config, mesh, tokenizer)
    example = describe_example(config, tokenizer, objective)
    # A model is made from an image, as in a run, also where its features take the place of images.
    program = build_program(config, mesh, objective, build.example_batch(config, tokenizer))
    batch = place_shapes(example, config.batch_size, mesh)
    count_stored = functools.cache(functools.partial(program.count_stored, batch))
    level = find_least(count_stored, room, level)
    with auto_is(level) as asked, choices.collect() as chosen:
        step = program.trace(batch)
    if asked:
        chosen[f"remat: auto is {level}"] = None
    leaves = jax.tree.leaves(program.state.params)
    return {
        "assumed": assumed,
        "auto": bool(asked),
        "level": level,
        "stored": count_stored(level),
        "chosen": [*chosen],
        "devices": len(machine.devices),
        "chips": machine.num_chips,
        "hosts": machine.hosts,
        "mesh": dict(mesh.shape),
        "places": [machine.place(device) for device in mesh.devices.flat],
        "parameters": sum(math.prod(leaf.shape) for leaf in leaves),
        "useful_flops": program.count_flops(batch),
        "traced_flops": flops.count_program(flops.drop_unused(step.jaxpr.jaxpr)),
        "batch_size": config.batch_size,
        "images_per_example": example["image"].size // math.prod(example["image"].shape[-3:])
        if "image" in example
        else 0,
        "total_steps": config.total_steps,
        "transform": _transform(config),
        "stands_in": machine.stands_in,
        "options": {} if machine.stands_in else program.options,
        "seconds": time.perf_counter() - start,
    }, step.lower()


def place_shapes(
    example: dict[str, np.ndarray], batch_size: int, mesh: Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and the placement of a batch."""
    rows = batch_sharding(mesh)
    return {
        name: jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), x.dtype, sharding=rows)
        for name, x in example.items()
    }


def _transform(config: ConfigDict) -> str:
    parts = list((config.data.get("mixture") or {}).values())
    return next((part["transform"] for part in parts if part.get("transform")), None) or (
        config.data.transform
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
