"""UniCL on labeled and captioned photographs together (Yang et al. 2022, §4.2, Tables 5, 6, 8).

Arguments, separated by commas:
  labels=imagenet (Table 5) | imagenet21k | imagenet22k (Tables 6 and 8) | none
  captions=yfcc14m | gcc3m | gcc12m | gcc15m | none
  method=unicl | multitask     unicl on captions alone is CLIP's loss
  half=yes            half of both: every other shard, those of even numbers
  image=swin_tiny | swin_base
Tables of the paper, and the arguments of their rows:
  5   labels=imagenet with captions=gcc3m | yfcc14m | gcc15m; the rest is configs/unicl_imagenet.py
  6   labels=none (CLIP); labels=imagenet21k,captions=none; labels=imagenet21k,half=yes, with
      method=multitask too; labels=imagenet21k; captions=none; nothing and captions=gcc15m, both
      with method=multitask too
  8   image=swin_base,labels=none, then with labels=imagenet21k: captions=none; half=yes; nothing
  9   detection from the Swin-Tiny of Table 6: export the tower, the detector is elsewhere
Tables 1, 10 and 11 count images and concepts of these data sets. Every number of 14 and 18 data
sets is `tools.benchmark`'s, with the suites unicl14 and unicl18.
Captions lie in img2dataset shards, data/NAME-*.tar; ImageNet-21K and 22K in such shards with `cls`
members and the class list data/NAME.json, which `describe_classes` makes from WordNet ids.
"""

import math

from big_align.config.defaults import complete_config
from big_align.configs import common, unicl_imagenet
from big_align.configs.parts import clip_text
from big_align.data.labels.classes import read_classes

IMAGES = {  # Table 1; ImageNet-21K is 22K without the classes of 1K (§4.2.2): 12.9 million
    "imagenet": 1.28e6, "imagenet21k": 14.2e6 - 1.28e6, "imagenet22k": 14.2e6,
    "gcc3m": 3.3e6, "gcc12m": 12e6, "gcc15m": 15.3e6, "yfcc14m": 14e6, "none": 0,
}  # fmt: skip
LEGAL = {
    "labels": ("imagenet", "imagenet21k", "imagenet22k", "none"),
    "captions": ("yfcc14m", "gcc3m", "gcc12m", "gcc15m", "none"),
    "method": ("unicl", "multitask"),
    "half": ("yes",),
    "image": ("swin_tiny", "swin_base"),
}


def get_config(arg: str = ""):
    """Returns the config of a row of Table 5, 6 or 8."""
    given = common.parse_argument(arg, LEGAL)
    labels, captions = given.get("labels", "imagenet22k"), given.get("captions", "yfcc14m")
    method = given.get("method", "unicl")
    if labels == "none" and (captions == "none" or method == "multitask"):
        raise ValueError("labels=none needs captions and method=unicl")
    if labels == "imagenet" and "half" in given:
        raise ValueError("half=yes is for labels=imagenet21k, imagenet22k or none")
    config = clip_text.get_base()
    config.batch_size = unicl_imagenet.BATCH_SIZE  # B.2
    config.model.image = unicl_imagenet.towers(given.get("image", "swin_tiny"))  # §4.2, C.2
    config.objective = dict(name=method, temperature=math.exp(-1))  # §3.4: tau starts at 1
    share = 0.5 if "half" in given else 1.0
    if labels == "imagenet":  # §4.2.1, B.2: as §4.1, 500 epochs, half of each batch is captioned
        fraction = 0.0 if captions == "none" else 0.5
        epoch = clip_text.IMAGENET_IMAGES / ((1 - fraction) * config.batch_size)
        config.data.transform = unicl_imagenet.TRAIN
        config.objective.label_smoothing = unicl_imagenet.LABEL_SMOOTHING
        config.total_steps = round(500 * epoch)
        config.optimizer = unicl_imagenet.adamw_settings(0.05)
        config.schedule = dict(decay="cosine", learning_rate=0.002, warmup_steps=round(20 * epoch))
    else:  # §4.2.2, B.2: "a standard data sampler", 32 epochs of all images
        images = share * (IMAGES[labels] + IMAGES[captions])
        fraction = round(share * IMAGES[captions] / images, 3)
        # B.2: "merely used random crop", CLIP's "random square crop from resized images" (§2.3).
        config.data.transform = "resize_small(224)|random_crop(224)"
        config.total_steps = round(32 * images / config.batch_size)
        config.optimizer = unicl_imagenet.adamw_settings(0.1)
        config.schedule = dict(decay="cosine", learning_rate=1e-3, warmup_steps=5000)
    shards = "-*[02468].tar" if "half" in given else "-*.tar"
    parts = dict(
        captions=dict(source=dict(name="tar", path=f"data/{captions}{shards}")),
        labels=labeled(labels, shards),
    )
    weights = dict(captions=fraction, labels=1 - fraction)
    config.data.mixture = {
        name: dict(weight=weights[name], **part) for name, part in parts.items() if weights[name]
    }
    return complete_config(config)


def labeled(name: str, shards: str) -> dict:
    """Returns source, classes and templates of ImageNet-1K or of the larger ones."""
    if name == "imagenet":
        return dict(source=clip_text.imagenet("train"), classes="imagenet")
    source = dict(name="tar", path=f"data/{name}{shards}", caption="", label="cls")
    templates = read_classes("imagenet").templates
    return dict(source=source, classes=f"data/{name}.json", templates=templates)
