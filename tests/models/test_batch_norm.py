"""Batch normalization by groups, with what follows it, is the plain formula."""

import functools

import flax.linen as nn
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.models.parts import batch_norm
from big_align.models.parts.batch_norm import BatchNorm
from big_align.parallel.devices import rematerialization, traced
from big_align.parallel.kernels import triton_norm
from big_align.parallel.meshes import batch_sharding, make_mesh

SHAPE = (16, 3, 2, 5)


def make_activations(dtype=jnp.float32):
    rows = jnp.arange(SHAPE[0], dtype=jnp.float32)[:, None, None, None]
    return (jax.random.normal(jax.random.key(0), SHAPE) * (1 + rows) + rows).astype(dtype)


def make_variables():
    keys = jax.random.split(jax.random.key(1), 4)
    draw = [1 + 0.1 * jax.random.normal(key, SHAPE[-1:]) for key in keys]
    return {
        "params": {"scale": draw[0], "bias": draw[1]},
        "batch_stats": {"mean": draw[2], "var": draw[3]},
    }


@functools.partial(jax.jit, static_argnames="group_size")
def normalize(x, group_size=None):
    """Returns the result, the new running statistics and gradients."""
    variables = make_variables()

    def loss(x, params):
        full, norm = variables | {"params": params}, BatchNorm(group_size=group_size)
        y, new = norm.apply(full, x, True, mutable=["batch_stats"])
        return (jnp.sin(3 * y) * jnp.arange(y.size).reshape(y.shape)).mean(), (y, new)

    gradients, (y, new) = jax.grad(loss, (0, 1), has_aux=True)(x, variables["params"])
    return y, new["batch_stats"], gradients


def assert_close(a, b, **tolerance):
    tolerance = {"rtol": 1e-5, "atol": 1e-5} | tolerance
    jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, **tolerance), a, b)


def test_one_group_of_everything_is_the_whole_batch():
    x = make_activations()
    assert_close(normalize(x, SHAPE[0]), normalize(x, None))


def test_whole_batch_equals_flax():
    x, variables = make_activations(), make_variables()
    for train in (True, False):
        flax = nn.BatchNorm(use_running_average=not train, momentum=0.99, epsilon=1e-3)
        expected = flax.apply(variables, x, mutable=["batch_stats"])
        ours = BatchNorm().apply(variables, x, train, mutable=["batch_stats"])
        assert_close(ours[0], expected[0])
        assert_close(ours[1].get("batch_stats", {}), expected[1].get("batch_stats", {}))


def test_hand_computed_statistics():
    x = jnp.array([[1.0], [3.0], [10.0], [20.0]])
    norm = BatchNorm(momentum=0.5, epsilon=0.0, group_size=2)
    variables = norm.init(jax.random.key(0), x, True)
    y, new = norm.apply(variables, x, True, mutable=["batch_stats"])
    np.testing.assert_allclose(y[:, 0], [-1, 1, -1, 1], rtol=1e-6)
    np.testing.assert_allclose(new["batch_stats"]["mean"], 0.5 * 0 + 0.5 * (2 + 15) / 2)
    np.testing.assert_allclose(new["batch_stats"]["var"], 0.5 * 1 + 0.5 * (1 + 25) / 2)


def test_fixed_statistics_are_those_of_evaluation_and_stay():
    """In training too, with gradients for scale and bias as of any affine map."""
    x = make_activations()
    variables = BatchNorm().init(jax.random.key(0), x, True)
    wide = x.shape[-1]
    variables["batch_stats"] = {"mean": jnp.full(wide, 0.3), "var": jnp.full(wide, 4.0)}
    norm = BatchNorm(fixed=True)
    y, new = norm.apply(variables, x, True, mutable=["batch_stats"])
    np.testing.assert_array_equal(y, BatchNorm().apply(variables, x, False))
    for name, value in new["batch_stats"].items():
        np.testing.assert_array_equal(value, variables["batch_stats"][name])

    def total(params):
        return norm.apply(variables | {"params": params}, x, True).sum()

    gradient = jax.grad(total)(variables["params"])
    axes = tuple(range(x.ndim - 1))
    np.testing.assert_allclose(gradient["bias"], x[..., 0].size, rtol=1e-6)
    np.testing.assert_allclose(gradient["scale"], ((x - 0.3) / np.sqrt(4.001)).sum(axes), rtol=1e-3)


def test_each_group_is_as_if_alone():
    x = make_activations()
    together, _, _ = normalize(x, 4)
    alone = [normalize(rows, None)[0] for rows in jnp.split(x, 4)]
    assert_close(together, jnp.concatenate(alone))


def test_order_within_a_group_changes_nothing_else():
    x, order = make_activations(), np.arange(SHAPE[0])
    order[4:8] = [6, 4, 7, 5]
    (y, stats, _), (moved, moved_stats, _) = normalize(x, 4), normalize(x[order], 4)
    assert_close(moved, y[order])
    assert_close(moved_stats, stats)


@pytest.mark.slow_repeats
@pytest.mark.parametrize("group_size", [None, 2, 16])
def test_eight_devices_equal_one(group_size):
    x, mesh = make_activations(), make_mesh()
    split = jax.device_put(x, batch_sharding(mesh))
    assert_close(normalize(split, group_size), normalize(x, group_size))


def test_statistics_are_float32_for_bfloat16_activations():
    x = make_activations(jnp.bfloat16)
    y, stats, _ = normalize(x)
    exact, exact_stats, _ = normalize(x.astype(jnp.float32))
    assert y.dtype == jnp.bfloat16 and stats["mean"].dtype == jnp.float32
    assert_close(stats, exact_stats)
    assert_close(y.astype(jnp.float32), exact, rtol=1e-2, atol=1e-2)


def test_a_batch_that_does_not_divide_is_an_error():
    with pytest.raises(ValueError, match="16 examples .* group_size=3"):
        normalize(make_activations(), 3)


def gate(pooled, down, up):
    """Squeeze and excite, in the type of the means."""
    down, up = (each.astype(pooled.dtype) for each in (down, up))
    return nn.sigmoid(nn.swish(pooled @ down) @ up)


def both_passes(function, settings, arrays, running, mesh=None):
    """Returns activations, statistics, and the gradients of activations, scale, bias, weights."""
    x, scale, bias, weights, cotangent = arrays

    @jax.jit
    def run(x, scale, bias, weights, cotangent):
        with traced.weights_on(mesh or make_mesh(devices=jax.devices()[:1])):

            def apply(x, scale, bias, weights):
                y, *statistics = function(settings, x, scale, bias, running, weights)
                return y, statistics

            y, pull, statistics = jax.vjp(apply, x, scale, bias, weights, has_aux=True)
            return y, statistics, pull(cotangent)

    return run(x, scale, bias, weights, cotangent)


def make_arrays(shape, gated, dtype="float32"):
    """Returns activations whose channels differ, weights, and a gradient of the result."""
    keys = jax.random.split(jax.random.key(3), 4)
    channels = shape[-1]
    x = jax.random.normal(keys[0], shape) * jnp.linspace(0.5, 2, channels) + 1
    down = jax.random.normal(keys[1], (channels, 2))
    weights = (down, jax.random.normal(keys[2], (2, channels))) if gated else ()
    ends = jnp.linspace(0.5, 1.5, channels), jnp.linspace(-1, 1, channels)
    return x.astype(dtype), *ends, weights, jax.random.normal(keys[3], shape).astype(dtype)


def make_settings(rows, activation, gated, running=None, kernel=False, mesh=None):
    chosen = gate if gated else None
    given = running is not None
    return batch_norm.BatchSettings(1e-3, rows, given, activation, chosen, kernel, mesh)


def assert_equal(actual, desired, tolerance):
    for a, d in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        assert a.dtype == d.dtype and a.shape == d.shape
        a, d = np.float32(a), np.float32(d)
        np.testing.assert_allclose(a, d, rtol=0, atol=tolerance * np.abs(d).max())


ACTIVATIONS = {"none": lambda x: x, "swish": nn.swish, "relu": nn.relu, "relu6": nn.relu6}


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize(
    ("activation", "gated"), [("none", False), ("swish", False), ("swish", True), ("relu", True)]
)
def test_it_is_the_plain_formula_in_value_and_every_gradient(activation, gated, kernel):
    """With statistics of all, of groups, and given; at sizes that fill no tile of the kernel."""
    given = jnp.linspace(0.5, 1.5, 130)[None], jnp.linspace(1, 4, 130)[None]
    for shape in ((6, 5, 3, 130), (6, 130)) if not gated else ((6, 5, 3, 130), (2, 1, 1, 130)):
        for rows, running in ((None, None), (2, None), (None, given)):
            arrays = make_arrays(shape, gated)
            chosen = ACTIVATIONS[activation], gated, running
            plain = make_settings(rows, *chosen), arrays, running
            ours = make_settings(rows, *chosen, kernel), arrays, running
            expected = both_passes(batch_norm.normalize_plainly, *plain)
            assert_equal(both_passes(batch_norm.normalize, *ours), expected, 1e-5)


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_in_bfloat16_it_is_nearer_to_the_exact_result_than_the_plain_one(gated, kernel):
    """Between what is read and what is written, nothing is rounded."""
    arrays = make_arrays((8, 7, 7, 24), gated, "bfloat16")
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), arrays)
    settings = make_settings(4, nn.swish, gated)
    desired = both_passes(batch_norm.normalize_plainly, settings, exact, None)
    plain = both_passes(batch_norm.normalize_plainly, settings, arrays, None)
    ours = both_passes(batch_norm.normalize, settings._replace(kernel=kernel), arrays, None)

    def find_errors(made):
        pairs = zip(jax.tree.leaves(made), jax.tree.leaves(desired), strict=True)
        return [np.linalg.norm(np.float32(a) - d) / np.linalg.norm(d) for a, d in pairs]

    for mine, other in zip(find_errors(ours), find_errors(plain), strict=True):
        assert mine < max(1.05 * other, 1e-6)
    assert max(find_errors(ours)) < 1e-2


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("rows", [None, 4])
def test_a_gate_on_eight_devices_is_as_on_one(rows, kernel):
    arrays, mesh = make_arrays((16, 3, 3, 10), True), make_mesh(fsdp=2)
    place = batch_sharding(mesh)
    split = jax.device_put(arrays[0], place), *arrays[1:4], jax.device_put(arrays[4], place)
    settings = make_settings(rows, nn.swish, True, kernel=kernel, mesh=mesh if kernel else None)
    eight = both_passes(batch_norm.normalize, settings, split, None, mesh)
    one = make_settings(rows, nn.swish, True)
    assert_equal(eight, both_passes(batch_norm.normalize_plainly, one, arrays, None), 1e-5)
    assert eight[2][0].sharding.is_equivalent_to(place, 4)


def test_a_gate_of_ones_changes_nothing_and_one_of_zeros_leaves_nothing():
    arrays = make_arrays((4, 3, 3, 6), False)
    settings = make_settings(2, nn.swish, False)
    without = both_passes(batch_norm.normalize, settings, arrays, None)
    for value in (1.0, 0.0):
        gated = settings._replace(gate=functools.partial(jnp.full_like, fill_value=value))
        y, _, gradients = both_passes(batch_norm.normalize, gated, arrays, None)
        expected = jax.tree.map(functools.partial(jnp.multiply, value), without[::2])
        assert_equal((y, gradients), expected, 1e-6)


def test_the_sum_of_gradients_over_a_group_is_zero():
    """Adding a number to all that a channel has changes nothing, and so does scaling it."""
    x, scale, bias, weights, cotangent = make_arrays((6, 4, 4, 5), True)
    settings = make_settings(3, nn.swish, True)._replace(epsilon=0.0)
    arrays = x, scale, bias, weights, cotangent
    x_grad = both_passes(batch_norm.normalize, settings, arrays, None)[2][0]
    most = np.abs(x_grad).sum()
    for weigh in (jnp.ones_like(x), x):
        sums = (x_grad * weigh).reshape(2, 3 * 16, 5).sum(1)
        np.testing.assert_allclose(sums, 0, atol=1e-6 * most)


def test_a_gpu_without_kernels_computes_the_plain_formula(monkeypatch):
    """XLA for GPUs would write what the sums of the other form take, in float32."""
    called = []
    for name in ("normalize", "normalize_plainly"):
        function = getattr(batch_norm, name)

        def call(*arrays, name=name, function=function):
            called.append(name)
            return function(*arrays)

        monkeypatch.setattr(batch_norm, name, call)
    x, norm = make_activations(), BatchNorm()
    variables = make_variables()
    for device, kernels in (("cpu", False), ("tpu", False), ("gpu", False), ("gpu", True)):
        described = type("Device", (), {"platform": device})
        monkeypatch.setattr(traced, "traced_device", lambda described=described: described)
        monkeypatch.setattr(triton_norm, "has_kernels", lambda device, has=kernels: has)
        with traced.weights_on(make_mesh(devices=jax.devices()[:1])):
            norm.apply(variables, x, True, mutable=["batch_stats"])
    assert called == ["normalize", "normalize", "normalize_plainly", "normalize"]


def count_sums(jaxpr, size):
    """Counts sums over arrays of a size, in a program and all that it calls."""
    count = 0
    for each in jaxpr.eqns:
        count += each.primitive.name == "reduce_sum" and each.invars[0].aval.size == size
        count += sum(
            count_sums(inside, size) for inside in jax.extend.core.jaxprs_in_params(each.params)
        )
    return count


@pytest.mark.parametrize("level", ["dots", "full"])
def test_what_is_recomputed_takes_no_sum_again(level):
    """Sums are passes over memory, and what they make is small."""
    x, scale, bias, weights, _ = make_arrays((4, 5, 5, 7), True)
    settings = make_settings(2, nn.swish, True)

    def apply(x, *arrays):
        return batch_norm.normalize(settings, jnp.sin(x), *arrays[:2], None, arrays[2])[0]

    def both(function):
        def run(*arrays):
            return jax.vjp(function, *arrays)[1](x)

        return count_sums(jax.make_jaxpr(run)(x, scale, bias, weights).jaxpr, x.size)

    # The statistics and the means for the gate; the backward pass.
    assert both(apply) == both(rematerialization.remat_body(apply, level)) == 3 + 5
