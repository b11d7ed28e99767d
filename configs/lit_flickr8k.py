"""A text tower for a locked image tower, in small: MLCD's second stage (§4.1) on Flickr8k.

The image tower comes from --config.init.image=WORKDIR, one of configs/mlcd_photographs.py.
"""

from big_align.config.defaults import complete_config
from big_align.configs.parts import two_cores


def get_config():
    """Returns the config."""
    config = two_cores.get_base()
    config.total_steps = 500
    config.data.source = two_cores.flickr8k_captions()["source"]
    config.objective = dict(name="lit", temperature=0.1)
    config.evaluators = dict(
        zero_shot=two_cores.zero_shot("tiny_imagenet", "val"), retrieval=two_cores.retrieval()
    )
    return complete_config(config)
