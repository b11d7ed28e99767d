"""ScaNN finds most of the nearest centers, and what it finds has its true cosine."""

import numpy as np

from big_align.use.clusters import scann_search
from big_align.use.clusters.kmeans_init import Sample, scale_rows
from big_align.use.clusters.scann_search import ScannSearch


def test_most_of_the_nearest_are_found_with_their_cosines():
    rng = np.random.default_rng(0)
    count = scann_search.EXACT_MAX + 1000
    centers = scale_rows(rng.normal(size=(count, 32)))
    values = 3 * centers[:200] + 0.2 * rng.normal(size=(200, 32)).astype(np.float32)
    found = list(ScannSearch(centers, 8, 70)(Sample(values)))
    assert [len(label) for _, label in found] == [70, 70, 60]
    cosine, label = (np.concatenate(x) for x in zip(*found, strict=True))
    every = scale_rows(values) @ centers.T
    np.testing.assert_allclose(cosine, np.take_along_axis(every, label, 1), atol=1e-5)
    assert (np.diff(cosine, axis=1) <= 0).all()
    nearest = np.argsort(-every, axis=1)[:, :8]
    recall = [len(set(a) & set(b)) / 8 for a, b in zip(nearest, label, strict=True)]
    assert np.mean(recall) > 0.8 and (label[:, 0] == nearest[:, 0]).mean() > 0.95
