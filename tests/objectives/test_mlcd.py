"""MLCD's objective: what it compares is eq. 5 of the drawn centers, on any number of devices."""

import functools
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from big_align.errors import ConfigError, UserError
from big_align.losses.cluster_discrimination import mlc_loss, mlcd_loss, unicom_loss
from big_align.objectives.mlcd import Mlcd
from big_align.parallel.meshes import batch_sharding
from big_align.row_tables import join_rows, split_rows
from big_align.training.optimizers import make_optimizer, make_row_optimizer
from tests import tiny

K, LABELS = 37, 3
PLAIN = {"mlcd": mlcd_loss, "mlc": mlc_loss, "unicom": unicom_loss}


def make_objective(devices=1, **options):
    options = {"labels_per_image": LABELS, "scale": 8.0, "margin": 0.2} | options
    return Mlcd(tiny.make_model(group_size=1), tiny.make_mesh(devices), K, **options)


def make_batch(size=8, seed=0, masked=2):
    rng = np.random.default_rng(seed)
    clusters = rng.integers(-1, K, (size, LABELS + 2)).astype(np.int32)
    clusters[0, 0] = K + 3
    return jax.tree.map(jnp.asarray, tiny.make_batch(size, seed, masked) | {"clusters": clusters})


def make_params(objective):
    return nn.meta.unbox(jax.jit(objective.init)(jax.random.PRNGKey(0), make_batch(2)))


def make_tables(objective, name="adamw", **options):
    optimizer = make_row_optimizer(name, **options)
    make = jax.jit(
        lambda rng: jax.tree.map(optimizer.init, objective.init_tables(rng)),
        out_shardings=batch_sharding(objective.mesh),
    )
    return make(jax.random.PRNGKey(1))


def differentiate(objective, params, model_state, tables, batch, seed=2):
    """Draws, and differentiates with respect to the parameters and the drawn rows."""
    rng = jax.random.PRNGKey(seed)
    drawn = objective.draw(tables, batch, rng)

    def loss(params, rows):
        outputs, _ = objective.encode(params, model_state, batch, rng)
        shown = {**params, "drawn": join_rows(drawn, rows)}
        return objective.loss(shown, outputs, None, batch)

    grad = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    return *grad(params, split_rows(drawn)), drawn


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, devices, negatives",
    [
        *(("mlcd", devices, names) for devices in (1, 4) for names in ("sampled", "drawn")),
        *(("mlc", 4, "sampled"), ("unicom", 1, "sampled"), ("unicom", 4, "drawn")),
    ],
)
def test_loss_is_the_plain_formula_of_what_was_drawn(name, devices, negatives):
    objective = make_objective(devices, loss=name, negatives=negatives, sampling_ratio=0.3)
    batch = make_batch()
    params, model_state = make_params(objective)
    tables = make_tables(objective)
    run = jax.jit(functools.partial(differentiate, objective))
    (value, metrics), _, drawn = run(params, model_state, tables, batch)
    drawn = drawn["centers"]
    numbers = np.asarray(drawn.ids)

    centers = jnp.asarray(np.asarray(tables["centers"].values)[:K])
    outputs, _ = objective.encode(params, model_state, batch, jax.random.PRNGKey(0))
    expected = PLAIN[name](
        outputs["zimg"],
        centers,
        batch["clusters"][:, :LABELS],
        batch["mask"],
        sampled=jnp.where(drawn.sampled, numbers, -1),
        negatives=negatives,
        scale=8.0,
        margin=0.2,
    )
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    assert_share(metrics["negative_share"], batch, drawn, objective)
    assert metrics["labels_outside"] == 1
    assert metrics["centers_drawn"] == (numbers >= 0).sum() < K


def assert_share(share, batch, drawn, objective):
    """The share of the centers that are not an image's own of which it has seen the cosine."""
    chosen = drawn.mask if objective.negatives == "drawn" else drawn.sampled
    candidates = set(np.asarray(drawn.ids)[np.asarray(chosen)].tolist())
    counts = []
    given = np.asarray(batch["clusters"][:, : objective.labels_per_image]).tolist()
    for labels, real in zip(given, batch["mask"], strict=True):
        if own := {i for i in labels if 0 <= i < K and real}:
            counts.append((len(candidates - own), K - len(own)))
    seen, all_others = np.sum(counts, axis=0)
    np.testing.assert_allclose(share, seen / all_others, rtol=1e-5)
    if objective.negatives == "sampled":
        np.testing.assert_allclose(share, 0.3, atol=0.05)


@pytest.mark.slow
def test_steps_bring_images_to_their_centers_and_away_from_others():
    objective, batch = make_objective(4, scale=16.0, sampling_ratio=0.5), make_batch(16)
    params, model_state = make_params(objective)
    options = {"name": "adamw", "weight_decay": 0.01}
    optimizer, rows = make_optimizer(1e-2, **options), make_row_optimizer(**options)

    @functools.partial(jax.jit, donate_argnums=2)
    def step(params, opt_state, tables, seed):
        (loss, metrics), (grads, row_grads), drawn = differentiate(
            objective, params, model_state, tables, batch, seed
        )
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = jax.tree.map(jnp.add, params, updates)
        rate, mesh = jnp.float32(1e-2), objective.mesh
        tables = {
            name: rows.update(table, drawn[name], row_grads[name], rate, mesh)
            for name, table in tables.items()
        }
        return params, opt_state, tables, metrics | {"loss": loss}

    opt_state, tables, logged = optimizer.init(params), make_tables(objective, **options), []
    for seed in range(30):
        params, opt_state, tables, metrics = step(params, opt_state, tables, seed)
        logged.append({k: float(v) for k, v in metrics.items()})
    first, last = logged[0], logged[-1]
    assert last["loss"] < first["loss"] / 2
    assert last["positive_cosine"] > first["positive_cosine"] + 0.15
    assert last["negative_cosine"] < last["positive_cosine"] - 0.15
    count = optax.tree_utils.tree_get(tables["centers"].state, "count")[:K]
    positives = np.unique(batch["clusters"][:14, :LABELS])
    assert (count[positives[(positives >= 0) & (positives < K)]] == 30).all()
    assert count.min() < 30


@pytest.mark.slow
def test_masked_images_draw_nothing():
    objective, batch = make_objective(sampling_ratio=0.01), make_batch(masked=8)
    drawn = objective.draw(make_tables(objective), batch, jax.random.PRNGKey(0))["centers"]
    assert drawn.mask.sum() == 0 and (drawn.columns == -1).all()


@pytest.mark.slow
def test_there_is_no_text_side_and_embeddings_are_of_length_one():
    objective = make_objective()
    params, model_state = make_params(objective)
    assert set(params["model"]) == {"image"}
    zimg = objective.embed_image(params, model_state, make_batch(3, masked=0))
    np.testing.assert_allclose(np.linalg.norm(zimg, axis=1), 1, rtol=1e-5)
    with pytest.raises(ValueError, match="no text side"):
        objective.embed_text(params, model_state, make_batch(2))


def test_fewer_clusters_than_labels_is_an_error_that_names_both():
    objective = make_objective(labels_per_image=6)
    with pytest.raises(ValueError, match="labels_per_image = 6, but the data have 5 clusters"):
        objective.draw(make_tables(objective), make_batch(), jax.random.PRNGKey(0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss": "arcface"},
        {"labels_per_image": K + 1},
        {"labels_per_image": 0},
        {"sampling_ratio": 0.0},
        {"negatives": "all"},
        {"scale": -1.0},
        {"scale": float("inf")},
        {"scale": float("nan")},
        {"margin": 2.0},
    ],
)
def test_values_out_of_range_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make_objective(**wrong)


def test_clusters_must_be_made_with_the_similarity_that_is_asked_for(tmp_path):
    folders = {"clusters": str(tmp_path)}
    index = {"format": 1, "k": K, "labels_per_image": LABELS}
    for made, wanted, right in ((0.9, 0.9, True), (0.9, None, True), (None, 0.9, False)):
        index["made_by"] = {"min_similarity": made}
        (tmp_path / "index.json").write_text(json.dumps(index))
        objective = make_objective(min_similarity=wanted)
        if right:
            objective.check_precomputed(folders, "config.data")
            continue
        with pytest.raises(ConfigError, match=r"min_similarity = 0.9, but .* was made with None"):
            objective.check_precomputed(folders, "config.data")


def test_one_cluster_is_no_classification():
    with pytest.raises(ValueError, match="num_clusters = 1"):
        Mlcd(tiny.make_model(), tiny.make_mesh(), 1)


@pytest.mark.parametrize("wrong", [{"k": 24.0}, {"k": True}, {"labels_per_image": "8"}, {"k": -1}])
def test_metadata_of_clusters_with_a_wrong_size_are_told_with_the_file(tmp_path, wrong):
    index = {"format": 1, "k": K, "labels_per_image": LABELS} | wrong
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=rf"index.json: `{next(iter(wrong))}` is .*: no size"):
        make_objective().check_precomputed({"clusters": str(tmp_path)}, "config.data")
