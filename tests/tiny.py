"""A model small enough to compile in seconds, and batches for it."""

import jax
import numpy as np
from jax.sharding import Mesh

from big_align.models.bert import Bert
from big_align.models.dual_encoder import DualEncoder
from big_align.models.resnet import ResNet
from big_align.objectives.align import Align
from big_align.parallel import meshes

VOCAB, LENGTH = 16, 6


def make_mesh(devices: int = 1, fsdp: int = 1) -> Mesh:
    return meshes.make_mesh(fsdp, jax.devices()[:devices])


def make_model(group_size: int | None = None, dropout: float = 0.0) -> DualEncoder:
    return DualEncoder(
        image=ResNet(variant="18", width=8, depths=(1, 1), stem="small", group_size=group_size),
        text=Bert(
            width=16,
            depth=1,
            heads=2,
            mlp_dim=32,
            vocab_size=VOCAB,
            max_length=LENGTH,
            dropout=dropout,
        ),
    )


def make_objective(mesh: Mesh, group_size: int | None = None, **kwargs) -> Align:
    return Align(make_model(group_size), mesh, **{"temperature": 0.2} | kwargs)


def make_batch(
    size: int, seed: int = 0, masked: int = 0, texts: tuple[int, ...] = ()
) -> dict[str, np.ndarray]:
    """Random images and texts; the last `masked` rows are padding.

    With `texts=(k,)` there are k texts an image, some of which do not exist.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, LENGTH + 1, (size, *texts))
    if texts:
        lengths[:, 1:] *= rng.random((size, texts[0] - 1)) < 0.7
    return {
        "image": rng.integers(0, 256, (size, 8, 8, 3)).astype(np.uint8),
        "text": rng.integers(1, VOCAB, (size, *texts, LENGTH)).astype(np.int32),
        "text_mask": np.arange(LENGTH) < lengths[..., None],
        "label": np.full(size, -1, np.int32),
        "mask": np.arange(size) < size - masked,
    }
