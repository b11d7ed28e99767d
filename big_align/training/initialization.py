"""Fresh arrays, each made by a program of its own; equal programs are compiled once.

XLA fuses the draws of a program that makes all weights of a model. GPUs get a few kernels with
hundreds of draws each, which take minutes to compile. But a model has many weights of few kinds. So
what an array depends on is cut out of the trace of the whole. The forward pass, through which
initialization goes for the shapes, is left behind. Draws of one kind differ in their keys alone:
keys are arguments, and so are the numbers that are folded into them.

A program makes its array where it belongs, on the devices of one process or of several. It moves
nothing between them: with JAX's keys, a part of an array can be drawn by itself.
"""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal
from jax.extend.core.primitives import random_fold_in_p, remat_p
from jax.sharding import Sharding

FEW = 2**18  # of fewer numbers, LLVM optimizes the draws for a CPU longer than they take


class Fresh:
    """A traced function that makes a pytree of arrays from nothing, and what it makes."""

    def __init__(self, function: Callable[[], Any]):
        self._trace, self.shapes = jax.make_jaxpr(function, return_shape=True)()

    def make(self, placements: Any, whole: Sharding) -> Any:
        """Makes the arrays, by keys placed as `whole` says; none shares its memory with another."""
        calls = self.plan(placements, whole)
        programs = dict.fromkeys(call.program for call in calls)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(lambda program: program.compiled, programs))
        done: dict[Any, jax.Array] = {}
        made = []
        for call in calls:
            given = [x.value if isinstance(x, _Argument) else done[x] for x in call.arguments]
            array = call.program.compiled(*given)
            if call.is_key:
                done[call.value] = array
            else:
                made.append(array)
        return jax.tree.unflatten(jax.tree.structure(self.shapes), made)

    def plan(self, placements: Any, whole: Sharding) -> "list[_Call]":
        """Lists what makes the arrays, and before each the keys that it takes; compiles nothing."""
        calls: list[_Call] = []
        known = set()

        def add(value: Any, placement: Sharding, is_key: bool) -> None:
            recipe, arguments = _cut_out(value)
            for key in arguments:
                if isinstance(key, _Result) and key not in known:
                    known.add(key)
                    add(key, whole, True)
            program = _make_program(recipe, placement, whole)
            calls.append(_Call(program, arguments, value, is_key))

        places = jax.tree.leaves(placements)
        for value, placement in zip(_read_trace(self._trace), places, strict=True):
            add(value, placement, False)
        return calls


class _Program:
    """Makes an array from arguments; not compiled before it is needed."""

    def __init__(self, recipe: "_Recipe", placement: Sharding, whole: Sharding):
        def make(*arguments: Any) -> Any:
            return _follow(recipe, arguments)

        kinds = [
            jax.ShapeDtypeStruct(shape, dtype, sharding=whole if is_key else None)
            for shape, dtype, is_key in recipe.arguments
        ]
        self._lowered = jax.jit(make, out_shardings=placement).lower(*kinds)
        device: Any = next(iter(placement.device_set))
        on_cpu = device.platform == "cpu"
        self._hurry = on_cpu and self._lowered.out_info.size < FEW

    @functools.cached_property
    def compiled(self) -> jax.stages.Compiled:
        """The compiled program."""
        options: Any = {"xla_backend_optimization_level": 0} if self._hurry else None
        return self._lowered.compile(compiler_options=options)


class _Call(NamedTuple):
    """A program and its arguments; what it makes is an output of the function, or a key."""

    program: _Program
    arguments: list[Any]
    value: Any
    is_key: bool


class _Argument:
    """An array, or a number, that is given to programs."""

    def __init__(self, value: Any):
        self.value = value


@dataclasses.dataclass(frozen=True, eq=False)
class _Operation:
    """An equation of a trace, and the values that it takes: arguments, literals and results."""

    number: int  # in the order of the trace
    equation: Any
    inputs: list[Any]


class _Result(NamedTuple):
    """One of the results of an operation."""

    operation: _Operation
    place: int


def _read_trace(trace: Any) -> list[Any]:
    """Returns the value of each output of a trace without inputs."""
    operations: list[_Operation] = []

    def read(jaxpr: Any, values: dict[Any, Any]) -> list[Any]:
        def find(atom: Any) -> Any:
            return atom if isinstance(atom, Literal) else values[atom]

        for equation in jaxpr.eqns:
            inputs = [find(atom) for atom in equation.invars]
            if equation.primitive is remat_p:  # a block, with its parameters among the results
                inner = equation.params["jaxpr"]
                results = read(inner, dict(zip(inner.invars, inputs, strict=True)))
            else:
                if equation.primitive is random_fold_in_p:
                    inputs = [_give(_number(x)) if isinstance(x, Literal) else x for x in inputs]
                operations.append(_Operation(len(operations), equation, inputs))
                results = [_Result(operations[-1], i) for i in range(len(equation.outvars))]
            values.update(zip(equation.outvars, results, strict=True))
        return [find(atom) for atom in jaxpr.outvars]

    given = map(_give, trace.consts)
    return read(trace.jaxpr, dict(zip(trace.jaxpr.constvars, given, strict=True)))


def _give(value: Any) -> _Argument:
    # NumPy's arrays are on no device, so that programs of all processes take them.
    is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    return _Argument(value if is_key else np.asarray(value))


def _number(literal: Literal) -> np.ndarray:
    kind: Any = literal.aval
    return np.asarray(literal.val, kind.dtype)


class _Constant(NamedTuple):
    """A number of a program; its text tells apart what Python takes for equal: 1, 1.0, True."""

    value: Any
    text: str


class _Incomparable:
    """Parameters of an operation that have no hash: equal only to themselves."""

    def __init__(self, items: tuple[tuple[str, Any], ...]):
        self.items = items


class _Step(NamedTuple):
    """An operation of a recipe, with its parameters and what it takes.

    An input is a constant, or the place of an argument, or the number of an earlier step and the
    index of one of its results.
    """

    primitive: Any
    params: Any
    inputs: tuple[_Constant | int | tuple[int, int], ...]


class _Recipe(NamedTuple):
    """How an array is made; equal recipes make equal arrays of equal arguments."""

    arguments: tuple[tuple[tuple[int, ...], Any, bool], ...]  # shape, type, whether a key
    steps: tuple[_Step, ...]
    result: _Constant | int | tuple[int, int]  # as inputs of steps are given


def _cut_out(value: Any) -> tuple[_Recipe, list[Any]]:
    """Returns how a value is made, and the arguments of that: keys are not made, but taken."""
    needed: dict[int, _Operation] = {}
    waiting = [value]
    while waiting:
        match waiting.pop():
            case _Result(made) as x if made.number not in needed:
                if x is value or made.equation.primitive is not random_fold_in_p:
                    needed[made.number] = made
                    waiting += made.inputs
    numbers = sorted(needed)
    places = {number: place for place, number in enumerate(numbers)}
    arguments: dict[Any, int] = {}

    def refer(x: Any) -> _Constant | int | tuple[int, int]:
        match x:
            case _Result() if x.operation.number in needed:
                return places[x.operation.number], x.place
            case Literal() if np.ndim(x.val) == 0:
                return _Constant(_number(x)[()], f"{x.val!r} {x.aval}")
            case Literal():
                x = _give(_number(x))
        return arguments.setdefault(x, len(arguments))

    steps = []
    for operation in (needed[number] for number in numbers):
        equation = operation.equation
        inputs = tuple(map(refer, operation.inputs))
        steps.append(_Step(equation.primitive, _comparable(equation.params), inputs))
    result = refer(value)
    return _Recipe(tuple(map(_describe, arguments)), tuple(steps), result), list(arguments)


def _comparable(params: dict[str, Any]) -> Any:
    items = tuple(sorted(params.items(), key=lambda item: item[0]))
    try:
        hash(items)
    except TypeError:
        return _Incomparable(items)
    return items


def _describe(argument: Any) -> tuple[tuple[int, ...], Any, bool]:
    if isinstance(argument, _Argument):
        return argument.value.shape, argument.value.dtype, False
    kind = argument.operation.equation.outvars[argument.place].aval
    return kind.shape, kind.dtype, True


_make_program = functools.lru_cache(maxsize=2048)(_Program)


def _follow(recipe: _Recipe, arguments: Sequence[Any]) -> Any:
    """Makes the array of a recipe."""
    done: list[Sequence[Any]] = []

    def find(reference: Any) -> Any:
        match reference:
            case _Constant():
                return reference.value
            case int():
                return arguments[reference]
        step, index = reference
        return done[step][index]

    for step in recipe.steps:
        items = step.params.items if isinstance(step.params, _Incomparable) else step.params
        params = step.primitive.get_bind_params(dict(items))
        results = step.primitive.bind(*map(find, step.inputs), **params)
        done.append(results if step.primitive.multiple_results else [results])
    return find(recipe.result)
