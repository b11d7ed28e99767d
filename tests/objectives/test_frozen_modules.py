"""What a run does not train stays as it is, with its statistics, and drops nothing."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.module_paths import fits
from big_align.objectives.align import Align
from big_align.parallel.batches import place_batch
from big_align.runs.providers import lock_frozen
from big_align.training.layer_rates import LayerRates
from big_align.training.step import accumulated_gradients, full_gradients
from tests import tiny

BATCH = tiny.make_batch(12)
FIRST = ("model/image/stem_norm", "model/image/block_00")


def make_objective(optimizer, **image):
    """An objective whose image tower has statistics and whose towers drop something."""
    model = tiny.make_model(dropout=0.5)
    tower = model.image.clone(depths=(3, 1), drop_path=0.5, **image)
    return Align(lock_frozen(model.clone(image=tower), {"optimizer": optimizer}), tiny.make_mesh())


def draw_weights(objective):
    batch = jax.tree.map(jnp.asarray, BATCH)
    params, state = nn.meta.unbox(objective.init(jax.random.PRNGKey(0), batch))
    return params, jax.tree.map(lambda x: x + jnp.float32(1 / 3), state)


def run(objective, weights, key=1, microbatches=1):
    """The loss and the new statistics of a step."""
    compute, more = full_gradients, ()
    if microbatches > 1:
        compute, more = accumulated_gradients, (microbatches,)
    batch = place_batch(BATCH, objective.mesh)
    arguments = batch, jax.random.PRNGKey(key), objective.mesh, *more
    _, state, loss, *_ = jax.jit(lambda: compute(objective, *weights, *arguments))()
    return float(loss), state["batch_stats"]["image"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer, still, image, microbatches",
    [
        ({"frozen": ("model/image",)}, ("*",), {}, 3),
        ({"rates": ("model/image=0",)}, ("*",), {"scan": True}, 1),
        ({"rates": ("model=0", "model/image=1")}, (), {}, 1),
        ({"frozen": FIRST}, ("stem_norm", "block_00"), {"scan": True}, 3),
        ({"frozen": FIRST}, ("stem_norm", "block_00"), {"remat": "full"}, 1),
        ({"frozen": ("model/image/block_01/norm_0",)}, ("block_01/norm_0",), {"scan": True}, 1),
        ({"rates": ("model/*/block_0?=0",)}, ("block_0?",), {"remat": "full", "scan": True}, 1),
    ],
)
def test_statistics_of_what_is_frozen_stay_and_no_others(optimizer, still, image, microbatches):
    objective = make_objective(optimizer, **image)
    weights = draw_weights(objective)
    before, after = weights[1]["batch_stats"]["image"], run(objective, weights, 1, microbatches)[1]
    patterns = [tuple(path.split("/")) for path in still]
    for path, old in jax.tree_util.tree_leaves_with_path(before):
        names = tuple(part.key for part in path)
        new = after
        for name in names:
            new = new[name]
        stays = any(fits(names, pattern) for pattern in patterns)
        assert np.array_equal(old, new) == stays, names


@pytest.mark.slow
@pytest.mark.parametrize("image", [{}, {"scan": True}])
def test_what_is_frozen_drops_nothing(image):
    """Other keys of dropout make another loss if a part is trained, and the same if none is."""
    blocks = [f"model/image/block_0{number}" for number in range(4)]
    for optimizer, same in (
        ({"frozen": ("model/text", *blocks)}, True),
        ({"frozen": ("model",)}, True),
        ({"frozen": ("model/text", *blocks[:-1])}, False),
        ({"frozen": ("model/image", "model/text/block_00")}, False),  # its embeddings are trained
    ):
        objective = make_objective(optimizer, **image)
        weights = draw_weights(objective)
        losses = {run(objective, weights, key)[0] for key in (1, 2, 3)}
        assert (len(losses) == 1) == same, optimizer


def test_a_tower_is_locked_however_it_is_named():
    def locked(**optimizer):
        return make_objective(optimizer).model.locked

    assert locked() == ()
    assert locked(frozen=("model/image", "temperature")) == ("image",)
    assert locked(frozen=("model",)) == ("image", "text")
    assert locked(rates=("model/*=0",)) == ("image", "text")
    assert locked(rates=("model/*/block_00=0",)) == ("image/block_00", "text/block_00")
    assert locked(frozen=("model/project_image",)) == ()
    made = make_objective({"rates": ("model/text=0",), "frozen": ("model/image/block_00",)})
    assert made.frozen == ("model/image/block_00", "model/text")


def test_a_rate_of_zero_counts_unless_a_later_one_may_change_it():
    def still(*rates):
        return LayerRates(rates=rates).still

    assert still("a/b=0", "c=1") == ("a/b",)
    assert still("a=0.5", "a/b=0") == ("a/b",)
    for later in ("a=1", "a/b=1", "a/b/c=0.1", "*=1", "a/*/c=1"):
        assert still("a/b=0", later) == ()
        assert LayerRates(rates=("a/b=0", later)).partly_still == ("a/b",)
    assert still("a/b=0", "a=0") == ("a/b", "a")
