"""The text of programs: shapes, attributes, groups of devices."""

import numpy as np
import pytest

from big_align.planning.executed import count_executed_flops
from big_align.planning.hlo import Array, parse_program
from big_align.planning.replica_groups import parse_groups, parse_lists
from big_align.planning.traffic import count_traffic

TEXT = """HloModule step, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

ENTRY %main (a: bf16[8,16], b: (s32[2], pred[3])) -> (f32[8,4], /*index=1*/u4[3]) {
  %a = bf16[8,16]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %b = (s32[2]{0}, pred[3]{0}) parameter(1), metadata={op_name="a(\\"b\\"){" stack_frame_id=1}
  %c = f32[] constant(1)
  %d = f32[8,4]{1,0} custom-call(%a, /*index=1*/%c), custom_call_target="x, y=(", window={size=3x3 pad=1_1x1_1}
  %e = u4[3]{0} iota(), iota_dimension=0
  ROOT %r = (f32[8,4]{1,0}, u4[3]{0}) tuple(%d, %e)
}
"""  # noqa: E501


def test_a_program_is_its_computations_and_one_is_run():
    program = parse_program(TEXT)
    assert program.entry == "main"
    assert list(program.computations) == ["add", "main"]
    assert program.computations["add"].root.operands == ("x", "y")


def test_shapes_have_types_bytes_and_a_place():
    main = parse_program(TEXT).computations["main"]
    assert main.instructions["a"].outputs == (Array("bf16", (8, 16), space=1),)
    assert main.instructions["a"].outputs[0].bytes == 256
    assert main.instructions["b"].outputs == (Array("s32", (2,)), Array("pred", (3,)))
    assert main.instructions["b"].outputs[1].bytes == 3
    assert [array.bytes for array in main.root.outputs] == [128, 2]


def test_quoted_text_is_no_syntax():
    call = parse_program(TEXT).computations["main"].instructions["d"]
    assert call.operands == ("a", "c")
    assert call.attribute("window") == "{size=3x3 pad=1_1x1_1}"
    assert call.attribute("custom_call_target") == '"x, y=("'
    assert call.attribute("dimensions") is None


ELEMENTS = """
ENTRY %main (a: (s32[2], (f32[8,4], /*index=1*/f32[4,2]{1,0}))) -> f32[8,2] {
  %a = (s32[2]{0}, (f32[8,4]{1,0}, /*index=1*/f32[4,2]{1,0})) parameter(0)
  OPERANDS
}
"""
DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def test_an_element_of_a_tuple_is_the_same_in_either_notation():
    long = f"""%b = (f32[8,4]{{1,0}}, f32[4,2]{{1,0}}) get-tuple-element(%a), index=1
  %left = f32[8,4]{{1,0}} get-tuple-element(%b), index=0
  %right = f32[4,2]{{1,0}} get-tuple-element(%b), index=1
  ROOT %d = f32[8,2]{{1,0}} dot(%left, %right), {DOT}"""
    short = f"ROOT %d = f32[8,2]{{1,0}} dot(%a#1#0, %a#1#1), {DOT}"
    one, other = (parse_program(ELEMENTS.replace("OPERANDS", text)) for text in (long, short))
    mains = [program.computations["main"] for program in (one, other)]
    arrays = [main.operand_arrays(main.root) for main in mains]
    assert arrays[0] == arrays[1] == [(Array("f32", (8, 4)),), (Array("f32", (4, 2)),)]
    assert count_executed_flops(one) == count_executed_flops(other) == {"f32": 2 * 8 * 4 * 2}
    assert count_traffic(one) == count_traffic(other) == 4 * (32 + 8 + 16)
    assert [use.opcode for use in mains[1].users["a#1"]] == ["get-tuple-element"] * 2


def test_an_unfinished_text_is_an_error():
    with pytest.raises(ValueError, match="no ENTRY"):
        parse_program(TEXT.replace("ENTRY ", ""))
    with pytest.raises(ValueError, match="not closed"):
        parse_program(TEXT.replace("add(%x, %y)", "add(%x"))


@pytest.mark.parametrize(
    "text,groups",
    [
        (None, [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("{}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("{{0,1,2,3},{4,5,6,7}}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("[2,4]<=[8]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("[4,2]<=[2,4]T(1,0)", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("[4,2]<=[2,2,2]T(0,2,1)", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("mesh['a'=2,'b'=4] {'b'}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("mesh['a'=2,'b'=4] {'a'}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("mesh['a'=2,'b'=4] {'a','b'}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("mesh['a'=8,'b'=1] {'b'}", [[device] for device in range(8)]),
        ("mesh['a'=8] {'a':(1)2}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("mesh['a'=8] {'a':(4)2}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("mesh['a'=8] {'a':(2)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        (
            "mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}",
            [[0, 2, 4, 6], [1, 3, 5, 7]],
        ),
        ("mesh['a'=2,'b'=2], device_ids=(3,1,0,2) {'b'}", [[3, 1], [0, 2]]),
    ],
)
def test_groups_in_every_notation(text, groups):
    assert parse_groups(text, 8) == groups


def test_a_mesh_with_devices_is_one_attribute():
    groups = "replica_groups=mesh['a'=2], device_ids=(1,0) {'a'}"
    text = TEXT.replace("iota()", f"all-gather(%a), {groups}")
    instruction = parse_program(text).computations["main"].instructions["e"]
    assert parse_groups(instruction.attribute("replica_groups"), 2) == [[1, 0]]
    assert instruction.dimensions("iota_dimension") == (0,)


def test_groups_are_a_partition_whatever_the_factors():
    groups = parse_groups("mesh['a'=6,'b'=4] {'a':(3)2,'b':(1)2}", 24)
    assert sorted(np.ravel(groups)) == list(range(24))
    assert {len(group) for group in groups} == {4}


def test_pairs_and_unknown_notations():
    assert parse_lists("{{0,1},{1,0}}") == [[0, 1], [1, 0]]
    with pytest.raises(ValueError, match="no known notation"):
        parse_groups("groups(2)", 8)
