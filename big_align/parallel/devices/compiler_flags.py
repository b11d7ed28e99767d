"""Options for XLA when it compiles a train step, for each kind of chip and number of slices.

Most of them overlap communication with computation. The compilers of libtpu and XLA accept them by
name as options of one program (`compiler_options`), so nothing has to be set before JAX starts.

Sources:
  [axlearn] github.com/apple/axlearn, axlearn/common/compiler_options.py
  [maxtext] github.com/AI-Hypercomputer/maxtext, benchmarks/xla_flags_library.py
  [openxla] openxla.org/xla/flags_guidance
  [gpu] docs.jax.dev/en/latest/gpu_performance_tips.html and openxla.org/xla/gpu_optimization_levels
  [pipelining] github.com/openxla/xla/pull/45836
"""

import jaxlib
from jax.sharding import Mesh

from big_align.core.nodes import Node
from big_align.parallel.devices.chips import find_chip

Options = dict[str, str | int | float | bool]

_RENAMED = tuple(map(int, jaxlib.__version__.split(".")[:3])) >= (0, 11, 1)
"""Whether XLA has newer names of some options; it refuses names that it does not know."""

_TPU: Options = {
    # Starts transfers early and waits for them late [axlearn].
    "xla_tpu_enable_latency_hiding_scheduler": True,
}
_ASYNC_COLLECTIVES: Options = {
    # Runs an all-gather alongside computations that do not need it, in one fusion, over several of
    # them [openxla]. For v5e alone: on later chips libtpu 0.0.50 refuses it, since results could be
    # wrong. There other means of overlap are libtpu's own choice.
    "xla_enable_async_all_gather": True,
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    "xla_tpu_overlap_compute_collective_tc": True,
}
TPU_FLAGS: dict[str, Options] = {
    "v2": _TPU,
    "v3": _TPU,
    # Off by default on v4 and not supported by v3's hardware [axlearn].
    "v4": _TPU | {"xla_enable_async_all_gather": True, "xla_enable_async_collective_permute": True},
    "v5e": _TPU | _ASYNC_COLLECTIVES,
    "v5p": _TPU,
    # The part of the larger vector memory that one operation may use [axlearn, maxtext].
    "v6e": _TPU | {"xla_tpu_scoped_vmem_limit_kib": "98304"},
    "tpu7x": _TPU,
}
"""Options for TPUs by `Chip.name`."""

SLICE_FLAGS: Options = {
    # All-reduces between slices overlap with the backward pass of the layers below [axlearn;
    # maxtext "DATA_PARALLEL_OVERLAP"].
    "xla_tpu_enable_data_parallel_all_reduce_opt": True,
    "xla_tpu_data_parallel_opt_different_sized_ops": True,
    # Their completion is deferred and combined [axlearn].
    "xla_tpu_enable_sunk_dcn_allreduce_done_with_host_reduction": True,
}
"""Additional options for several TPU slices."""

# Loops fetch what their next iteration needs, and send what the last one made [gpu].
_PIPELINED = ("all_gather", "reduce_scatter", "all_reduce")
_PIPELINING: Options = (
    {f"xla_gpu_pipeline_{kind}": "COLLECTIVE_PIPELINING_MODE_ON" for kind in _PIPELINED}
    if _RENAMED  # and with more than two values [pipelining]
    else {f"xla_gpu_enable_pipelined_{kind}": True for kind in _PIPELINED}
)
GPU_FLAGS: Options = {
    # In trials XLA took cuBLAS for every large product of MLCD's step anyway (H200, jax 0.11.2).
    # Where there is no choice, cuBLAS also adds biases and residual sums to what it multiplies.
    "xla_gpu_enable_triton_gemm": False,
}
"""Options for GPUs."""
SEVERAL_GPUS_FLAGS: Options = {
    # Starts transfers early and waits for them late. It puts off what nothing waits for, and keeps
    # what that reads: gradients of weights, which `models.parts.layer_weights` ties to those of
    # rows, and of biases, so `models.parts.blocks` makes a loop of blocks that store the least.
    "xla_gpu_enable_latency_hiding_scheduler": True,
    # Another way of estimating times for it; not tried.
    "xla_gpu_enable_analytical_sol_latency_estimator": False,
    **_PIPELINING,
}
"""Additional options for several GPUs; a single one has nothing to overlap."""


def choose_options(mesh: Mesh, given: Node) -> Options:
    """Returns the compiler's options for a mesh of real devices, or those of a topology.

    Given options override or extend those of the tables; None removes one.
    """
    devices = mesh.devices.ravel()
    chip = find_chip(devices[0].device_kind)
    options: Options = {}
    if devices[0].platform == "gpu":
        options |= GPU_FLAGS | (SEVERAL_GPUS_FLAGS if len(devices) > 1 else {})
    elif chip and chip.name in TPU_FLAGS:
        options |= TPU_FLAGS[chip.name]
        if len({getattr(device, "slice_index", 0) for device in devices}) > 1:
            options |= SLICE_FLAGS
    return {name: x for name, x in {**options, **given}.items() if x is not None}


def choose_effort(effort: float) -> Options:
    """Returns options that set how much XLA does for the time and memory of a program.

    The effort is from -1, which compiles fastest, to 1; 0 is XLA's default. Newer versions know
    four levels of it.
    """
    if not _RENAMED:
        return {"exec_time_optimization_effort": effort, "memory_fitting_effort": effort}
    level = "O0" if effort <= -1 else "O1" if effort < 0 else "O2" if effort == 0 else "O3"
    return {"optimization_level": level, "memory_fitting_level": level}
