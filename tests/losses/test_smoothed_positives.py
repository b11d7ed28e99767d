"""Label smoothing over several positives (UniCL) equals the target by hand, in float64."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.losses.contrastive import contrastive_loss
from tests.losses.float64_contrast import contrast_by_hand
from tests.losses.test_blockwise_contrastive import COTANGENTS, draw, make_mesh, make_pull
from tests.parallel.kernels.test_pair_tiles import assert_close

WAYS = {
    "plain": contrastive_loss,
    "blocks": functools.partial(blockwise_contrastive_loss, block=5, keep_logits_bytes=0),
    "tiles": functools.partial(blockwise_contrastive_loss, block="tiles"),
}
ERRORS = {"float32": 1e-5, "bfloat16": 0.01}
"""Of gradients, relative to the largest; in bfloat16 they are rounded to 8 bits."""


@pytest.mark.parametrize("way, devices", [("blocks", 8), ("tiles", 8), *((way, 1) for way in WAYS)])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_value_and_every_gradient(way, devices, dtype):
    """Odd sizes, padding that is not finite, and images and texts that have no positive."""
    loss = WAYS[way]
    if devices > 1:
        loss = functools.partial(loss, mesh=make_mesh(4, 2))
    zimg, ztxt, targets = draw(13, 29, labels=5, masked=True, smoothing=0.1)
    masks = targets["image_mask"], targets["text_mask"]
    targets["image_label"] = targets["image_label"].at[3].set(7)  # that of no text
    labels = targets["image_label"], targets["text_label"]
    shared = np.equal.outer(*labels) & np.outer(*masks)
    assert shared.any(1).sum() < masks[0].sum() < 13 and shared.sum(1).max() > 3
    zimg, ztxt = (
        jnp.where(mask[:, None], z, jnp.nan).astype(dtype)
        for mask, z in zip(masks, (zimg, ztxt), strict=True)
    )
    pull = make_pull(loss, targets)
    for cotangents in COTANGENTS:
        losses, grads = pull(zimg, ztxt, jnp.float32(8), cotangents)
        wide = (np.float64(z) for z in (zimg, ztxt))
        desired = contrast_by_hand(*wide, 8.0, np.float64(cotangents), *labels, 0.1, masks)
        np.testing.assert_allclose(losses, desired[0], rtol=1e-5)
        assert_close(grads, desired[1], ERRORS[dtype])
