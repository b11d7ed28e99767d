"""Blocks are small on CPUs, and large on GPUs; the numbers do not depend on it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.losses.blocks import choose_blocks, compare_in_registers, count_blocks
from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.losses.sampled_cluster_discrimination import sampled_cluster_loss
from big_align.losses.sigmoid import blockwise_sigmoid_loss
from big_align.losses.supervised_contrastive import blockwise_supervised_contrastive_loss
from big_align.parallel.devices import choices, traced
from big_align.parallel.kernels.pair_tiles import compare_plainly
from big_align.parallel.shards import Shards

ROWS, CENTERS, DIM = 600, 2500, 8
ALONE = Shards.over(None)


@pytest.fixture
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(traced, "traced_device", lambda: Gpu("NVIDIA A100-SXM4-80GB"))


def test_blocks_of_a_cpu():
    assert [count_blocks(rows, 8, ALONE, None) for rows in (0, 1, 256, 257)] == [1, 1, 1, 2]
    assert count_blocks(3000, 8, ALONE, None, usual=1024) == 3
    assert count_blocks(600, 8, ALONE, 7) == 86
    with pytest.raises(ValueError, match="block = 0 must be at least 1"):
        count_blocks(600, 8, ALONE, 0)


def test_a_block_of_a_gpu_has_as_many_logits_as_are_kept(on_a_gpu):
    assert count_blocks(8192, 8192, ALONE, None) == 1
    assert count_blocks(32768, 32768, ALONE, None) == 16
    assert count_blocks(1000, 2**30, ALONE, None) == 4  # no less than on a CPU
    assert count_blocks(8192, 0, ALONE, None) == 1
    assert count_blocks(600, 8, ALONE, 7) == 86
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices("cpu")[:1])
    # The devices of the mesh are what counts.
    assert count_blocks(8192, 8192, Shards.over(mesh), None) == 32


class Gpu:
    """A device that is asked for nothing but its kind."""

    def __init__(self, device_kind):
        self.device_kind, self.platform = device_kind, "gpu"


def choose(monkeypatch, kind, block=None, dtype="bfloat16", size=32768, version=(0, 11, 0)):
    """Chooses on one such device, and returns the choice and what is told of it."""
    monkeypatch.setattr(traced, "traced_device", lambda: Gpu(kind))
    monkeypatch.setattr(jax, "__version_info__", version)
    with choices.collect() as lines:
        chosen = choose_blocks("loss", size, size, ALONE, block, jnp.dtype(dtype))
    return chosen, *lines


@pytest.mark.parametrize("kind", ["NVIDIA H100 80GB HBM3", "NVIDIA H200"])
def test_tiles_are_chosen_where_they_are_faster(monkeypatch, kind):
    chosen, line = choose(monkeypatch, kind)
    assert chosen.compare is compare_in_registers and chosen.count == 4
    assert line == "loss: logits in registers for 32768 x 32768 of bfloat16"
    # Stripes of half a million pairs do not become flat.
    assert choose(monkeypatch, kind, size=2**19)[0].count == 2**9
    for other in ({"dtype": "float32"}, {"size": 1024}, {"version": (0, 10, 2)}, {"block": 512}):
        chosen, line = choose(monkeypatch, kind, **other)
        assert chosen.compare is None and "blocks of logits" in line
    for other in ("NVIDIA A100-SXM4-80GB", "NVIDIA B200", "TPU v5e"):
        assert choose(monkeypatch, other)[0].compare is None


def test_tiles_can_be_asked_for(monkeypatch):
    kind = "NVIDIA H100 80GB HBM3"
    assert choose(monkeypatch, kind, "tiles", size=8)[0].compare is compare_in_registers
    assert choose(monkeypatch, "TPU v5e", "tiles")[0].compare is compare_plainly
    with pytest.raises(ValueError, match='block = "tiles" needs embeddings of bfloat16, got flo'):
        choose(monkeypatch, kind, "tiles", "float32")


def draw(*shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


LABELS, SCALE = jnp.arange(ROWS, dtype=jnp.int32) // 3, jnp.float32(9)
LOSSES = {
    "contrastive": lambda x, y: sum(blockwise_contrastive_loss(x, y, SCALE)),
    "recomputed": lambda x, y: sum(blockwise_contrastive_loss(x, y, SCALE, keep_logits_bytes=0)),
    "sigmoid": lambda x, y: blockwise_sigmoid_loss(x, y, SCALE, -SCALE / 4),
    "supervised": lambda x, y: (
        blockwise_supervised_contrastive_loss(x, LABELS, SCALE) + 0 * y.sum()
    ),
    "clusters": lambda x, y: sampled_cluster_loss(
        "mlcd", x, y, jnp.ones(len(y), bool), LABELS[:, None] * 7
    )[0],
}


@pytest.mark.parametrize("name", LOSSES)
def test_large_blocks_change_nothing(name, monkeypatch):
    x, y = draw(ROWS, DIM), draw(CENTERS if name == "clusters" else ROWS, DIM)

    def differentiate():
        step = jax.jit(jax.value_and_grad(lambda *given: LOSSES[name](*given), (0, 1)))
        return step(x, y), str(step.trace(x, y).jaxpr)

    small, program = differentiate()
    monkeypatch.setattr(traced, "traced_device", lambda: Gpu("NVIDIA A100-SXM4-80GB"))
    jax.clear_caches()  # the losses were traced for a CPU
    large, other = differentiate()
    assert program != other
    for a, b in zip(jax.tree.leaves(large), jax.tree.leaves(small), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    jax.clear_caches()
