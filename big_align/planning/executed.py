"""FLOPs that a compiled program executes on one device: matrix products and convolutions.

XLA's own count includes the body of a loop only once. Here it counts as often as the loop runs, and
fusions, calls and asynchronous operations are included.
"""

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from big_align.parallel.kernels.stated_flops import read_flops
from big_align.planning.hlo import Array, Computation, HloProgram, Instruction


@dataclasses.dataclass(frozen=True)
class Run:
    """An instruction and how often a program runs it."""

    computation: Computation
    instruction: Instruction
    times: int  # number of executions, loops included
    fused: bool  # inside a fusion, so that operands and outputs are not in memory
    caller: "Run | None" = None  # what runs its computation; None in the entry


_CALLS = {"fusion": "calls", "fusion-start": "calls", "async-start": "calls", "call": "to_apply"}


def walk(program: HloProgram) -> Iterator[Run]:
    """Yields every instruction that a program runs.

    A loop whose trip count the compiler does not know counts once. Of the branches of a
    conditional, the first counts.
    """
    yield from _walk(program, program.entry, 1, False)


def _walk(
    program: HloProgram, name: str, times: int, fused: bool, caller: Run | None = None
) -> Iterator[Run]:
    computation = program.computations[name]
    for each in computation.instructions.values():
        run = Run(computation, each, times, fused, caller)
        yield run
        if each.opcode == "while":
            trips = times * (_count_trips(program, each) or 1)
            for attribute in ("condition", "body"):
                for called in each.called(attribute):
                    yield from _walk(program, called, trips, fused, run)
        elif each.opcode == "conditional":
            branches = each.called("branch_computations") or each.called("true_computation")
            yield from _walk(program, branches[0], times, fused, run)
        elif each.opcode in _CALLS:
            inside = fused or each.opcode.startswith("fusion")
            for called in each.called(_CALLS[each.opcode]):
                yield from _walk(program, called, times, inside, run)


def _count_trips(program: HloProgram, loop: Instruction) -> int | None:
    """Returns how often a loop runs, None if neither the compiler nor its condition tells.

    libtpu leaves its count out for some loops. JAX counts from 0, and compares with the end.
    """
    if loop.trip_count is not None:
        return loop.trip_count
    condition = program.computations[loop.called("condition")[0]]
    root = condition.root
    if root.opcode != "compare" or root.attribute("direction") != "LT":
        return None
    end = condition.instructions[root.operands[1]]
    return int(end.literal) if end.opcode == "constant" and end.literal.isdecimal() else None


def count_unknown_loops(program: HloProgram) -> int:
    """Counts the loops with an unknown number of trips, which are counted as one trip."""
    loops = {
        (run.computation.name, run.instruction.name)
        for run in walk(program)
        if run.instruction.opcode == "while" and _count_trips(program, run.instruction) is None
    }
    return len(loops)


def count_executed_flops(program: HloProgram) -> Counter[str]:
    """Counts the FLOPs of products and convolutions by element type of the factors.

    Of two types the wider one counts, in which the multiplication is done. A convolution counts
    only products with actual elements, not those with padding or with the zeros of dilation, since
    compilers write matrix products as convolutions with much of both.
    """
    return _count(walk(program))


def count_flops_inside(program: HloProgram, run: Run) -> int:
    """Counts the FLOPs of one execution of an instruction, with all that is fused into it."""
    inside = [dataclasses.replace(run, times=1), *walk_inside(program, run.instruction)]
    return _count(inside).total()


def walk_inside(program: HloProgram, instruction: Instruction) -> Iterator[Run]:
    """Yields what one execution of a fusion runs; nothing for other instructions."""
    if instruction.opcode in ("fusion", "fusion-start"):
        for called in instruction.called(_CALLS[instruction.opcode]):
            yield from _walk(program, called, 1, True)


def _count(runs: Iterable[Run]) -> Counter[str]:
    flops: Counter[str] = Counter()
    for run in runs:
        count = _COUNTS.get(name_operation(run.instruction))
        if count is None:
            continue
        operands = [arrays[0] for arrays in run.computation.operand_arrays(run.instruction)]
        if len(operands) < 2:
            continue
        left, right = operands[:2]
        dtype = max((left, right), key=lambda array: array.bytes / max(array.size, 1)).dtype
        flops[dtype] += run.times * count(run.instruction, left, right)
    return flops


def name_operation(instruction: Instruction) -> str:
    """Returns the opcode of an instruction, or what it calls of NVIDIA's libraries."""
    target = (instruction.attribute("custom_call_target") or "").strip('"')
    if not target.startswith(("__cublas$", "__cudnn$")):
        return instruction.opcode
    return "__cublas" if target.startswith("__cublas$") else target


def _dot_flops(instruction: Instruction, left: Array, right: Array) -> int:
    contracted = math.prod(left.shape[d] for d in instruction.dimensions("lhs_contracting_dims"))
    return 2 * instruction.outputs[0].size * contracted


def _cublas_flops(instruction: Instruction, left: Array, right: Array) -> int:
    named = re.search(r'"lhs_contracting_dimensions":\[([^]]*)\]', instruction.attributes)
    axes = map(int, re.findall(r"\d+", named[1] if named else ""))
    return 2 * instruction.outputs[0].size * math.prod(left.shape[axis] for axis in axes)


def _convolution_flops(instruction: Instruction, left: Array, right: Array) -> int:
    return _pair_flops(instruction, left, right, instruction.outputs[0])


def _image_gradient_flops(instruction: Instruction, left: Array, right: Array) -> int:
    return _pair_flops(instruction, instruction.outputs[0], right, left)


def _kernel_gradient_flops(instruction: Instruction, left: Array, right: Array) -> int:
    return _pair_flops(instruction, left, instruction.outputs[0], right)


def _attention_flops(instruction: Instruction, left: Array, right: Array) -> int:
    """Counts two products of queries [b, q, heads, c] and keys, and five in the backward pass."""
    backward = "Backward" in name_operation(instruction)
    return (5 if backward else 2) * 2 * left.size * right.shape[1]


def _estimated_flops(instruction: Instruction, left: Array, right: Array) -> int:
    """Returns what a kernel of ours states in its scope or its `cost_estimate`; else 0."""
    if (stated := read_flops(instruction.attributes)) is not None:
        return stated
    said = re.search(r'"cost_estimate":\{[^}]*"flops":"?(\d+)', instruction.attributes)
    return int(said[1]) if said else 0


_COUNTS = {
    "custom-call": _estimated_flops,
    "dot": _dot_flops,
    "convolution": _convolution_flops,
    "__cublas": _cublas_flops,
    "__cudnn$convForward": _convolution_flops,
    "__cudnn$convBiasActivationForward": _convolution_flops,
    "__cudnn$convBackwardInput": _image_gradient_flops,
    "__cudnn$convBackwardFilter": _kernel_gradient_flops,
    "__cudnn$fmhaSoftmax": _attention_flops,
    "__cudnn$fmhaSoftmaxBackward": _attention_flops,
    "__cudnn$fmhaScaleBiasSoftmax": _attention_flops,
    "__cudnn$fmhaScaleBiasSoftmaxBackward": _attention_flops,
}


def _pair_flops(instruction: Instruction, left: Array, right: Array, made: Array) -> int:
    """Counts 2 x output features and batch x input features per group x pairs that meet.

    `left`, `right` and `made` are a convolution's image, kernel and output; its gradients have its
    attributes.
    """
    names = re.split("_|->", instruction.attribute("dim_labels") or "")
    image, kernel, out = names
    output = made.shape
    window = _parse_window(instruction.attribute("window"), len(image) - 2)
    pairs = 1
    for spatial in range(len(image) - 2):
        label = str(spatial)
        pairs *= _meeting_places(
            left.shape[image.index(label)],
            right.shape[kernel.index(label)],
            output[out.index(label)],
            *window[spatial],
        )
    # The kernel's input features are those per group, and so is the output's batch.
    features = output[out.index("f")] * right.shape[kernel.index("i")]
    return 2 * output[out.index("b")] * features * pairs


def _parse_window(text: str | None, rank: int) -> list[tuple[int, int, int, int]]:
    """Returns stride, low padding, dilation of image and of kernel for each spatial axis."""
    given = dict(re.findall(r"(\w+)=([\dx_\-]+)", text or ""))

    def read(name: str, default: int) -> list[int]:
        if name not in given:
            return [default] * rank
        return [int(part.split("_")[0]) for part in given[name].split("x")]

    columns = read("stride", 1), read("pad", 0), read("lhs_dilate", 1), read("rhs_dilate", 1)
    return list(zip(*columns, strict=True))


@functools.cache
def _meeting_places(
    image: int, kernel: int, output: int, stride: int, low: int, image_step: int, kernel_step: int
) -> int:
    """Counts pairs of an output and a kernel position that meet a position in the image."""
    place = stride * np.arange(output)[:, None] + kernel_step * np.arange(kernel)[None] - low
    inside = (place >= 0) & (place <= (image - 1) * image_step) & (place % image_step == 0)
    return int(inside.sum())
