"""What compiled programs execute, move and send, against counts by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from big_align.planning.collectives import Collective, list_collectives
from big_align.planning.executed import count_executed_flops, count_unknown_loops
from big_align.planning.hlo import parse_program
from big_align.planning.traffic import count_traffic

WHOLE = PartitionSpec()
ONE_PLACE, TWO_PLACES = [0] * 8, [0] * 4 + [1] * 4


def compile_program(function, *shapes):
    lowered = jax.jit(function).lower(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes))
    return parse_program(lowered.compile().as_text())


def map_on(axes, shape, function, *, given, taken=WHOLE, size=(64, 16)):
    """Compiles a function on 8 devices; `given` and `taken` are what a device gets and returns."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(shape), axes)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=(given,), out_specs=taken, check_vma=False)
    array = jax.ShapeDtypeStruct(size, jnp.float32, sharding=NamedSharding(mesh, given))
    return parse_program(jax.jit(mapped).lower(array).compile().as_text())


def program(body, *parameters):
    """Makes the text of a program of a few lines."""
    lines = [f"  %p{n} = {type} parameter({n})" for n, type in enumerate(parameters)]
    return parse_program("\n".join(["ENTRY %m (p: f32[]) -> f32[] {", *lines, body, "}"]))


def test_products_count_two_flops_a_multiplication():
    made = compile_program(lambda x, y: jnp.einsum("bij,bjk->bik", x, y), (3, 5, 7), (3, 7, 11))
    assert count_executed_flops(made) == {"f32": 2 * 3 * 5 * 7 * 11}


def test_a_loop_counts_as_often_as_it_runs():
    def five(x, w):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]

    made = compile_program(five, (4, 8), (5, 8, 8))
    assert count_executed_flops(made) == {"f32": 5 * 2 * 4 * 8 * 8}
    assert count_unknown_loops(made) == 0


def test_a_loop_of_unknown_length_is_reported():
    def until(x, w):
        return jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ w, x)

    made = compile_program(until, (4, 8), (8, 8))
    assert count_unknown_loops(made) == 1
    assert count_executed_flops(made) == {"f32": 2 * 4 * 8 * 8}


def test_convolutions_count_what_is_there_and_no_padding():
    def convolve(x, k):
        names = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=names)

    made = compile_program(convolve, (2, 5, 5, 3), (3, 3, 3, 4))
    # Along an axis of 5 with a filter of 3, the outer two places have 2 neighbors, the others 3.
    assert count_executed_flops(made) == {"f32": 2 * 2 * 13 * 13 * 3 * 4}


def test_a_product_written_as_a_dilated_convolution_counts_as_the_product():
    # As TPUs write 32 x 4 products of [12, 16] and [16, 12].
    body = (
        "  ROOT %c = f32[32,4,12,12] convolution(%p0, %p1), window={size=32x4 stride=31x3 "
        "lhs_dilate=32x4}, dim_labels=0b1f_0o1i->01bf"
    )
    made = program(body, "bf16[32,12,4,16]", "bf16[32,12,4,16]")
    assert count_executed_flops(made) == {"bf16": 2 * 32 * 4 * 12 * 12 * 16}


def test_a_grouped_convolution_counts_the_features_of_a_group():
    body = (
        "  ROOT %c = f32[2,6,8] convolution(%p0, %p1), window={size=3}, dim_labels=b0f_0io->b0f, "
        "feature_group_count=8"
    )
    made = program(body, "f32[2,8,8]", "f32[3,1,8]")
    assert count_executed_flops(made) == {"f32": 2 * 2 * 8 * 6 * 3}


def test_a_product_of_nvidias_library_counts_as_the_product_and_its_workspace_does_not():
    numbers = '"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":["1"]'
    config = f'{{"gemm_backend_config":{{"dot_dimension_numbers":{{{numbers}}},"beta":0}}}}'
    body = (
        "  ROOT %d = (f32[3,4,8]{2,1,0}, s8[4194304]{0}) custom-call(%p0, %p1, %p2), "
        f'custom_call_target="__cublas$lt$matmul", backend_config={config}'
    )
    made = program(body, "bf16[3,4,16]", "bf16[3,16,8]", "f32[8]")
    assert count_executed_flops(made) == {"bf16": 2 * 3 * 4 * 8 * 16}
    assert count_traffic(made) == 2 * 3 * (4 * 16 + 16 * 8) + 4 * 8 + 4 * 3 * 4 * 8


@pytest.mark.parametrize(("name", "products"), [("fmhaSoftmax", 2), ("fmhaSoftmaxBackward", 5)])
def test_attention_of_nvidias_library_counts_its_products_and_all_that_it_writes(name, products):
    body = (
        "  ROOT %d = (bf16[2,4,6,16]{3,1,2,0}, f32[2,4,6]{2,1,0}, u8[64]{0}) custom-call(%p0, %p1, "
        f'%p1), custom_call_target="__cudnn${name}"'
    )
    made = program(body, "bf16[2,6,4,16]", "bf16[2,10,4,16]")
    assert count_executed_flops(made) == {"bf16": products * 2 * 2 * 4 * 6 * 10 * 16}
    assert count_traffic(made) == 2 * 2 * 4 * 16 * (6 + 2 * 10 + 6) + 4 * 2 * 4 * 6


@pytest.mark.parametrize(
    ("said", "flops"), [('{"flops":"123","bytes_accessed":"9"}', 123), ("{}", 0)]
)
def test_a_kernel_counts_what_it_says(said, flops):
    config = f'{{"custom_call_config":{{"body":"x","cost_estimate":{said}}}}}'
    body = (
        "  ROOT %d = bf16[4,8]{1,0} custom-call(%p0, %p1), "
        f'custom_call_target="tpu_custom_call", backend_config={config}'
    )
    made = program(body, "bf16[4,8]", "f32[8]")
    assert count_executed_flops(made).total() == flops
    assert count_traffic(made) == 2 * 4 * 8 + 4 * 8 + 2 * 4 * 8


def test_a_slice_that_is_fetched_early_counts_as_the_slice():
    body = (
        "  %s = (bf16[64,8]{1,0}, bf16[16,8]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%p0), "
        "slice={[0:16], [0:8]}\n  ROOT %d = bf16[16,8]{1,0:S(1)} slice-done(%s)"
    )
    assert count_traffic(program(body, "bf16[64,8]")) == 2 * 16 * 8


IMAGE, KERNEL, MADE = "f32[2,7,9,6]", "f32[8,3,3,3]", "f32[2,4,5,8]"


@pytest.mark.parametrize(
    ("call", "given", "made"),
    [
        ("convForward", (IMAGE, KERNEL), MADE),
        ("convBackwardInput", (MADE, KERNEL), IMAGE),
        ("convBackwardFilter", (IMAGE, MADE), KERNEL),
    ],
)
def test_a_convolution_of_nvidias_library_and_its_gradients_count_as_xlas(call, given, made):
    def convolve(x, w):
        names, padding = ("NHWC", "OHWI", "NHWC"), [(1, 1), (1, 1)]
        return jax.lax.conv_general_dilated(
            x, w, (2, 2), padding, dimension_numbers=names, feature_group_count=2
        )

    theirs = compile_program(convolve, (2, 7, 9, 6), (8, 3, 3, 3))
    body = (
        f"  ROOT %d = ({made}{{3,2,1,0}}, u8[64]{{0}}) custom-call(%p0, %p1), "
        "window={size=3x3 stride=2x2 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f, "
        f'feature_group_count=2, custom_call_target="__cudnn${call}"'
    )
    counted = count_executed_flops(program(body, *given))
    assert counted == count_executed_flops(theirs) and counted["f32"] > 0


def test_an_all_reduce_on_a_ring_of_eight_sends_its_published_volume():
    made = map_on("d", (8,), lambda x: jax.lax.psum(x, "d"), given=PartitionSpec("d"))
    size = 8 * 16 * 4  # what one device gives
    assert list_collectives(made, ONE_PLACE) == [
        Collective("all-reduce", "f32", 8, 1, 1, size, 2 * size * 7 / 8, 0.0)
    ]
    (split,) = list_collectives(made, TWO_PLACES)
    assert (split.places, split.sent_inside) == (2, 2 * size * 3 / 4)
    assert split.sent_between == 2 * (size / 4) * 1 / 2  # each of 4 has a quarter of the sum


def test_a_gather_counts_what_it_makes_and_a_scatter_what_it_takes():
    gather = functools.partial(jax.lax.all_gather, axis_name="d", tiled=True)
    made = map_on("d", (8,), gather, given=PartitionSpec("d"))
    assert list_collectives(made, ONE_PLACE) == [
        Collective("all-gather", "f32", 8, 1, 1, 64 * 64, 64 * 64 * 7 / 8, 0.0)
    ]
    scatter = functools.partial(jax.lax.psum_scatter, axis_name="d", tiled=True)
    made = map_on("d", (8,), scatter, given=WHOLE, taken=PartitionSpec("d"))
    assert list_collectives(made, ONE_PLACE) == [
        Collective("reduce-scatter", "f32", 8, 1, 1, 64 * 64, 64 * 64 * 7 / 8, 0.0)
    ]


def test_the_mesh_decides_which_network_is_used():
    def sum_over(axis):
        whole = PartitionSpec(("a", "b"))
        made = map_on(("a", "b"), (2, 4), lambda x: jax.lax.psum(x, axis), given=whole)
        (each,) = list_collectives(made, TWO_PLACES)
        return each

    inside, between = sum_over("b"), sum_over("a")
    assert (inside.devices, inside.places, inside.sent_between) == (4, 1, 0.0)
    assert (between.devices, between.places, between.sent_inside) == (2, 2, 0.0)
    assert between.sent_between == between.bytes


def test_a_ring_in_a_loop_counts_every_turn():
    def ring(x):
        turn = [(i, (i + 1) % 8) for i in range(8)]
        step = lambda x, _: (jax.lax.ppermute(x, "d", turn), None)  # noqa: E731
        return jax.lax.scan(step, x, length=7)[0]

    made = map_on("d", (8,), ring, given=PartitionSpec("d"), taken=PartitionSpec("d"))
    assert list_collectives(made, ONE_PLACE) == [
        Collective("collective-permute", "f32", 2, 1, 7, 7 * 512, 7 * 512.0, 0.0)
    ]


@pytest.mark.parametrize("busy", [False, True])
def test_a_collective_that_a_compiler_wraps_overlaps_with_what_is_between(busy):
    between = "  %d = f32[8,8] dot(%p0, %p0), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    made = parse_program(f"""
%wrapped (p: f32[8,8]) -> f32[16,8] {{
  %p = f32[8,8] parameter(0)
  ROOT %g = f32[16,8] all-gather(%p), replica_groups={{{{0,1}}}}, dimensions={{0}}
}}

ENTRY %m (p0: f32[8,8]) -> f32[16,8] {{
  %p0 = f32[8,8] parameter(0)
  %s = ((f32[8,8]), f32[16,8], u32[]) async-start(%p0), calls=%wrapped
{between if busy else ""}  ROOT %e = f32[16,8] async-done(%s)
}}""")
    (gather,) = list_collectives(made, [0, 0])
    assert (gather.kind, gather.count, gather.overlapped) == ("all-gather", 1, int(busy))


def test_the_end_of_an_asynchronous_collective_is_no_second_one():
    body = """
  %s = (f32[4], f32[32]) all-gather-start(%p0), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  ROOT %d = f32[32] all-gather-done(%s)"""
    (each,) = list_collectives(program(body, "f32[4]"), ONE_PLACE)
    assert (each.kind, each.count, each.bytes) == ("all-gather", 1, 128)


def test_the_steps_of_a_fused_collective_are_one():
    text = "".join(
        f"""
%f{n} (p: f32[4]) -> f32[32] {{
  %p = f32[4] parameter(0)
  ROOT %g = f32[32] all-gather(%p), replica_groups={{}}, frontend_attributes={{chain_id="0"}}
}}
"""
        for n in (1, 2)
    )
    body = """
ENTRY %m (p: f32[4]) -> f32[32] {
  %p = f32[4] parameter(0)
  %a = f32[32] fusion(%p), kind=kCustom, calls=%f1
  ROOT %b = f32[32] fusion(%p), kind=kCustom, calls=%f2
}"""
    (each,) = list_collectives(parse_program(text + body), ONE_PLACE)
    assert (each.count, each.bytes) == (1, 128)


def test_a_fused_sum_of_which_a_slice_is_kept_is_a_scatter():
    text = """
%f (p: f32[32]) -> f32[4] {
  %p = f32[32] parameter(0)
  %i = s32[] constant(0)
  %r = f32[32] all-reduce(%p), replica_groups={}, to_apply=%f
  ROOT %s = f32[4] dynamic-slice(%r, %i), dynamic_slice_sizes={4}
}

ENTRY %m (p: f32[32]) -> f32[4] {
  %p = f32[32] parameter(0)
  ROOT %a = f32[4] fusion(%p), kind=kCustom, calls=%f
}"""
    (each,) = list_collectives(parse_program(text), ONE_PLACE)
    assert (each.kind, each.bytes, each.sent_inside) == ("reduce-scatter", 128, 128 * 7 / 8)


def test_traffic_is_what_instructions_read_and_write_in_main_memory():
    body = """
  %a = f32[8]{0} negate(%p0)
  %b = f32[8]{0:S(1)} exponential(%a)
  %t = (f32[8]{0}, f32[8]{0:S(1)}) tuple(%a, %b)
  %g = f32[8]{0:S(1)} get-tuple-element(%t), index=1
  ROOT %c = f32[8]{0} add(%g, %a)"""
    # a reads and writes 32 bytes, b reads 32 and writes on the chip, c reads and writes 32.
    assert count_traffic(program(body, "f32[8]")) == 64 + 32 + 64


def test_a_slice_of_a_large_buffer_moves_the_slice_alone():
    text = """
%read (x: f32[100,8], i: s32[]) -> f32[1,8] {
  %x = f32[100,8] parameter(0)
  %i = s32[] parameter(1)
  ROOT %s = f32[1,8] dynamic-slice(%x, %i, %i), dynamic_slice_sizes={1,8}
}

%write (x: f32[100,8], y: f32[1,8], i: s32[]) -> f32[100,8] {
  %x = f32[100,8] parameter(0)
  %y = f32[1,8] parameter(1)
  %i = s32[] parameter(2)
  ROOT %u = f32[100,8] dynamic-update-slice(%x, %y, %i, %i)
}

ENTRY %m (x: f32[100,8], i: s32[]) -> f32[100,8] {
  %x = f32[100,8] parameter(0)
  %i = s32[] parameter(1)
  %a = f32[1,8] fusion(%x, %i), kind=kLoop, calls=%read
  ROOT %b = f32[100,8] fusion(%x, %a, %i), kind=kLoop, calls=%write
}"""
    assert count_traffic(parse_program(text)) == (32 + 4 + 32) + (32 + 4 + 32)


def test_rows_that_are_written_into_a_table_move_alone():
    scatter = "f32[100,8] scatter(%x, %i, %u), to_apply=%take, update_window_dims={1}"
    text = f"""
%take (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  ROOT %b = f32[] parameter(1)
}}

%write (x: f32[100,8], i: s32[5,1], u: f32[5,8]) -> f32[100,8] {{
  %x = f32[100,8] parameter(0)
  %i = s32[5,1] parameter(1)
  %u = f32[5,8] parameter(2)
  ROOT %s = {scatter}
}}

ENTRY %m (x: f32[100,8], i: s32[5,1], u: f32[5,8]) -> f32[100,8] {{
  %x = f32[100,8] parameter(0)
  %i = s32[5,1] parameter(1)
  %u = f32[5,8] parameter(2)
  ROOT %s = """
    fused = "f32[100,8] fusion(%x, %i, %u), kind=kInput, calls=%write"
    assert count_traffic(parse_program(f"{text}{fused}\n}}")) == 20 + 160 + 160
    assert count_traffic(parse_program(f"{text}{scatter}\n}}")) == 2 * 160


def test_an_asynchronous_fusion_moves_and_executes_what_it_does_at_once():
    text = """
%product (x: f32[100,8], w: f32[8,4], i: s32[]) -> f32[2,4] {
  %x = f32[100,8] parameter(0)
  %w = f32[8,4] parameter(1)
  %i = s32[] parameter(2)
  %s = f32[2,8] dynamic-slice(%x, %i, %i), dynamic_slice_sizes={2,8}
  ROOT %d = f32[2,4] dot(%s, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %m (x: f32[100,8], w: f32[8,4], i: s32[]) -> f32[2,4] {
  %x = f32[100,8] parameter(0)
  %w = f32[8,4] parameter(1)
  %i = s32[] parameter(2)
"""
    at_once = "  ROOT %d = f32[2,4] fusion(%x, %w, %i), kind=kCustom, calls=%product\n}"
    apart = """
  %f = ((f32[100,8], f32[8,4], s32[]), f32[2,4], u32[]) fusion-start(%x, %w, %i), calls=%product
  ROOT %d = f32[2,4] fusion-done(%f)
}"""
    for program in (parse_program(text + at_once), parse_program(text + apart)):
        assert count_executed_flops(program) == {"f32": 2 * 2 * 8 * 4}
        assert count_traffic(program) == 4 * (2 * 8 + 8 * 4 + 1 + 2 * 4)


@pytest.mark.parametrize("trips", [1, 7])
def test_traffic_of_a_loop_counts_as_often_as_it_runs(trips):
    text = f"""
%body (x: f32[8]) -> f32[8] {{
  %x = f32[8] parameter(0)
  ROOT %y = f32[8] negate(%x)
}}

%condition (x: f32[8]) -> pred[] {{
  %x = f32[8] parameter(0)
  ROOT %c = pred[] constant(true)
}}

ENTRY %m (x: f32[8]) -> f32[8] {{
  %x = f32[8] parameter(0)
  ROOT %w = f32[8] while(%x), condition=%condition, body=%body, backend_config={{"known_trip_count":{{"n":"{trips}"}}}}
}}"""  # noqa: E501
    assert count_traffic(parse_program(text)) == trips * 64
