"""Pictures of clusters: the right images beside the right labels, cosines and colors by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.evaluators.exhibits.clusters import find_examples
from big_align.pages.plots import cluster_pictures
from big_align.weights.formats.preprocessing import Preprocessing
from big_align.weights.formats.pretrained import Pretrained

SHARDS = [
    np.int32([[0, 1], [1, 0], [2, -1]]),
    np.int32([[1, 2], [0, 2], [-1, -1]]),
    np.int32([[2, 0], [0, 1]]),
]


def gray(place):
    return np.full((4, 4, 3), 10 * place[0] + place[1], np.uint8)


def shown(axes):
    return [int(axis.images[0].get_array()[0, 0, 0]) for axis in axes if axis.images]


def test_examples_are_those_of_the_first_label_first_and_in_order():
    found = find_examples(SHARDS, [2, 0], 3)
    assert found == {0: [(0, 0), (1, 1), (2, 1)], 2: [(0, 2), (2, 0), (1, 0)]}
    assert find_examples(SHARDS, [1], 9) == {1: [(0, 1), (1, 0), (0, 0), (2, 1)]}
    assert find_examples(SHARDS, [7], 2) == {7: []}


def test_reading_ends_where_every_cluster_has_its_examples():
    def shards():
        yield from SHARDS[:2]
        raise AssertionError("read too far")

    found = find_examples(shards(), [0, 1], 2)
    assert found == {0: [(0, 0), (1, 1)], 1: [(0, 1), (1, 0)]}


def test_an_image_stands_beside_the_examples_of_its_labels_without_itself():
    chosen = {(0, 0): [0, 1], (1, 0): [1, 2], (1, 2): []}
    examples = find_examples(SHARDS, [0, 1, 2], 4)
    figure = cluster_pictures.draw_labels(chosen, examples, gray, count=3)
    parts = [shown(part.axes) for part in figure.subfigs]
    assert parts == [[0, 11, 21, 1, 1, 10, 21], [10, 1, 0, 21, 2, 20, 11], [12]]
    titles = [[axis.get_title("left") for axis in part.axes] for part in figure.subfigs]
    named = [[title for title in part if title] for part in titles]
    assert named == [["cluster 0", "cluster 1"], ["cluster 1", "cluster 2"], []]
    figure.canvas.draw()  # The layout has room for everything.


def draw_cosine_data():
    rng = np.random.default_rng(0)
    centers, zimg = rng.normal(size=(12, 6)), rng.normal(size=(20, 6))
    clusters = np.argsort(rng.random((20, 12)))[:, :3].astype(np.int32)
    clusters[::4, 2] = -1
    clusters[7] = -1
    return zimg, clusters, centers


def test_cosines_by_hand_in_any_batches_and_lengths():
    zimg, clusters, centers = draw_cosine_data()
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (zimg, centers)]
    cosine = unit[0] @ unit[1].T
    sides = [[], []]
    for row in np.flatnonzero(np.arange(20) != 7):
        for label in range(12):
            sides[label not in clusters[row]].append(cosine[row, label])
    whole = cluster_pictures.measure_cosines([(zimg, clusters)], centers)
    parts = [(3 * zimg[:9].astype(np.float16), clusters[:9]), (zimg[9:], clusters[9:])]
    split = cluster_pictures.measure_cosines(parts, 5 * centers)
    for measured, tolerance in ((whole, 1e-6), (split, 1e-3)):
        means = measured.positive_mean, measured.negative_mean
        np.testing.assert_allclose(means, [np.mean(side) for side in sides], atol=tolerance)
    bins = cluster_pictures.BINS
    for counts, side in zip((whole.positive, whole.negative), sides, strict=True):
        np.testing.assert_array_equal(counts, np.histogram(side, bins, (-1, 1))[0])


def test_drawn_negatives_depend_on_the_seed_and_are_no_labels():
    zimg, clusters, centers = draw_cosine_data()
    first, again, other = (
        cluster_pictures.measure_cosines([(zimg, clusters)], centers, negatives=4, seed=seed)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.negative, again.negative)
    assert np.any(first.negative != other.negative)
    every = cluster_pictures.measure_cosines([(zimg, clusters)], centers)
    assert np.all(first.negative <= every.negative) and first.negative.sum() < 19 * 4
    np.testing.assert_array_equal(first.positive, every.positive)


def test_what_does_not_fit_is_named():
    zimg, clusters, centers = draw_cosine_data()
    with pytest.raises(ValueError, match="6 numbers and centers 5"):
        cluster_pictures.measure_cosines([(zimg, clusters)], centers[:, :5])
    with pytest.raises(ValueError, match="the label 11, but there are 8 centers"):
        cluster_pictures.measure_cosines([(zimg, clusters)], centers[:8])


def test_histograms_have_area_one_and_means_follow_the_order():
    zimg, clusters, centers = draw_cosine_data()
    series = {
        step: cluster_pictures.measure_cosines([(zimg + x, clusters)], centers)
        for step, x in {"10": 0.0, "20": 1.0, "30": 2.0}.items()
    }
    figure = cluster_pictures.draw_cosines(series)
    assert len(figure.axes) == 4
    for axis in figure.axes[:2]:
        assert [line.get_label() for line in axis.lines] == ["10", "20", "30"]
        for line in axis.lines:
            np.testing.assert_allclose(line.get_ydata().mean() * 2, 1)
    means = figure.axes[2].lines[0].get_ydata()
    np.testing.assert_array_equal(means, [x.positive_mean for x in series.values()])
    few = {step: series[step] for step in ("10", "30")}
    assert len(cluster_pictures.draw_cosines(few).axes) == 2  # two points are no curve


def make_gradient():
    """Patches that change by 8 from row to row in one direction, by 2 a column in another."""
    y, x = np.mgrid[:5, :4]
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0][:2]
    return (8 * y[..., None] * axes[0] + 2 * x[..., None] * axes[1] + 3).astype(np.float32)[None]


def test_components_of_a_gradient_are_its_directions_as_colors():
    components = cluster_pictures.find_components(make_gradient())
    y, x = np.mgrid[:5, :4]
    for axis, expected in enumerate((8 * (y - 2), 2 * (x - 1.5))):
        found = components[0, ..., axis]
        np.testing.assert_allclose(found, expected * np.sign(found[-1, -1]), atol=1e-4)
    np.testing.assert_allclose(components[0, ..., 2], 0, atol=1e-4)
    colors = cluster_pictures.color_components(components)
    steps = np.stack([y / 4, x / 3], -1)
    expected = np.where(components[0, -1, -1, :2] > 0, steps, 1 - steps)
    np.testing.assert_allclose(colors[0, ..., :2] / 255, expected, atol=0.003)
    assert np.all(colors[..., 2] == 128)  # No third direction: nothing to exaggerate.


@pytest.mark.parametrize("sign", [1, -1])
def test_the_object_in_the_middle_is_the_foreground_whatever_the_sign(sign):
    rng = np.random.default_rng(1)
    middle = np.zeros((6, 6), bool)
    middle[2:4, 2:5] = True
    features = sign * (10.0 * middle[..., None] + rng.normal(size=(6, 6, 8)))[None]
    components = cluster_pictures.find_components(features.astype(np.float32))
    np.testing.assert_array_equal(components[0, ..., 0] > 0, middle)
    colors = cluster_pictures.color_components(components, middle[None])[0]
    assert not np.any(colors[~middle])
    spread = colors[middle]
    np.testing.assert_array_equal([spread.min(0), spread.max(0)], [[0] * 3, [255] * 3])
    assert not np.any(cluster_pictures.color_components(components, np.zeros((1, 6, 6), bool)))


def test_turning_the_features_changes_no_component_but_by_its_sign():
    rng = np.random.default_rng(2)
    features = rng.normal(size=(2, 4, 4, 5)) * [5, 4, 3, 2, 1]
    turn = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    both = [cluster_pictures.find_components(np.float32(x)) for x in (features, features @ turn)]
    np.testing.assert_allclose(*map(np.abs, both), atol=1e-4)


def test_images_stand_above_the_colors_of_their_own_patches():
    rng = np.random.default_rng(3)
    images = np.stack([gray((0, 5)), gray((0, 9))])
    features = rng.normal(size=(2, 4, 4, 6)).astype(np.float32)
    figure = cluster_pictures.draw_patches(images, features)
    pictures = [axis.images[0].get_array() for axis in figure.axes]
    assert [int(picture[0, 0, 0]) for picture in pictures[:2]] == [5, 9]
    for one, picture in zip(features, pictures[2:4], strict=True):
        components = cluster_pictures.find_components(one[None])
        colors = cluster_pictures.color_components(components, components[..., 0] > 0)
        np.testing.assert_array_equal(picture, colors[0])
    together = cluster_pictures.color_components(cluster_pictures.find_components(features))
    np.testing.assert_array_equal(pictures[4:], together)


@pytest.mark.slow
def test_patch_features_are_the_tokens_of_the_tower_in_their_places():
    """A change in one patch of the picture is largest at that patch."""
    node = {"name": "vit", "variant": "ti/4", "width": 16, "depth": 1, "heads": 2, "mlp_dim": 32}
    image = np.random.default_rng(0).integers(0, 256, (2, 12, 12, 3), np.uint8)
    model, zeros = Pretrained(node, {}).model, jnp.zeros((1, 12, 12, 3))
    variables = nn.meta.unbox(model.init(jax.random.PRNGKey(0), zeros))
    pretrained = Pretrained(node, variables, 12, Preprocessing(12, 12))
    before = cluster_pictures.patch_features(pretrained, image)
    changed = image.copy()
    changed[1, 4:8, 8:12] = 255 - changed[1, 4:8, 8:12]
    after = cluster_pictures.patch_features(pretrained, changed)
    assert before.shape == (2, 3, 3, 16)
    gap = np.abs(after - before).max(-1)
    assert np.unravel_index(gap.argmax(), gap.shape) == (1, 1, 2)
    np.testing.assert_array_equal(gap[0], 0)


@pytest.mark.slow
def test_a_model_that_does_not_tell_how_images_are_made_is_an_error():
    with pytest.raises(ValueError, match="does not say how its images are preprocessed"):
        cluster_pictures.find_preprocessing(Pretrained({"name": "vit"}, {}))
