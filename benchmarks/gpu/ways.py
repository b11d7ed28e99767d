"""The ways in which this package computes a thing, in one place: arguments of public functions.

A new way is a line here. The first of each table is what a run gets, by device, type and shape.
"""

from typing import Any

OURS = "ours"
Ways = dict[str, dict[str, Any]]

CONTRASTIVE: Ways = {
    OURS: {},
    "ours, logits kept": {"keep_logits_bytes": 2**50},
    "ours, recomputed": {"keep_logits_bytes": 0},
}
"""Of `losses.blockwise_contrastive.blockwise_contrastive_loss`."""
LARGEST = "ours, recomputed"
"""The way that needs the least memory."""
SIGMOID: Ways = {OURS: {}}
"""Of `losses.sigmoid.blockwise_sigmoid_loss`."""
CENTERS: Ways = {OURS: {}}
"""Of `losses.sampled_cluster_discrimination.sampled_cluster_loss`."""
PLAIN = "ours, plain"
ATTENTION: Ways = {OURS: {}, PLAIN: {"way": "plain"}}
"""Of `models.parts.attention.attend`."""
