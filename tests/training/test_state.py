"""A fresh state: what its seed draws, and what given weights replace."""

import jax
import numpy as np
import optax

from big_align.training.state import describe_state, replace_weights
from tests import tiny

PATH = "params/text/block_00/mlp/up/kernel"


def create(seed):
    mesh = tiny.make_mesh()
    objective, optimizer = tiny.make_objective(mesh), optax.identity()
    given = objective, optimizer, tiny.make_batch(1), mesh
    return describe_state(*given, seed=seed, averaged=True)[1]()


def kernel(params):
    return np.asarray(params["model"]["text"]["block_00"]["mlp"]["up"]["kernel"])


def test_the_seed_draws_the_parameters_and_the_key_of_the_run():
    one, again, two = map(create, (1, 1, 2))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    assert (kernel(one.params) != kernel(two.params)).any() and (one.rng != two.rng).any()


def test_the_average_begins_with_the_weights_that_are_given():
    state = create(0)
    given = np.ones_like(kernel(state.params))
    started = replace_weights(state, {PATH: given})
    np.testing.assert_array_equal(kernel(started.params), given)
    jax.tree.map(np.testing.assert_array_equal, started.average[0], started.params)
    jax.tree.map(np.testing.assert_array_equal, started.average[1], started.model_state)


def test_an_array_of_fewer_rows_leaves_the_others_fresh():
    state = create(0)
    fresh = kernel(state.params)
    started = replace_weights(state, {PATH: np.ones((3, fresh.shape[1]), np.float32)})
    np.testing.assert_array_equal(kernel(started.params)[:3], 1)
    np.testing.assert_array_equal(kernel(started.params)[3:], fresh[3:])


def test_moments_and_averages_lie_as_their_parameters_do():
    mesh = tiny.make_mesh(8, fsdp=4)
    given = tiny.make_objective(mesh), optax.adam(1e-3), tiny.make_batch(1), mesh
    state, _ = describe_state(*given, averaged=True)
    moments = state.opt_state[0]
    for tree in (moments.mu, moments.nu, state.average[0]):
        jax.tree.map(
            lambda a, b: np.testing.assert_equal(a.sharding, b.sharding), tree, state.params
        )
    split = state.params["model"]["text"]["block_00"]["mlp"]["up"]["kernel"]
    assert 4 * np.prod(split.sharding.shard_shape(split.shape)) == np.prod(split.shape)
