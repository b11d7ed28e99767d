"""Both passes of attention compiled for devices that are not there: what the programs hold."""

import re

import jax
import jax.numpy as jnp
import pytest

from big_align.devices import choices, traced
from big_align.devices.compiler_flags import GPU_FLAGS, TPU_FLAGS
from big_align.kernels.attention_dropout import Dropout
from big_align.models.parts import attention
from big_align.parallel.meshes import batch_sharding, make_mesh, replicated
from big_align.planning import gpu_topologies
from big_align.planning.executed import count_executed_flops
from big_align.planning.hlo import parse_program
from big_align.planning.topologies import topology_devices
from big_align.planning.traffic import count_traffic

needs_libtpu = pytest.mark.libtpu
needs_compiler = pytest.mark.skipif(
    not gpu_topologies.has_compiler(), reason="JAX for CUDA: pip install '.[cuda]'"
)
WINDOWS = [(128, 3, 64), (32, 6, 16), (32, 12, 4), (16, 24, 1)]
"""Examples, heads and biases in the four stages of a Swin-T."""
COLLECTIVES = "all-gather", "all-reduce", "all-to-all", "collective-permute"


def compile_both(
    devices,
    query,
    masked=False,
    causal=False,
    dtype="bfloat16",
    options=None,
    way="auto",
    biases=0,
    rate=0.0,
):
    """Returns the program, the targets that it calls, and what was told."""
    mesh = make_mesh(devices=devices)
    rows, same = batch_sharding(mesh), replicated(mesh)
    arrays = [jax.ShapeDtypeStruct(query, dtype, sharding=rows)] * 4
    mask = jax.ShapeDtypeStruct(query[:2], jnp.bool_, sharding=rows)
    shape = biases, query[2], query[1], query[1]
    bias = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=same) if biases else None
    key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype, sharding=same) if rate else None

    def run(query, key, value, bias, cotangent, mask, draw):
        def attend(query, key, value, bias):
            rest = dict(causal=causal, way=way, bias=bias)
            rest["dropout"] = Dropout(rate, draw) if rate else None
            return attention.attend(query, key, value, mask if masked else None, **rest)

        with traced.weights_on(mesh):
            out, pull_back = jax.vjp(attend, query, key, value, bias)
            return out, pull_back(cotangent)

    with choices.collect() as lines:
        lowered = jax.jit(run).lower(*arrays[:3], bias, arrays[3], mask, key)
    text = lowered.compile(compiler_options=dict(options or {}) or None).as_text()
    # Only gradients of biases are added up over devices.
    assert [name for name in COLLECTIVES if name in text] in ([], ["all-reduce"][: bool(biases)])
    return parse_program(text), re.findall('custom_call_target="([^"]*)"', text), list(lines)


def compile_for_tpu(topology, query, count=1, **arguments):
    devices = topology_devices(topology)[:count]
    options = TPU_FLAGS[topology.partition(":")[0]]
    return compile_both(devices, query, options=options, **arguments)


@needs_libtpu
@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2"])
def test_a_tpu_runs_one_kernel_a_pass_which_counts_what_it_multiplies(topology):
    program, targets, lines = compile_for_tpu(
        topology, (16, 77, 8, 64), 4, masked=True, causal=True
    )
    assert targets.count("tpu_custom_call") == 2
    assert lines == ["attention: pallas for 77 tokens, 8 heads of 64, bfloat16"]
    # Of 128 channels that are multiplied, half are zeros.
    assert count_executed_flops(program) == {"bf16": 2 * 7 * 2 * 4 * 77 * 77 * 8 * 64}


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "biases", "rate"),
    [
        *(((count, 49, heads, 32), windows, 0.0) for count, heads, windows in WINDOWS),
        ((32, 144, 6, 32), 4, 0.0),
        ((16, 40, 12, 64), 0, 0.1),
        ((16, 257, 12, 64), 0, 0.1),
        ((16, 1025, 12, 64), 0, 0.1),
    ],
)
def test_a_tpu_runs_one_kernel_a_pass_with_biases_and_dropout(query, biases, rate):
    for topology in "v5e:2x2", "v5p:2x2x1":
        _, targets, lines = compile_for_tpu(topology, query, 2, biases=biases, rate=rate)
        assert targets.count("tpu_custom_call") == 2, lines


LENGTHS = [
    *((tokens, width, 64) for tokens in (50, 197, 257, 577, 1025) for width in (768, 1024)),
    *((257, 1280, 80), (257, 256, 32), (257, 768, 96), (257, 1024, 128), (64, 512, 64)),
]


LARGE = [(577, 1024, 64), (1025, 1024, 64), (257, 1280, 80), (257, 1024, 128)]
"""Those that take most of the memory of a core, which generations have more of or less."""


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("topology", "tokens", "width", "channels"),
    [("v5e:2x2", *each) for each in LENGTHS]
    + [(topology, *each) for topology in ("v5p:2x2x1", "v6e:2x2") for each in LARGE],
)
def test_every_length_fits_on_a_tpu(topology, tokens, width, channels, dtype):
    query = 8, tokens, width // channels, channels
    _, targets, lines = compile_for_tpu(topology, query, dtype=dtype)
    assert targets.count("tpu_custom_call") == 2 and lines[0].startswith("attention: pallas")


@needs_compiler
@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize(
    ("tokens", "masked", "causal"),
    [(144, False, False), (257, False, False), (177, False, True), (177, True, True)],
)
def test_gpus_run_cudnn_on_their_own_rows(tokens, masked, causal, gpus):
    devices = gpu_topologies.describe_gpus("h100", 1, gpus)
    program, targets, _ = compile_both(
        devices, (16, tokens, 2, 64), masked, causal, options=GPU_FLAGS
    )
    name = "__cudnn$fmhaScaleBiasSoftmax" if masked else "__cudnn$fmhaSoftmax"
    assert targets == [name, f"{name}Backward"]
    even, rows = tokens + tokens % 2, 16 // gpus
    assert count_executed_flops(program) == {"bf16": 7 * 2 * rows * 2 * even * even * 64}
    if not masked and tokens == even:
        # Forward 3 arrays in and 1 out, backward 5 and 3; the sums in float32 go out and in.
        assert count_traffic(program) == 12 * rows * tokens * 2 * 64 * 2 + 2 * rows * 2 * tokens * 4


@needs_compiler
def test_a_head_that_cudnn_does_not_take_is_computed_plainly():
    devices = gpu_topologies.describe_gpus("h100", 1, 1)
    _, targets, lines = compile_both(devices, (2, 200, 2, 20), options=GPU_FLAGS)
    assert not any("fmha" in target for target in targets)
    assert "since JAX says: The head dim must be" in lines[0]


@needs_compiler
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel needs jax 0.11")
@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("tokens, masked, tile", [(50, False, 64), (77, True, 128)])
def test_gpus_run_one_kernel_a_pass_on_short_sequences(tokens, masked, tile, gpus):
    devices = gpu_topologies.describe_gpus("h100", 1, gpus)
    program, targets, lines = compile_both(devices, (16, tokens, 2, 64), masked, masked)
    assert [target for target in targets if "triton" in target] == targets and len(targets) == 2
    assert lines == [f"attention: triton for {tokens} tokens, 2 heads of 64, bfloat16"]
    rows = 16 // gpus
    assert count_executed_flops(program) == {"bf16": 7 * 2 * rows * 2 * tile * tile * 64}
    if not masked:  # forward 3 arrays in and 1 out, backward 4 and 3
        assert count_traffic(program) == 11 * rows * tokens * 2 * 64 * 2


@needs_compiler
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel needs jax 0.11")
@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize(("count", "heads", "windows"), WINDOWS)
def test_gpus_read_windows_once_and_write_one_sum_a_program(count, heads, windows, gpus):
    devices, images = gpu_topologies.describe_gpus("h100", 1, gpus), 256 * gpus
    query = images * windows, 49, heads, 32
    program, targets, lines = compile_both(devices, query, biases=windows)
    assert lines == [f"attention: triton for 49 tokens, {heads} heads of 32, bfloat16"]
    kernels = [target for target in targets if "triton" in target]
    assert len(kernels) == 2 and not any("cublas" in target for target in targets)
    rows = 256 * windows
    assert count_executed_flops(program) == {"bf16": 7 * 2 * rows * heads * 64 * 64 * 32}
    programs = next(n for n in range(1, 257) if 256 % n == 0 and n * heads * windows >= 2048)
    assert programs < 256
    arrays, bias = 11 * rows * 49 * heads * 32 * 2, windows * heads * 49 * 49 * 4
    sums = 2 * programs + 1  # written, read, and added up
    collected = 2 * (gpus > 1)  # over the GPUs
    assert count_traffic(program) == arrays + (2 + sums + collected) * bias


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel needs jax 0.11")
def test_dropout_costs_no_memory_on_gpus():
    devices, query = gpu_topologies.describe_gpus("h100", 1, 1), (16, 40, 12, 64)
    program, targets, _ = compile_both(devices, query, True, rate=0.1)
    assert sum("triton" in target for target in targets) == 2
    plain, _, _ = compile_both(devices, query, True)
    # Seeds are drawn, and read twice.
    assert count_traffic(plain) < count_traffic(program) < count_traffic(plain) + 16 * 64


@needs_compiler
@pytest.mark.slow
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel needs jax 0.11")
@pytest.mark.parametrize(
    ("tokens", "channels", "masked", "gpus", "padded"),
    [(257, 64, False, 8, 272), (197, 32, True, 1, 208), (577, 64, False, 1, 592)],
)
def test_gpus_run_three_kernels_on_long_sequences_if_asked_to(
    tokens, channels, masked, gpus, padded
):
    devices = gpu_topologies.describe_gpus("h100", 1, gpus)
    query, rows = (16, tokens, 2, channels), 16 // gpus
    program, targets, lines = compile_both(devices, query, masked, masked, way="triton")
    assert [target for target in targets if "triton" in target] == targets and len(targets) == 3
    assert lines == [f"attention: triton for {tokens} tokens, 2 heads of {channels}, bfloat16"]
    assert count_executed_flops(program) == {"bf16": 9 * 2 * rows * 2 * padded**2 * channels}
    if not masked:  # 3 arrays in and 1 out, 5 and 1, 4 and 2; sums 1 out, 1 in and 1 out, 2 in
        arrays, sums = 16 * rows * tokens * 2 * channels * 2, 5 * rows * 2 * tokens * 4
        assert count_traffic(program) == arrays + sums
