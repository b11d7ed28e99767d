"""A config that trains in seconds: digits, a residual network and one layer of text."""

from big_align.configs import common
from big_align.configuration.defaults import complete_config
from big_align.data.sources.digits import DIGIT_CLASSES, DIGIT_TEMPLATES, DIGIT_WORDS


def get_config(group_size: str = ""):
    """Returns the config; `group_size` is BatchNorm's, of the global batch when empty."""
    config = common.get_base()
    config.batch_size = 16
    config.total_steps = 8
    config.log_every = 1
    config.data.source = dict(name="digits", split="train")
    config.data.transform = "resize(10)|random_crop(8)"
    config.tokenizer = dict(name="words", words=DIGIT_WORDS, length=12)
    config.model.image = dict(name="resnet", variant="18", width=8, depths=(1, 1), stem="small")
    if group_size:
        config.model.image.group_size = int(group_size)
    config.model.text = dict(
        name="bert",
        variant="mini",
        width=16,
        depth=1,
        heads=2,
        mlp_dim=32,
        vocab_size=64,
        max_length=12,
        dropout=0.1,
    )
    config.objective = dict(name="align", temperature=0.2)
    config.schedule = dict(decay="cosine", learning_rate=1e-2, warmup_steps=2)
    test = dict(source=dict(name="digits", split="test"), transform="resize(10)|central_crop(8)")
    config.evaluators = dict(
        digits=dict(name="zero_shot", names=DIGIT_CLASSES, templates=DIGIT_TEMPLATES, **test),
        pairs=dict(name="retrieval", **test),
    )
    config.evaluate_every = 1000
    config.checkpoint.every = 4
    return complete_config(config)
