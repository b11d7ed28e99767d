"""Reads the text of a compiled program: computations, their instructions, shapes and attributes.

The grammar is that of XLA's HLO text (openxla.org/xla/hlo_dumps, hlo_to_text); only what is needed
to count costs is kept.
"""

import dataclasses
import functools
import math
import re

_BITS = {"pred": 8, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([0-9,<=? ]*)\](?:\{([^}]*)\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_START = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r" ?([a-z][\w\-]*)\(")
_OPERAND = re.compile(r"%([\w.\-]+(?:#\d+)*)")
_MARK = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\],]')
_OPENING, _CLOSING = "({[", ")}]"


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of a program."""

    dtype: str  # as named in HLO: "bf16", "f32", "pred"
    shape: tuple[int, ...]  # on one device
    space: int = 0  # 0 is the device's main memory, others are on the chip

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes, without padding."""
        return -(-self.size * element_bits(self.dtype) // 8)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction."""

    name: str  # unique within its computation
    opcode: str  # as in "dot" or "all-gather-start"
    outputs: tuple[Array, ...]  # several for a tuple, with nested tuples flattened
    operands: tuple[str, ...]  # names of the instructions that it reads
    attributes: str  # the text after the operands
    is_root: bool = False  # it is what its computation returns
    literal: str = ""  # the text of the operands, for constants and parameters

    def attribute(self, name: str) -> str | None:
        """Returns the text of an attribute, such as "{0,1}" of dimensions={0,1}, or None."""
        match = re.search(rf"(?:^|[ ,]){re.escape(name)}=", self.attributes)
        if not match:
            return None
        start = match.end()
        end = _end_of_value(self.attributes, start)
        # The only value with a comma outside parentheses: mesh['a'=2], device_ids=(...) {'a'}.
        if self.attributes.startswith(", device_ids=", end):
            end = _end_of_value(self.attributes, end + 1)
        return self.attributes[start:end]

    def dimensions(self, name: str) -> tuple[int, ...]:
        """Returns the numbers in an attribute, () if it is missing."""
        return tuple(map(int, re.findall(r"\d+", self.attribute(name) or "")))

    def called(self, name: str) -> tuple[str, ...]:
        """Returns the computations that an attribute names."""
        return tuple(_OPERAND.findall(self.attribute(name) or ""))

    @property
    def trip_count(self) -> int | None:
        """How often a loop runs, None if the compiler does not know."""
        match = re.search(r'"known_trip_count":\{"n":"(\d+)"', self.attributes)
        return int(match[1]) if match else None


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions by name, in their original order."""

    name: str
    instructions: dict[str, Instruction]

    @property
    def root(self) -> Instruction:
        """The instruction whose value is returned."""
        return next(each for each in self.instructions.values() if each.is_root)

    def operand_arrays(self, instruction: Instruction) -> list[tuple[Array, ...]]:
        """Returns the arrays of each operand of an instruction."""
        return [self.instructions[name].outputs for name in instruction.operands]

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """The instructions that read each instruction, by its name."""
        found: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for each in self.instructions.values():
            for name in each.operands:
                found[name].append(each)
        return found

    @functools.cached_property
    def parameters(self) -> dict[int, Instruction]:
        """Its parameters by number."""
        found = (each for each in self.instructions.values() if each.opcode == "parameter")
        return {int(each.literal): each for each in found}


@dataclasses.dataclass(frozen=True)
class HloProgram:
    """Computations by name, and the name of the entry computation."""

    computations: dict[str, Computation]
    entry: str


def parse_program(text: str) -> HloProgram:
    """Reads the text of a compiled program, from `jax.stages.Compiled.as_text`."""
    computations, entry = {}, None
    name, instructions, types = None, {}, {}
    for line in text.splitlines():
        if name is None:
            if match := _HEADER.match(line):
                name, instructions, types = match[2], {}, {}
                entry = name if match[1] else entry
        elif line.startswith("}"):
            computations[name] = Computation(name, instructions)
            name = None
        elif match := _START.match(line):
            end = _end_of_type(line, match.end())
            instruction = _parse_instruction(line, match, end)
            for operand in instruction.operands:
                _add_elements(instructions, types, operand)
            instructions[instruction.name] = instruction
            types[instruction.name] = line[match.end() : end]
    if entry is None:
        raise ValueError("the text of the program has no ENTRY computation")
    return HloProgram(computations, entry)


def _parse_instruction(line: str, start: re.Match, end: int) -> Instruction:
    opcode = _OPCODE.match(line, end)
    if not opcode:
        raise ValueError(f"a line of the program cannot be read: {line[:200]!r}")
    close = _matching(line, opcode.end() - 1)
    inside = line[opcode.end() : close]
    return Instruction(
        name=start[2],
        opcode=opcode[1],
        outputs=_parse_arrays(line[start.end() : end]),
        operands=tuple(_OPERAND.findall(inside)) if opcode[1] != "constant" else (),
        attributes=line[close + 1 :].lstrip(", "),
        is_root=bool(start[1]),
        literal=inside if opcode[1] in ("constant", "parameter") else "",
    )


def _end_of_type(line: str, begin: int) -> int:
    """Returns the end of the type that begins there: an array's, or a tuple's in parentheses."""
    return _matching(line, begin) + 1 if line[begin] == "(" else line.index(" ", begin)


def _add_elements(instructions: dict[str, Instruction], types: dict[str, str], name: str) -> None:
    """Adds the instructions that an operand such as `x#2` leaves out: element 2 of the tuple x.

    XLA has written operands so since jax 0.11 or 0.12, in place of `get-tuple-element`.
    """
    whole, mark, number = name.rpartition("#")
    if not mark or name in instructions:
        return
    _add_elements(instructions, types, whole)
    types[name] = _split_tuple(types[whole])[int(number)]
    outputs = _parse_arrays(types[name])
    instructions[name] = Instruction(
        name, "get-tuple-element", outputs, (whole,), f"index={number}"
    )


def _split_tuple(text: str) -> list[str]:
    """Splits the type of a tuple into those of its elements."""
    text = re.sub(r"/\*.*?\*/", "", text)
    elements, start = [], 1
    while start < len(text):
        end = _end_of_value(text, start)
        elements.append(text[start : min(end, len(text) - 1)].strip())
        start = end + 1
    return elements


def _parse_arrays(text: str) -> tuple[Array, ...]:
    """Reads all arrays of a type; an asynchronous start also has those that it reads."""
    return tuple(
        Array(
            dtype,
            tuple(int(size.lstrip("<=")) for size in sizes.replace(" ", "").split(",") if size),
            int(match[1]) if (match := re.search(r"S\((\d+)\)", layout or "")) else 0,
        )
        for dtype, sizes, layout in _ARRAY.findall(text)
    )


def element_bits(dtype: str) -> int:
    """Returns the bits of an element; 0 for tokens and other types without a size."""
    if dtype in _BITS:
        return _BITS[dtype]
    match = re.match(r"[a-z]+(\d+)", dtype)
    return int(match[1]) if match else 0


def _matching(text: str, start: int) -> int:
    """Returns where the parenthesis opened at `start` closes; quoted text is skipped."""
    depth = 0
    for mark in _MARK.finditer(text, start):
        depth += (mark[0] in _OPENING) - (mark[0] in _CLOSING)
        if not depth:
            return mark.start()
    raise ValueError(f"a parenthesis is not closed: {text[start : start + 200]!r}")


def _end_of_value(text: str, start: int) -> int:
    """Returns the end of an attribute's value: the comma outside of all parentheses."""
    depth = 0
    for mark in _MARK.finditer(text, start):
        if mark[0] == "," and not depth:
            return mark.start()
        depth += (mark[0] in _OPENING) - (mark[0] in _CLOSING)
    return len(text)
