"""Arguments of losses, checked against the shapes and types in their signatures.

A label of shape [b, 1], a mask of numbers or a scale [b] would be broadcast to something else, and
the loss would be wrong without a word. Shapes are known at compile time, so a check costs nothing.
"""

import functools
import inspect
import numbers
import operator
import reprlib
import typing
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from jaxtyping import AbstractArray, Bool, Int

from big_align.losses.explicit_axes import Loss
from big_align.parallel.shards import Shards

KINDS: dict[Any, tuple[type, str]] = {
    Bool: (np.bool_, "booleans"),
    Int: (np.integer, "integers"),
}
"""Kinds of numbers besides floating point, by annotation."""

PRECISIONS = (jnp.bfloat16, np.float32, np.float64)
"""Types of embeddings. Gradients of a batch are about one over its size: float16 loses them."""


class Wanted(NamedTuple):
    """What a signature says of an array; `name` is that of its kind of numbers, in a message."""

    dims: tuple[str, ...]  # none for a scalar
    kind: type
    name: str


def check_arrays(loss: Loss) -> Loss:
    """Lets a function refuse arguments that are not what its signature says.

    Arrays have its shapes and types, and equal names of dimensions have equal sizes; integers may
    have any type, and get one that holds -1. What is a scalar array there may also be a number,
    and becomes an array, so that another value needs no other program. What is a `float` or `int`
    there is a number that is known when the function is compiled.

    Raises:
      TypeError: when called with an array of other numbers, with no array or number at all, or with
        a mesh that is none.
      ValueError: when called with an array of another shape, with integers that JAX would cut, or
        with a mesh inside of `jax.shard_map` or `jax.pmap`.
    """
    signature = inspect.signature(loss)
    checks = {name: _choose_check(each.annotation) for name, each in signature.parameters.items()}

    @functools.wraps(loss)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        sizes: dict[str, tuple[int, str]] = {}
        for name, value in bound.arguments.items():
            left_out = value is None and signature.parameters[name].default is None
            if (check := checks[name]) is not None and not left_out:
                bound.arguments[name] = check(name, value, sizes)
        return loss(*bound.args, **bound.kwargs)

    return typing.cast(Loss, call)


def _choose_check(annotation: Any) -> Any:
    """Returns the check of an argument that is annotated so; None for one of anything else."""
    kinds = typing.get_args(annotation) or (annotation,)
    if kinds == (float,):
        return _take_number
    if int in kinds:
        words = tuple(word for kind in kinds for word in typing.get_args(kind))
        return functools.partial(_take_count, words=words)
    if Mesh in kinds:
        return _take_mesh
    for each in kinds:
        if isinstance(each, type) and issubclass(each, AbstractArray) and "*" not in each.dim_str:
            kind, name = KINDS.get(each.dtype, (np.floating, "floating-point numbers"))
            wanted = Wanted(tuple(each.dim_str.split()), kind, name)
            return functools.partial(_take_array if each.dims else _take_scalar, wanted=wanted)
    return None


Sizes = dict[str, tuple[int, str]]
"""The size of each dimension, and the argument that it was first seen in."""


def _take_array(name: str, value: Any, sizes: Sizes, wanted: Wanted) -> jax.Array | np.ndarray:
    """Checks an array."""
    value, shape = _unwrap(value), " ".join(wanted.dims)
    if not isinstance(value, jax.Array | np.ndarray):
        given = reprlib.repr(value)
        raise TypeError(f"{name} is {given}; it must be an array [{shape}] of {wanted.name}")
    _check_type(name, value, wanted)
    known = {dim: sizes[dim] for dim in dict.fromkeys(wanted.dims) if dim in sizes}
    if len(value.shape) != len(wanted.dims) or any(
        dim in known and known[dim][0] != size
        for dim, size in zip(wanted.dims, value.shape, strict=True)
    ):
        given = ", ".join(f"{dim} = {size} as in {where}" for dim, (size, where) in known.items())
        where = f", with {given}" if given else ""
        raise ValueError(f"{name} has the shape {list(value.shape)}; it must be [{shape}]{where}")
    for dim, size in zip(wanted.dims, value.shape, strict=True):
        sizes.setdefault(dim, (size, name))
    return _fit_type(name, value)


def _take_scalar(name: str, value: Any, sizes: Sizes, wanted: Wanted) -> jax.Array | np.ndarray:
    """Checks a scalar, and makes an array of a number."""
    value, float_type = _unwrap(value), jax.dtypes.canonicalize_dtype(np.float64)
    if isinstance(value, jax.Array | np.ndarray):
        if value.shape:
            raise ValueError(f"{name} has the shape {list(value.shape)}; it must be a scalar")
        if jnp.issubdtype(value.dtype, np.integer):
            return value.astype(float_type)
        _check_type(name, value, wanted)
        return _fit_type(name, value)
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} is {reprlib.repr(value)}; it must be a number or a scalar array")
    return np.asarray(value, float_type)


def _take_number(name: str, value: Any, sizes: Sizes) -> numbers.Real:
    """Checks a number that is known at compile time, which may be in an array."""
    value = _unwrap(value)
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{name} is an array that is traced by jit, grad or the like; it must be a number, "
            "which is known when the loss is compiled"
        )
    if isinstance(value, jax.Array | np.ndarray) and not value.shape:
        value = value.item()
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} is {reprlib.repr(value)}; it must be a number")
    return value


def _take_count(name: str, value: Any, sizes: Sizes, words: tuple[str, ...]) -> int | str:
    """Checks a whole number, in place of which one of some words may stand."""
    if isinstance(value, str) and value in words:
        return value
    try:
        return operator.index(value)
    except TypeError:
        wanted = " or ".join(["a whole number", *map(repr, words)])
        raise TypeError(f"{name} is {reprlib.repr(value)}; it must be {wanted}") from None


def _take_mesh(name: str, value: Any, sizes: Sizes) -> Mesh | Shards:
    """Checks a mesh of devices, or some axes of one."""
    if not isinstance(value, Mesh | Shards):
        raise TypeError(
            f"{name} is {reprlib.repr(value)}, a {type(value).__name__}; it must be a "
            "jax.sharding.Mesh of devices, or a Shards"
        )
    if AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types:
        raise ValueError(
            f"{name} shares the work over devices by itself; inside of jax.shard_map or jax.pmap "
            "leave it out"
        )
    return value


def _unwrap(value: Any) -> Any:
    """Returns the array of an object that holds one, such as `nnx.Param`."""
    is_array = isinstance(value, jax.Array | np.ndarray)
    return value.__jax_array__() if not is_array and hasattr(value, "__jax_array__") else value


def _check_type(name: str, value: jax.Array | np.ndarray, wanted: Wanted) -> None:
    if not jnp.issubdtype(value.dtype, wanted.kind):
        raise TypeError(f"{name} has the type {value.dtype}; it must be of {wanted.name}")
    if wanted.kind is np.floating and value.dtype not in PRECISIONS:
        raise TypeError(
            f"{name} has the type {value.dtype}, in which gradients underflow; it must be "
            "bfloat16 or float32"
        )


def _fit_type(name: str, value: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
    """Gives integers a type that holds -1, and arrays of numpy one that JAX has."""
    if jnp.issubdtype(value.dtype, np.integer):
        wide = np.int64 if value.dtype.itemsize > 4 else np.int32
        fitting = value.astype(jax.dtypes.canonicalize_dtype(wide))
        if isinstance(value, np.ndarray) and not np.array_equal(value, fitting):
            raise ValueError(
                f"{name} has integers beyond 32 bits, which JAX would cut; renumber all labels "
                "together with np.unique(..., return_inverse=True), or set jax_enable_x64"
            )
        return fitting
    if isinstance(value, np.ndarray):
        return value.astype(jax.dtypes.canonicalize_dtype(value.dtype), copy=False)
    return value
