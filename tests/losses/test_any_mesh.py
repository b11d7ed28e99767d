"""Every public loss on every kind of mesh: value and gradients are those of the plain formulas.

The kinds: Auto and Explicit axes; one axis and two; inside `jit` and outside; under `jax.set_mesh`
and not; with arrays that are split over the mesh, repeated on it, or on one device; and inside
`jax.shard_map`, where a loss is that of a device's own rows.
"""

import contextlib
import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.losses.classification import softmax_cross_entropy
from big_align.losses.cluster_discrimination import LOSSES, mlc_loss, mlcd_loss, unicom_loss
from big_align.losses.contrastive import contrastive_loss
from big_align.losses.sampled_cluster_discrimination import sampled_cluster_loss
from big_align.losses.sigmoid import blockwise_sigmoid_loss, sigmoid_loss
from big_align.losses.supervised_contrastive import (
    blockwise_supervised_contrastive_loss,
    supervised_contrastive_loss,
)
from big_align.losses.tag_recognition import (
    tag_recognition_loss,
)

B, C, D = 12, 24, 6


class Case(NamedTuple):
    """A loss as functions of (rows, mesh): what is differentiated, the loss, the plain one."""

    wanted: tuple[str, ...]
    loss: object
    plain: object


def contrast(loss, rows, **options):
    names = ("image_label", "text_label", "image_mask", "text_mask")
    targets = {name: rows[name] for name in names}
    i2t, t2i = loss(rows["zimg"], rows["ztxt"], rows["scale"], **targets, **options)
    return i2t + 2 * t2i


def contrast_pairs(loss, rows, **options):
    zimg, ztxt = rows["zimg"], rows["ztxt"]
    return sum(loss(zimg, ztxt[: len(zimg)], rows["scale"], **options))


def separate(loss, rows, **options):
    names = ("image_label", "text_label", "image_mask", "text_mask")
    targets = {name: rows[name] for name in names}
    numbers = rows["scale"], rows["bias"]
    return loss(rows["zimg"], rows["ztxt"], *numbers, **targets, **options)


def supervise(loss, rows, **options):
    return loss(rows["zimg"], rows["image_label"], rows["scale"], rows["image_mask"], **options)


def discriminate(name, rows, mesh):
    each = rows["zimg"], rows["ztxt"], rows["text_mask"], rows["own"]
    return sampled_cluster_loss(name, *each, scale=4.0, mesh=mesh, block=2)[0]


def discriminate_plainly(name, rows):
    plain = {"mlcd": mlcd_loss, "mlc": mlc_loss, "unicom": unicom_loss}[name]
    sampled = jnp.where(rows["text_mask"], jnp.arange(len(rows["text_mask"])), -1)
    return plain(rows["zimg"], rows["ztxt"], rows["own"], sampled=sampled, scale=4.0)


def recognize(name, rows):
    given, found = rows["given"] == 1, rows["given"] == 2
    return tag_recognition_loss(
        name, rows["logits"], given, found, rows["image_mask"], rows["weights"]
    )


def classify(rows):
    return softmax_cross_entropy(rows["logits"], rows["image_label"], rows["image_mask"], 0.1)


def make_cases():
    embeddings = ("zimg", "ztxt", "scale")
    cases = {}
    for name, use in (("labels", contrast), ("pairs", contrast_pairs)):
        plain = functools.partial(use, contrastive_loss)
        block = functools.partial(use, blockwise_contrastive_loss, block=2)
        cases[f"contrastive, {name}"] = Case(embeddings, lambda r, mesh, f=plain: f(r), plain)
        cases[f"blockwise contrastive, {name}"] = Case(
            embeddings, lambda r, mesh, f=block: f(r, mesh=mesh), plain
        )
    wanted = (*embeddings, "bias")
    plain = functools.partial(separate, sigmoid_loss)
    block = functools.partial(separate, blockwise_sigmoid_loss, block=2)
    cases["sigmoid"] = Case(wanted, lambda r, mesh, f=plain: f(r), plain)
    cases["blockwise sigmoid"] = Case(wanted, lambda r, mesh, f=block: f(r, mesh=mesh), plain)
    plain = functools.partial(supervise, supervised_contrastive_loss)
    block = functools.partial(supervise, blockwise_supervised_contrastive_loss, block=2)
    wanted = ("zimg", "scale")
    cases["supervised"] = Case(wanted, lambda r, mesh, f=plain: f(r), plain)
    cases["blockwise supervised"] = Case(wanted, lambda r, mesh, f=block: f(r, mesh=mesh), plain)
    for name in LOSSES:
        plain = functools.partial(discriminate_plainly, name)
        cases[name] = Case(("zimg", "ztxt"), lambda r, mesh, f=plain: f(r), plain)
    # The sampled ones differ but in what they make of the same sums.
    plain = functools.partial(discriminate_plainly, "mlcd")
    cases["sampled"] = Case(("zimg", "ztxt"), functools.partial(discriminate, "mlcd"), plain)
    for name in ("splc", "splc_focal"):
        plain = functools.partial(recognize, name)
        cases[f"tags, {name}"] = Case(("logits",), lambda r, mesh, f=plain: f(r), plain)
    cases["classes"] = Case(("logits",), lambda r, mesh: classify(r), classify)
    return cases


CASES = make_cases()
BLOCKWISE = [case for case in CASES if "block" in case]
OTHERS = [pytest.param(case, marks=pytest.mark.slow) for case in CASES if "block" not in case]
"""Plain formulas, which leave to JAX what the others decide: only slow tests try each of them."""


@functools.cache
def draw():
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    zimg, ztxt = normal(B, D), normal(C, D)
    mask = rng.random(C) < 0.8
    return {
        "zimg": zimg / np.linalg.norm(zimg, axis=1, keepdims=True),
        "ztxt": ztxt / np.linalg.norm(ztxt, axis=1, keepdims=True),
        "image_label": rng.integers(5, size=B),
        "text_label": rng.integers(5, size=C),
        "image_mask": rng.random(B) < 0.8,
        "text_mask": mask,
        "own": rng.choice(np.flatnonzero(mask), (B, 3)).astype(np.int32),
        "logits": normal(B, 8),
        "given": rng.integers(3, size=(B, 8)),
        "scale": np.float32(3),
        "bias": np.float32(-2),
        "weights": np.abs(normal(8)),
    }


def differentiate(function, rows, wanted, jit):
    """The value and the gradients of a function of rows."""

    def of(some):
        return function(rows | some)

    grad = jax.value_and_grad(of)
    return (jax.jit(grad) if jit else grad)({name: rows[name] for name in wanted})


@functools.cache
def expect(case):
    wanted, _, plain = CASES[case]
    return differentiate(plain, jax.tree.map(jnp.asarray, draw()), wanted, True)


def place(rows, mesh, how):
    """Arrays on one device, repeated on a mesh, or with their rows split over it."""
    if how == "one device":
        return jax.tree.map(jnp.asarray, rows)
    spec = {"repeated": lambda x: (), "split": lambda x: (mesh.axis_names,) if x.ndim else ()}[how]
    put = lambda x: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec(x))))  # noqa: E731
    placed = {name: put(x) for name, x in rows.items()}
    # What is no row of a batch lies whole, or where the caller happens to have made it.
    return placed | {name: jnp.asarray(rows[name]) for name in ("scale", "bias", "weights")}


MESHES = {"data": ((4,), ("data",)), "x, y": ((2, 2), ("x", "y"))}
ALL = list(
    itertools.product(
        ("blockwise contrastive, labels", "blockwise supervised", "sampled"),  # which know the mesh
        MESHES,
        ("Auto", "Explicit"),
        ("eager", "jit"),
        ("one device", "split"),
        ("inside", "outside"),
    )
)
"""Case, axes, their type, how it is called, how arrays lie, and whether `jax.set_mesh` is on."""
EAGER = (("one device", "outside"), ("split", "inside"))
"""Of calls outside of `jit`, which compile every operation: how arrays lie, and `jax.set_mesh`."""

FAST = [
    *itertools.product(CASES, ("data",), ("Explicit",), ("jit",), ("split",), ("outside",)),
    ("blockwise contrastive, pairs", "data", "Auto", "jit", "split", "outside"),
    ("blockwise contrastive, pairs", "x, y", "Auto", "eager", "one device", "outside"),
    ("blockwise supervised", "x, y", "Explicit", "eager", "split", "inside"),
]
MORE = dict.fromkeys(
    [*itertools.product(CASES, ("x, y",), ("Explicit",), ("eager",), ("split",), ("inside",))]
    # Every combination with one loss; the others share their work in the same way.
    + [x for x in ALL if x[0] == "blockwise contrastive, labels" or (x[1], x[3]) == ("x, y", "jit")]
)
MORE = [each for each in MORE if each[3] == "jit" or each[4:] in EAGER]


@pytest.mark.parametrize(
    "case, axes, kind, called, how, under",
    [*FAST, *(pytest.param(*x, marks=pytest.mark.slow) for x in MORE if x not in FAST)],
)
def test_value_and_gradients_are_those_of_the_plain_formula(case, axes, kind, called, how, under):
    shape, names = MESHES[axes]
    types = (AxisType[kind],) * len(shape)
    mesh = jax.make_mesh(shape, names, axis_types=types, devices=jax.devices()[:4])
    wanted, loss, _ = CASES[case]
    (value, grads), loss = expect(case), functools.partial(loss, mesh=mesh)
    rows = place(draw(), mesh, how)
    if (kind, called, under) == ("Explicit", "eager", "outside") and how != "one device":
        # Without `jax.set_mesh` JAX differentiates nothing on such a mesh, outside of `jit`.
        np.testing.assert_allclose(loss(rows), value, rtol=1e-5)
        return
    with jax.set_mesh(mesh) if under == "inside" else contextlib.nullcontext():
        ours = differentiate(loss, rows, wanted, called == "jit")
    np.testing.assert_allclose(ours[0], value, rtol=1e-5)
    for name, grad in grads.items():
        np.testing.assert_allclose(ours[1][name], grad, rtol=0, atol=1e-5 * np.abs(grad).max())


def test_under_set_mesh_an_array_on_one_device_may_be_used_twice():
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])

    def loss(rows):
        return sigmoid_loss(rows["zimg"], rows["ztxt"][:B], rows["scale"], -rows["scale"])

    wanted = ("zimg", "ztxt", "scale")
    value, grads = differentiate(loss, place(draw(), mesh, "one device"), wanted, jit=False)
    rows = place(draw(), mesh, "split")
    with jax.set_mesh(mesh):
        ours = differentiate(loss, rows, wanted, jit=False)
    np.testing.assert_allclose(ours[0], value, rtol=1e-5)
    for name, grad in grads.items():
        np.testing.assert_allclose(ours[1][name], grad, rtol=0, atol=1e-5 * np.abs(grad).max())


IMAGES = ("zimg", "image_label", "image_mask", "own", "logits", "given")
TEXTS = ("ztxt", "text_label", "text_mask")
SIDES = list(
    itertools.product(("blockwise contrastive, labels", "blockwise sigmoid"), (IMAGES, TEXTS))
)


@pytest.mark.parametrize("case, none", dict.fromkeys([*((x, IMAGES) for x in CASES), *SIDES]))
def test_a_batch_without_rows_gives_zeros(case, none):
    wanted, loss, _ = CASES[case]
    rows = jax.tree.map(jnp.asarray, draw())
    rows |= {name: rows[name][:0] for name in none}
    results = differentiate(functools.partial(loss, mesh=None), rows, wanted, jit=True)
    for leaf in jax.tree.leaves(results):
        np.testing.assert_array_equal(leaf, 0)


@pytest.mark.parametrize("case", [case for case in CASES if "scale" in CASES[case].wanted])
@pytest.mark.parametrize("meshed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_scale_and_bias_may_be_python_numbers(case, meshed):
    _, loss, _ = CASES[case]
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4]) if meshed else None
    rows = jax.tree.map(jnp.asarray, draw())
    numbers = {name: float(rows[name]) for name in ("scale", "bias")}

    def of(zimg):
        return loss(rows | numbers | {"zimg": zimg}, mesh=mesh)

    value, grad = jax.jit(jax.value_and_grad(of))(rows["zimg"])
    expected = expect(case)
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    np.testing.assert_allclose(grad, expected[1]["zimg"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", [*BLOCKWISE, *OTHERS])
def test_bfloat16_is_never_mixed_with_float32_silently(case):
    """Under strict promotion a program that forgets a conversion is an error."""
    wanted, loss, _ = CASES[case]
    rows = jax.tree.map(jnp.asarray, draw())
    rows |= {name: rows[name].astype(jnp.bfloat16) for name in ("zimg", "ztxt", "logits")}
    loss = functools.partial(loss, mesh=None)
    expected = differentiate(loss, rows, wanted, jit=True)
    with jax.numpy_dtype_promotion("strict"):
        value, grads = differentiate(loss, rows, wanted, jit=True)
    np.testing.assert_array_equal(value, expected[0])
    for name, grad in grads.items():
        assert grad.dtype == rows[name].dtype
        np.testing.assert_array_equal(grad, expected[1][name])


@pytest.mark.parametrize("kind", [pytest.param("Auto", marks=pytest.mark.slow), "Explicit"])
@pytest.mark.parametrize("case", [*BLOCKWISE, *(x for x in OTHERS if "sampled" not in x.values)])
def test_inside_a_shard_map_over_some_axes(case, kind):
    """Along the other axis of the mesh, the rows of a device are whole."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), (AxisType[kind],) * 2, devices=jax.devices()[:4])
    wanted, loss, _ = CASES[case]
    rows = jax.tree.map(jnp.asarray, draw())
    names = [name for name in rows if rows[name].ndim and name != "weights"]
    half = {name: jnp.split(rows[name], 2) for name in names}
    halves = [rows | {name: half[name][n] for name in names} for n in range(2)]
    expected = [loss(each, mesh=None) for each in halves]

    def of(split):
        return jax.lax.all_gather(loss(rows | split, mesh=None), "x")

    split = {name: rows[name] for name in names}
    inside = jax.shard_map(
        of, mesh=mesh, in_specs=(jax.P("x"),), out_specs=jax.P(), axis_names={"x"}, check_vma=False
    )
    np.testing.assert_allclose(jax.jit(inside)(split), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "case, whole",
    [
        pytest.param(case, whole, marks=[pytest.mark.slow] * ("block" not in case))
        for case, whole in [*((case, ()) for case in CASES), *SIDES]
    ],
)
def test_inside_shard_map_a_loss_is_that_of_the_rows_of_a_device(case, whole):
    """With `whole`, every device has all images or all texts, and its part of the others."""
    devices = 4
    mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
    wanted, loss, plain = CASES[case]
    rows = jax.tree.map(jnp.asarray, draw())
    # The positives of an image are rows of its own device.
    real, own = (np.split(draw()[name], devices) for name in ("text_mask", "own"))
    real = map(np.flatnonzero, real)
    own = [mine[each % len(mine)] for mine, each in zip(real, own, strict=True)]
    rows["own"] = jnp.concatenate(own)
    whole = (*whole, "scale", "bias", "weights")
    specs = {name: PartitionSpec(*([] if name in whole else ["data"])) for name in rows}

    def average(rows):
        return jax.lax.pmean(loss(rows, mesh=None), "data")

    def cut(rows, device):
        return {k: x if k in whole else jnp.split(x, devices)[device] for k, x in rows.items()}

    def average_plainly(rows):
        return sum(plain(cut(rows, device)) for device in range(devices)) / devices

    with jax.set_mesh(mesh):
        mapped = jax.shard_map(average, in_specs=(specs,), out_specs=PartitionSpec())
        placed = {k: jax.device_put(x, NamedSharding(mesh, specs[k])) for k, x in rows.items()}
        ours = differentiate(mapped, placed, wanted, jit=True)
    value, grads = differentiate(average_plainly, rows, wanted, jit=True)
    np.testing.assert_allclose(ours[0], value, rtol=1e-5)
    for name, grad in grads.items():
        np.testing.assert_allclose(ours[1][name], grad, rtol=0, atol=1e-5 * np.abs(grad).max())
