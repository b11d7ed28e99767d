"""UniCL on labeled and captioned photographs together (Yang et al. 2022, §4.2, Tables 5 and 6).

Arguments, separated by commas:
  labels=imagenet (Table 5) | imagenet21k | imagenet22k (Table 6)
  captions=yfcc14m | gcc3m | gcc15m
  method=unicl | multitask
Captions lie in img2dataset shards, data/NAME-*.tar; ImageNet-21K and 22K in such shards with `cls`
members and the class list data/NAME.json, which `describe_classes` makes from WordNet ids.
"""

from big_align.configs import clip_text, common, unicl_imagenet
from big_align.data.labels.classes import read_classes
from big_align.runs.defaults import complete_config

LEGAL = {
    "labels": ("imagenet", "imagenet21k", "imagenet22k"),
    "captions": ("yfcc14m", "gcc3m", "gcc15m"),
    "method": ("unicl", "multitask"),
}
IMAGES = {  # Table 1
    "imagenet": 1.28e6, "imagenet21k": 13.2e6, "imagenet22k": 14.2e6,
    "gcc3m": 3.3e6, "gcc15m": 15.3e6, "yfcc14m": 14e6,
}


def get_config(arg: str = ""):
    """Returns the config of a row of Table 5 or 6."""
    given = common.parse_argument(arg, LEGAL)
    labels, captions = given.get("labels", "imagenet22k"), given.get("captions", "yfcc14m")
    config = clip_text.get_base()
    config.batch_size = 4096  # B.2
    config.model.image = unicl_imagenet.towers("swin_tiny")  # §4.2
    config.objective = dict(name=given.get("method", "unicl"))
    config.optimizer.name = "adamw"
    if labels == "imagenet":  # §4.2.1, B.2: as §4.1, 500 epochs, half of each batch is captioned
        fraction = 0.5
        config.data.transform = unicl_imagenet.TRAIN
        config.total_steps = round(500 * clip_text.IMAGENET_IMAGES / (fraction * config.batch_size))
        config.optimizer.weight_decay = 0.05
        warmup = round(20 * clip_text.IMAGENET_IMAGES / (fraction * config.batch_size))
        config.schedule = dict(decay="cosine", learning_rate=0.002, warmup_steps=warmup)
    else:  # §4.2.2, B.2: random crops alone, "a standard data sampler", 32 epochs of all images
        images = IMAGES[labels] + IMAGES[captions]
        fraction = round(IMAGES[captions] / images, 3)
        config.data.transform = "random_resized_crop(224)"
        config.total_steps = round(32 * images / config.batch_size)
        config.optimizer.weight_decay = 0.1
        config.schedule = dict(decay="cosine", learning_rate=1e-3, warmup_steps=5000)
    config.data.mixture = dict(
        captions=dict(weight=fraction, source=dict(name="tar", path=f"data/{captions}-*.tar")),
        labels=dict(weight=1 - fraction, **labeled(labels)),
    )
    return complete_config(config)


def labeled(name: str) -> dict:
    """Returns source, classes and templates of ImageNet-1K or of the larger ones."""
    if name == "imagenet":
        return dict(source=clip_text.imagenet("train"), classes="imagenet")
    source = dict(name="tar", path=f"data/{name}-*.tar", caption="", label="cls")
    templates = read_classes("imagenet").templates
    return dict(source=source, classes=f"data/{name}.json", templates=templates)
