"""iCLIP (Wei et al. 2023, §4.1): three scales of labeled and captioned photographs.

Arguments, separated by commas:
  scale=imagenet_gcc3m | imagenet22k_yfcc14m | imagenet22k_laion400m
  names=only                 class texts without descriptions ("w/o Desc.")
  text_to_image=none | all   where the paper is silent; see big_align/objectives/iclip.py
The class lists with descriptions come from WordNet:
  python -m big_align.tools.describe_classes --classes=imagenet \
      --output=data/imagenet_described.json
The first and the last scale start from a pretrained RoBERTa-B, --config.init.text=FOLDER, with its
vocab.json and merges.txt in data/roberta-base, and from a MoBY Swin, --config.init.image=FILE.
"""

from big_align.configs import clip_text, common
from big_align.runs.defaults import complete_config

LEGAL = {
    "scale": ("imagenet_gcc3m", "imagenet22k_yfcc14m", "imagenet22k_laion400m"),
    "names": ("only",),
    "text_to_image": ("none", "captions", "all"),
}
HALF_EPOCH = clip_text.IMAGENET_IMAGES / 512  # half of a batch of 1024 is ImageNet-1K
SCALES = {
    "imagenet_gcc3m": dict(
        batch_size=1024,  # 128 x 8 GPUs
        captioned=0.5,  # "half number of images from each dataset"
        total_steps=round(100 * HALF_EPOCH),  # 100 epochs
        warmup_steps=round(5 * HALF_EPOCH),  # 5 epochs
        learning_rate=2e-4,
        weight_decay=0.01,
        image=dict(variant="tiny", drop_path=0.1),
    ),
    "imagenet22k_yfcc14m": dict(
        batch_size=8192,  # 512 x 16 GPUs
        captioned=0.5,  # not given; as above
        total_steps=round(32 * (14.2e6 + 14e6) / 8192),  # 32 epochs
        warmup_steps=5000,  # not given; UniCL's, whose training this one follows
        learning_rate=8e-4,  # "selected from 2e-4 and 8e-4"
        weight_decay=0.05,
        image=dict(variant="tiny", drop_path=0.1),
    ),
    "imagenet22k_laion400m": dict(
        batch_size=12_288,  # 192 x 64 GPUs
        captioned=2 / 3,  # 128 of 192
        total_steps=100_000,
        warmup_steps=16_700,
        learning_rate=1e-3,
        weight_decay=0.05,
        image=dict(variant="base", drop_path=0.2),
    ),
}


def get_config(arg: str = ""):
    """Returns the config of a scale."""
    given = common.parse_argument(arg, LEGAL)
    name = given.get("scale", "imagenet_gcc3m")
    scale, (labels, captions) = SCALES[name], name.split("_")
    config = clip_text.get_base()
    config.batch_size, config.total_steps = scale["batch_size"], scale["total_steps"]
    config.optimizer = dict(name="adamw", weight_decay=scale["weight_decay"])
    config.schedule = dict(
        decay="cosine", learning_rate=scale["learning_rate"], warmup_steps=scale["warmup_steps"]
    )
    config.model.image = dict(name="swin", dtype="bfloat16", **scale["image"])
    if captions != "yfcc14m":
        _use_roberta(config)
    config.data.transform = "random_resized_crop(224)|flip_horizontal|rand_augment(2, 9)"
    source = dict(name="tar", path=f"data/{labels}-*.tar", caption="", label="cls")
    if labels == "imagenet":
        source = clip_text.imagenet("train")
    config.data.mixture = dict(
        captions=dict(
            weight=scale["captioned"], source=dict(name="tar", path=f"data/{captions}-*.tar")
        ),
        labels=dict(
            weight=1 - scale["captioned"],
            source=source,
            classes=f"data/{labels}_described.json",
        ),
    )
    config.objective = dict(
        name="iclip",
        template="a photo of a {}",  # eq. 5
        with_descriptions="names" not in given,
        text_to_image=given.get("text_to_image", "captions"),
    )
    return complete_config(config)


def _use_roberta(config) -> None:
    config.tokenizer = dict(
        name="roberta",
        vocabulary="data/roberta-base/vocab.json",
        merges="data/roberta-base/merges.txt",
        length=77,
    )
    config.model.text = dict(
        name="roberta", variant="base", max_length=512, dtype="bfloat16", remat=True
    )
