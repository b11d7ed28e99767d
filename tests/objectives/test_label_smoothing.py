"""Objectives that take `label_smoothing` pass it on to their losses."""

import jax.numpy as jnp
import numpy as np
import pytest

from big_align.losses.classification import softmax_cross_entropy
from big_align.losses.contrastive import contrastive_loss
from big_align.models.dual_encoder import normalize
from big_align.objectives.clip import Clip
from big_align.objectives.cross_entropy import CrossEntropy
from big_align.objectives.multitask import MultiTask
from tests import tiny

LABEL, MASK = jnp.array([0, 1, 2, 1, -1, -1, -1, -1]), jnp.ones(8, bool)
RNG = np.random.default_rng(0)
FEATURES, KERNEL = (jnp.float32(RNG.normal(size=shape)) for shape in ((8, 5), (5, 3)))
ZIMG, ZTXT = (normalize(jnp.float32(z)) for z in RNG.normal(size=(2, 8, 6)))


def classify(smoothing):
    return softmax_cross_entropy(FEATURES @ KERNEL, LABEL, MASK, smoothing)


def contrast(start, smoothing):
    """CLIP on the rows from `start` on; the log scale is 1."""
    both = contrastive_loss(ZIMG[start:], ZTXT[start:], np.e, label_smoothing=smoothing)
    return sum(both) / 2


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_smoothed(smoothing):
    batch = {"label": LABEL, "mask": MASK, "text_mask": jnp.ones((8, 1), bool)}
    outputs = {"zimg": ZIMG, "ztxt": ZTXT, "features": FEATURES}
    params = {
        "log_scale": jnp.float32(1),
        "classifier": {"kernel": KERNEL, "bias": jnp.zeros(3)},
    }
    given = tiny.make_model(), tiny.make_mesh(1)
    for objective, expected in (
        (Clip(*given, label_smoothing=smoothing), contrast(0, smoothing)),
        (CrossEntropy(*given, 3, label_smoothing=smoothing), classify(smoothing)),
        (
            MultiTask(*given, 3, label_smoothing=smoothing),
            (classify(smoothing) + contrast(4, smoothing)) / 2,
        ),
    ):
        loss, _ = objective.loss(params, outputs, None, batch)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert classify(0.1) != classify(0.0) and contrast(4, 0.1) != contrast(4, 0.0)
