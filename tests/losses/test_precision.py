"""Products of bfloat16 add up in float32, on devices that could do otherwise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.losses.contrastive import contrastive_loss
from big_align.losses.sigmoid import blockwise_sigmoid_loss, sigmoid_loss
from big_align.losses.supervised_contrastive import (
    blockwise_supervised_contrastive_loss,
    supervised_contrastive_loss,
)
from big_align.parallel.meshes import make_mesh

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


def plain_and_blockwise(name, label, block):
    """A plain loss of (zimg, ztxt, scale), and the function that makes the blockwise one."""
    labels = {"image_label": label, "text_label": label}
    if name == "sigmoid":
        return (
            lambda i, t, s: sigmoid_loss(i, t, s, -5.0, **labels),
            lambda mesh: (
                lambda i, t, s: blockwise_sigmoid_loss(
                    i, t, s, -5.0, **labels, mesh=mesh, block=block
                )
            ),
        )
    if name == "supervised":
        return (
            lambda i, t, s: supervised_contrastive_loss(i, label, s),
            lambda mesh: (
                lambda i, t, s: blockwise_supervised_contrastive_loss(
                    i, label, s, mesh=mesh, block=block
                )
            ),
        )
    kept = 2**28 if name == "kept" else 0
    return (
        lambda i, t, s: sum(contrastive_loss(i, t, s, **labels)),
        lambda mesh: (
            lambda i, t, s: sum(
                blockwise_contrastive_loss(
                    i, t, s, **labels, mesh=mesh, block=block, keep_logits_bytes=kept
                )
            )
        ),
    )


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize("name", ["kept", "recomputed", "sigmoid", "supervised"])
def test_the_gradient_of_the_scale_is_not_rounded_to_the_type_of_embeddings(name, devices):
    """Pairs that are nearly solved: what is left of each slope is the difference of large ones."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(64, 32))
    narrow = [jnp.bfloat16(normalize(base + rng.normal(size=base.shape))) for _ in range(2)]
    label = jnp.asarray(rng.permutation(np.arange(64) // 2 if name == "supervised" else 64))
    plain, blockwise = plain_and_blockwise(name, label, block=8)
    mesh = None if devices == 1 else make_mesh(1, jax.devices()[:devices])
    ours, plain = (jax.jit(jax.grad(loss, 2)) for loss in (blockwise(mesh), plain))
    for scale in map(jnp.float32, (5.0, 30.0)):
        expected = plain(*map(jnp.float32, narrow), scale)
        np.testing.assert_allclose(ours(*narrow, scale), expected, rtol=2e-5)


def normalize(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
