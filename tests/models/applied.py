"""Models applied as one compiled program: by itself each operation is compiled by itself."""

import functools
from typing import Any

import flax.linen as nn
import jax


@functools.partial(jax.jit, static_argnums=0, static_argnames="method")
def apply_model(model: nn.Module, variables: Any, *inputs: Any, method: str | None = None) -> Any:
    """Returns what a method of a model returns in evaluation mode."""
    return model.apply(variables, *inputs, method=method)
