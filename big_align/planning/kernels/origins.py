"""Where an instruction of a compiled program comes from: the module, and the pass over it.

JAX writes into the program's text the path of modules in which an operation was traced, with the
transformations around it, and the lines of source code that led to it. Here a path is shortened to
the modules, as in `image/block_*/mlp/up`. What was traced in no module is named after the function
of this package.
"""

import re

from big_align.planning.executed import walk_inside
from big_align.planning.hlo import Computation, HloProgram, Instruction

FORWARD, RECOMPUTED, BACKWARD, UPDATE = "forward", "recomputed", "backward", "update"
PHASES = (FORWARD, RECOMPUTED, BACKWARD, UPDATE)
UNKNOWN = "?"

_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_CONTROL = re.compile(
    r"while|body|cond|scan|branch_\d+_fun|eval_jaxpr|closed_call|core_call|pjit|shard_map"
    r"|checkpoint|remat\d*|rematted_computation|custom_[jv][vj]p_call\w*"
)
_PACKAGE = re.compile(r"/big_align/([\w/]+)\.py")
_BEFORE = ("models/", "losses/", "kernels/", "objectives/")
"""Files whose functions belong to the forward pass also where nothing is differentiated."""
_FAR = 4  # operands that are followed for the origin of a copy, which has none of its own


class Origins:
    """Finds the module and the phase of instructions."""

    def __init__(self, text: str, program: HloProgram):
        self._program = program
        self._tables = {
            name: _read_table(text, name)
            for name in ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
        }

    def find(self, computation: Computation, instruction: Instruction) -> tuple[str, str, str]:
        """Returns module, phase and operation of an instruction; "?" for what is unknown.

        The operation is JAX's name of it, such as "dot_general". A fusion without a name has that
        of its last operation which has one; a copy has that of the array.
        """
        for _ in range(_FAR):
            inside = [run.instruction for run in walk_inside(self._program, instruction)]
            for each in (instruction, *reversed(inside)):
                if (name := _NAME.search(each.attributes)) and "/" in name[1]:
                    frame = _FRAME.search(each.attributes)
                    return self._describe(name[1], int(frame[1]) if frame else 0)
            if not instruction.operands:
                break
            instruction = computation.instructions[instruction.operands[0]]
        return UNKNOWN, UNKNOWN, UNKNOWN

    def _describe(self, name: str, frame: int) -> tuple[str, str, str]:
        *path, operation = name.split("/")
        module, function = shorten(path), self._find_function(frame)
        if "rematted_computation" in path:
            phase = RECOMPUTED
        elif "transpose(" in name:
            phase = BACKWARD
        elif "jvp(" in name or module or function.startswith(_BEFORE):
            phase = FORWARD
        else:
            phase = UPDATE
        return module or function, phase, operation

    def _find_function(self, frame: int) -> str:
        """Returns the innermost function of this package that led to an operation, or "?"."""
        names, functions, places, frames = self._tables.values()
        # The first frame has no parent: 0, or 1 where frames are counted from 1.
        offset = _number(frames[0], "parent_frame_id") if frames else 0
        while 0 < frame <= len(frames):
            place = places[_number(frames[frame - 1], "file_location_id") - 1]
            if file := _PACKAGE.search(names[_number(place, "file_name_id") - 1]):
                function = functions[_number(place, "function_name_id") - 1].strip('"')
                return f"{file[1]}.{function.partition('.<locals>')[0]}"
            frame = _number(frames[frame - 1], "parent_frame_id") - offset
        return UNKNOWN


def _read_table(text: str, name: str) -> list[str]:
    """Returns the lines of a table at the beginning of a program's text, without their numbers."""
    match = re.search(rf"^{name}\n((?:\d+ .*\n)*)", text, re.MULTILINE)
    return [line.partition(" ")[2] for line in match[1].splitlines()] if match else []


def _number(line: str, field: str) -> int:
    match = re.search(rf"\b{field}=(\d+)", line)
    return int(match[1]) if match else 0


def shorten(path: list[str]) -> str:
    """Returns the modules in a path of JAX's, with "*" for numbers: "image/block_*/mlp".

    A path has transformations as in "transpose(jvp(DualEncoder.encode_image))", methods as in
    "DualEncoder.image_tokens", names of modules, subscripts of `einsum`, and control flow.
    """
    # A path that is differentiated again begins again.
    starts = [i for i, part in enumerate(path) if part.startswith(("jvp(", "transpose("))]
    modules = [
        re.sub(r"_\d+$", "_*", part)
        for part in path[max(starts, default=-1) + 1 :]
        if not (set("(.,>") & set(part) or _CONTROL.fullmatch(part))
    ]
    return "/".join(modules)
