"""iCLIP's Table 4 in small: 202 classes and batches of 64, a half of them captioned photographs.

Arguments: `iclip` (class texts with WordNet's descriptions), `iclip_names` (without), `unicl`.
The descriptions come from
  python -m big_align.tools.describe_classes --classes=$BIG_ALIGN_DATA/tiny_imagenet/classes.json \
      --output=data/tiny_imagenet_described.json
With `init=pretrained`, behind a comma or alone, the towers are EfficientNet-Lite0 and MiniLM.
"""

from big_align.config.defaults import complete_config
from big_align.configs import common
from big_align.configs.parts import two_cores

METHODS = ("iclip", "iclip_names", "unicl")
DESCRIBED = "data/tiny_imagenet_described.json"


def get_config(arg: str = ""):
    """Returns the config of a method."""
    arg, pretrained = common.choose(arg, METHODS, "iclip_names", (two_cores.PRETRAINED,))
    described = arg == "iclip"
    config = two_cores.get_base(length=32)
    config.batch_size = 64
    config.total_steps = 800
    labels = two_cores.labels_of("tiny_imagenet")
    config.data.mixture = dict(captions=two_cores.flickr8k_captions(), labels=labels)
    if described:
        config.data.mixture.labels.classes = DESCRIBED
    config.objective = dict(name="unicl", temperature=0.1)
    zero_shot = two_cores.zero_shot("tiny_imagenet", "val", DESCRIBED if described else None)
    if arg != "unicl":
        # Eq. 5; the only text per class that this model ever sees.
        template = "a photo of a {}, {description}" if described else "a photo of a {}"
        zero_shot |= dict(templates=(template,))
        config.objective = dict(name="iclip", temperature=0.1, template=template)
    config.evaluators = dict(zero_shot=zero_shot, retrieval=two_cores.retrieval())
    if pretrained:
        two_cores.use_pretrained(config)
    return complete_config(config)
