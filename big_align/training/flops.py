"""Model FLOPs: what a computation needs, independent of what the compiler makes of it.

Matrix products and convolutions are counted in the traced program of all devices, with two FLOPs
per multiply-add; elementwise work is not, which is how papers count. A loop's body counts as often
as it runs. As in published counts, filter taps over padding are counted too. Taps over the holes
with which the gradient of a strided convolution is dilated are not, so each gradient of a
convolution costs what the convolution does.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval
from jax.sharding import Mesh

from big_align.core.types import Batch, Objective
from big_align.parallel.devices import rematerialization
from big_align.parallel.kernels.stated_flops import read_flops
from big_align.training.optimizers import frozen_mask
from big_align.training.state import TrainState
from big_align.training.step import full_gradients


def count(function: Callable, *arguments: Any) -> float:
    """Returns the FLOPs of a call, which is traced and not run, over all devices.

    Of a `cond`, the most expensive branch counts. With matrix products in a `while` loop it is NaN:
    the number of iterations is unknown.
    """
    return count_program(_trace(function, *arguments))


def _trace(function: Callable, *arguments: Any) -> core.Jaxpr:
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
    # A new function: JAX caches traces by function, and contexts change what is traced.
    return jax.make_jaxpr(lambda *arguments: function(*arguments))(*shapes).jaxpr


def drop_unused(jaxpr: core.Jaxpr) -> core.Jaxpr:
    """Drops what no result of a program depends on, as every compiler does.

    This is the part of `jax.interpreters` that JAX says may change: it has no other such pass, and
    without one the gradients of what is frozen would count.
    """
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


def model_flops(
    objective: Objective,
    state: TrainState,
    batch: Mapping,
    mesh: Mesh,
    frozen: tuple[str, ...] = (),
) -> float:
    """Returns the FLOPs that a train step needs, over all devices.

    They are those of the gradients of the whole batch with everything stored: what a step
    recomputes to save memory, in blocks or by micro-batches, is not counted.
    """

    def gradients(state: TrainState, batch: Batch) -> Any:
        batch = objective.augment(batch, state.rng, state.step)
        drawn = objective.draw(state.tables, batch, state.rng)
        weights = state.params, state.model_state
        grads, *rest = full_gradients(objective, *weights, batch, state.rng, mesh, drawn)
        stays = jax.tree.leaves(frozen_mask(grads, frozen))
        return [x for x, stay in zip(jax.tree.leaves(grads), stays, strict=True) if not stay], rest

    with rematerialization.left_out():
        return count_program(drop_unused(_trace(gradients, state, dict(batch))))


_KERNELS = "pallas_call", "mpmd_map", "custom_vmap_call"
"""Primitives that call a kernel, which may state its FLOPs; jax 0.11 has all three."""


def count_program(jaxpr: core.Jaxpr) -> float:
    """Returns the FLOPs of a traced program, as `count` does."""
    return float(sum(_count_equation(equation) for equation in jaxpr.eqns))


def _count_equation(equation: core.JaxprEqn) -> float:
    name, parameters = equation.primitive.name, equation.params
    if name == "dot_general":
        return _count_product(equation)
    if name == "conv_general_dilated":
        return _count_convolution(equation)
    if name.startswith("dot_product_attention_"):
        return _count_attention(equation)
    stated = read_flops(str(equation.source_info.name_stack)) if name in _KERNELS else None
    if stated is not None:
        return float(stated)
    inner = [count_program(jaxpr) for jaxpr in _inner_jaxprs(parameters)]
    if not any(inner):
        return 0.0
    if name == "cond":
        return float(np.max(inner))
    if name == "while":
        return math.nan
    return sum(inner) * _repetitions(name, parameters)


def _inner_jaxprs(parameters: Mapping[str, Any]) -> Iterator[core.Jaxpr]:
    """Yields the programs inside an equation: bodies, branches, calls."""
    for leaf in jax.tree.leaves(parameters, is_leaf=lambda x: hasattr(x, "eqns")):
        if hasattr(leaf, "eqns"):
            inner: Any = leaf
            yield getattr(inner, "jaxpr", inner)


def _repetitions(name: str, parameters: Mapping[str, Any]) -> int:
    """Returns how often the program inside an equation runs, over all devices."""
    if name == "scan":
        return parameters["length"]
    if name == "shard_map":
        axes = parameters["newly_manual_axes"]
        return math.prod(parameters["mesh"].shape[axis] for axis in axes)
    if name == "pallas_call":
        return math.prod(parameters["grid_mapping"].grid)
    return 1


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape


def _count_product(equation: core.JaxprEqn) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left, made = _shape(equation.invars[0]), _shape(equation.outvars[0])
    return 2.0 * math.prod(made) * math.prod(left[i] for i in contracted)


def _count_attention(equation: core.JaxprEqn) -> float:
    """Counts the products of JAX's primitives for cuDNN: two forward, five backward."""
    query, key = map(_shape, equation.invars[:2])
    products = 5 if "_bwd" in equation.primitive.name else 2
    return 2.0 * products * math.prod(query) * key[1]


def _count_convolution(equation: core.JaxprEqn) -> float:
    """Counts, for each element of the result, the filter's taps and the channels of its group."""
    filters, (_, *summed) = _shape(equation.invars[1]), equation.params["dimension_numbers"][1]
    products = math.prod(_shape(equation.outvars[0])) * math.prod(filters[i] for i in summed)
    return 2.0 * products / math.prod(equation.params["lhs_dilation"])  # without the holes
