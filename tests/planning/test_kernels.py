"""The kernels of programs and where they come from, against counts and names by hand."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from big_align.models.vit import ViT
from big_align.parallel.devices.chips import CHIPS
from big_align.planning.executed import count_executed_flops
from big_align.planning.hlo import parse_program
from big_align.planning.kernels.listing import (
    describe_kernels,
    format_kernels,
    group_bytes,
    list_kernels,
)
from big_align.planning.kernels.origins import shorten
from big_align.planning.traffic import count_traffic

CHIP = dataclasses.replace(CHIPS["h100"], flops=1e9, memory_bandwidth=1e6)
TEXT = """HloModule step, is_scheduled=true

FileNames
1 "/somewhere/big_align/training/optimizers.py"
2 "/else/site-packages/optax/adam.py"

FunctionNames
1 "make.<locals>.update"
2 "update"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=9}
2 {file_name_id=2 function_name_id=2 line=8 end_line=8 column=1 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

%up (x: bf16[50,8], w: bf16[8,32]) -> bf16[50,32] {
  %x = bf16[50,8]{1,0} parameter(0)
  %w = bf16[8,32]{1,0} parameter(1)
  %d = bf16[50,32]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/jvp(T.encode)/T.image/image/block_01/mlp/up/dot_general"}
  ROOT %t = bf16[50,32]{1,0} tanh(%d)
}

%body (s: (s32[], f32[64])) -> (s32[], f32[64]) {
  %s = (s32[], f32[64]{0}) parameter(0)
  %n = s32[] get-tuple-element(%s), index=0
  %v = f32[64]{0} get-tuple-element(%s), index=1
  %e = f32[64]{0} exponential(%v), metadata={op_name="jit(f)/while/body/exp" stack_frame_id=2}
  ROOT %r = (s32[], f32[64]{0}) tuple(%n, %e)
}

%condition (s: (s32[], f32[64])) -> pred[] {
  %s = (s32[], f32[64]{0}) parameter(0)
  ROOT %p = pred[] constant(true)
}

ENTRY %main (a: bf16[50,8], w0: bf16[8,32], w1: bf16[8,32], s: (s32[], f32[64])) -> bf16[50,8] {
  %a = bf16[50,8]{1,0} parameter(0)
  %w0 = bf16[8,32]{1,0} parameter(1)
  %w1 = bf16[8,32]{1,0} parameter(2)
  %s = (s32[], f32[64]{0}) parameter(3)
  %u0 = bf16[50,32]{1,0} fusion(%a, %w0), kind=kCustom, calls=%up, metadata={op_name="jit(f)/jvp(T.encode)/T.image/image/block_00/mlp/up/dot_general"}, backend_config={"fusion_backend_config":{"kind":"__triton_gemm"}}
  %u1 = bf16[50,32]{1,0} fusion(%a, %w1), kind=kCustom, calls=%up, backend_config={"fusion_backend_config":{"kind":"__triton_gemm"}}
  %c = bf16[50,32]{0,1} copy(%u1)
  %l = (s32[], f32[64]{0}) while(%s), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  ROOT %g = bf16[50,8]{1,0} custom-call(%u0, %w0), custom_call_target="cudnn_thing", metadata={op_name="jit(f)/transpose(jvp(T.encode))/T.image/image/jvp(T.encode)/T.image/image/checkpoint/rematted_computation/block_00/mlp/bc,cd->bd/jit(_where)/mul"}
}
"""  # noqa: E501


def by_name(kernels):
    return {(each.phase, each.module, each.operation): each for each in kernels}


def test_kernels_are_counted_by_hand():
    program = parse_program(TEXT)
    kernels = list_kernels(TEXT, CHIP)
    assert [each.bytes for each in kernels] == [2 * 4512, 6400, 4512, 2560]
    found = by_name(each for each in kernels if each.kind != "copy")
    up = found["forward", "image/block_*/mlp/up", "dot_general"]
    # Two blocks: [50, 8] and [8, 32] in, [50, 32] out, two bytes each.
    assert (up.times, up.bytes, up.flops) == (2, 2 * 2 * (400 + 256 + 1600), 2 * 2 * 50 * 8 * 32)
    assert (up.kind, up.output) == ("triton_gemm fusion", "bf16[50,32]")
    assert up.seconds == pytest.approx(2 * 4512 / 1e6)  # FLOPs would take 26 microseconds
    loop = found["update", "training/optimizers.make", "exp"]
    assert (loop.times, loop.bytes, loop.flops) == (5, 5 * 2 * 256, 0)
    call = found["recomputed", "image/block_*/mlp", "mul"]
    assert (call.kind, call.bytes) == ("cudnn_thing", 2 * (1600 + 256 + 400))
    assert sum(each.bytes for each in kernels) == count_traffic(program)
    assert sum(each.flops for each in kernels) == count_executed_flops(program).total()


def test_a_copy_comes_from_where_its_array_comes_from():
    (copy,) = [e for e in list_kernels(TEXT, CHIP) if e.kind == "copy"]
    assert (copy.phase, copy.module, copy.bytes) == ("forward", "image/block_*/mlp/up", 6400)


def test_the_least_time_is_that_of_the_slower_of_bytes_and_flops():
    slow = dataclasses.replace(CHIP, flops=1e6)
    found = by_name(e for e in list_kernels(TEXT, slow) if e.flops)
    up = found["forward", "image/block_*/mlp/up", "dot_general"]
    assert up.seconds == pytest.approx(up.flops / 1e6)


def test_groups_and_lines_add_up():
    kernels = list_kernels(TEXT, CHIP)
    assert group_bytes(kernels) == {
        "image/block_*/mlp": {"forward": 2 * 4512 + 6400, "recomputed": 4512},
        "training/optimizers.make": {"update": 2560},
    }
    lines = format_kernels(describe_kernels(TEXT, "h100", 1))
    assert lines[1].endswith(
        "forward, image/block_*/mlp/up: dot_general, triton_gemm fusion, bf16[50,32]"
    )
    assert not any("cudnn_thing" in line for line in lines)  # beyond the first
    least = sum(each.seconds for each in kernels) * 1e6 / CHIPS["h100"].memory_bandwidth
    assert f"{1e3 * least:.1f} ms" in lines[-1]


@pytest.mark.parametrize(
    ("path", "modules"),
    [
        ("jit(f)/jvp(T.e)/T.image_tokens/image/image._embed/patches", "image/patches"),
        ("transpose(jvp(T.e))/T.e/text/jvp(T.e)/text/checkpoint/layer_11/up", "text/layer_*/up"),
        ("jit(f)/jvp()/while/body/cond/branch_1_fun", ""),
    ],
)  # fmt: skip
def test_paths_are_shortened_to_modules(path, modules):
    assert shorten(path.split("/")) == modules


@pytest.mark.slow
def test_every_product_of_a_tower_has_its_module_and_its_phase():
    """As XLA compiles it here, with blocks that are computed twice."""
    model = ViT("s/16", width=32, depth=3, mlp_dim=64, heads=2, remat="full")
    image = jnp.zeros((4, 32, 32, 3))
    variables = nn.meta.unbox(model.init(jax.random.key(0), image))
    step = jax.jit(jax.grad(lambda v: jnp.square(model.apply(v, image)[0]).sum()))
    text = step.lower(variables).compile().as_text()
    program = parse_program(text)
    kernels = list_kernels(text, CHIP)
    products = [each for each in kernels if each.flops]
    assert sum(each.flops for each in kernels) == count_executed_flops(program).total()
    tokens, width = 4 * 5, 32
    made = lambda phase, module: sum(  # noqa: E731
        each.flops for each in products if (each.phase, each.module) == (phase, module)
    )
    for name, inner in {"attention/out": width, "mlp/up": 64}.items():
        once = 3 * 2 * tokens * width * inner
        assert made("forward", f"block_*/{name}") == once
        assert made("backward", f"block_*/{name}") == 2 * once
    assert made("recomputed", "block_*/mlp/up") == 3 * 2 * tokens * width * 64
    assert {each.phase for each in products} == {"forward", "recomputed", "backward"}
