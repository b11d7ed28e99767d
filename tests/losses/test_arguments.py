"""Every loss refuses arrays that are not those of its signature, and names them."""

import functools
import inspect

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import big_align
from big_align.losses import explicit_axes

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


def test_another_shape_or_type_is_refused_by_name():
    for loss, name in ARRAYS:
        check_refusals(loss, name)


def check_refusals(loss, name):
    given = CALLS[loss]
    call, value = getattr(big_align, loss), given[name]
    with pytest.raises(ValueError, match=rf"^{name} has the shape .*; it must be \["):
        call(**given | {name: value[..., None]})
    wrong = value.astype(jnp.float32 if value.dtype == bool else bool)
    with pytest.raises(TypeError, match=rf"^{name} has the type {wrong.dtype}; it must be of "):
        call(**given | {name: wrong})
    with pytest.raises(TypeError, match=rf"^{name} is \[.*; it must be an array \["):
        call(**given | {name: value.tolist()})


def test_another_number_of_rows_is_refused():
    for loss, name in ARRAYS:
        if loss != "sampled_cluster_loss" and name in ("centers", "sampled"):
            continue
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


SCALED = [
    (loss, name) for loss, given in CALLS.items() for name in ("scale", "bias") if name in given
]
NUMBERS = [
    ("mlcd_loss", "scale"),
    ("sampled_cluster_loss", "margin"),
    ("softmax_cross_entropy", "label_smoothing"),
]
MESHED = (
    "blockwise_contrastive_loss",
    "blockwise_sigmoid_loss",
    "blockwise_supervised_contrastive_loss",
    "sampled_cluster_loss",
)
INTEGERS = [
    (loss, name) for loss, name in ARRAYS if jnp.issubdtype(CALLS[loss][name].dtype, jnp.integer)
]


def call(loss, **changes):
    """Returns a loss as an array, with some arguments changed."""
    found = getattr(big_align, loss)(**CALLS[loss] | changes)
    return np.array(found[0] if loss == "sampled_cluster_loss" else found)


@pytest.mark.parametrize("loss", dict.fromkeys(loss for loss, _ in INTEGERS))
def test_the_type_of_integers_does_not_matter(loss):
    mask = {"row_mask": jnp.arange(10) < 8, "sampled": jnp.arange(10) < 5}
    mask = (
        mask
        if loss == "sampled_cluster_loss"
        else {"sampled": jnp.arange(4)} | {"mask": MASK.at[2:4].set(False)}
    )
    mask = {k: v for k, v in mask.items() if k in CALLS[loss]}
    expected = call(loss, **mask)
    for name in [name for each, name in INTEGERS if each == loss]:
        for dtype in ("int8", "uint8", "uint16", "uint32", "int64"):
            given = np.asarray(CALLS[loss][name]).astype(dtype)
            np.testing.assert_array_equal(call(loss, **mask | {name: given}), expected)
            given = jnp.asarray(given)
            np.testing.assert_array_equal(call(loss, **mask | {name: given}), expected)


def test_a_masked_image_of_narrow_labels_has_no_positive():
    """With 300 centers, -1 as an unsigned number of 8 bits would be one of them."""
    centers = jax.random.normal(jax.random.key(2), (300, 8))
    given = dict(centers=centers, labels=np.arange(6, dtype=np.uint8)[:, None])
    mask = np.arange(6) < 3
    for loss in ("mlcd_loss", "mlc_loss", "unicom_loss"):
        sliced = call(loss, **given | dict(zimg=Z[:3], labels=given["labels"][:3], mask=None))
        np.testing.assert_allclose(call(loss, **given, mask=mask), sliced, rtol=1e-6)
        narrow = given["labels"].astype(np.int8)
        np.testing.assert_allclose(
            call(loss, **given | dict(labels=narrow), mask=mask), sliced, rtol=1e-6
        )


@pytest.mark.parametrize(("loss", "name"), SCALED)
def test_a_scale_is_one_number(loss, name):
    expected = call(loss)
    value = CALLS[loss][name]
    for same in (
        int(value),
        np.float64(value),
        np.float32(value),
        jnp.float32(value),
        jnp.int32(value),
        jnp.bfloat16(value),
        nnx.Param(jnp.float32(value)),
    ):
        np.testing.assert_allclose(call(loss, **{name: same}), expected, rtol=1e-6)
    for shape in ([1], [6]):
        with pytest.raises(
            ValueError, match=rf"^{name} has the shape \[{shape[0]}\]; it must be a sca"
        ):
            call(loss, **{name: jnp.full(shape, value)})
    for wrong in ("10", None, True, [10.0]):
        with pytest.raises(
            TypeError, match=rf"^{name} is .*; it must be a number or a scalar array"
        ):
            call(loss, **{name: wrong})
    with pytest.raises(TypeError, match=rf"^{name} has the type bool"):
        call(loss, **{name: jnp.array(True)})


@pytest.mark.parametrize(("loss", "name"), NUMBERS)
def test_a_number_that_decides_what_is_compiled(loss, name):
    np.testing.assert_array_equal(call(loss, **{name: jnp.float32(0.5)}), call(loss, **{name: 0.5}))
    with pytest.raises(TypeError, match=rf"^{name} is an array that is traced.*must be a number"):
        jax.jit(lambda x: getattr(big_align, loss)(**CALLS[loss] | {name: x}))(0.5)
    with pytest.raises(TypeError, match=rf"^{name} is '1'; it must be a number"):
        call(loss, **{name: "1"})


def test_a_type_whose_gradients_underflow_is_refused():
    for loss, name in [x for x in ARRAYS if CALLS[x[0]][x[1]].dtype == jnp.float32]:
        half, told = CALLS[loss][name].astype(jnp.float16), "has the type float16, .* bfloat16 or"
        with pytest.raises(TypeError, match=f"^{name} {told} float32"):
            call(loss, **{name: half})


@pytest.mark.parametrize("loss", MESHED)
def test_what_is_no_mesh_is_refused(loss):
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    for wrong in ("data", [mesh], mesh.abstract_mesh, jax.NamedSharding(mesh, jax.P())):
        with pytest.raises(
            TypeError, match="^mesh is .*; it must be a jax.sharding.Mesh of devices"
        ):
            call(loss, mesh=wrong)
    with pytest.raises(TypeError, match="^block is 2.5; it must be a whole number"):
        call(loss, block=2.5)
    expected = call(loss)
    for one in ("data", ["data"], ("data",)):
        np.testing.assert_allclose(
            call(loss, mesh=big_align.Shards(mesh, one)), expected, rtol=1e-5
        )
    inside = functools.partial(getattr(big_align, loss), **CALLS[loss] | dict(mesh=mesh))
    with pytest.raises(
        ValueError, match="^mesh shares the work .*inside of jax.shard_map.* leave it"
    ):
        jax.shard_map(lambda _: inside(), mesh=mesh, in_specs=jax.P(), out_specs=jax.P())(Z)


@pytest.mark.parametrize("loss", CALLS)
def test_outside_of_jit_a_second_call_compiles_nothing(loss):
    scales = [{"scale": 3.0 + n} for n in range(3)] if "scale" in CALLS[loss] else [{}] * 3
    call(loss, **scales[0])
    size = explicit_axes._call._cache_size()
    for scale in scales:
        call(loss, **scale)
    assert explicit_axes._call._cache_size() == size


def test_arrays_in_parameters_of_nnx_are_taken():
    given = CALLS["mlcd_loss"] | dict(centers=nnx.Param(CENTERS))
    np.testing.assert_array_equal(big_align.mlcd_loss(**given), call("mlcd_loss"))


def test_arrays_of_64_bits_of_numpy_are_taken_without_a_warning(recwarn):
    wide = {name: np.asarray(CALLS["sigmoid_loss"][name], np.float64) for name in ("zimg", "ztxt")}
    np.testing.assert_array_equal(call("sigmoid_loss", **wide), call("sigmoid_loss"))
    assert not [each for each in recwarn if "64" in str(each.message)]
