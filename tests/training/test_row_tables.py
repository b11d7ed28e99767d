"""Tables: what is drawn, and that row-sparse updates are the dense ones of those rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from big_align.core.errors import UserError
from big_align.parallel import meshes
from big_align.training.optimizers import make_optimizer, make_row_optimizer
from big_align.training.row_tables import (
    Drawn,
    RowOptimizer,
    draw_rows,
    init_values,
    join_rows,
    pad_rows,
    place_centers,
    split_rows,
)

D = 3


def make_mesh(devices):
    return meshes.make_mesh(1, jax.devices()[:devices])


def make_values(k, devices, dim=D):
    mesh = make_mesh(devices)
    values = np.random.default_rng(0).normal(size=(pad_rows(k, mesh), dim)).astype(np.float32)
    return jax.device_put(values, meshes.batch_sharding(mesh))


@functools.cache
def make_draw(k, devices, ratio):
    return jax.jit(functools.partial(draw_rows, num_rows=k, ratio=ratio, mesh=make_mesh(devices)))


def draw(k, devices, ratio, labels, seed=0):
    values = make_values(k, devices)
    drawn = make_draw(k, devices, ratio)(
        values, jnp.asarray(labels, jnp.int32), jax.random.key(seed)
    )
    return drawn, np.asarray(drawn.ids), values


@pytest.mark.slow_repeats
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize("k, ratio", [(61, 0.1), (64, 0.5), (37, 1.0), (50, 0.0), (3, 0.4)])
def test_every_positive_is_drawn_and_no_row_twice(k, devices, ratio):
    labels = np.random.default_rng(1).integers(-1, k + 2, (11, 4))
    drawn, numbers, values = draw(k, devices, ratio, labels)
    real = numbers[numbers >= 0]
    assert len(set(real)) == len(real) and real.max() < k
    positives = set(labels[(labels >= 0) & (labels < k)])
    assert positives <= set(real)
    assert len(real) < len(positives) + ratio * k + 3
    if ratio == 1:
        assert set(real) == set(range(k))
    np.testing.assert_array_equal(drawn.rows[drawn.mask], np.asarray(values)[real])
    # Columns name the row of each label, wherever it lies.
    columns = np.asarray(drawn.columns)
    known = (labels >= 0) & (labels < k)
    np.testing.assert_array_equal(numbers[columns[known]], labels[known])
    assert (columns[~known] == -1).all()


@pytest.mark.slow_repeats
@pytest.mark.parametrize("devices", [8, 1])
@pytest.mark.parametrize("k, ratio", [(61, 0.3), (37, 1.0), (50, 0.0)])
def test_the_sample_is_that_of_no_labels_and_of_its_share(k, devices, ratio):
    labels = np.random.default_rng(1).integers(-1, k + 2, (11, 4))
    for seed in range(3):
        drawn, numbers, _ = draw(k, devices, ratio, labels, seed)
        alone, others, _ = draw(k, devices, ratio, np.full((11, 4), -1), seed)
        sample = set(numbers[np.asarray(drawn.sampled)])
        assert sample == set(others[others >= 0]) and -1 not in sample
        np.testing.assert_array_equal(alone.sampled, alone.mask)
        assert abs(len(sample) - ratio * k) < 3


def test_positives_beyond_any_quota_are_all_there():
    labels = np.arange(96).reshape(12, 8)  # A quota of 0.05 * 100 has room for five.
    for devices in (1, 8):
        _, numbers, _ = draw(100, devices, 0.05, labels)
        assert set(range(96)) <= set(numbers)


def test_positives_of_a_single_device_are_all_there():
    _, numbers, _ = draw(160, 8, 0.1, np.arange(40, 60).reshape(5, 4))
    assert set(range(40, 60)) <= set(numbers)


@pytest.mark.slow_repeats
@pytest.mark.parametrize("devices", [8, 1])
@pytest.mark.parametrize("k, ratio", [(16, 0.1), (40, 0.1), (62, 0.3), (10, 0.7), (29, 0.02)])
def test_every_row_is_sampled_with_the_ratio_as_its_probability(k, ratio, devices):
    values, rounds = make_values(k, devices), 600
    labels = jnp.full((1, 1), -1)
    sample = make_draw(k, devices, ratio)
    counts, sizes = np.zeros(k), []
    for seed in range(rounds):
        numbers = np.asarray(sample(values, labels, jax.random.key(seed)).ids)
        counts[numbers[numbers >= 0]] += 1
        sizes.append((numbers >= 0).sum())
    # One in a million of binomial counts would be farther away.
    spread = np.sqrt(rounds * ratio * (1 - ratio))
    assert np.abs(counts - rounds * ratio).max() < 5 * spread
    assert counts.min() > 0
    assert np.abs(np.array(sizes) - ratio * k).max() < 3


@pytest.mark.slow_repeats
@pytest.mark.parametrize("k, ratio", [(61, 0.1), (40, 0.1), (37, 0.4), (37, 0.6)])
def test_a_sample_is_the_same_on_any_number_of_devices(k, ratio):
    samples = []
    for devices in (1, 2, 8):
        draws = (draw(k, devices, ratio, np.array([[3, 5]]), seed) for seed in range(20))
        samples.append([set(ids[np.asarray(drawn.sampled)]) for drawn, ids, _ in draws])
    assert samples[0] == samples[1] == samples[2]
    assert len(set(map(frozenset, samples[0]))) > 10


def test_a_draw_is_replayed_by_its_key_and_another_key_draws_others():
    labels = np.array([[3, 5]])
    first, again, other = (draw(200, 8, 0.2, labels, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first[1], again[1])
    assert set(first[1]) != set(other[1])


def test_every_device_draws_other_places():
    _, numbers, _ = draw(800, 8, 0.1, np.full((4, 1), -1))
    places = [tuple(part[part >= 0] % 100) for part in numbers.reshape(8, -1)]
    assert len(set(places)) == 8 and all(9 <= len(each) <= 11 for each in places)


def test_arrays_of_a_draw_do_not_grow_with_the_table():
    mesh = make_mesh(1)

    def count_bytes(k):
        arguments = jax.ShapeDtypeStruct((k, 64), jnp.float32), jnp.zeros((16, 4), jnp.int32)
        sample = functools.partial(draw_rows, num_rows=k, ratio=2000 / k, mesh=mesh)
        lowered = jax.jit(sample).lower(*arguments, jax.random.key(0))
        memory = lowered.compile().memory_analysis()
        return memory.temp_size_in_bytes + memory.output_size_in_bytes

    assert count_bytes(1_000_000) == count_bytes(100_000) < 4 * 64 * 10_000


def make_named(name, **settings):
    """The optimizer of a config: for rows, and for whole parameters given a learning rate."""
    settings = {"name": name, **settings}
    return make_row_optimizer(**settings), functools.partial(make_optimizer, **settings)


def make_own(optimizer, **settings):
    """Likewise one of optax's own."""
    return RowOptimizer(optimizer(1.0, **settings)), functools.partial(optimizer, **settings)


OPTIMIZERS = {
    "adamw": make_named("adamw", weight_decay=0.1, b2=0.98),
    "sgd": make_named("sgd", weight_decay=0.1, momentum=0.8),
    "nesterov": make_named("sgd", nesterov=True),
    "lion": make_own(optax.lion, weight_decay=0.1),
    "adagrad": make_own(optax.adagrad),
    "nadam": make_own(optax.nadam, b1=0.8),
}


def make_drawn(rows, k, devices):
    """A draw of given rows of a table without padding, three empty places on each device."""
    local = k // devices
    parts = [[r for r in rows if r // local == p] for p in range(devices)]
    width = max(map(len, parts)) + 3
    ids = jnp.asarray([p + [-1] * (width - len(p)) for p in parts]).ravel()
    return Drawn(ids, None, None, None)


def run_sparse(optimizer, values, steps, devices):
    """Updates the rows of each step with their gradients [k d]; returns the table."""
    mesh = make_mesh(devices)
    update = jax.jit(functools.partial(optimizer.update, mesh=mesh), donate_argnums=0)
    table = jax.jit(optimizer.init)(values)
    for index, (rows, grads) in enumerate(steps):
        drawn = make_drawn(rows, len(values), devices)
        grads = jnp.where(drawn.mask[:, None], grads[drawn.ids], jnp.nan)
        table = update(table, drawn, grads, jnp.float32(0.1 / (index + 1)))
    return table


def run_dense(optimizer, values, steps):
    """The optimizer on the whole table, with the learning rates of the given steps."""
    params = {"centers": values}
    rates = jnp.array([0.1 / (index + 1) for index, _ in steps])
    optimizer = optimizer(lambda step: rates[step.astype(int)])
    state = optimizer.init(params)
    for _, grads in steps:
        updates, state = optimizer.update({"centers": grads}, state, params)
        params = optax.apply_updates(params, updates)
    return params["centers"], state


def draw_steps(k, count):
    rng = np.random.default_rng(3)
    return [jnp.float32(rng.normal(size=(k, D))) for _ in range(count)]


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_drawing_all_rows_every_step_is_the_dense_update(name, devices):
    (by_row, dense), k = OPTIMIZERS[name], 16
    values, grads = make_values(k, devices), draw_steps(k, 4)
    order = np.random.default_rng(0).permutation(k).tolist()
    table = run_sparse(by_row, values, [(order, g) for g in grads], devices)
    expected, state = run_dense(dense, np.asarray(values), list(enumerate(grads)))
    np.testing.assert_allclose(table.values, expected, rtol=1e-5, atol=1e-6)
    moments = {"adamw": ("mu", "nu"), "sgd": ("trace",), "adagrad": ("sum_of_squares",)}
    for moment in moments.get(name, ()):
        actual = optax.tree_utils.tree_get(table.state, moment)
        expected = optax.tree_utils.tree_get(state, moment)["centers"]
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)
    assert all(len(leaf) == k for leaf in jax.tree.leaves(table.state))


@pytest.mark.slow_repeats
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_row_lives_only_in_the_steps_that_draw_it(name, devices):
    (by_row, dense), k = OPTIMIZERS[name], 12
    values, grads = make_values(k, devices), draw_steps(k, 5)
    drawn = [[1, 7, 11], [0, 7], [], [7, 1], [0, 11, 2, 7]]
    table = run_sparse(by_row, values, list(zip(drawn, grads, strict=True)), devices)
    start = by_row.init(values)
    for row in range(k):
        own = [(index, grads[index]) for index, rows in enumerate(drawn) if row in rows]
        if own:
            expected, _ = run_dense(dense, np.asarray(values), own)
            np.testing.assert_allclose(table.values[row], expected[row], rtol=1e-5, atol=1e-6)
        else:
            for x, y in zip(jax.tree.leaves(table), jax.tree.leaves(start), strict=True):
                np.testing.assert_array_equal(x[row], y[row])
    if name == "adamw":
        count = optax.tree_utils.tree_get(table.state, "count")
        assert count.tolist() == [sum(row in rows for rows in drawn) for row in range(k)]


def test_padding_of_a_draw_never_updates_the_last_row():
    """Places without a row point beyond the shard: nothing is written there, blocks or not."""
    k, mesh = 4096, make_mesh(2)
    optimizer = make_row_optimizer("adamw", weight_decay=0.5)
    table = optimizer.init(jnp.ones((k, D)))
    ids = np.full(2 * 1500, -1)
    ids[[0, 1499, 1500]] = [2047, 0, 2053]
    drawn = Drawn(jnp.asarray(ids), None, None, None)
    new = optimizer.update(table, drawn, jnp.ones((3000, D)), jnp.float32(0.1), mesh)
    changed = np.flatnonzero((np.asarray(new.values) != 1).any(1))
    np.testing.assert_array_equal(changed, [0, 2047, 2053])
    count = optax.tree_utils.tree_get(new.state, "count")
    np.testing.assert_array_equal(np.flatnonzero(count), changed)


def test_an_update_is_made_in_place():
    k, mesh = 20_000, make_mesh(1)
    optimizer = make_row_optimizer("adamw")
    table = jax.eval_shape(optimizer.init, jax.ShapeDtypeStruct((k, 64), jnp.float32))
    drawn = Drawn(jax.ShapeDtypeStruct((2048,), jnp.int32), None, None, None)
    grads = jax.ShapeDtypeStruct((2048, 64), jnp.float32)
    update = jax.jit(functools.partial(optimizer.update, mesh=mesh), donate_argnums=0)
    rate = jax.ShapeDtypeStruct((), jnp.float32)
    memory = update.lower(table, drawn, grads, rate).compile().memory_analysis()
    assert memory.alias_size_in_bytes >= 3 * 4 * 64 * k
    assert memory.temp_size_in_bytes < 4 * 64 * 2048 * 4


@pytest.mark.parametrize(
    "optimizer, name",
    [
        (make_row_optimizer("lamb"), "lamb"),
        (make_row_optimizer("lamb", weight_decay=0.1, clip_norm=1.0, frozen=("model",)), "lamb"),
        (RowOptimizer(optax.lars(1.0)), "custom"),
        (RowOptimizer(optax.chain(optax.normalize_by_update_norm(), optax.sgd(1.0))), "custom"),
    ],
)
def test_an_optimizer_that_is_not_elementwise_is_refused(optimizer, name):
    message = f"config.optimizer.name = '{name}' cannot update the rows.*such as adamw or sgd"
    for init in (optimizer.init, jax.jit(optimizer.init)):
        with pytest.raises(UserError, match=message):
            init(jnp.ones((4, D)))


def test_what_concerns_all_parameters_together_does_not_concern_rows():
    values, steps = make_values(4, 1), [([0, 2], jnp.full((4, D), 9.0))]
    plain, other = (
        run_sparse(make_row_optimizer("sgd", weight_decay=0.1, **settings), values, steps, 1)
        for settings in ({}, {"clip_norm": 0.1, "exclude": ("centers",), "frozen": ("model",)})
    )
    jax.tree.map(np.testing.assert_array_equal, plain, other)


def test_initial_values_are_the_same_on_any_number_of_devices():
    one, eight = (init_values(jax.random.key(0), 29, 50, make_mesh(n)) for n in (1, 8))
    assert (len(one), len(eight)) == (29, 32)
    np.testing.assert_array_equal(one, eight[:29])
    np.testing.assert_allclose(np.linalg.norm(one, axis=1).mean(), 1, atol=0.05)


def test_given_centers_lie_like_the_table_and_must_fit_it():
    values = make_values(13, 8)
    centers = np.random.default_rng(4).normal(size=(13, D)).astype(np.float16)
    placed = place_centers(centers, values, 13)
    assert placed.sharding == values.sharding and placed.dtype == values.dtype
    np.testing.assert_array_equal(placed[:13], centers)
    assert not placed[13:].any()
    with pytest.raises(ValueError, match=r"the centers are \[12, 3\].* 13 clusters.* of 3"):
        place_centers(centers[:12], values, 13)


def test_rows_go_through_a_derivative_and_back():
    drawn = {"centers": draw(20, 1, 0.5, np.array([[1]]))[0]}

    def total(rows):
        return (join_rows(drawn, rows)["centers"].rows ** 2).sum()

    grads = jax.grad(total)(split_rows(drawn))
    np.testing.assert_allclose(grads["centers"], 2 * drawn["centers"].rows)
