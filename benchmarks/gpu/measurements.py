"""What on_gpu.py measures, in the order of worth, and the marks."""

import functools

from benchmarks.gpu import attention, checks, clusters, losses, norms, steps, theirs, ways
from benchmarks.gpu.session import Measurement, measure_rates
from benchmarks.gpu.tables import Mark

RATES = "rates"
L14, B16, MLCD, LOSS = "clip_l14", "clip_b16", "mlcd_b32", "loss_32768_bfloat16"


def _loss(batch: int, dtype: str, cost: float) -> Measurement:
    run = functools.partial(losses.measure_loss, batch=batch, dtype=dtype)
    return Measurement(f"loss_{batch}_{dtype}", cost, run)


def _attention(tokens: int, batch: int) -> Measurement:
    run = functools.partial(attention.measure_attention, tokens=tokens, batch=batch)
    return Measurement(f"attention_{tokens}", 15, run)


def _clip(name: str, sizes: steps.Sizes, batch: int, cost: float) -> Measurement:
    run = functools.partial(steps.measure_clip, sizes=sizes, size=batch)
    return Measurement(name, cost, run, apart=True)


def _masked(name: str, sizes: steps.Sizes, batch: int, cost: float) -> Measurement:
    run = functools.partial(steps.measure_masked, sizes=sizes, size=batch)
    return Measurement(name, cost, run, apart=True)


MEASUREMENTS = (
    Measurement(RATES, 15, measure_rates),
    Measurement("check_softmax", 60, checks.check_softmax),
    Measurement("check_centers", 15, checks.check_centers),
    Measurement("check_attention", 45, checks.check_attention),
    Measurement("check_norms", 25, norms.check_norms),
    Measurement("check_clusters", 20, clusters.check_clusters),
    _loss(32768, "bfloat16", 35),
    _loss(8192, "float32", 20),
    _loss(8192, "bfloat16", 20),
    _loss(32768, "float32", 35),
    _attention(50, 2048),
    _attention(257, 256),
    _attention(577, 64),
    Measurement("attention_windows", 15, attention.measure_windows),
    Measurement("norms", 10, norms.measure_norms),
    Measurement("batch_norms", 15, norms.measure_batch_norms),
    Measurement(MLCD, 130, steps.measure_mlcd, apart=True),
    _clip(L14, steps.L14, 128, 240),
    Measurement("largest_loss", 60, losses.find_largest, apart=True),
    Measurement("clusters", 30, clusters.measure_clusters, apart=True),
    _clip(B16, steps.B16, 256, 150),
    Measurement("unicl_swin", 100, steps.measure_unicl, apart=True),
    _masked("masked_b16", steps.B16, 256, 120),
    _masked("masked_l14", steps.L14, 128, 200),
)
"""The quick start, which runs the program itself, comes after them."""


MARKS = (
    Mark(f"speed against {theirs.OPEN_CLIP}", LOSS, ways.OURS, "speed", least=1.8),
    Mark(f"memory against {theirs.OPEN_CLIP}", LOSS, ways.OURS, "memory", most=0.1),
    Mark("share of a large product's rate", L14, steps.OURS, "share", least=0.55),
    Mark("images/s against open_clip", L14, steps.OURS, "speed", least=1.15),
    Mark("ms a step", MLCD, steps.OURS, "ms", most=130.0),
)
