"""Short stages on scanned digits, for benchmarks/torture.py: each with larger images.

The argument is how many there are (2). They go on with the optimizer of the one before, but for the
last, which starts a fresh one and has texts of more tokens and smaller batches.
"""

from ml_collections import ConfigDict

from big_align.config.defaults import complete_config
from big_align.configs import quickstart

SIZE = 8  # pixels of the first stage; each has as many more
STEPS = 30


def get_config(count: str = "2") -> ConfigDict:
    """Returns the config of the last stage."""
    config = get_stage(0)
    for number in range(1, int(count)):
        former, config = config, get_stage(number)
        config.first = former
        config.init.optimizer = "kept"
    config.init.optimizer = None
    config.batch_size = 32
    config.tokenizer.length = config.model.text.max_length = 12
    return complete_config(config)


def get_stage(number: int) -> ConfigDict:
    """Returns one of the stages, counted from 0."""
    config = quickstart.get_config().unlock()
    size = SIZE * (number + 1)
    config.data.transform = f"resize({size + 2})|random_crop({size})"
    config.evaluators.digits.transform = f"resize({size + 2})|central_crop({size})"
    config.batch_size = 64
    config.total_steps = STEPS
    config.schedule.warmup_steps = 5
    config.tokenizer.length = config.model.text.max_length = 8
    for tower in (config.model.image, config.model.text):
        tower.update(width=32, depth=1, heads=2, mlp_dim=64)
    return config
