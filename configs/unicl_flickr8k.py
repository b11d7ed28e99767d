"""UniCL's Tables 5 and 6 in small: captions, labels, both, and both with separate heads.

Arguments: `both`; `captions` (Flickr8k alone); `labels` (202 classes of Tiny ImageNet alone);
`multitask` (both, a classifier for the labels). Half of each batch of the latter two is captioned.
With `init=pretrained`, behind a comma or alone, the towers are EfficientNet-Lite0 and MiniLM.
"""

from big_align.config.defaults import complete_config
from big_align.configs import common
from big_align.configs.parts import two_cores

METHODS = ("both", "captions", "labels", "multitask")


def get_config(arg: str = ""):
    """Returns the config of a method."""
    arg, pretrained = common.choose(arg, METHODS, "both", (two_cores.PRETRAINED,))
    config = two_cores.get_base()
    config.total_steps = 800
    config.objective = dict(name="unicl", temperature=0.1)
    parts = dict(
        captions=two_cores.flickr8k_captions(), labels=two_cores.labels_of("tiny_imagenet")
    )
    config.data.mixture = {arg: parts[arg] | dict(weight=1.0)} if arg in parts else parts
    config.evaluators = dict(
        zero_shot=two_cores.zero_shot("tiny_imagenet", "val"),
        retrieval=two_cores.retrieval(),
        linear_probe=two_cores.linear_probe(),
    )
    if arg == "multitask":
        config.objective = dict(name="multitask", temperature=0.1)
        classes = two_cores.classification("tiny_imagenet", "val")
        config.evaluators.classification = classes
    if pretrained:
        two_cores.use_pretrained(config)
    return complete_config(config)
