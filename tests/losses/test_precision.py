"""Products of bfloat16 add up in float32, on devices that could do otherwise."""

import functools

import jax
import jax.numpy as jnp
import pytest

from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.losses.contrastive import contrastive_loss
from big_align.losses.sigmoid import blockwise_sigmoid_loss

BLOCKWISE = functools.partial(blockwise_contrastive_loss, block=4)


@pytest.mark.parametrize(
    ("loss", "differentiated", "products"),
    [
        (contrastive_loss, False, 1),
        (functools.partial(BLOCKWISE, keep_logits_bytes=0), True, 3),
        (functools.partial(BLOCKWISE, keep_logits_bytes=2**28), True, 3),
        (functools.partial(blockwise_sigmoid_loss, bias=0.0, block=4), True, 3),
    ],
    ids=["contrastive", "recomputed", "kept", "sigmoid"],
)
def test_every_product_asks_for_float32(loss, differentiated, products):
    """Read in the program: XLA on a CPU computes in float32 whatever it is told."""

    def add(*given):
        return sum(jax.tree.leaves(loss(*given)))

    traced = jax.value_and_grad(add, argnums=(0, 1, 2)) if differentiated else add
    ones, scale = jnp.ones((16, 8), jnp.bfloat16), jnp.float32(3)
    program = str(jax.make_jaxpr(traced)(ones, ones, scale))
    asked = program.count("preferred_element_type=float32")
    assert asked == program.count("dot_general[") >= products
