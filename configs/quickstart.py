"""Scanned digits with captions, from scikit-learn: trains in a minute or two, needs no files.

The argument `recipe=paper` takes ALIGN's optimizer and temperature (Jia et al. 2021, §5).
"""

from big_align.config.defaults import complete_config
from big_align.configs import common
from big_align.data.sources.digits import DIGIT_CLASSES, DIGIT_TEMPLATES, DIGIT_WORDS


def get_config(arg: str = ""):
    """Returns the config; `arg` is nothing or recipe=paper."""
    _, paper = common.choose(arg, (), flags=(common.RECIPE,))
    config = common.get_base()
    config.batch_size = 128
    config.total_steps = 600
    config.data.source = dict(name="digits", split="train")
    config.data.transform = "resize(20)|random_crop(16)"
    config.tokenizer = dict(name="words", words=DIGIT_WORDS, length=12)
    config.model.image = dict(
        name="vit", variant="s/4", width=64, depth=3, heads=4, mlp_dim=128, pool="mean"
    )
    config.model.text = dict(
        name="bert",
        variant="mini",
        width=64,
        depth=2,
        heads=4,
        mlp_dim=128,
        vocab_size=64,
        max_length=12,
        dropout=0.0,
    )
    config.objective = dict(name="align", temperature=0.1, label_smoothing=0.0)
    config.schedule = dict(decay="cosine", learning_rate=2e-3, warmup_steps=20)
    config.optimizer.name = "adamw"
    config.optimizer.weight_decay = 1e-4
    if paper:
        common.use_recipe_of_align(config)
    config.evaluators = dict(
        digits=dict(
            name="zero_shot",
            source=dict(name="digits", split="test"),
            transform="resize(20)|central_crop(16)",
            names=DIGIT_CLASSES,
            templates=DIGIT_TEMPLATES,
        ),
    )
    config.evaluate_every = 200
    config.checkpoint.every = 200
    return complete_config(config)
