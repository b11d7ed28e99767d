"""Fresh arrays are those of one program, and equal draws are compiled once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from big_align.models.bert import Bert
from big_align.models.dual_encoder import DualEncoder
from big_align.models.efficientnet import EfficientNet
from big_align.models.vit import ViT
from big_align.objectives.align import Align
from big_align.objectives.clip import Clip
from big_align.objectives.mlcd import Mlcd
from big_align.parallel.meshes import make_mesh, replicated
from big_align.training.initialization import Fresh
from big_align.training.optimizers import make_optimizer, make_row_optimizer
from big_align.training.state import TrainState, describe_state
from tests import tiny

COMPILED = "/jax/core/compile/backend_compile_duration"
BATCH = {**tiny.make_batch(1), "clusters": np.zeros((1, 3), np.int32)}


def make_vit(depth=2, mlp_dim=32, **options):
    sizes = {"width": 16, "depth": depth, "heads": 2, "mlp_dim": mlp_dim}
    text = Bert(**sizes, vocab_size=tiny.VOCAB, max_length=tiny.LENGTH, **options)
    image = ViT("b/4", **sizes, **options)
    return DualEncoder(image, text, 24, image_projection=True)


def make_efficientnet():
    image = EfficientNet("b0", width=0.25, depth=0.3)
    return DualEncoder(image, tiny.make_model().text)


OBJECTIVES = {
    "residual": lambda mesh: tiny.make_objective(mesh),
    "mobile": lambda mesh: Align(make_efficientnet(), mesh),
    "loop": lambda mesh: Clip(make_vit(scan=True, remat="full"), mesh),
    "blocks": lambda mesh: Clip(make_vit(), mesh),
    "table": lambda mesh: Mlcd(make_vit(), mesh, 29, labels_per_image=3),
}


def describe(objective, mesh):
    rows = make_row_optimizer("adamw") if objective.table_sizes else None
    given = objective, make_optimizer(0.1, "adamw"), BATCH, mesh
    return describe_state(*given, seed=1, averaged=True, row_optimizer=rows)


def make_whole(objective):
    """The state by one program, as it is defined."""
    optimizer, rows = make_optimizer(0.1, "adamw"), make_row_optimizer("adamw")

    def create():
        init_rng, train_rng, table_rng = jax.random.split(jax.random.PRNGKey(1), 3)
        weights = nn.meta.unbox(objective.init(init_rng, jax.tree.map(jnp.asarray, BATCH)))
        tables = {name: rows.init(x) for name, x in objective.init_tables(table_rng).items()}
        moments = optimizer.init(weights[0])
        return TrainState(jnp.int32(0), *weights, moments, train_rng, weights, tables)

    return jax.jit(create)()


def assert_equal(one, two):
    assert jax.tree.structure(one) == jax.tree.structure(two)
    jax.tree.map(np.testing.assert_array_equal, one, two)
    jax.tree.map(lambda x, y: np.testing.assert_equal(x.dtype, y.dtype), one, two)


@pytest.mark.slow_repeats
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=[pytest.mark.slow] * (x not in ("blocks", "table")))
        for x in OBJECTIVES
    ],
)
def test_a_state_is_that_of_one_program_on_any_number_of_devices(name):
    one, eight = tiny.make_mesh(1), tiny.make_mesh(8, fsdp=4)
    whole = make_whole(OBJECTIVES[name](one))
    assert_equal(describe(OBJECTIVES[name](one), one)[1](), whole)
    described, create = describe(OBJECTIVES[name](eight), eight)
    state = create()
    without_padding = lambda x: np.asarray(x)[:29]  # noqa: E731
    assert_equal(
        jax.tree.map(without_padding, state.tables), jax.tree.map(without_padding, whole.tables)
    )
    assert_equal(state.replace(tables={}), whole.replace(tables={}))
    jax.tree.map(lambda x, d: np.testing.assert_equal(x.sharding, d.sharding), state, described)
    assert any(not x.sharding.is_fully_replicated for x in jax.tree.leaves(state.params))


@pytest.mark.slow
def test_a_mesh_of_other_devices_than_the_first():
    mesh = make_mesh(2, jax.devices()[4:])
    described, create = describe(OBJECTIVES["table"](mesh), mesh)
    state = create()
    jax.tree.map(lambda x, d: np.testing.assert_equal(x.sharding, d.sharding), state, described)


def test_no_array_shares_memory_with_another():
    mesh = tiny.make_mesh()
    state = describe(OBJECTIVES["residual"](mesh), mesh)[1]()
    places = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(state)]
    assert len(set(places)) == len(places)


@pytest.fixture
def compiled():
    """Gives a list that has an entry for each program compiled so far."""
    events = []

    def listen(event, *_, **__):
        if event == COMPILED:
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize(
    ("remat", "mlp_dim"), [("none", 40), pytest.param("full", 48, marks=pytest.mark.slow)]
)
def test_more_blocks_are_no_more_to_compile(compiled, remat, mlp_dim):
    mesh = tiny.make_mesh()
    creates = [  # of a size that no other test has
        describe(Clip(make_vit(depth, remat=remat, mlp_dim=mlp_dim), mesh), mesh)[1]
        for depth in (1, 5)
    ]
    creates[0]()
    before = len(compiled)
    assert before
    creates[1]()
    assert len(compiled) == before


@pytest.mark.slow
def test_what_is_nearly_equal_is_told_apart():
    key, given = jax.random.key(3), np.arange(6.0)

    def make():
        folded = jax.random.fold_in(key, 1)
        one, two = jax.random.split(jax.random.fold_in(folded, jnp.arange(3)[2]))
        return {
            "zeros": [jnp.zeros(3), jnp.zeros(3), -jnp.zeros(3), jnp.full(3, -0.0)],
            "ones": [jnp.full(3, x) for x in (1, 1.0, True, np.float16(1), np.int8(1))],
            "draws": [jax.random.normal(x, 3) for x in (key, folded, one, two, folded)],
            "others": [jax.random.uniform(folded, 3, minval=x) for x in (-1.0, -2.0)],
            "given": [jnp.asarray(given), given[2:] + jnp.zeros(4), jnp.asarray(given) * 2],
            "numbers": [jnp.float32(2), jnp.int32(2), 3.0, jnp.asarray(key_data(one))],
            "loop": jax.lax.fori_loop(0, 3, lambda i, x: x + jax.random.normal(one, 2), np.ones(2)),
        }

    key_data = jax.random.key_data
    fresh, whole = Fresh(make), replicated(tiny.make_mesh(2))
    made = fresh.make(jax.tree.map(lambda _: whole, fresh.shapes), whole)
    wanted = jax.jit(make)()
    assert_equal(made, wanted)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.signbit(x), np.signbit(y)),
                 made["zeros"], wanted["zeros"])  # fmt: skip
