"""Random variables for a model, without compiling its initialization."""

import flax.linen as nn
import jax
import numpy as np


def draw_variables(model: nn.Module, *inputs) -> dict:
    """Returns variables of the right shapes, none of them at a special value such as 0 or 1."""
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *inputs))
    rng = np.random.default_rng(0)

    def draw(path, shape):
        mean = 1.0 if path[-1].key in ("scale", "var") else 0.0
        array = np.asarray(mean + 0.2 * rng.uniform(-1, 1, shape.shape), np.float32)
        # A program that was started returns before it has read its arguments, and on a CPU it may
        # read these very arrays: changing one in place would change what it computes, sometimes.
        array.flags.writeable = False
        return array

    return jax.tree_util.tree_map_with_path(draw, nn.meta.unbox(shapes))
