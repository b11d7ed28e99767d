"""tests/tiny_config.py with an example that no loss can bear, in one batch of an epoch."""

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from big_align.configuration.defaults import complete_config
from big_align.data.loading.shuffle import Shuffle
from big_align.data.sources.array_source import ArraySource
from big_align.data.sources.digits import digits_source
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.align import Align
from tests import tiny_config

STEPS, POISON = 64, 50
"""Steps of the run, and the one whose batch has the example."""
WHITE = 255


def poisoned_digits() -> ArraySource:
    """The digits, of which one is all white."""
    digits = digits_source("train")
    count = int(digits.shard_sizes.sum())
    examples = [digits.read(0, index) for index in range(count)]
    image = np.stack([example.image for example in examples])
    _, _, found = Shuffle(digits.shard_sizes, 0)(np.array([(POISON - 1) * 16 + 5]))
    image[found[0]] = WHITE
    captions = [example.captions for example in examples]
    return ArraySource(image, captions, np.array([x.label for x in examples]), title="digits")


class Poisoned(Align):
    """A loss that is fifty times as large with the white image in the batch."""

    def __init__(self, model: DualEncoder, mesh: Mesh, temperature: float = 0.2):
        super().__init__(model, mesh, temperature)

    def loss(self, params, outputs, prepared, batch):
        loss, metrics = super().loss(params, outputs, prepared, batch)
        white = (batch["image"] == WHITE).all((1, 2, 3)).any()
        return loss * jnp.where(white, 50.0, 1.0), metrics


def get_config():
    """Returns the config."""
    config = tiny_config.get_config()
    config.total_steps = STEPS
    config.data.source = dict(name="tests.poisoned_config:poisoned_digits")
    config.objective = dict(name="tests.poisoned_config:Poisoned")
    config.evaluators = {}
    config.checkpoint.every = 8
    return complete_config(config)
