"""What the recipes with CLIP's text tower share (UniCL §4, appendix B.1; iCLIP §4.1)."""

from ml_collections import ConfigDict

from big_align.configs import common

IMAGENET_IMAGES = 1_281_167
EVALUATE = "resize_small(256)|central_crop(224)"
MERGES = "data/bpe_simple_vocab_16e6.txt.gz"


def get_base() -> ConfigDict:
    """Returns the base: CLIP's tokenizer and text tower, zero-shot evaluation on ImageNet-1K."""
    config = common.get_base()
    config.tokenizer = dict(name="clip", merges=MERGES, length=77)
    # UniCL B.1: a 12-layer transformer with hidden dimension 512, two linear projections to 512.
    config.model.text = dict(name="clip_text", variant="b", dtype="bfloat16", remat="auto")
    config.model.image_projection = True
    config.model.embedding_dim = 512
    config.model.projection_bias = False  # as in CLIP, and in the code of UniCL
    config.evaluators = dict(imagenet=imagenet_zero_shot())
    config.log_every = 100
    config.evaluate_every = 10_000
    config.evaluate_batch_size = 1024
    config.checkpoint = dict(every=5_000, keep_last=3)
    return config


def imagenet(split: str) -> dict:
    """Returns the source of ImageNet-1K's labeled photographs."""
    return dict(name="tfds", dataset="imagenet2012:5.*.*", split=split, label="label")


def imagenet_zero_shot() -> dict:
    """Returns the evaluator with CLIP's names and 80 templates."""
    return dict(
        name="zero_shot", source=imagenet("validation"), transform=EVALUATE, names="imagenet"
    )


def imagenet_linear_probe() -> dict:
    """Returns the evaluator of frozen features by CLIP's protocol."""
    return dict(
        name="linear_probe",
        train_source=imagenet("train"),
        source=imagenet("validation"),
        transform=EVALUATE,
    )
