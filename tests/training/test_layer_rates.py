"""Laws of learning rates by path: factors, decay from layer to layer, late starts."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from big_align.core.errors import UserError
from big_align.training.layer_rates import LayerRates
from big_align.training.optimizers import make_optimizer, make_row_optimizer


def leaf(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape or (3, 2)), jnp.float32)


def make_params():
    """A tower of two blocks with all that may stand around them, and one without."""
    names = ("patch_embedding", "block_00", "block_01", "final_norm", "head_conv")
    image = {name: {"kernel": leaf(i)} for i, name in enumerate(names)}
    text = {"block_00": {"kernel": leaf(7)}, "token_embedding": {"embedding": leaf(8)}}
    return {
        "model": {"image": image, "text": text, "project_image": {"kernel": leaf(9)}},
        "temperature": leaf(10, 1),
    }


def run(optimizer, steps=4, params=None):
    """Returns the parameters before each of some updates and after the last one."""
    params = make_params() if params is None else params
    state, after = optimizer.init(params), [params]
    for step in range(steps):
        grads = jax.tree.map(lambda x, step=step: jnp.cos(x + step), make_params())
        updates, state = jax.jit(optimizer.update)(grads, state, params)
        params = optax.apply_updates(params, updates)
        after.append(params)
    return after


def differ(before, after, path):
    for name in path.split("/"):
        before, after = before[name], after[name]
    return any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (before, after)), strict=True))


OPTIMIZERS = pytest.mark.parametrize("name", ["lamb", "adamw", "sgd"])


@pytest.mark.slow_repeats
@OPTIMIZERS
def test_a_factor_is_a_learning_rate_of_its_own(name):
    """The first update is that at the rate times the factor, decay and trust ratio included."""
    options = dict(name=name, weight_decay=0.3)
    layers = LayerRates(rates=("model=0.5", "model/image/block_*=0.25", "model/*/block_01=0"))
    own = run(make_optimizer(0.1, layers=layers, **options), 1)[1]
    at = {f: run(make_optimizer(0.1 * f, **options), 1)[1] for f in (1.0, 0.5, 0.25)}
    factors = {
        "temperature": 1.0,
        "model/project_image": 0.5,
        "model/text/block_00": 0.5,
        "model/image/block_00": 0.25,
    }
    for path, factor in factors.items():
        mine, expected = own, at[factor]
        for part in path.split("/"):
            mine, expected = mine[part], expected[part]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), mine, expected)
    assert not differ(make_params(), own, "model/image/block_01")


@OPTIMIZERS
def test_a_rate_of_0_keeps_parameters_bit_for_bit(name):
    after = run(make_optimizer(0.1, name, weight_decay=0.3, layers=LayerRates(("model/image=0",))))
    assert not differ(after[0], after[-1], "model/image")
    assert differ(after[0], after[-1], "model/text")


def test_rates_of_1_change_nothing():
    layers = LayerRates(("model=1",), ("model/image=1",), ("model=0",), ("model/text=0",))
    plain, same = (run(make_optimizer(0.1, layers=x))[-1] for x in (LayerRates(), layers))
    jax.tree.map(np.testing.assert_array_equal, same, plain)


def test_layers_decay_from_the_top_down():
    layers = LayerRates(rates=("model/text=10",), layer_decay=("model/image=0.5", "model/text=0.1"))
    factors = layers.factors(make_params())
    by_name = {name: value["kernel"] for name, value in factors["model"]["image"].items()}
    assert by_name == {
        "patch_embedding": 0.125,
        "block_00": 0.25,
        "block_01": 0.5,
        "final_norm": 1.0,
        "head_conv": 1.0,
    }
    text = factors["model"]["text"]
    np.testing.assert_allclose(text["block_00"]["kernel"], 1.0)
    np.testing.assert_allclose(text["token_embedding"]["embedding"], 0.1)
    assert factors["temperature"] == factors["model"]["project_image"]["kernel"] == 1.0


def test_a_merging_of_swin_goes_with_the_block_behind_it():
    def block(width):
        return {"attention_norm": {"scale": leaf(0, width)}, "up": {"kernel": leaf(1, width, 9)}}

    tower = {f"block_{i:02d}": block(width) for i, width in enumerate((4, 4, 8, 8))}
    tower |= {"merge_0": {"kernel": leaf(2, 16, 8), "norm": {"scale": leaf(3, 16)}}}
    factors = LayerRates(layer_decay=("image=0.5",)).factors({"image": tower})
    merge = factors["image"]["merge_0"]
    assert merge["kernel"] == merge["norm"]["scale"] == 0.25
    assert factors["image"]["block_02"]["up"]["kernel"] == 0.25
    assert factors["image"]["block_01"]["up"]["kernel"] == 0.125


@OPTIMIZERS
def test_parameters_stay_until_their_step_and_move_from_it_on(name):
    layers = LayerRates(unfreeze=("model/image=2", "model/image/final_norm=0"))
    after = run(make_optimizer(0.1, name, weight_decay=0.3, layers=layers), 4)
    moves = [differ(a, b, "model/image/block_00") for a, b in zip(after, after[1:], strict=False)]
    assert moves == [False, False, True, True]
    assert differ(after[0], after[1], "model/image/final_norm")
    assert differ(after[0], after[1], "model/text/block_00")


def test_layers_start_from_the_top_down():
    layers = LayerRates(unfreeze=("model/text=10",), unfreeze_layers=("model/*=3",))
    params = make_params()
    del params["model"]["project_image"]
    starts = layers.starts(params)["model"]
    assert {name: value["kernel"] for name, value in starts["image"].items()} == {
        "patch_embedding": 9,
        "block_00": 6,
        "block_01": 3,
        "final_norm": 0,
        "head_conv": 0,
    }
    assert starts["text"]["block_00"]["kernel"] == 13
    assert starts["text"]["token_embedding"]["embedding"] == 16


def test_a_late_start_goes_on_after_resuming():
    optimizer = make_optimizer(0.1, layers=LayerRates(unfreeze=("model/image=3",)))
    params = make_params()
    state = optimizer.init(params)
    grads = jax.tree.map(jnp.cos, params)
    for step in range(5):
        state = jax.tree.map(jnp.asarray, jax.tree.map(np.asarray, state))  # as a checkpoint does
        updates, state = optimizer.update(grads, state, params)
        assert np.any(updates["model"]["image"]["block_00"]["kernel"]) == (step >= 3)


def test_what_is_frozen_has_a_path_all_the_same():
    layers = LayerRates(rates=("model/image=0.5",), layer_decay=("model/image=0.9",))
    optimizer = make_optimizer(0.1, layers=layers, frozen=("model/image",))
    after = run(optimizer)
    assert not differ(after[0], after[-1], "model/image")
    assert differ(after[0], after[-1], "model/text")


def test_rows_of_tables_have_the_common_rate():
    values = leaf(0, 4, 2)
    settings = dict(rates=("model=0.1",), unfreeze=("model=9",), layer_decay=(), unfreeze_layers=())
    rows = make_row_optimizer("adamw", **settings).transformation
    plain = make_row_optimizer("adamw").transformation
    updates = [x.update(values, x.init(values), values)[0] for x in (rows, plain)]
    np.testing.assert_array_equal(*updates)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rates": ("model",)}, "rates has 'model', which is not PATH=NUMBER"),
        ({"rates": ("=1",)}, "rates has '=1', which"),
        ({"rates": ("model=-1",)}, "rates has 'model=-1', which"),
        ({"rates": ("model=nan",)}, "rates has 'model=nan', which"),
        ({"layer_decay": ("model=1.5",)}, r"layer_decay has .* 1.5 is not in \(0, 1\]"),
        ({"layer_decay": ("model=0",)}, r"layer_decay has .* 0 is not in \(0, 1\]"),
        ({"unfreeze": ("model=0.5",)}, "unfreeze has 'model=0.5', but 0.5 is no number of steps"),
    ],
)
def test_impossible_entries_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        LayerRates(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rates": ("model/imag=1",)}, "rates has 'model/imag=1': no parameter is there; there ar"),
        ({"unfreeze": ("mode=1",)}, "unfreeze has 'mode=1': .*there are: model/image, .*temperat"),
        (
            {"layer_decay": ("model/project_image=0.5",)},
            "layer_decay has .*, but model/project_image has no block_00",
        ),
        ({"unfreeze_layers": ("model=5",)}, "unfreeze_layers has .*, but model has no block_00"),
        ({"layer_decay": ("temperature=0.5",)}, "but temperature has no block_00"),
    ],
)
def test_paths_that_lead_nowhere_are_named(fields, message):
    optimizer = make_optimizer(0.1, layers=LayerRates(**fields))
    with pytest.raises(UserError, match=message):
        optimizer.init(make_params())
