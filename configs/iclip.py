"""iCLIP (Wei et al. 2023, §4): its scales of labeled and captioned photographs, and its baselines.

Arguments, separated by commas:
  scale=imagenet_gcc3m | imagenet21k_yfcc14m | imagenet22k_yfcc14m | imagenet22k_laion400m
  method=iclip | sup_only (eq. 1) | cosine (eq. 3) | vl_only (eq. 2) | multitask
  names=only            class texts without descriptions ("w/o Desc.")
  data=labels           labeled photographs alone, for iCLIP (eq. 4)
  half=yes              half of the images and of the steps
  init=none             from scratch also where the paper starts from MoBY and RoBERTa
  direction=both        captions ask for their images too, as in CLIP; in eq. 2 and 6 as printed
                        images alone ask, which is the default, image_to_text. With all, for iCLIP,
                        class texts ask as well

| row | argument |
|---|---|
| Table 1, 1 to 4 | `method=sup_only`; `method=cosine`; `data=labels,names=only`; `data=labels` |
| Table 2, 1 | `scale=imagenet22k_yfcc14m,method=vl_only` |
| Table 2, 2 and 3 (4: 2) | `scale=imagenet21k_yfcc14m,half=yes`, the former with `names=only` |
| Table 2, 4 and 5 (4: 4) | `scale=imagenet21k_yfcc14m`, the former with `names=only` |
| Table 2, 6 and 7 (4: 6) | `scale=imagenet22k_yfcc14m`, the former with `names=only` |
| Table 3, 1 to 5 | `method=sup_only`; `method=vl_only`; `method=multitask`; `names=only`; none |
| Table 4, UniCL | configs/unicl_captions.py |
| Table 5, Sup-only | `scale=imagenet22k_laion400m,method=sup_only` |
| Table 5, VL-only and iCLIP | `scale=imagenet22k_laion400m`, the former with `method=vl_only` |

Zero-shot evaluation reads the class texts that the row trains. The lists come from WordNet, with
describe=`python -m big_align.tools.describe_classes`:
  $describe --classes=imagenet --output=data/imagenet_described.json
  $describe --classes=IDS.json --output=data/imagenet22k_described.json
  $describe --classes=IDS_WITHOUT_THOSE_OF_1K.json --output=data/imagenet21k_described.json
  $describe --classes=imagenet --wordnet_names --output=data/imagenet_wordnet.json
where IDS.json lists the folders of ImageNet-22K, and the last calls ImageNet's classes what the
second does.
The first and the last scale start from a pretrained RoBERTa-B, a folder of transformers' in
data/roberta-base, and from a Swin of MoBY (§4.1), data/moby_swin_tiny.pth or moby_swin_base.pth.
"""

from big_align.config.defaults import complete_config
from big_align.configs import common
from big_align.configs.parts import clip_text

LEGAL = {
    "scale": (
        *("imagenet_gcc3m", "imagenet21k_yfcc14m"),
        *("imagenet22k_yfcc14m", "imagenet22k_laion400m"),
    ),
    "method": ("iclip", "sup_only", "cosine", "vl_only", "multitask"),
    "names": ("only",),
    "data": ("both", "labels"),
    "half": ("yes",),
    "init": ("none",),
    "direction": ("image_to_text", "both", "all"),
}
IMAGES = {
    "imagenet": clip_text.IMAGENET_IMAGES, "imagenet22k": 14.2e6, "yfcc14m": 14e6,
    "imagenet21k": 14.2e6 - clip_text.IMAGENET_IMAGES,  # §4.1: without ImageNet-1K's classes
}  # fmt: skip
TEMPLATE = "a photo of a {}"
DESCRIBED = f"{TEMPLATE}, {{description}}"  # eq. 5


def _from_scratch(labels: str) -> dict:
    """Returns the scale of a list of labels and YFCC-14M, which follows UniCL (§4.1)."""
    return dict(
        batch_size=8192,  # 512 x 16 GPUs
        captioned=IMAGES["yfcc14m"] / (IMAGES[labels] + IMAGES["yfcc14m"]),  # as in UniCL
        label_epochs=32,
        warmup_steps=5000,  # not given; UniCL's
        learning_rate=8e-4,  # "selected from 2e-4 and 8e-4"
        weight_decay=0.05,
        image=dict(variant="tiny", drop_path=0.1),
    )


SCALES = {
    "imagenet_gcc3m": dict(
        batch_size=1024,  # 128 x 8 GPUs
        captioned=0.5,  # "half number of images from each dataset"
        label_epochs=100,
        learning_rate=2e-4,
        weight_decay=0.01,
        image=dict(variant="tiny", drop_path=0.1),
    ),
    "imagenet21k_yfcc14m": _from_scratch("imagenet21k"),
    "imagenet22k_yfcc14m": _from_scratch("imagenet22k"),
    "imagenet22k_laion400m": dict(
        batch_size=12_288,  # 192 x 64 GPUs
        captioned=2 / 3,  # 128 of 192
        label_epochs=90,  # of Sup-only, Swin's release (§4.4)
        warmup_steps=16_700,
        learning_rate=1e-3,
        weight_decay=0.05,
        image=dict(variant="base", drop_path=0.2),
    ),
}


def get_config(arg: str = ""):
    """Returns the config of a row of Tables 1 to 5."""
    given = common.parse_argument(arg, LEGAL)
    name, method = given.get("scale", "imagenet_gcc3m"), given.get("method", "iclip")
    direction = given.get("direction", "image_to_text")
    if method != "iclip" and (strange := {"names", "data"} & set(given)):
        raise ValueError(f"{sorted(strange)[0]} is of method=iclip, not of method={method}")
    if direction == "all" and method != "iclip":
        raise ValueError(f"direction=all is of method=iclip, not of method={method}")
    if "direction" in given and method in ("sup_only", "cosine"):
        raise ValueError(f"direction is of methods with captions, not of method={method}")
    scale, (labels, captions) = SCALES[name], name.split("_")
    captioned = scale["captioned"]
    config = clip_text.get_base()
    config.batch_size = scale["batch_size"]
    config.optimizer = dict(name="adamw", weight_decay=scale["weight_decay"])
    config.model.image = dict(name="swin", dtype="bfloat16", **scale["image"])
    if captions != "yfcc14m":
        _use_roberta(config)
        if "init" not in given:  # §4.1
            config.init.image = f"data/moby_swin_{scale['image']['variant']}.pth"
            config.init.text = "data/roberta-base"
    config.data.transform = "random_resized_crop(224)|flip_horizontal|rand_augment(2, 9)"
    has_labels = method != "vl_only"
    has_captions = method not in ("sup_only", "cosine") and given.get("data") != "labels"
    described = method == "iclip" and "names" not in given
    parts = {}
    if has_captions:
        source = dict(name="tar", path=f"data/{captions}-*.tar")
        parts["captions"] = dict(weight=captioned, source=source)
    if has_labels:
        parts["labels"] = dict(weight=1 - captioned, **_labeled(labels, described))
    if len(parts) == 2:
        config.data.mixture = parts
    else:
        (part,) = parts.values()
        config.data.update({field: value for field, value in part.items() if field != "weight"})
    if "half" in given:  # §4.1, 2): which half is not given; here hashes of keys choose it
        config.data.hold_out = 0.5
    _set_schedule(config, name, has_labels, has_captions, "half" in given)
    config.evaluators = _evaluators(labels, method, described)
    if method == "iclip":
        config.objective = dict(
            name="iclip",
            template=DESCRIBED if described else TEMPLATE,
            direction=direction,
        )
    elif method in ("sup_only", "cosine"):
        classifier = "linear" if method == "sup_only" else "cosine"
        config.objective = dict(name="cross_entropy", classifier=classifier)
        config.model.text, config.model.embedding_dim = {}, None
        config.model.image_projection, config.init.text = False, None
    else:
        name = {"vl_only": "clip", "multitask": "multitask"}[method]
        config.objective = dict(name=name, direction=direction)
    if "linear_probe" in config.evaluators:
        config.evaluate_every = config.total_steps
    return complete_config(config)


def _labeled(labels: str, described: bool) -> dict:
    """Returns the source and the classes of labeled photographs."""
    if labels == "imagenet":
        classes = "data/imagenet_described.json" if described else "imagenet"
        return dict(source=clip_text.imagenet("train"), classes=classes)
    source = dict(name="tar", path=f"data/{labels}-*.tar", caption="", label="cls")
    return dict(source=source, classes=f"data/{labels}_described.json")


def _set_schedule(config, name, has_labels, has_captions, half) -> None:
    """Counts the steps: epochs of the labels, or of all images where training is from scratch."""
    scale, (labels, captions) = SCALES[name], name.split("_")
    epoch = IMAGES[labels] / config.batch_size  # of labels alone
    both = has_labels and has_captions
    if name == "imagenet22k_laion400m":  # VL-only has "a similar number of images"
        steps = 100_000 if has_captions else scale["label_epochs"] * epoch
    elif captions == "yfcc14m":
        images = IMAGES[labels] * has_labels + IMAGES[captions] * has_captions
        steps = scale["label_epochs"] * images / config.batch_size
    else:  # Table 3: captions alone take "the same iterations and batch size" as labels
        epoch *= 2 if both else 1  # half of a batch is ImageNet-1K
        steps = scale["label_epochs"] * epoch
    config.total_steps = round(steps / 2 if half else steps)
    config.schedule = dict(
        decay="cosine",
        learning_rate=scale["learning_rate"],
        warmup_steps=scale.get("warmup_steps", round(5 * epoch)),  # ImageNet-1K: 5 epochs
    )


def _evaluators(labels: str, method: str, described: bool) -> dict:
    """Returns ImageNet-1K by the text that is trained, its Sketch, and by a classifier of its own.

    Where no class text is trained, class names stand in CLIP's 80 templates.
    """
    own = labels == "imagenet"
    named = dict(names="imagenet")
    if method == "iclip":
        listed = "data/imagenet_wordnet.json"
        if own:
            listed = _labeled(labels, described)["classes"]
        named = dict(names=listed, templates=(DESCRIBED if described else TEMPLATE,))
    sketch = dict(name="tfds", dataset="imagenet_sketch", split="test", label="label")
    sources = dict(imagenet=clip_text.imagenet("validation"), sketch=sketch)
    read = {name: dict(source=x, transform=clip_text.EVALUATE) for name, x in sources.items()}
    by_text = {name: dict(name="zero_shot", **x, **named) for name, x in read.items()}
    if method in ("iclip", "vl_only"):
        return by_text
    by_classifier = {f"{name}_classifier": dict(name="classification", **x)
                     for name, x in read.items()}  # fmt: skip
    if method == "multitask":  # Table 3: the better of the two heads
        return by_text | (by_classifier if own else {})
    # A classifier of 22K classes does not have ImageNet-1K's class numbers.
    return by_classifier if own else dict(linear_probe=clip_text.imagenet_linear_probe())


def _use_roberta(config) -> None:
    config.tokenizer = dict(
        name="roberta",
        vocabulary="data/roberta-base/vocab.json",
        merges="data/roberta-base/merges.txt",
        length=77,
    )
    config.model.text = dict(
        name="roberta", variant="base", max_length=512, dtype="bfloat16", remat="auto"
    )
