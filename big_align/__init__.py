"""Training, evaluation and use of image-text dual encoders.

    import big_align
    model = big_align.load("workdirs/flickr8k")  # or a folder of transformers, open_clip or timm
    zimg = model.embed_images(["a.jpg", "b.jpg"])

Names are imported on first use, so that `import big_align` costs nothing.
"""

import importlib
from typing import Any

FACE = {
    "load": "big_align.inference.loaded_model",
    "load_index": "big_align.search.search_index",
    "save": "big_align.interop.api",
    "make_loader": "big_align.runs.build",
    "as_dataset": "big_align.runs.pipelines",
    "LoadedModel": "big_align.inference.loaded_model",
    "Pretrained": "big_align.interop.formats.pretrained",
    "Embedder": "big_align.evaluators.embedder",
    "contrastive_loss": "big_align.losses.contrastive",
    "blockwise_contrastive_loss": "big_align.losses.blockwise_contrastive",
    "sigmoid_loss": "big_align.losses.sigmoid",
    "blockwise_sigmoid_loss": "big_align.losses.sigmoid",
    "supervised_contrastive_loss": "big_align.losses.supervised_contrastive",
    "blockwise_supervised_contrastive_loss": "big_align.losses.blockwise_supervised_contrastive",
    "mlcd_loss": "big_align.losses.cluster_discrimination",
    "mlc_loss": "big_align.losses.cluster_discrimination",
    "unicom_loss": "big_align.losses.cluster_discrimination",
    "sampled_cluster_loss": "big_align.losses.sampled_cluster_discrimination",
    "softmax_cross_entropy": "big_align.losses.classification",
    "tag_recognition_loss": "big_align.losses.tag_recognition",
    "find_tags": "big_align.losses.tag_recognition",
    "Shards": "big_align.parallel.shards",
    "make_schedule": "big_align.training.optimizers",
    "make_optimizer": "big_align.training.optimizers",
}
"""The public names, and the modules that define them."""

__all__ = list(FACE)


def __getattr__(name: str) -> Any:
    if name not in FACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(FACE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *FACE])
