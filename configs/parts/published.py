"""How a small model learns from published towers: EfficientNet-Lite2 and MiniLM, two packages.

First both are locked: their features are computed once, and the linear layers behind them are
trained. Then the upper half of the text tower is trained as well.
"""

from ml_collections import ConfigDict

from big_align.configs import common

SIZE = 260  # pixels that the image tower was trained with
STAYS = (  # in the text tower
    *("token_embedding", "position_embedding", "token_type_embedding", "embedding_norm"),
    *(f"block_{number:02d}" for number in range(3)),
)


def use_towers(config: ConfigDict, length: int, size: int = SIZE) -> None:
    """Makes the towers the published ones, in place.

    Args:
      config: of either run.
      length: tokens of a text.
      size: pixels of an edge; the whole of a photograph is made to fit.
    """
    config.data.transform = f"resize({size}, method='bilinear')"
    common.use_pretrained_towers(config, length, lite=2)
    config.model.image_projection = True
    config.model.embedding_dim = 512
    config.model.image_dropout = 0.5
    config.model.text_dropout = 0.2
    config.optimizer = dict(name="adamw", weight_decay=0.1)
    config.evaluate_every = config.checkpoint.every = 100_000  # at the end
    config.evaluate_batch_size = 200


def train_layers(config: ConfigDict, batch_size: int, total_steps: int) -> None:
    """Makes a run train the linear layers, in place."""
    config.batch_size, config.total_steps = batch_size, total_steps
    config.average_decay = 0.99
    config.log_every = max(1, min(50, total_steps // 12))
    config.model.locked = ("image", "text")
    config.cached_features.towers = ("image", "text")
    config.objective = dict(name="clip", temperature=0.07, label_smoothing=0.1)
    config.schedule = dict(decay="cosine", learning_rate=1e-3, warmup_steps=total_steps // 12)


def train_texts(config: ConfigDict, first: ConfigDict, batch_size: int, total_steps: int) -> None:
    """Makes a run go on from a first one that has trained the layers, in place."""
    with first.unlocked():
        first.evaluators = {}  # only those of the second run count
    config.first = first
    config.init = common.get_base().init  # the weights are those of the first run
    config.batch_size, config.total_steps = batch_size, total_steps
    config.average_decay = 0.98
    config.log_every = max(1, min(10, total_steps // 12))
    config.model.locked = ("image",)
    config.cached_features.towers = ("image",)
    config.optimizer.frozen = tuple(f"model/text/{name}" for name in STAYS)
    config.objective = dict(name="clip", temperature=0.05, label_smoothing=0.1)
    config.schedule = dict(decay="cosine", learning_rate=4e-4, warmup_steps=total_steps // 9)
