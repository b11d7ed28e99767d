"""SigLIP on the photographs of configs/align_flickr8k.py, with everything else as there.

t' starts at log 10 and b at -10 (Zhai et al. 2023, §3.2).
"""

from big_align.configs import align_flickr8k
from big_align.configuration.defaults import complete_config


def get_config(arg: str = "flickr8k"):
    """Returns the config; `arg` is the data set whose test split is evaluated."""
    config = align_flickr8k.get_config(arg)
    config.objective = dict(name="siglip")
    return complete_config(config)
