"""IDEA on drawings with half of their keywords, the other half being the truth about what is found.

Arguments: `mlr`, `mlr_bce` (without SPLC). data/twemoji_half-train.tar, -test.tar and
data/twemoji_tags.json are made by `experiments/run.py tags`.
With `init=pretrained`, behind a comma or alone, the towers are EfficientNet-Lite0 and MiniLM.
"""

from big_align.config.defaults import complete_config
from big_align.configs import common, idea_cc3m
from big_align.configs.parts import two_cores

METHODS = ("mlr", "mlr_bce")
TAGS = "data/twemoji_tags.json"
BATCH, DRAWINGS = 128, 1676


def get_config(arg: str = ""):
    """Returns the config of a row of the table."""
    arg, pretrained = common.choose(arg, METHODS, "mlr", (two_cores.PRETRAINED,))
    config = two_cores.get_base()
    config.total_steps = 200
    config.schedule.learning_rate = 2e-3
    # Drawings stay upright and keep their colors, since keywords name both.
    config.data.transform = "resize(72)|random_resized_crop(64, 0.6, 1.0)"
    config.data.source = dict(
        name="tar", path="data/twemoji_half-train.tar", caption="json.captions"
    )
    config.data.captions_used = 1
    config.data.tags = dict(path=TAGS, truth=True)
    config.objective = dict(
        name="idea",
        threshold=0.6,  # §4.1
        temperature=0.1,
        decoder_width=128,
        decoder_groups=20,
        loss="weighted_bce" if arg == "mlr_bce" else "splc",
        change_step=round(DRAWINGS / BATCH),  # the paper's first epoch
        **idea_cc3m.ladder("mlr"),
    )
    config.evaluators = dict(
        found=dict(
            name="found_tags",
            source=dict(name="tar", path="data/twemoji_half-test.tar", caption="json.captions"),
            transform=two_cores.EVALUATE,
            tags=TAGS,
        )
    )
    if pretrained:
        two_cores.use_pretrained(config)
    return complete_config(config)
