"""What is recomputed in the backward pass instead of being stored, in one place.

Every recomputation goes through this module, so that the FLOPs of a model can be counted without it
(`flops.model_flops`): work that a machine repeats to save memory is not progress.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

_LEFT_OUT = contextvars.ContextVar("recomputation is left out", default=False)


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """Traces the code inside as if everything were stored; the result must not be run."""
    token = _LEFT_OUT.set(True)
    try:
        yield
    finally:
        _LEFT_OUT.reset(token)


def is_left_out() -> bool:
    """Returns whether code is traced to be counted, and not to be run."""
    return _LEFT_OUT.get()


def remat_block(block_class: type[nn.Module], train: int) -> type[nn.Module]:
    """Returns a class of blocks that store only their inputs.

    Args:
      block_class: a module that is called with arrays and `train`.
      train: the index of `train` among its arguments, with the module itself as 0.
    """
    return block_class if _LEFT_OUT.get() else nn.remat(block_class, static_argnums=(train,))


def remat_body(body: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a loop body that stores only its inputs; loops need no protection from CSE."""
    return body if _LEFT_OUT.get() else jax.checkpoint(body, prevent_cse=False)


def recompute(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function whose results an earlier pass computed but did not store."""
    if not _LEFT_OUT.get():
        return function(*arguments)
    shapes = jax.eval_shape(function, *arguments)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
