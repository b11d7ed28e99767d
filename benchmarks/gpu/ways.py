"""The ways in which this package computes a thing, in one place: arguments of public functions.

A new way is a line here. The first of each table is what a run gets, by device, type and shape.
"""

from typing import Any

OURS = "ours"
Ways = dict[str, dict[str, Any]]

BLOCK = 2048
"""Rows of logits that are in memory at a time, where they are."""
CONTRASTIVE: Ways = {
    OURS: {},
    "ours, logits kept": {"block": BLOCK, "keep_logits_bytes": 2**50},
    "ours, recomputed": {"block": BLOCK, "keep_logits_bytes": 0},
}
"""Of `losses.blockwise_contrastive.blockwise_contrastive_loss`."""
LARGEST = OURS
"""The way that needs the least memory."""
CHECKED: Ways = {OURS: {}, "ours, in blocks": {"block": 256}, "ours, in tiles": {"block": "tiles"}}
"""Of all losses, where they are compared with the plain formulas."""
ONLY_BFLOAT16 = {"ours, in tiles"}
"""Ways that there are for one type."""
PLAIN = "ours, plain"
ATTENTION: Ways = {
    OURS: {},
    PLAIN: {"way": "plain"},
    "ours, cudnn": {"way": "cudnn"},
    "ours, triton": {"way": "triton"},
}
"""Of `models.parts.attention.attend`."""
WITHOUT_KERNEL = "ours, without a kernel"
NORMS = {OURS: True, WITHOUT_KERNEL: False}
"""Whether a kernel normalizes, of `models.parts.narrow.Settings` and `batch_norm.BatchSettings`."""
