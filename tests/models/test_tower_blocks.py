"""Blocks in a loop against blocks by themselves, and what each level of recomputation stores."""

import functools
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_variables import draw_variables

from big_align.models.bert import Bert
from big_align.models.clip_text import ClipText
from big_align.models.parts import layers
from big_align.models.resnet import ResNet
from big_align.models.swin import Swin
from big_align.models.vit import ViT
from big_align.parallel.devices import rematerialization, traced
from big_align.training import flops
from tests import tiny

SMALL = {"width": 16, "depth": 3, "mlp_dim": 32, "heads": 2}
WORDS = SMALL | {"vocab_size": 20, "max_length": 8}
TOWERS = {
    "vit": ViT("ti/4", **SMALL, positions="rotary"),
    "clip_text": ClipText(**WORDS),
    "bert": Bert(**WORDS, dropout=0.0),
    "resnet": ResNet("18", width=4, depths=(4, 3), stem="small", drop_path=0.0),
}


def draw_inputs(name):
    if name in ("vit", "resnet"):
        return (jax.random.normal(jax.random.key(0), (4, 8, 8, 3)),)
    ids = jax.random.randint(jax.random.key(1), (4, 8), 1, 20)
    return ids, jnp.arange(8) < jnp.arange(2, 6)[:, None]


def differentiate(tower, inputs, seed=0):
    """Features, new statistics, and gradients of every parameter."""
    variables = jax.tree.map(jnp.asarray, draw_variables(tower, *inputs))
    params = variables.pop("params")

    def loss(params):
        rngs = {"dropout": jax.random.key(seed)}
        full = {"params": params, **variables}
        (pooled, _), new = tower.apply(full, *inputs, True, rngs=rngs, mutable=list(variables))
        return jnp.sin(3 * pooled.astype(jnp.float32)).sum(), (pooled, new)

    grads, (pooled, new) = jax.jit(jax.grad(loss, has_aux=True))(params)
    return pooled, new, grads


def assert_close(a, b, tolerance=1e-4):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=tolerance), a, b)


@functools.cache
def differentiate_blocks(name):
    """Blocks by themselves that store everything."""
    return differentiate(TOWERS[name].clone(scan=False), draw_inputs(name))


FAST = [("vit", "full:1/3"), ("clip_text", "dots"), ("resnet", "attention")]
SHARES = ("full:1/3", "dots:0.5")
LEVELS = (*rematerialization.LEVELS, *SHARES)
MORE = [x for x in itertools.product(TOWERS, LEVELS) if x not in FAST]


@pytest.mark.slow_repeats
@pytest.mark.parametrize(
    "name, level", [*FAST, *(pytest.param(*x, marks=pytest.mark.slow) for x in MORE)]
)
def test_a_loop_and_what_it_recomputes_change_no_number(name, level):
    tower, inputs = TOWERS[name], draw_inputs(name)
    for scan in [True] if level == "none" else [True, False]:
        changed = tower.clone(scan=scan, remat=level)
        assert_close(differentiate(changed, inputs), differentiate_blocks(name))


def count_blocks(tower, inputs):
    """Products in the traced program of a tower; the body of a loop is there once."""
    variables = draw_variables(tower, *inputs)
    return str(jax.make_jaxpr(tower.apply)(variables, *inputs)).count("dot_general")


@pytest.mark.slow
def test_equal_blocks_are_a_loop_on_several_gpus_or_where_asked_for(monkeypatch):
    inputs = draw_inputs("vit")
    tower = ViT("ti/4", **SMALL | {"depth": 8})
    alone, loop = (count_blocks(tower.clone(scan=scan), inputs) for scan in (False, True))
    assert alone > 4 * loop
    assert count_blocks(tower.clone(remat="full"), inputs) == alone
    gpu = types.SimpleNamespace(platform="gpu", device_kind="Tesla V100", compute_capability="7.0")
    monkeypatch.setattr(traced, "traced_device", lambda: gpu)
    for devices, level, expected in ((1, "full", alone), (8, "none", alone), (8, "full", loop)):
        with traced.weights_on(tiny.make_mesh(devices)):
            assert count_blocks(tower.clone(remat=level), inputs) == expected


def test_a_loop_has_the_parameters_of_separate_blocks():
    inputs = draw_inputs("vit")
    made = [
        TOWERS["vit"].clone(scan=scan).init(jax.random.key(0), *inputs) for scan in (False, True)
    ]
    jax.tree.map(np.testing.assert_array_equal, *made)


def test_stochastic_depth_in_a_loop_is_that_of_each_block():
    """The first block is never dropped, the last always; the seed alone decides."""
    tower = ViT("ti/4", **SMALL | {"depth": 2}, drop_path=1.0, scan=True)
    inputs = draw_inputs("vit")
    variables = draw_variables(tower, *inputs)
    rngs = {"dropout": jax.random.key(3)}
    trained, _ = tower.apply(variables, *inputs, True, rngs=rngs)
    first = tower.clone(depth=1, drop_path=0.0)
    alone, _ = first.apply(variables, *inputs, False)
    np.testing.assert_allclose(trained, alone, rtol=1e-5, atol=1e-5)


def test_dropping_by_a_rate_in_an_array_is_dropping_by_that_rate():
    x, rate = jnp.ones((4000, 2)), 0.3
    rngs = {"dropout": jax.random.key(0)}
    y = layers.DropPath(jnp.float32(rate)).apply({}, x, True, rngs=rngs)
    np.testing.assert_allclose(np.unique(y), [0, 1 / (1 - rate)], rtol=1e-6)
    np.testing.assert_array_equal(y[:, 0], y[:, 1])
    assert abs((y == 0).mean() - rate) < 0.02
    np.testing.assert_array_equal(layers.DropPath(jnp.float32(rate)).apply({}, x, False), x)


def test_blocks_of_a_loop_drop_different_values():
    """With equal weights, equal masks would make the branches of all blocks equal."""
    inputs = draw_inputs("vit")
    tower = ViT("ti/4", **SMALL, dropout=0.5, scan=True)
    first, second = (differentiate(tower, inputs, seed) for seed in (0, 1))
    assert np.abs(first[0] - second[0]).max() > 1e-3
    grads = first[2]["block_01"]["mlp"]["down"]["bias"], first[2]["block_02"]["mlp"]["down"]["bias"]
    # The gradient of the last bias of a block passes through its own mask of dropout.
    assert not np.allclose(*grads)


def stored_bytes(level, devices, depth=4, scan=True):
    """Bytes that the forward pass of a tower keeps for the backward pass, weights left out."""
    tower = ViT("ti/4", **SMALL | {"depth": depth}, dtype="bfloat16", remat=level, scan=scan)
    inputs = (jax.random.normal(jax.random.key(0), (8, 32, 32, 3)),)
    params = draw_variables(tower, *inputs)["params"]
    mesh = tiny.make_mesh(devices, devices)

    def apply(params):
        with traced.weights_on(mesh):
            return tower.apply({"params": params}, *inputs)[0]

    _, pull = jax.eval_shape(lambda params: jax.vjp(apply, params), params)
    rows = [x for x in jax.tree.leaves(pull) if {8, 8 * 65} & set(x.shape)]  # 65 tokens
    return sum(x.size * x.dtype.itemsize for x in rows)


@pytest.mark.parametrize("devices", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_each_level_stores_less_than_the_one_before(devices):
    stored = [stored_bytes(level, devices) for level in rematerialization.LEVELS]
    assert sorted(set(stored), reverse=True) == stored


@pytest.mark.slow
def test_so_does_each_step_between_levels_by_equal_parts():
    dots = rematerialization.AUTO_LEVELS.index("dots")
    steps = rematerialization.AUTO_LEVELS[dots:]
    stored = [stored_bytes(step, 1, depth=12, scan=False) for step in steps]
    (each,) = set(np.diff(stored))
    assert each < 0


def test_the_first_blocks_recompute_the_share_that_is_asked_for():
    found = rematerialization.find_levels
    assert found("full:1/3", 6) == ["full"] * 2 + ["dots"] * 4
    assert found("dots:0.5", 3) == ["dots"] * 2 + ["attention"]
    assert found("attention:0", 2) == ["none"] * 2 and found("none:1/2", 2) == ["none"] * 2
    assert found("full:1", 2) == found("full", 2) == ["full"] * 2
    for count in (1, 5, 12, 24):
        amounts = [
            sum(map(rematerialization.LEVELS.index, found(step, count)))
            for step in rematerialization.AUTO_LEVELS
        ]
        assert sorted(amounts) == amounts and (amounts[0], amounts[-1]) == (0, 3 * count)


def test_stages_of_a_tower_share_its_blocks():
    """Of the blocks of Swin's two stages, the first three recompute their products."""
    tower = Swin(width=8, depths=(2, 2), heads=(2, 4), window=4, attention="plain")
    image = jnp.ones((1, 32, 32, 3))
    variables = draw_variables(tower, image)

    def count(remat):
        def loss(variables):
            return tower.clone(remat=remat).apply(variables, image)[0].sum()

        traced = jax.make_jaxpr(jax.grad(loss))(variables).jaxpr
        return str(flops.drop_unused(traced)).count("dot_general[")

    stored, some, more, most = map(count, ("dots", "full:1/2", "full:3/4", "full"))
    assert stored < some < more < most and more - some == most - more == (some - stored) / 2


def test_the_least_that_has_room_is_found_with_few_counts():
    steps = rematerialization.AUTO_LEVELS
    stored = {step: 100 - 3 * i for i, step in enumerate(steps)}
    for first in ("none", "dots:1/4", "full"):
        for room in range(20, 110):
            counted = []
            found = rematerialization.find_least(
                lambda step, counted=counted: counted.append(step) or stored[step], room, first
            )
            later = steps[steps.index(first) :]
            expected = next((step for step in later if stored[step] <= room), steps[-1])
            assert found == expected and len(counted) <= 6


def test_room_shrinks_by_what_was_too_much_or_faster_and_faster():
    assert rematerialization.take_room(1000, 1000, stored=900, used=1030) == 870
    # Another process had no room for it.
    assert rematerialization.take_room(1000, 1000, stored=900, used=950) == 900
    room, shrunk = 1000, []
    for _ in range(4):
        room = rematerialization.take_room(1000, room, stored=room, used=None)
        shrunk.append(1000 - room)
    assert shrunk == [20, 60, 180, 540]


@pytest.mark.slow
def test_levels_store_no_more_on_eight_devices_than_on_one():
    """But for the patches, which one of the two flattens first."""
    patches = 8 * 64 * 48 * 2
    for level in ("dots", "full"):
        assert stored_bytes(level, 8) <= stored_bytes(level, 1) + patches


def test_an_unknown_level_is_named():
    inputs = draw_inputs("vit")
    with pytest.raises(ValueError, match="remat = 'some' is unknown; known: none"):
        jax.eval_shape(TOWERS["vit"].clone(remat="some").init, jax.random.key(0), *inputs)

    for share in ("2", "-1", "x", "1/0", "nan"):
        with pytest.raises(ValueError, match=f"remat = 'full:{share}': after the colon comes a sh"):
            rematerialization.find_levels(f"full:{share}", 3)
    with pytest.raises(ValueError, match="remat = 'auto:1/2' is unknown"):
        rematerialization.find_levels("auto:1/2", 3)


def test_auto_is_what_the_one_who_compiles_says():
    assert rematerialization.find_levels("auto", 1) == ["none"]
    with rematerialization.auto_is("dots") as asked:
        assert rematerialization.find_levels("auto", 1) == ["dots"]
        assert rematerialization.find_levels("full", 1) == ["full"]
        with rematerialization.left_out():
            assert rematerialization.find_levels("auto", 1) == ["none"]
    assert asked == ["dots"]
