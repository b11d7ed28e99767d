"""Pickles as programs that make trees of plain values, run step by step within a budget.

A short program can make a lot: a memo of any length, tuples that share their parts so that a walk
over them never ends, a list that each of many calls copies. Here each step, and every element that
a call copies, is taken from the budget; functions of ours make what a program names; and only
texts are keys, since the hash of anything else may take any time.
"""

import io
import pickletools
from collections.abc import Callable, Iterable, Sequence
from pickle import UnpicklingError
from typing import Any, NamedTuple

from big_align.core.errors import WeightFileError
from big_align.weights.arrays.stored_arrays import LONGEST_NAME

STEPS, BYTES_OF_A_STEP = 2_000_000, 16
"""A program may take this many steps, and one more per this many bytes of its file.

The state dict of a hundred thousand tensors takes six million; what a step makes has about a
hundred bytes.
"""

CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
NUMBERS = "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT"
TEXTS = "STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8"
BYTES = "BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8"
VALUES = frozenset(" ".join((NUMBERS, TEXTS, BYTES)).split())
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Name(NamedTuple):
    """Represents what a program names, by its module and name, and what is called in its place."""

    full: str
    call: Callable[..., Any] | None = None


class PickleProgram:
    """A pickle that makes numbers, texts, lists and dictionaries, but nothing that has a name.

    It is read from the stream's position on; `path` and `size` are of the file.
    """

    def __init__(self, stream: io.BufferedIOBase, path: Any, size: int):
        self._stream = stream
        self._path = path
        self._steps = STEPS + size // BYTES_OF_A_STEP
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def find(self, name: str) -> Name:
        """Returns what represents a name."""
        raise UnpicklingError(f"{name} stands where only numbers are expected")

    def load_storage(self, pid: Any) -> Any:
        """Returns what represents an object that is stored elsewhere."""
        raise UnpicklingError("there is a storage where only numbers are expected")

    def spend(self, steps: int) -> None:
        """Takes steps from the budget; raises a WeightFileError if there are none left."""
        self._steps -= steps
        if self._steps < 0:
            raise WeightFileError(
                f"{self._path} has a pickle that takes more steps than a state dict of its size "
                f"needs; it was not read to its end. If you trust the file, save the state dict by "
                f"itself with torch: torch.save(model.state_dict(), ...)"
            )

    def run(self) -> Any:
        """Returns the tree that the program makes; one that is damaged may raise any error."""
        for code, argument, _ in pickletools.genops(self._stream):
            self.spend(1)
            self._step(code.name, argument)
        return self._stack.pop()

    def make_dict(self, pairs: Any = ()) -> dict[str, Any]:
        """Makes a dictionary from a list of pairs; keys that are not texts are left out."""
        return self._update({}, [each for key, value in self.copy(pairs) for each in (key, value)])

    def copy(self, items: Any = ()) -> tuple[Any, ...]:
        """Copies a list or a tuple."""
        if type(items) not in (list, tuple):
            raise UnpicklingError(f"a {type(items).__name__} stands where a list is expected")
        self.spend(len(items))
        return tuple(items)

    def _step(self, code: str, argument: Any) -> None:
        stack = self._stack
        if code in VALUES:
            stack.append(argument)
        elif code in CONSTANTS:
            stack.append(CONSTANTS[code])
        elif code in TUPLES:
            stack[-TUPLES[code] :] = [tuple(stack[-TUPLES[code] :])]
        elif code in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if argument is None else argument] = stack[-1]
        elif code in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        else:
            self._act(code, argument)

    def _act(self, code: str, argument: Any) -> None:
        """Takes one of the less frequent steps."""
        stack = self._stack
        match code:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "MARK":
                self._marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(self._pop_marked()))
            case "LIST" | "FROZENSET":  # duplicate items of a set do not matter here
                stack.append(self._pop_marked())
            case "EMPTY_LIST" | "EMPTY_SET":
                stack.append([])
            case "APPEND":
                _extend(stack[-2], [stack.pop()])
            case "APPENDS" | "ADDITEMS":
                items = self._pop_marked()
                _extend(stack[-1], items)
            case "EMPTY_DICT":
                stack.append({})
            case "DICT":
                stack.append(self._update({}, self._pop_marked()))
            case "SETITEM":
                self._update(stack[-3], stack[-2:])
                del stack[-2:]
            case "SETITEMS":
                items = self._pop_marked()
                self._update(stack[-1], items)
            case "POP":
                stack.pop()
            case "POP_MARK":
                self._pop_marked()
            case "DUP":
                stack.append(stack[-1])
            case "GLOBAL":
                stack.append(self.find(argument.replace(" ", ".")))
            case "STACK_GLOBAL":
                stack[-2:] = [self.find(".".join(stack[-2:]))]
            case "BINPERSID":
                stack.append(self.load_storage(stack.pop()))
            case "REDUCE" | "NEWOBJ":  # an object is made by calling its class, if it is known
                arguments = stack.pop()
                stack[-1] = self._call(stack[-1], arguments)
            case "BUILD":  # attributes, such as those torch sets on state dicts
                stack.pop()
                if type(stack[-1]) is not dict:
                    raise UnpicklingError("attributes are set on what is no dictionary")
            case _:
                raise UnpicklingError(f"{code} stands where a state dict needs no such step")

    def _pop_marked(self) -> list[Any]:
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _call(self, function: Any, arguments: Any) -> Any:
        if type(function) is not Name or function.call is None:
            raise UnpicklingError("what is no function is called")
        return function.call(*self.copy(arguments))

    def _update(self, target: Any, items: Sequence[Any]) -> dict[str, Any]:
        if type(target) is not dict:
            raise UnpicklingError("keys are set in what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) is str:
                target[check_name(key)] = value
        return target


def check_name(name: Any) -> str:
    """Returns a name, if it is one; comparing texts of any length could take any time."""
    if type(name) is not str or len(name) > LONGEST_NAME:
        raise UnpicklingError(f"a name is no text of at most {LONGEST_NAME} characters")
    return name


def _extend(target: Any, items: Iterable[Any]) -> None:
    if type(target) is not list:
        raise UnpicklingError("items are put into what is no list")
    target.extend(items)
