"""Which patches training keeps, that nothing else counts, and what that saves."""

import collections
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from applied import apply_model
from drawn_variables import draw_variables

from big_align.models.parts import kept_patches, transformer
from big_align.models.vit import ViT

SMALL = {"variant": "ti/4", "width": 16, "depth": 2, "mlp_dim": 32, "heads": 2}
GRID = (4, 5)
IMAGES = 4000


def draw(by, keep, grid=GRID, images=IMAGES, seed=0):
    kept = kept_patches.count_kept(keep, grid, by)
    keys = jax.random.split(jax.random.PRNGKey(seed), images)
    return np.asarray(jax.jit(lambda: kept_patches.draw_kept(keys, grid, kept, by))())


def make_tower(**settings):
    model = ViT(**SMALL, **settings)
    image = jax.random.normal(jax.random.key(1), (3, 16, 20, 3))
    variables = draw_variables(model, image)
    keys = jax.random.split(jax.random.PRNGKey(5), len(image))
    return model, {**variables, "draws": {"keys": keys}}, image


def train(model, variables, image):
    run = jax.jit(lambda variables, image: model.apply(variables, image, True))
    return run(variables, image)


@pytest.mark.parametrize("by", kept_patches.WAYS)
@pytest.mark.parametrize("keep", [0.25, 0.5, 0.3])
def test_every_image_keeps_the_same_number_of_different_patches(by, keep):
    drawn, total = draw(by, keep), math.prod(GRID)
    count = kept_patches.count_kept(keep, GRID, by).count
    assert drawn.shape == (IMAGES, count)
    assert (np.diff(drawn, axis=1) > 0).all() and drawn.min() >= 0 and drawn.max() < total
    # A rectangle cannot have any number of patches: of 4 x 5 the nearest to 20 keep has.
    assert abs(count - keep * total) <= (0.5 if by == "random" else 1)


@pytest.mark.parametrize(
    ("keep", "by", "count"),
    [
        (0.25, "random", 49),
        (0.5, "block", 98),
        (0.25, "grid", 49),
        (12, "block", 12),
        (1, "grid", 196),
    ],
)
def test_counts_by_hand(keep, by, count):
    assert kept_patches.count_kept(keep, (14, 14), by).count == count


@pytest.mark.parametrize("by", ["random", "grid"])
@pytest.mark.parametrize("keep", [0.25, 0.5])
def test_every_patch_is_as_likely_as_any_other(by, keep):
    drawn = draw(by, keep)
    seen = np.bincount(drawn.ravel(), minlength=math.prod(GRID))
    # Patches of an image exclude each other, so that counts vary less than if they did not.
    spread = 1 - drawn.shape[1] / len(seen)
    expected = drawn.size / len(seen)
    square = np.square(seen - expected).sum() / (expected * spread) * (len(seen) - 1) / len(seen)
    if by == "random":
        assert 0.001 < scipy.stats.chi2.sf(square, len(seen) - 1) < 0.999
    else:  # cells that are drawn together: compare each patch alone
        z = (seen - expected) / np.sqrt(expected * spread)
        assert np.abs(z).max() < 4


def test_every_set_is_as_likely_as_any_other():
    drawn = draw("random", 2, (2, 3), 6000)
    counts = collections.Counter(map(tuple, drawn))
    assert len(counts) == math.comb(6, 2)
    assert scipy.stats.chisquare(list(counts.values())).pvalue > 0.001


def test_images_are_drawn_independently_of_each_other():
    drawn = draw("random", 2, (2, 3), 6000)
    table = np.zeros((6, 6))
    np.add.at(table, (drawn[:-1, 0], drawn[1:, 0]), 1)
    used = table[:5, :5]  # the first of two is never the last patch
    assert scipy.stats.chi2_contingency(used).pvalue > 0.001
    np.testing.assert_array_equal(draw("random", 0.5, images=10), draw("random", 0.5, images=10))
    assert (draw("random", 0.5, seed=1) != draw("random", 0.5)).any(axis=1).mean() > 0.9


def test_a_block_is_a_rectangle_anywhere_that_it_has_room():
    drawn = draw("block", 6)
    rows, columns = np.divmod(drawn, GRID[1])
    kept = kept_patches.count_kept(6, GRID, "block")
    assert (np.ptp(rows, axis=1) == kept.rows - 1).all()
    assert (np.ptp(columns, axis=1) == kept.columns - 1).all()
    places = collections.Counter(map(tuple, np.stack([rows[:, 0], columns[:, 0]], 1)))
    assert len(places) == (GRID[0] - kept.rows + 1) * (GRID[1] - kept.columns + 1)
    assert scipy.stats.chisquare(list(places.values())).pvalue > 0.001


def test_a_grid_keeps_one_patch_in_each_cell():
    drawn = draw("grid", 0.25, (4, 4))
    found = False
    for down in range(2):
        for right in range(2):
            rows, columns = np.divmod(drawn, 4)
            cells = (rows + down) % 4 // 2 * 2 + (columns + right) % 4 // 2
            found |= (np.sort(cells, axis=1) == np.arange(4)).all(axis=1)
    assert np.all(found)


@pytest.mark.parametrize("positions", ["learned", "sincos", "rotary"])
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_all_patches_are_no_masking_to_the_last_digit(positions, pool):
    model, variables, image = make_tower(positions=positions, pool=pool)
    expected = train(model, variables, image)
    for keep in (1.0, 20):
        found = train(model.clone(keep=keep), variables, image)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("positions", ["learned", "sincos", "rotary"])
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_what_is_kept_is_a_plain_pass_over_those_patches_alone(positions, pool):
    """The reference drops the tokens by a mask in attention instead, one image after another."""
    model, variables, image = make_tower(positions=positions, pool=pool, keep=0.4)
    pooled, tokens = train(model, variables, image)
    kept = kept_patches.draw_kept(
        variables["draws"]["keys"], GRID, kept_patches.count_kept(0.4, GRID, "random"), "random"
    )
    whole = _Masked(model.clone(keep=1.0), variables, kept)
    for n in range(len(image)):
        expected = whole(image, n)
        np.testing.assert_allclose(tokens[n], expected[kept[n]], atol=2e-6)
        if pool == "mean":
            np.testing.assert_allclose(pooled[n], expected[kept[n]].mean(0), atol=2e-6)


class _Masked:
    """Runs a tower on all tokens, with a mask over those of dropped patches."""

    def __init__(self, model, variables, kept):
        self.model, self.variables, self.kept = model, variables, kept

    def __call__(self, image, n):
        first = self.model.pool == "cls"
        mask = np.zeros((1, math.prod(GRID) + first), bool)
        mask[0, np.asarray(self.kept[n]) + first] = True
        mask[0, :first] = True
        plain = transformer.TransformerBlock.__call__

        def masked(block, x, _, angles, train):
            return plain(block, x, jnp.asarray(mask), angles, train)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transformer.TransformerBlock, "__call__", masked)
            return self.model.apply(self.variables, image[n : n + 1], False)[1][0]


@pytest.mark.parametrize("by", kept_patches.WAYS)
def test_pixels_of_dropped_patches_change_nothing(by):
    model, variables, image = make_tower(keep=0.3, keep_by=by)
    kept = np.asarray(
        kept_patches.draw_kept(
            variables["draws"]["keys"], GRID, kept_patches.count_kept(0.3, GRID, by), by
        )
    )
    seen = np.zeros((3, 20), bool)
    np.put_along_axis(seen, kept, True, axis=1)
    pixels = seen.reshape(3, *GRID).repeat(4, axis=1).repeat(4, axis=2)[..., None]

    def loss(params, image):
        return jnp.square(model.apply({**variables, "params": params}, image, True)[0]).sum()

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    value, (grads, image_grad) = run(variables["params"], image)
    other = run(variables["params"], jnp.where(pixels, image, 100.0 - image))
    np.testing.assert_array_equal(value, other[0])
    jax.tree.map(np.testing.assert_array_equal, grads, other[1][0])
    touched = np.abs(np.asarray(image_grad)).reshape(3, 4, 4, 5, 4, 3).max((2, 4, 5)) > 0
    np.testing.assert_array_equal(touched.reshape(3, 20), seen)
    # Learned positions of patches that no image kept have no gradient; all others have.
    rows = np.abs(grads["position_embedding"]).max(-1).ravel() > 0
    np.testing.assert_array_equal(rows, seen.any(0))


def test_the_gradient_of_positions_is_that_of_a_lookup():
    table = jax.random.normal(jax.random.key(0), (7, 3))
    kept = jnp.array([[0, 3, 6], [1, 3, 4]])
    weight = jax.random.normal(jax.random.key(1), (2, 3, 3))
    gradients = [
        jax.grad(lambda t, look_up=look_up: (look_up(t, kept) * weight).sum())(table)
        for look_up in (kept_patches.take_positions, lambda t, k: t[k])
    ]
    np.testing.assert_allclose(*gradients, rtol=1e-6)


def test_all_patches_are_written_only_in_the_type_of_the_tower():
    """XLA fuses no cast with a gather on TPUs, so that of all patches comes first."""
    model, variables, image = make_tower(keep=0.4, dtype="bfloat16")
    program = str(jax.make_jaxpr(lambda: model.apply(variables, image, True))())
    assert "bf16[3,20,48]" in program and "f32[3,20,48]" not in program


def test_evaluation_keeps_everything_and_training_draws_again():
    model, variables, image = make_tower(keep=0.3)
    whole = model.clone(keep=1.0)
    evaluated, expected = (apply_model(m, variables, image) for m in (model, whole))
    jax.tree.map(np.testing.assert_array_equal, evaluated, expected)
    one, _ = train(model, variables, image)
    other, _ = train(model, {**variables, "draws": {"keys": variables["draws"]["keys"] + 1}}, image)
    assert (np.abs(one - other).max(axis=1) > 1e-4).all()


def test_without_keys_of_images_those_of_dropout_draw():
    model, variables, image = make_tower(keep=0.3)
    run = jax.jit(
        lambda key: model.apply({"params": variables["params"]}, image, True, rngs={"dropout": key})
    )
    one, again, other = (run(jax.random.key(n))[0] for n in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 1e-4


def test_the_cost_falls_with_the_patches():
    def count(keep):
        model = ViT("b/32", depth=2, keep=keep)
        image = jax.ShapeDtypeStruct((4, 224, 224, 3), jnp.float32)
        key = jax.random.PRNGKey(0)
        shapes = jax.eval_shape(model.init, key, image)
        run = jax.jit(lambda v, x: model.apply(v, x, True, rngs={"dropout": key}))
        return run.lower(shapes, image).cost_analysis()["flops"]

    # 13 of 50 tokens; what attention costs falls with their square.
    assert count(12) / count(1) == pytest.approx(13 / 50, rel=0.05)
