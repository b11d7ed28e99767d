"""Arguments of losses, checked against the shapes and types in their signatures.

A label of shape [b, 1] or a mask of numbers would be broadcast to something else, and the loss
would be wrong without a word. Shapes are known at compile time, so the check costs nothing.
"""

import functools
import inspect
import typing
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import AbstractArray, Bool, Int

from big_align.losses.explicit_axes import Loss

KINDS = {Bool: (np.bool_, "booleans"), Int: (np.integer, "integers")}
"""Kinds of numbers besides floating point, by annotation."""


class Wanted(NamedTuple):
    """What a signature says of an array.

    Attributes:
      dims: names of its dimensions.
      kind: type that its numbers are of.
      name: of such numbers, in a message.
    """

    dims: tuple[str, ...]
    kind: type
    name: str


def check_arrays(loss: Loss) -> Loss:
    """Lets a function refuse arrays that do not have the shapes and types of its signature.

    Equal names of dimensions have equal sizes. Scalars are not checked.

    Raises:
      TypeError: when called with an array of other numbers, or with no array at all.
      ValueError: when called with an array of another shape, or with integers that JAX would cut.
    """
    signature = inspect.signature(loss)
    arrays = {name: _read(each.annotation) for name, each in signature.parameters.items()}
    arrays = {name: wanted for name, wanted in arrays.items() if wanted is not None}

    @functools.wraps(loss)
    def call(*args: Any, **kwargs: Any) -> Any:
        sizes: dict[str, tuple[int, str]] = {}
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            left_out = value is None and signature.parameters[name].default is None
            if name in arrays and not left_out:
                _check(name, value, arrays[name], sizes)
        return loss(*args, **kwargs)

    return call


def _read(annotation: Any) -> Wanted | None:
    """Returns what an annotation says of an array; None if it is of something else."""
    for each in typing.get_args(annotation) or (annotation,):
        if isinstance(each, type) and issubclass(each, AbstractArray) and each.dims:
            kind, name = KINDS.get(each.dtype, (np.floating, "floating-point numbers"))
            return Wanted(tuple(each.dim_str.split()), kind, name)
    return None


def _check(name: str, value: Any, wanted: Wanted, sizes: dict[str, tuple[int, str]]) -> None:
    """Checks an array; `sizes` has the size of each dimension and where it was first seen."""
    shape = " ".join(wanted.dims)
    if not isinstance(value, jax.Array | np.ndarray):
        raise TypeError(f"{name} is {value!r}; it must be an array [{shape}] of {wanted.name}")
    if not jnp.issubdtype(value.dtype, wanted.kind):
        raise TypeError(f"{name} has the type {value.dtype}; it must be of {wanted.name}")
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
    if isinstance(value, np.ndarray) and wanted.kind is np.integer:
        _check_bits(name, value)


def _check_bits(name: str, value: np.ndarray) -> None:
    """Checks that integers survive the way to a device, where they have 32 bits by default."""
    if value.size and not np.array_equal(
        value, value.astype(jax.dtypes.canonicalize_dtype(value.dtype))
    ):
        raise ValueError(
            f"{name} has integers beyond 32 bits, which JAX would cut; renumber all labels "
            "together with np.unique(..., return_inverse=True), or set jax_enable_x64"
        )
