"""Every loss refuses arrays that are not those of its signature, and names them."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import big_align

Z = jax.nn.standardize(jax.random.normal(jax.random.key(0), (6, 8))) / np.sqrt(8)
LABEL, MASK = jnp.array([0, 1, 2, 0, 1, 3]), jnp.ones(6, bool)
CENTERS, OWN = jax.random.normal(jax.random.key(1), (10, 8)), jnp.arange(12).reshape(6, 2) % 10
PAIRS = dict(
    zimg=Z, ztxt=Z[::-1], scale=10.0, image_label=LABEL, text_label=LABEL, image_mask=MASK,
    text_mask=MASK,
)  # fmt: skip
CLUSTERS = dict(zimg=Z, centers=CENTERS, labels=OWN, mask=MASK, sampled=jnp.arange(4))
TAGS = jnp.zeros((6, 5), bool)
ROWS = dict(z=Z, label=LABEL, scale=10.0, mask=MASK)
CALLS = {
    "contrastive_loss": PAIRS | dict(text_queries=MASK),
    "blockwise_contrastive_loss": PAIRS | dict(text_queries=MASK),
    "sigmoid_loss": PAIRS | dict(bias=-10.0),
    "blockwise_sigmoid_loss": PAIRS | dict(bias=-10.0),
    "supervised_contrastive_loss": ROWS,
    "blockwise_supervised_contrastive_loss": ROWS,
    "mlcd_loss": CLUSTERS,
    "mlc_loss": CLUSTERS,
    "unicom_loss": CLUSTERS,
    "sampled_cluster_loss": dict(
        loss="mlcd", zimg=Z, rows=CENTERS, row_mask=jnp.ones(10, bool), columns=OWN,
        sampled=jnp.ones(10, bool),
    ),
    "softmax_cross_entropy": dict(logits=Z, label=LABEL, mask=MASK),
    "tag_recognition_loss": dict(
        name="splc", logits=Z[:, :5], given=TAGS, found=TAGS, mask=MASK, weights=jnp.ones(5)
    ),
}  # fmt: skip
ARRAYS = [
    (loss, name)
    for loss, given in CALLS.items()
    for name, value in given.items()
    if isinstance(value, jax.Array)
]


def test_every_loss_is_called_here_with_every_array():
    assert set(CALLS) == {
        name for name in big_align.__all__ if name.endswith(("_loss", "_entropy"))
    }
    for loss, given in CALLS.items():
        parameters = inspect.signature(getattr(big_align, loss)).parameters
        declared = {n for n, each in parameters.items() if "jaxtyping" in str(each.annotation)}
        assert declared <= set(given), loss
        assert np.isfinite(jax.tree.leaves(getattr(big_align, loss)(**given))).all()


@pytest.mark.parametrize(("loss", "name"), ARRAYS)
def test_another_shape_or_type_is_refused_by_name(loss, name):
    given = CALLS[loss]
    call, value = getattr(big_align, loss), given[name]
    with pytest.raises(ValueError, match=rf"^{name} has the shape .*; it must be \["):
        call(**given | {name: value[..., None]})
    wrong = value.astype(jnp.float32 if value.dtype == bool else bool)
    with pytest.raises(TypeError, match=rf"^{name} has the type {wrong.dtype}; it must be of "):
        call(**given | {name: wrong})
    with pytest.raises(TypeError, match=rf"^{name} is \[.*; it must be an array \["):
        call(**given | {name: value.tolist()})


@pytest.mark.parametrize(
    ("loss", "name"),
    [x for x in ARRAYS if x[0] == "sampled_cluster_loss" or x[1] not in ("centers", "sampled")],
)
def test_another_number_of_rows_is_refused(loss, name):
    given = CALLS[loss]
    with pytest.raises(ValueError, match=r"has the shape .*, with \w = \d+ as in "):
        getattr(big_align, loss)(**given | {name: given[name][:-1]})


def test_a_label_too_large_for_32_bits_is_refused_instead_of_cut():
    zimg, ztxt = np.asarray(Z), np.asarray(Z[::-1])
    large = np.array([0, 2**32, 7, 2**32 + 7, 1, 2**33])  # all differ, and not in the last 32 bits
    with pytest.raises(ValueError, match=r"^image_label has integers beyond 32 bits.*np\.unique"):
        big_align.blockwise_contrastive_loss(zimg, ztxt, 10.0, image_label=large, text_label=large)
    small = np.unique(large, return_inverse=True)[1]
    for loss in (big_align.contrastive_loss, big_align.blockwise_contrastive_loss):
        np.testing.assert_allclose(
            loss(Z, Z[::-1], 10.0, image_label=jnp.asarray(small), text_label=jnp.asarray(small)),
            loss(Z, Z[::-1], 10.0),
            rtol=1e-6,
        )
