"""Weights in pieces: the same numbers as whole ones, and only what has to move does."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from jaxtyping import Array

from big_align.models.bert import Bert
from big_align.models.efficientnet import EfficientNet
from big_align.models.ml_decoder import MLDecoder
from big_align.models.parts import transformer
from big_align.models.parts.convolution import Convolution
from big_align.models.parts.layers import Dense
from big_align.models.swin import Swin
from big_align.models.vit import ViT
from big_align.parallel.batches import place_batch
from big_align.parallel.devices import traced
from big_align.parallel.logical_axes import partition, state_shardings
from tests import tiny
from tests.device_counts import DEVICES

CONSTANT = jax.nn.initializers.variance_scaling(1.0, "fan_in", "normal")


def images(size=16):
    return jax.random.normal(jax.random.key(0), (16, size, size, 3))


def texts():
    ids = jax.random.randint(jax.random.key(1), (16, 6), 1, 32)
    return ids, jnp.arange(6) < jnp.arange(1, 17)[:, None]


def tokens():
    return jax.random.normal(jax.random.key(2), (16, 5, 8))


MODULES = {
    "dense": (Dense(16, ("embed", "mlp")), lambda: (tokens(),)),
    "dense that does not divide": (Dense(7, ("embed", "mlp")), lambda: (tokens(),)),
    "dense of no rows of the batch": (Dense(16, ("embed", "mlp")), lambda: (tokens()[:3],)),
    "embedding": (transformer.TokenEmbedding(32, 8, "float32"), lambda: texts()[:1]),
    "embedding that does not divide": (
        transformer.TokenEmbedding(33, 8, "float32"),
        lambda: texts()[:1],
    ),
    "convolution": (Convolution(8, 3, 2, CONSTANT, "float32"), lambda: (images(),)),
    "vit": (
        ViT("b/4", width=16, depth=2, heads=4, mlp_dim=32, pool="cls", remat="full"),
        lambda: (images(8), False),
    ),
    "loop": (
        ViT("b/4", width=16, depth=2, heads=4, mlp_dim=32, remat="dots", scan=True),
        lambda: (images(8), False),
    ),
    "bert": (Bert(width=16, depth=1, heads=4, mlp_dim=32, vocab_size=32, max_length=8), texts),
    "swin": (
        Swin("tiny", width=8, depths=(1, 1), heads=(2, 2), window=2),
        lambda: (images(), False),
    ),
    "efficientnet": (
        EfficientNet("b0", width=0.2, depth=0.1, drop_path=0.0, remat="full"),
        lambda: (images(32), False),
    ),
    "ml decoder": (
        MLDecoder(classes=12, groups=4, width=8, heads=4, mlp_dim=16),
        lambda: (tokens(), False),
    ),
}


def first(outputs) -> Array:
    return jax.tree.leaves(outputs)[0].astype(jnp.float32)


def differentiate(module, arguments, devices, fsdp, sum_dtype="float32"):
    """Value and gradients of every parameter and of the input, on a mesh."""
    mesh = tiny.make_mesh(devices, fsdp)
    boxed = module.init(jax.random.key(0), *arguments)
    variables = jax.tree.map(
        lambda x: jnp.asarray(np.random.default_rng(x.size).normal(size=x.shape) / 4, x.dtype),
        nn.meta.unbox(boxed),
    )
    placement = state_shardings(boxed["params"], variables["params"], mesh)
    params = jax.device_put(variables.pop("params"), placement)
    x = arguments[0]
    if len(x) % devices == 0:
        x = place_batch({"x": np.asarray(x)}, mesh)["x"]

    def loss(params, x):
        with traced.weights_on(mesh, sum_dtype):
            y = first(module.apply({"params": params, **variables}, x, *arguments[1:]))
        return jnp.sum(jnp.sin(y) * jnp.arange(y.size).reshape(y.shape) / y.size), y

    floating = jnp.issubdtype(x.dtype, jnp.floating)
    function = jax.jit(jax.value_and_grad(loss, (0, 1) if floating else (0,), has_aux=True))
    with traced.weights_on(mesh, sum_dtype):
        return function.lower(params, x), function(params, x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fsdp"), [*((name, 4) for name in MODULES), ("dense", 8), ("embedding", 1)]
)
def test_value_and_every_gradient_are_those_of_one_device(name, fsdp):
    module, make = MODULES[name]
    _, expected = differentiate(module, make(), 1, 1)
    _, split = differentiate(module, make(), 8, fsdp)

    def compare(x, y):
        scale = max(np.abs(y).max(initial=0), 1e-3)
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), atol=2e-5 * scale, rtol=0)

    jax.tree.map(compare, split, expected)


@pytest.mark.parametrize(
    ("names", "shape", "expected"),
    [
        (("vocab", "embed"), (32, 8), ("fsdp", None)),
        (("vocab", "embed"), (33, 8), (None, "fsdp")),
        (("embed", "heads"), (8, 12), (None, "fsdp")),
        (("embed", "heads"), (8, 3), ("fsdp", None)),
        (("embed", "heads"), (6, 3), (None, None)),
        (("heads",), (3,), (None,)),
        (("embed",), (8,), (None,)),  # of a normalization
        (("positions", "embed"), (8, 8), (None, None)),
        ((None, None, "channels_in", "channels_out"), (3, 3, 8, 16), (None, None, None, "fsdp")),
        (("mlp",), (4, 8), ("fsdp", None)),  # of a leading axis alone
    ],
)
def test_an_axis_that_divides_is_split_by_its_name_or_else_the_embedding(names, shape, expected):
    assert partition(names, shape, tiny.make_mesh(8, fsdp=4)) == PartitionSpec(*expected)
    assert partition(names, shape, tiny.make_mesh(8)) == PartitionSpec(*[None] * len(shape))


@pytest.mark.parametrize("fsdp", [1, 4])
@pytest.mark.parametrize("sum_dtype", ["float32", "bfloat16"])
def test_gradients_of_a_bfloat16_layer_are_summed_in_the_type_that_is_asked_for(sum_dtype, fsdp):
    """One value of 256 and seven of 1: bfloat16, which has 8 bits, loses the ones it adds last."""
    x = np.ones((8, 8), np.float32)
    x[0] = 256
    module = Dense(8, ("embed", "mlp"), dtype="bfloat16", use_bias=False)
    mesh = tiny.make_mesh(8, fsdp)
    kernel = {"params": {"kernel": jnp.zeros((8, 8))}}

    def loss(kernel, x):
        with traced.weights_on(mesh, sum_dtype):
            return module.apply(kernel, x).astype(jnp.float32).sum()

    grad = jax.jit(jax.grad(loss))(kernel, place_batch({"x": x}, mesh)["x"])
    exact = np.asarray(grad["params"]["kernel"]) == 263
    assert exact.all() if sum_dtype == "float32" else not exact.any()


@pytest.mark.parametrize("devices", DEVICES)
def test_what_many_tokens_add_to_a_row_of_an_embedding_is_added_in_float32(devices):
    """300 ones: bfloat16 counts to 256 and stays there."""
    module = transformer.TokenEmbedding(4, 8, "bfloat16")
    mesh = tiny.make_mesh(devices)
    table = {"params": {"embedding": jnp.zeros((4, 8))}}
    ids = place_batch({"ids": np.ones((8, 300), np.int32)}, mesh)["ids"]

    def loss(table):
        with traced.weights_on(mesh):
            return module.apply(table, ids).astype(jnp.float32).sum()

    grad = jax.jit(jax.grad(loss))(table)["params"]["embedding"]
    np.testing.assert_array_equal(grad[1], np.full(8, 2400.0))


def moved(text: str, kind: str) -> list[tuple[str, int]]:
    """The type and the size of every operand of a collective in lowered StableHLO."""
    found = re.findall(rf'"?stablehlo\.{kind}"?.*?: \(tensor<([\dx]*)x?(\w+)>\)', text, re.DOTALL)
    return [(dtype, int(np.prod([int(n) for n in dims.split("x") if n]))) for dims, dtype in found]


def test_what_is_collected_is_cast_first_and_what_is_summed_is_scattered():
    module = Dense(16, ("embed", "mlp"), dtype="bfloat16", use_bias=False)
    lowered, _ = differentiate(module, (tokens(),), 8, 4)
    text = lowered.as_text()
    # 8 x 16 / 4 numbers leave a device, once in the forward pass and once in the backward pass.
    assert moved(text, "all_gather") == [("bf16", 32)] * 2
    assert moved(text, "reduce_scatter") == [("f32", 128)]
    assert moved(text, "all_reduce") == [("f32", 32)]


def test_a_tower_in_float32_with_whole_weights_moves_nothing_by_itself():
    lowered, _ = differentiate(MODULES["dense"][0], (tokens(),), 8, 1)
    assert "all_gather" not in lowered.as_text() and "all_reduce" not in lowered.as_text()


@pytest.mark.slow
def test_a_recomputed_block_collects_its_weights_anew():
    """Weights of a block are not kept from the forward to the backward pass.

    What the last layer of a block makes is not needed again, so its weights are not either.
    """
    make = functools.partial(ViT, "b/4", width=16, depth=2, heads=4, mlp_dim=32, dtype="bfloat16")
    gathers = []
    for remat in ("none", "full"):
        lowered, _ = differentiate(make(remat=remat), (images(8), False), 8, 4)
        gathers.append(len(moved(lowered.as_text(), "all_gather")))
    blocks, layers = 2, 6  # the patch embedding is not split
    assert gathers == [blocks * 2 * layers, blocks * (3 * layers - 1)]
