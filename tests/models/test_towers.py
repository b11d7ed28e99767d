"""Laws that every tower obeys: precision, rematerialization, randomness, compilation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_variables import draw_variables

from big_align.models import efficientnet
from big_align.models.bert import Bert, Roberta
from big_align.models.clip_text import ClipText
from big_align.models.efficientnet import EfficientNet
from big_align.models.embedding_table import EmbeddingTable
from big_align.models.resnet import ResNet
from big_align.models.swin import Swin
from big_align.models.vit import ViT

SMALL = {"width": 16, "depth": 2, "mlp_dim": 32, "heads": 2}
WORDS = SMALL | {"vocab_size": 20, "max_length": 8}
IMAGE_TOWERS = {
    "efficientnet": EfficientNet(width=0.5, stem_stride=1, drop_path=0.5, dropout=0.1),
    "efficientnet lite": EfficientNet(
        "lite0", width=0.5, stem_stride=1, drop_path=0.5, dropout=0.1, fixed_statistics=True
    ),
    "vit": ViT("ti/4", **SMALL, drop_path=0.5, dropout=0.1),
    "mlcd": ViT("ti/4", **SMALL, positions="rotary", input_norm=True, dropout=0.1),
}
TEXT_TOWERS = {
    "bert": Bert(**WORDS),
    "roberta": Roberta(**WORDS),
    "clip_text": ClipText(**WORDS, dropout=0.1),
}
TOWERS = IMAGE_TOWERS | TEXT_TOWERS
MORE_TOWERS = {
    "resnet": ResNet("18", width=4, stem="small"),
    "swin": Swin(width=8, depths=(2, 2), heads=(2, 4), window=4),
    "embedding_table": EmbeddingTable(vocab_size=20, width=8),
}


@pytest.fixture(scope="module", params=TOWERS)
def case(request):
    """A tower, its inputs and its variables."""
    tower, size = TOWERS[request.param], 8
    image = jax.random.normal(jax.random.key(0), (size, 16, 16, 3))
    text = jax.random.randint(jax.random.key(1), (size, 8), 1, 20)
    mask = jnp.arange(8) < jnp.arange(1, size + 1)[:, None]
    inputs = (text, mask) if request.param in TEXT_TOWERS else (image,)
    with pytest.MonkeyPatch.context() as patch:
        # Seven stages take most of a minute to compile; two have all that the laws are about.
        patch.setattr(efficientnet, "STAGES", ((1, 3, 1, 1, 16), (2, 5, 2, 6, 24)))
        yield tower, inputs, draw_variables(tower, *inputs)


def train_step(tower, inputs):
    """Returns a compiled function from variables and a seed to features, loss and gradients."""

    def loss(params, rest, seed):
        rngs = {"dropout": jax.random.key(seed)}
        variables = {"params": params, **rest}
        (pooled, _), new = tower.apply(variables, *inputs, True, rngs=rngs, mutable=list(rest))
        return jnp.sin(pooled.astype(jnp.float32)).sum(), (pooled, new)

    compiled = jax.jit(jax.grad(loss, has_aux=True))

    def step(variables, seed):
        rest = {name: value for name, value in variables.items() if name != "params"}
        return compiled(variables["params"], rest, seed)

    step.compiled = compiled
    return step


@pytest.mark.slow
def test_remat_equals_storing_and_seeds_are_the_only_randomness(case):
    tower, inputs, variables = case
    step, remat = train_step(tower, inputs), train_step(tower.clone(remat="full"), inputs)
    stored, repeated = step(variables, 0), step(variables, 0)
    jax.tree.map(np.testing.assert_array_equal, repeated, stored)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        remat(variables, 0),
        stored,
    )
    _, (other, _) = step(variables, 1)
    assert np.abs(other - stored[1][0]).max() > 1e-3
    assert step.compiled._cache_size() == 1


@pytest.mark.slow
def test_bfloat16_is_close_and_keeps_float32_parameters(case):
    tower, inputs, variables = case
    half = tower.clone(dtype="bfloat16")
    shapes = jax.eval_shape(half.init, jax.random.key(0), *inputs)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(shapes))
    pooled, tokens = jax.jit(half.apply)(variables, *inputs)
    expected, _ = jax.jit(tower.apply)(variables, *inputs)
    assert pooled.dtype == tokens.dtype == jnp.bfloat16
    error = jnp.linalg.norm(pooled.astype(jnp.float32) - expected) / jnp.linalg.norm(expected)
    assert error < 0.03


def test_evaluation_treats_every_example_alone(case):
    tower, inputs, variables = case
    pooled, _ = jax.jit(tower.apply)(variables, *inputs)
    alone, _ = jax.jit(tower.apply)(variables, *(x[3:4] for x in inputs))
    np.testing.assert_allclose(alone, pooled[3:4], rtol=1e-4, atol=1e-5)
    assert tower.output_dim == pooled.shape[-1]


@pytest.mark.parametrize("name", TOWERS | MORE_TOWERS)
def test_variables_may_be_arrays_of_numpy(name):
    tower = (TOWERS | MORE_TOWERS)[name]
    if hasattr(tower, "max_length"):
        shape = 2, tower.max_length
        inputs = jnp.ones(shape, jnp.int32), jnp.ones(shape, bool)
    else:
        inputs = (jnp.ones((2, 32, 32, 3)),)
    variables = draw_variables(tower, *inputs)
    # Closed over, they stay what they are, as in a model that is applied without being compiled.
    given = jax.eval_shape(lambda *inputs: tower.apply(variables, *inputs), *inputs)
    assert given == jax.eval_shape(tower.apply, variables, *inputs)
