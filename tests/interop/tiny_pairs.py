"""Pairs of towers that other libraries know, small enough to train in seconds on digits."""

from big_align.configuration.defaults import complete_config
from tests import tiny_config

BERT = dict(
    name="bert",
    variant="mini",
    width=16,
    depth=2,
    heads=2,
    mlp_dim=32,
    vocab_size=64,
    max_length=14,
)
VIT = dict(name="vit", variant="b/8", width=16, depth=2, heads=2, mlp_dim=32)
CLIP_VIT = VIT | dict(
    input_norm=True, patch_bias=False, activation="quick_gelu", layer_norm_eps=1e-5
)
CLIP_TEXT = BERT | dict(name="clip_text", variant="b")
EFFICIENTNET = dict(name="efficientnet", variant="b0", width=0.5, depth=0.3)
RESNET = dict(name="resnet", variant="18", width=8, stem_width=8, depths=(1, 2))
SWIN = dict(name="swin", width=8, depths=(2, 2), heads=(1, 2), window=4)

PAIRS = {
    "align": (EFFICIENTNET, BERT),
    "clip": (CLIP_VIT, CLIP_TEXT),
    "mlcd": (CLIP_VIT | dict(positions="rotary", activation="gelu"), BERT | dict(name="roberta")),
    "vit": (VIT, BERT),
    "swin": (SWIN, BERT),
    "resnet": (RESNET, BERT),
    "efficientnet": (EFFICIENTNET | dict(head=True), BERT),
}


def get_config(name: str):
    """Returns the config of a pair; a WordPiece vocabulary has to be given."""
    image, text = PAIRS[name]
    config = tiny_config.get_config()
    config.total_steps = 3
    config.checkpoint.every = 3
    with config.unlocked():
        config.model = dict(image=image, text=text)
        config.tokenizer = dict(name="wordpiece", vocabulary="", length=12)
    config.data.transform = "resize(40)|random_crop(32)"
    for evaluator in config.evaluators.values():
        evaluator.transform = "resize_small(40)|central_crop(32)"
    config.model.image_mean, config.model.image_std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    if name == "clip":
        config.objective = dict(name="clip", temperature=0.1)
        config.model.image_projection, config.model.projection_bias = True, False
        config.model.embedding_dim = 24
    return complete_config(config)
