"""Digests of weights tell models apart, whatever their type."""

import ml_dtypes
import numpy as np
import pytest

from big_align.runs.embedding.embed_source import digest_weights


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_any_weight_changes_the_digest_and_the_sign_of_zero_does_not(dtype):
    weights = {"kernel": np.arange(6).reshape(2, 3).astype(dtype), "scale": np.ones((), dtype)}
    digest = digest_weights(weights)
    assert digest_weights({name: weights[name] for name in reversed(weights)}) == digest
    changed = weights["kernel"].copy()
    changed[1, 2] = np.nextafter(dtype(5), dtype(6))
    assert digest_weights(weights | {"kernel": changed}) != digest
    assert digest_weights(weights | {"scale": np.full((), 2, dtype)}) != digest
    negative = weights["kernel"].copy()
    negative[0, 0] = -0.0
    assert digest_weights(weights | {"kernel": negative}) == digest
