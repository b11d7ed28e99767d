"""Laws of schedules, masks, optimizers and the moving average."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from big_align.training.optimizers import decay_mask, make_optimizer, make_schedule, update_average


def draw_params(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    return {
        "dense": {
            "kernel": jnp.asarray(rng.normal(size=(16, 8)), jnp.float32),
            "bias": jnp.asarray(rng.normal(size=8), jnp.float32),
        },
        "temperature": jnp.float32(rng.normal()),
    }


def run(optimizer, params, steps=3, seed=10):
    """Returns the parameters after a few updates from gradients that depend on the step alone."""
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for step in range(steps):
        updates, state = update(draw_params(seed + step), state, params)
        params = optax.apply_updates(params, updates)
    return params


def assert_close(actual, desired, rtol=1e-5):
    for a, d in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        np.testing.assert_allclose(a, d, rtol=rtol, atol=1e-7)


def test_align_schedule():
    schedule = make_schedule(total_steps=1_200_000, learning_rate=1e-3, warmup_steps=10_000)
    expected = {0: 0, 5_000: 5e-4, 10_000: 1e-3, 605_000: 5e-4, 1_200_000: 0, 1_300_000: 0}
    for step, value in expected.items():
        np.testing.assert_allclose(schedule(step), value, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"decay": "linear", "end_value": 0.2}, {10: 1, 35: 0.6, 60: 0.2}),
        ({"decay": "cosine"}, {10: 1, 35: 0.5, 60: 0}),
        ({"decay": "cosine", "end_value": 0.2}, {10: 1, 35: 0.6, 60: 0.2, 99: 0.2}),
        ({"decay": "constant"}, {5: 0.5, 10: 1, 60: 1}),
        ({"decay": "step", "decay_every": 5, "decay_rate": 1.0}, {5: 0.5, 10: 1, 60: 1}),
        (
            {"decay": "step", "decay_every": 5, "decay_rate": 0.5, "end_value": 0.2},
            {10: 1, 14: 1, 15: 0.5, 20: 0.25, 25: 0.2, 60: 0.2},
        ),
    ],
)
def test_decays(options, expected):
    schedule = make_schedule(total_steps=60, learning_rate=1.0, warmup_steps=10, **options)
    for step, value in expected.items():
        np.testing.assert_allclose(schedule(jnp.int32(step)), value, rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    "options, message",
    [
        ({"decay": "exponential"}, "decay = 'exponential' is unknown; known: linear, cosine"),
        ({"warmup_steps": 101}, r"warmup_steps = 101 is not in \[0, total_steps = 100\]"),
        ({"warmup_steps": -1}, "warmup_steps = -1 is not in"),
        ({"warmup_steps": 0.1}, "warmup_steps = 0.1 must be a whole number"),
        ({"total_steps": 10.5}, "total_steps = 10.5 must be a whole number"),
        ({"total_steps": 0}, "total_steps = 0 must be at least 1"),
        ({"learning_rate": -1.0}, "learning_rate = -1.0 must be positive"),
        ({"end_value": 2.0}, "end_value = 2.0 is not in"),
        ({"decay": "step"}, "decay_every = None must be a whole number of steps"),
        (
            {"decay": "step", "decay_every": 2.5},
            "decay_every = 2.5 must be a whole number of steps",
        ),
        ({"decay": "step", "decay_every": 5, "decay_rate": 0.0}, "decay_rate = 0.0 is not in"),
    ],
)
def test_impossible_schedule(options, message):
    with pytest.raises(ValueError, match=message):
        make_schedule(**{"total_steps": 100, "learning_rate": 1.0} | options)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"name": "adam"}, "name = 'adam' is unknown .* 'adamw'.*; known: lamb, adamw, sgd"),
        ({"learning_rate": -1e-3}, "learning_rate = -0.001 must be 0 or a positive number"),
        ({"learning_rate": float("nan")}, "learning_rate = nan must be"),
        ({"b2": 1.0}, r"b2 = 1.0 is not in \[0, 1\)"),
        ({"weight_decay": -0.1}, "weight_decay = -0.1 must be 0 or a positive number"),
        ({"weight_decay": float("nan")}, "weight_decay = nan must be"),
        ({"clip_norm": float("nan")}, "clip_norm = nan must be positive"),
        ({"eps": 0.0}, "eps = 0.0 must be positive"),
        ({"clip_norm": 0.0}, "clip_norm = 0.0 must be positive"),
    ],
)
def test_impossible_optimizer(options, message):
    with pytest.raises(ValueError, match=message):
        make_optimizer(**{"learning_rate": 1e-3} | options)


def test_decay_mask():
    params = draw_params(0) | {
        "embedding": jnp.ones((5, 3)),
        "token_type_embedding": jnp.ones(3),
        "norm": {"scale": jnp.ones(3), "bias": jnp.ones(3)},
        "heads": {"bias": jnp.ones((2, 4)), "kernel": jnp.ones((3, 2, 4))},
        "head": {"kernel": jnp.ones((3, 3))},
    }
    assert decay_mask(params, ("bias", "head")) == {
        "dense": {"kernel": True, "bias": False},
        "temperature": False,
        "embedding": True,
        "token_type_embedding": True,
        "norm": {"scale": False, "bias": False},
        "heads": {"bias": False, "kernel": True},
        "head": {"kernel": False},
    }


@pytest.mark.parametrize("name", ["lamb", "adamw", "sgd"])
def test_parameters_may_be_one_array(name):
    for bare in (jnp.arange(3.0), 1 + jnp.ones((2, 3))):
        named = {"kernel": bare}
        optimizer = make_optimizer(0.1, name, weight_decay=0.1, clip_norm=1.0)
        steps = [optimizer.update(x, optimizer.init(x), x)[0] for x in (bare, named)]
        np.testing.assert_array_equal(steps[0], steps[1]["kernel"])


def test_lamb_by_hand():
    # The first step of Adam is the sign of the gradient: u = (1, -1) + 0.1 * (3, 4), |w| = 5.
    params = {"kernel": jnp.array([[3.0, 4.0]]), "bias": jnp.array([3.0, 4.0])}
    grads = {"kernel": jnp.array([[0.5, -2.0]]), "bias": jnp.array([0.5, -2.0])}
    optimizer = make_optimizer(0.01, "lamb", weight_decay=0.1, eps=1e-12)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    ratio = 5 / np.hypot(1.3, 0.6)
    np.testing.assert_allclose(updates["kernel"], [[-0.013 * ratio, 0.006 * ratio]], rtol=1e-4)
    np.testing.assert_allclose(updates["bias"], [-0.01, 0.01], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lamb", "adamw", "sgd"])
def test_frozen_parameters_stay_bit_for_bit_and_have_no_moments(name):
    """What is frozen might as well not be there, decay, moments and clipping included."""
    options = {"weight_decay": 0.5, "clip_norm": 0.1}
    params = {"model": {"image": draw_params(0), "imagery": draw_params(1)}, "scale": jnp.ones(2)}
    optimizer = make_optimizer(0.1, name, frozen=("model/image", "scale"), **options)
    alone = make_optimizer(0.1, name, **options)
    states = optimizer.init(params), alone.init(params["model"]["imagery"])
    assert len(jax.tree.leaves(states[0])) == len(jax.tree.leaves(states[1]))

    after, expected = params, params["model"]["imagery"]
    for step in range(3):
        grads = jax.tree.map(lambda x, step=step: jnp.cos(x + step), after)
        updates, state = optimizer.update(grads, states[0], after)
        other, state_alone = alone.update(grads["model"]["imagery"], states[1], expected)
        states = state, state_alone
        after = optax.apply_updates(after, updates)
        expected = optax.apply_updates(expected, other)
    jax.tree.map(np.testing.assert_array_equal, after["model"]["imagery"], expected)
    jax.tree.map(np.testing.assert_array_equal, after["model"]["image"], params["model"]["image"])
    np.testing.assert_array_equal(after["scale"], params["scale"])
    assert np.any(expected["dense"]["kernel"] != params["model"]["imagery"]["dense"]["kernel"])


@pytest.mark.parametrize("path", ["model/imag", "image", "model/image/dense/kernel/x", ""])
def test_freezing_what_is_not_there_lists_what_is(path):
    params = {"model": {"image": draw_params(0), "text": draw_params(1)}, "log_scale": jnp.ones(())}
    message = f"frozen = '{path}' is the path of no .*: log_scale, model/image, model/text"
    with pytest.raises(ValueError, match=message):
        make_optimizer(0.1, frozen=(path,)).init(params)


def test_lamb_moves_parameters_that_are_zero():
    params = {"kernel": jnp.zeros((2, 2))}
    optimizer = make_optimizer(0.01, "lamb")
    grads = {"kernel": jnp.ones((2, 2))}
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    np.testing.assert_allclose(updates["kernel"], -0.01, rtol=1e-4)


def test_lamb_equals_optax_where_nothing_is_excluded():
    params = {"kernel": draw_params(0)["dense"]["kernel"]}
    ours, theirs = (
        make_optimizer(0.1, "lamb", weight_decay=0.1),
        optax.lamb(0.1, eps=1e-6, weight_decay=0.1),
    )
    states = [ours.init(params), theirs.init(params)]
    for step in range(3):
        grads = {"kernel": draw_params(step + 1)["dense"]["kernel"]}
        (mine, states[0]), (other, states[1]) = (
            o.update(grads, s, params) for o, s in zip((ours, theirs), states, strict=True)
        )
        assert_close(mine, other)
        params = optax.apply_updates(params, mine)


@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_excluded_parameters_follow_plain_adam(name):
    params = draw_params(0)
    ours = run(make_optimizer(0.1, name, weight_decay=0.5), params)
    adam = run(optax.adam(0.1, eps=1e-6), params)
    assert_close(ours["dense"]["bias"], adam["dense"]["bias"])
    assert_close(ours["temperature"], adam["temperature"])
    assert np.abs(ours["dense"]["kernel"] - adam["dense"]["kernel"]).max() > 1e-2


def test_adamw_equals_optax():
    params = draw_params(0)
    ours = run(make_optimizer(0.1, "adamw", weight_decay=0.5), params)
    assert_close(ours, run(optax.adamw(0.1, eps=1e-6, weight_decay=0.5, mask=decay_mask), params))


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_equals_optax(nesterov):
    params = draw_params(0)
    ours = run(make_optimizer(0.1, "sgd", momentum=0.8, nesterov=nesterov), params)
    assert_close(ours, run(optax.sgd(0.1, 0.8, nesterov), params))


def test_sgd_by_hand():
    """Clipped, then decay is added, then momentum; what is excluded does not decay."""
    params = {"kernel": jnp.array([[3.0, 4.0]]), "bias": jnp.array([2.0])}
    grads = {"kernel": jnp.array([[6.0, 0.0]]), "bias": jnp.array([8.0])}  # of length 10
    optimizer = make_optimizer(0.1, "sgd", weight_decay=0.5, momentum=0.5, clip_norm=5.0)
    state = optimizer.init(params)
    for factor in (1, 1.5):  # of (3, 0) + 0.5 * (3, 4), and of 4
        updates, state = optimizer.update(grads, state, params)
        np.testing.assert_allclose(updates["kernel"], [[-0.45 * factor, -0.2 * factor]], rtol=1e-6)
        np.testing.assert_allclose(updates["bias"], [-0.4 * factor], rtol=1e-6)


def test_clip_scales_the_whole_gradient():
    params = draw_params(0)
    optimizer = make_optimizer(1.0, "sgd", momentum=0.0, clip_norm=0.5)
    direction = draw_params(1)
    length = optax.global_norm(direction)
    for size, norm in ((1e3, 0.5), (1e-3, 1e-3 * length)):
        grads = optax.tree.scale(size, direction)
        updates, _ = optimizer.update(grads, optimizer.init(params), params)
        assert_close(updates, optax.tree.scale(-norm / length, direction))


@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_clip_is_of_the_gradient_and_not_of_the_update(name):
    """The first step of Adam is the sign of the gradient, however short that is."""
    params, grads = draw_params(0), draw_params(1)
    optimizer = make_optimizer(1.0, name, clip_norm=1e-3, eps=1e-12)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    bias = grads["dense"]["bias"]  # without a trust ratio
    np.testing.assert_allclose(updates["dense"]["bias"], -np.sign(bias), rtol=1e-4)


@pytest.mark.parametrize("name", ["lamb", "adamw", "sgd"])
def test_sharded_update_equals_unsharded(name):
    mesh = jax.make_mesh((1, 8), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    params = draw_params(0)
    sharded = dict(params, dense=dict(params["dense"]))
    sharded["dense"]["kernel"] = jax.device_put(
        params["dense"]["kernel"], NamedSharding(mesh, PartitionSpec("fsdp"))
    )
    optimizer = make_optimizer(0.1, name, weight_decay=0.1, clip_norm=1.0)
    assert_close(run(optimizer, sharded), run(optimizer, params))


def test_devices_sum_the_norms_of_all_parameters_at_once():
    mesh = jax.make_mesh((1, 8), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    pieces = NamedSharding(mesh, PartitionSpec("fsdp"))
    params = {f"layer_{n}": {"kernel": jnp.ones((16, 4 + n))} for n in range(9)}
    params = jax.device_put(params, pieces)
    optimizer = make_optimizer(0.1, "lamb")
    update = jax.jit(optimizer.update).lower(params, optimizer.init(params), params)
    assert update.compile().as_text().count(" all-reduce(") == 1


@pytest.mark.parametrize("name", ["lamb", "adamw", "sgd"])
def test_strict_types_and_float32_state(name):
    with jax.numpy_dtype_promotion("strict"):
        schedule = make_schedule(100, 1e-3, "cosine", warmup_steps=10)
        optimizer = make_optimizer(schedule, name, weight_decay=0.1, clip_norm=1.0)
        params = draw_params(0)
        state = optimizer.init(params)
        _, after = jax.jit(optimizer.update)(draw_params(1), state, params)
        update_average(params, draw_params(1), 0.9, jnp.int32(3))
    assert jax.tree.map(jnp.dtype, state) == jax.tree.map(jnp.dtype, after)
    assert {x.dtype for x in jax.tree.leaves(after)} <= {np.dtype("float32"), np.dtype("int32")}


def test_momentum_of_narrow_gradients_adds_up_in_float32():
    optimizer = make_optimizer(1.0, "sgd", momentum=0.99)
    params = {"kernel": jnp.ones((2, 2), jnp.bfloat16)}
    grads = {"kernel": jnp.full((2, 2), 0.01, jnp.bfloat16)}
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for _ in range(300):
        updates, state = update(grads, state, params)
    expected = float(grads["kernel"][0, 0]) * (1 - 0.99**300) / (1 - 0.99)
    np.testing.assert_allclose(updates["kernel"], -expected, rtol=1e-4)


@pytest.mark.parametrize("name", ["lamb", "adamw", "sgd"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_settings_may_be_injected(name, weight_decay, without_type_checks):
    settings = dict(name=name, weight_decay=weight_decay, clip_norm=1.0, eps=1e-6)
    schedule = make_schedule(total_steps=10, learning_rate=0.1)
    injected = optax.inject_hyperparams(make_optimizer)(learning_rate=schedule, **settings)
    params = draw_params(0)
    # Injected numbers are float32, and 1 - b2 is small.
    assert_near(run(injected, params), run(make_optimizer(schedule, **settings), params))
    state = injected.init(params)
    state.hyperparams["b1"] = jnp.float32(0.5)
    plain = make_optimizer(schedule, **settings, b1=0.5)
    ours = update_twice(injected, state, params)
    assert_near(ours, update_twice(plain, plain.init(params), params))


def assert_near(actual, desired):
    for a, d in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        np.testing.assert_allclose(a, d, rtol=1e-3, atol=1e-5)


def update_twice(optimizer, state, params):
    for seed in (1, 2):
        updates, state = jax.jit(optimizer.update)(draw_params(seed), state, params)
    return updates


def test_an_argument_of_another_kind_is_named(without_type_checks):
    for field in ("exclude", "frozen"):
        with pytest.raises(TypeError, match=rf"{field} = 'dense' must be a tuple .* \('dense',\)"):
            make_optimizer(0.1, **{field: "dense"})
    with pytest.raises(TypeError, match="learning_rate = None must be a number or a schedule"):
        make_optimizer(None)
    with pytest.raises(TypeError, match=r"layers = \('a=0.1',\) must be a .*LayerRates"):
        make_optimizer(0.1, layers=("a=0.1",))
    with pytest.raises(ValueError, match="total_steps = None must be a number"):
        make_schedule(None, 0.1)


def test_paths_may_go_through_lists():
    params = {"layers": [draw_params(0), draw_params(1)]}
    optimizer = make_optimizer(0.1, frozen=("layers/0",))
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    first, second = updates["layers"]
    assert not any(np.any(x) for x in jax.tree.leaves(first))
    assert all(np.any(x) for x in jax.tree.leaves(second))


def test_average_warms_up_and_then_decays():
    first, second = draw_params(0), draw_params(1)
    early = update_average(first, second, 0.99, 0)
    assert_close(early, jax.tree.map(lambda a, b: 0.1 * a + 0.9 * b, first, second))
    late = update_average(first, second, 0.99, 10_000)
    assert_close(late, jax.tree.map(lambda a, b: 0.99 * a + 0.01 * b, first, second))
    assert_close(update_average(first, first, 0.99, 5), first)


def test_average_forgets_where_training_started():
    average = {"kernel": jnp.full((2, 2), 100.0)}
    for step in range(60):
        average = update_average(average, {"kernel": jnp.ones((2, 2))}, 0.9999, step)
    np.testing.assert_allclose(average["kernel"], 1, atol=1e-3)
