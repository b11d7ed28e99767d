"""Negatives are the sampled centers (MLCD §3.2): equality with a loop over images in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.losses.cluster_discrimination import mlc_loss, mlcd_loss, unicom_loss
from big_align.losses.sampled_cluster_discrimination import sampled_cluster_loss
from big_align.parallel.meshes import make_mesh
from big_align.training.row_tables import draw_rows, pad_rows

PLAIN = {"mlcd": mlcd_loss, "mlc": mlc_loss, "unicom": unicom_loss}
B, K, L, D, SCALE, MARGIN = 13, 61, 4, 6, 5.0, 0.3


def make_batch():
    """Embeddings, centers and labels: some missing, repeated or wrong, some images without any."""
    rng = np.random.default_rng(0)
    zimg, centers = rng.normal(size=(B, D)), rng.normal(size=(K, D))
    zimg /= np.linalg.norm(zimg, axis=1, keepdims=True)
    labels = rng.integers(0, K, (B, L))
    labels[rng.random((B, L)) < 0.2] = -1
    labels[:5, 1], labels[3, 2], labels[[6, 12]] = labels[:5, 0], K + 2, -1
    return zimg.astype(np.float32), centers.astype(np.float32), labels.astype(np.int32)


def loop(name, zimg, centers, labels, sampled, negatives):
    """The mean loss and its gradients, image by image, from eq. 3, 4 and 5 and by arccosine."""
    zimg, centers = np.float64(zimg), np.float64(centers)
    lengths = np.linalg.norm(centers, axis=1)
    own = [list(dict.fromkeys(i for i in row if 0 <= i < K)) for row in labels.tolist()]
    if name == "unicom":
        own = [[row[0]] if 0 <= row[0] < K else [] for row in labels.tolist()]
    pool = set(sampled.tolist()) | (set().union(*own) if negatives == "drawn" else set())
    real = [n for n in range(len(zimg)) if own[n]]
    value, zimg_grad, center_grad = 0.0, np.zeros_like(zimg), np.zeros_like(centers)
    share = []
    for n in real:
        slopes, s_n, s_p = {}, {}, {}
        for j in sorted(pool - set(own[n])):
            s_n[j] = np.exp(SCALE * (zimg[n] @ centers[j] / lengths[j]))
        for i in own[n]:
            angle = np.arccos(zimg[n] @ centers[i] / lengths[i])
            bend = np.sin(angle + MARGIN) / np.sin(angle)
            s_p[i] = np.exp(-SCALE * np.cos(angle + MARGIN)), bend
        many, few = sum(s_n.values()), sum(each for each, _ in s_p.values())
        if name == "mlcd":
            value += np.log(1 + many) + np.log(1 + few)
            by_many, by_few = 1 / (1 + many), 1 / (1 + few)
        else:
            value += np.log(1 + many * few)
            by_many, by_few = few / (1 + many * few), many / (1 + many * few)
        slopes |= {j: SCALE * each * by_many for j, each in s_n.items()}
        slopes |= {i: -SCALE * each * by_few * bend for i, (each, bend) in s_p.items()}
        for c, slope in slopes.items():
            direction = centers[c] / lengths[c]
            zimg_grad[n] += slope * direction
            across = zimg[n] - (zimg[n] @ direction) * direction
            center_grad[c] += slope * across / lengths[c]
        share.append(len(s_n))
    count = len(real)
    return (value / count, zimg_grad / count, center_grad / count), np.mean(share)


@functools.cache
def draw(devices, labels_per_image=L, ratio=0.3):
    _, centers, labels = make_batch()
    labels = labels[:, :labels_per_image]
    mesh = make_mesh(1, jax.devices()[:devices])
    values = jnp.pad(centers, ((0, pad_rows(K, mesh) - K), (0, 0)), constant_values=7)
    drawing = functools.partial(draw_rows, num_rows=K, ratio=ratio, mesh=mesh)
    return jax.jit(drawing)(values, jnp.asarray(labels), jax.random.key(3)), mesh


def run_ours(name, zimg, devices, negatives):
    drawn, mesh = draw(devices, 1 if name == "unicom" else L)

    def loss(zimg, rows):
        sampled = drawn.sampled if negatives == "sampled" else None
        options = {"scale": SCALE, "margin": MARGIN, "mesh": mesh, "block": 4}
        rest = drawn.mask, drawn.columns
        return sampled_cluster_loss(name, zimg, rows, *rest, sampled=sampled, **options)

    grad = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (value, metrics), (zimg_grad, row_grads) = grad(zimg, drawn.rows)
    ids = np.asarray(drawn.ids)
    center_grad = np.zeros((K, D))
    center_grad[ids[ids >= 0]] = np.asarray(row_grads)[ids >= 0]
    return (value, zimg_grad, center_grad), metrics, ids[np.asarray(drawn.sampled)]


def assert_close(actual, desired, tolerance=1e-5):
    for a, d in zip(actual, desired, strict=True):
        a = np.asarray(a, np.float64)
        np.testing.assert_allclose(a, d, rtol=0, atol=tolerance * np.abs(d).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("negatives", ["sampled", "drawn"])
def test_drawn_rows_equal_a_loop_over_images(name, devices, negatives):
    zimg, centers, labels = make_batch()
    ours, metrics, sampled = run_ours(name, zimg, devices, negatives)
    expected, negative_count = loop(name, zimg, centers, labels, sampled, negatives)
    assert_close(ours, expected)
    np.testing.assert_allclose(metrics["negatives"], negative_count, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("negatives", ["sampled", "drawn"])
def test_plain_formulas_equal_a_loop_over_images(name, negatives):
    zimg, centers, labels = map(jnp.asarray, make_batch())
    sampled = np.array([0, 5, 9, 9, 20, 33, labels[0, 0], labels[4, 3]])
    options = {"sampled": jnp.asarray(sampled), "negatives": negatives}

    def loss(zimg, centers):
        return PLAIN[name](zimg, centers, labels, scale=SCALE, margin=MARGIN, **options)

    value, grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(zimg, centers)
    assert_close((value, *grads), loop(name, *make_batch(), sampled, negatives)[0])


def test_bfloat16_embeddings_on_eight_devices_equal_a_loop_over_images():
    zimg, centers, labels = make_batch()
    narrow = jnp.asarray(zimg, jnp.bfloat16)
    ours, metrics, sampled = run_ours("mlcd", narrow, 8, "sampled")
    wide = np.asarray(narrow.astype(jnp.float32))
    (value, zimg_grad, center_grad), _ = loop("mlcd", wide, centers, labels, sampled, "sampled")
    assert_close((ours[0], ours[2]), (value, center_grad))
    assert ours[1].dtype == jnp.bfloat16
    assert_close(ours[1:2], (zimg_grad,), tolerance=2**-8)  # one rounding to 8 bits
    # A foreign positive that is not sampled counts nowhere: with it there were more.
    assert metrics["negatives"] < run_ours("mlcd", narrow, 8, "drawn")[1]["negatives"]


def test_mean_cosine_of_negatives_is_of_the_sampled_ones():
    zimg, centers, labels = make_batch()
    _, metrics, sampled = run_ours("mlcd", zimg, 8, "sampled")
    cosine = zimg @ (centers / np.linalg.norm(centers, axis=1, keepdims=True)).T
    own = [{i for i in row if 0 <= i < K} for row in labels.tolist()]
    each = [cosine[n, j] for n in range(B) if own[n] for j in set(sampled.tolist()) - own[n]]
    np.testing.assert_allclose(metrics["negative_cosine"], np.mean(each), atol=1e-6)
