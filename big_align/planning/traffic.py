"""Bytes that a compiled program moves between main memory and one device.

XLA's "bytes accessed" includes what fusions read internally, and the body of a loop only once. Here
an instruction outside fusions reads its operands and writes its outputs, as often as it runs. If an
operand is only sliced, it reads the slices; if a buffer is updated in place, it writes the update.
What the compiler keeps in on-chip memory is not counted. A buffer that two instructions read counts
twice.
"""

from collections.abc import Iterator

from big_align.parallel.kernels.stated_flops import read_bytes
from big_align.planning.collectives import CHAIN
from big_align.planning.executed import Run, name_operation, walk
from big_align.planning.hlo import Array, Computation, HloProgram, Instruction

_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "while"),
    *("call", "conditional", "partition-id", "replica-id", "iota", "optimization-barrier"),
    *("async-start", "async-update", "async-done", "copy-done", "add-dependency", "domain"),
    *("fusion-done", "slice-done", "dynamic-slice-done"),
    *("all-gather-done", "all-reduce-done", "collective-permute-done", "send-done", "recv-done"),
}
_SLICES = {"dynamic-slice", "slice", "gather"}
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""What changes a buffer in place, its first operand, and the number of the operand it writes."""


def count_traffic(program: HloProgram) -> int:
    """Counts the bytes that one device reads from its main memory and writes to it."""
    return sum(run.times * moved for run, moved in walk_kernels(program))


def walk_kernels(program: HloProgram) -> Iterator[tuple[Run, int]]:
    """Yields what is executed outside fusions and does work, and the bytes that it moves once."""
    for run in walk(program):
        if not run.fused and run.instruction.opcode not in _FREE:
            yield run, _instruction_bytes(program, run.computation, run.instruction)


def _instruction_bytes(program: HloProgram, computation: Computation, each: Instruction) -> int:
    operands = computation.operand_arrays(each)
    if each.opcode in ("fusion", "fusion-start"):
        inside = program.computations[each.called("calls")[0]]
        read = sum(
            min(_bytes(arrays), _read_of_parameter(inside, number, arrays))
            for number, arrays in enumerate(operands)
        )
        return read + _written_by_fusion(inside, each)
    if each.opcode.removesuffix("-start") in _SLICES:
        # An asynchronous one also returns what it reads, and before its slice.
        slice_ = each.outputs[1 if each.opcode.endswith("-start") else 0]
        return _bytes((slice_,)) + (slice_.bytes if _bytes(operands[0]) else 0)
    if each.opcode.endswith("-start") and len(each.outputs) > len(operands):
        return _bytes(each.outputs)  # most starts also return what they read
    if each.opcode in _UPDATES:
        return 2 * _bytes(operands[_UPDATES[each.opcode]])
    outputs = each.outputs
    if name_operation(each).startswith("__cu") and len(outputs) > 1:
        outputs = outputs[:-1]  # the last is room to work in
    moved = sum(map(_bytes, operands)) + _bytes(outputs)
    return max(moved, read_bytes(each.attributes)) if each.opcode == "custom-call" else moved


def _bytes(arrays: tuple[Array, ...]) -> int:
    """Returns the bytes of the arrays that are in main memory."""
    return sum(array.bytes for array in arrays if array.space == 0)


def _read_of_parameter(inside: Computation, number: int, arrays: tuple[Array, ...]) -> int:
    """Returns the bytes that a fusion reads of an operand: its slices, if only these are used."""
    parameter = inside.parameters.get(number)
    if parameter is None or _bytes(arrays) == 0:
        return _bytes(arrays)
    read = 0
    for user in inside.users[parameter.name]:
        if user.opcode in _SLICES and user.operands[0] == parameter.name:
            read += sum(array.bytes for array in user.outputs)
        elif user.opcode == "tuple" or CHAIN.search(user.attributes):
            continue  # it is passed on
        elif user.opcode in _UPDATES and user.operands[0] == parameter.name:
            continue
        else:
            return _bytes(arrays)
    return read


def _written_by_fusion(inside: Computation, fusion: Instruction) -> int:
    """Returns the bytes that a fusion writes: the update, if a buffer is updated in place."""
    roots = [inside.root]
    if inside.root.opcode == "tuple":
        roots = [inside.instructions[name] for name in inside.root.operands]
    outputs = fusion.outputs
    if fusion.opcode == "fusion-start":  # what it reads, what it writes, and its context
        outputs = outputs[-1 - len(roots) : -1]
    if len(roots) != len(outputs):
        return _bytes(outputs)
    written = 0
    for each, output in zip(roots, outputs, strict=True):
        if output.space or each.opcode == "parameter" or CHAIN.search(each.attributes):
            continue
        if each.opcode in _UPDATES:
            update = inside.instructions[each.operands[_UPDATES[each.opcode]]]
            written += update.outputs[0].bytes
        else:
            written += output.bytes
    return written
