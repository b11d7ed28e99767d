"""UniCL, cross-entropy and SupCon on labels (Yang et al. 2022, §4.1, Tables 2 to 5, B.1).

Arguments, separated by commas:
  method=unicl | cross_entropy | supcon | unicl_table, a vector a class instead of a text encoder
  method=supcon_classifier  SupCon's second stage, a linear classifier on the image tower of
                      --config.init.image=WORKDIR_OF_THE_FIRST
  image=swin_tiny | resnet50 | resnet101
  data=imagenet | cifar10 | cifar100
  mixing=yes          with MixUp and CutMix (the last column of Table 2)
  direction=image_to_text | text_to_image  of UniCL's two; Table 3's "L_t2i" may be read either way
  batch=1024 | 2048   instead of 4096 (Table 4: the same number of epochs)
  rate=scaled         in proportion to such a batch, as in the released code (B.1 has one rate)
  optimizer=sgd       for UniCL with a ResNet and texts, where B.1 may be read either way
Tables of the paper, and the arguments of their rows and columns:
  2   method, with data=cifar10 | cifar100 and image=resnet50 | resnet101, or with image and mixing;
      SupCon takes both of its stages
  3   nothing, method=unicl_table, and that with direction=image_to_text | text_to_image
  4   batch=1024 | 2048 | 4096, with method=unicl_table too, and with rate=scaled
  5   the first three rows: method=cross_entropy, method=supcon, nothing
"""

from big_align.config.defaults import complete_config
from big_align.configs import common
from big_align.configs.parts import clip_text
from big_align.data.labels.classes import read_classes
from big_align.training.optimizers import EXCLUDE

CLASSIFIERS = ("cross_entropy", "supcon_classifier")
LEGAL = {
    "method": ("unicl", "unicl_table", *CLASSIFIERS, "supcon"),
    "image": ("swin_tiny", "resnet50", "resnet101"),
    "data": ("imagenet", "cifar10", "cifar100"),
    "mixing": ("yes",),
    "direction": ("image_to_text", "text_to_image"),
    "batch": ("1024", "2048", "4096"),
    "rate": ("scaled",),
    "optimizer": ("sgd",),
}
# B.1: "same set of data augmentation and regularization" as Swin's (Liu et al. 2021), for all of
# §4.1, CNNs too. Its code has label smoothing, as UniCL's has.
LABEL_SMOOTHING = 0.1
LARGE_CROP = "random_resized_crop(224, 0.08, 1.0)|flip_horizontal"
TRAIN = f"{LARGE_CROP}|rand_augment(2, 9)|random_erasing(0.25)"
# §4.1: "standard random crop". The paper gives neither its range nor a size for CIFAR's images:
# their own is used. B.1's RandAugment and erasing are for ImageNet's here.
SMALL_TRAIN, SMALL_EVALUATE = "random_resized_crop(32, 0.2, 1.0)|flip_horizontal", "resize(32)"
BATCH_SIZE = 4096  # B.1
CLIP_NORM = 5.0
"""Of the whole gradient, in the released code; the paper does not say."""
CLASSIFIER_EPOCHS = 90
"""Of SupCon's second stage, with SGD's rate of 0.1 for 256 images: usual, and not in the paper."""


def get_config(arg: str = ""):
    """Returns the config of a cell of Tables 2 to 5."""
    given = common.parse_argument(arg, LEGAL)
    method, image = given.get("method", "unicl"), given.get("image", "swin_tiny")
    data = given.get("data", "imagenet")
    config = clip_text.get_base()
    config.batch_size = int(given.get("batch", BATCH_SIZE))
    images = clip_text.IMAGENET_IMAGES if data == "imagenet" else 50_000
    epoch = images / config.batch_size
    config.total_steps = round(500 * epoch)  # B.1: 500 epochs
    config.data.classes = data  # §4: one of CLIP's templates at random, all in validation
    config.model.image = towers(image)
    use_data(config, data, image)
    # B.1: SGD with 0.4 and 1e-4 for CNNs, AdamW with 0.002 and 0.05 with a transformer on either
    # side. So UniCL with a ResNet and a text encoder has AdamW, and with a table of classes SGD.
    if "optimizer" in given and (method != "unicl" or image == "swin_tiny"):
        raise ValueError("optimizer=sgd is for method=unicl with image=resnet50 or resnet101")
    sgd = image != "swin_tiny" and (method != "unicl" or "optimizer" in given)
    config.optimizer = sgd_settings() if sgd else adamw_settings(0.05, texts=method == "unicl")
    if "rate" in given and (config.batch_size == BATCH_SIZE or method == "supcon_classifier"):
        raise ValueError("rate=scaled is for batch=1024 or batch=2048 and what B.1 trains")
    share = config.batch_size / BATCH_SIZE if "rate" in given else 1.0
    config.schedule = dict(
        decay="cosine",
        learning_rate=share * (0.4 if sgd else 0.002),
        warmup_steps=round((20 if image == "swin_tiny" else 5) * epoch),  # B.1: 5 and 20 epochs
    )
    # §3.4: tau starts at 1
    config.objective = dict(name="unicl", label_smoothing=LABEL_SMOOTHING)
    if method in (*CLASSIFIERS, "supcon"):
        use_no_texts(config, method, round(CLASSIFIER_EPOCHS * epoch))
    if method == "unicl_table":
        use_table(config, data)
    if "direction" in given:
        if config.objective.name != "unicl":
            raise ValueError("direction is for method=unicl or method=unicl_table")
        config.objective.direction = given["direction"]
    if "mixing" in given:
        config.mixing = dict(mixup_alpha=0.8, cutmix_alpha=1.0)  # Swin's
    return complete_config(config)


def use_data(config, data: str, image: str) -> None:
    """Sets source, image operations and zero-shot evaluation; small images have a small stem."""
    if data == "imagenet":
        config.data.source = clip_text.imagenet("train")
        config.data.transform = TRAIN
        return
    if image == "swin_tiny":
        raise ValueError(f"data={data} needs image=resnet50 or resnet101, as in Table 2")
    source = dict(name="benchmark", benchmark=data, data=common.data_dir())
    config.data.source = source | dict(split="train+validation")  # Table 1: 50,000 images
    config.data.transform = SMALL_TRAIN
    config.model.image.stem = "small"
    # §4: "all 80 templates", which are ImageNet's; CLIP has 18 for CIFAR.
    config.data.templates = templates = read_classes("imagenet").templates
    measured = dict(source=source | dict(split="test"), transform=SMALL_EVALUATE, names=data)
    config.evaluators = {data: dict(name="zero_shot", templates=templates, **measured)}


def use_no_texts(config, method: str, classifier_steps: int) -> None:
    """Makes it a run by labels alone: cross-entropy, or one of SupCon's two stages."""
    ((name, evaluator),) = config.evaluators.items()
    measured = {field: evaluator[field] for field in ("source", "transform")}
    config.evaluators = {name: dict(name="classification", **measured)}
    config.model.text = {}
    config.model.embedding_dim, config.model.image_projection = None, False
    config.objective = dict(name="supcon" if method == "supcon" else "cross_entropy")
    if method == "supcon":
        config.data.views_per_image = 2
        config.evaluators = {}
    if method == "cross_entropy":
        config.objective.label_smoothing = LABEL_SMOOTHING
    if method == "supcon_classifier":
        config.model.locked = ("image",)
        config.total_steps = classifier_steps
        config.optimizer = dict(name="sgd", nesterov=True)
        rate = 0.1 * config.batch_size / 256
        config.schedule = dict(decay="cosine", learning_rate=rate, warmup_steps=0)
        large = "imagenet" in config.evaluators
        config.data.transform = LARGE_CROP if large else SMALL_TRAIN


def use_table(config, data: str) -> None:
    """Takes a vector a class instead of a text encoder (§3.3, Table 3)."""
    (evaluator,) = config.evaluators.values()
    classes = {"imagenet": "data/imagenet_described.json"}.get(data, data)
    config.tokenizer = dict(name="class_names", classes=classes)
    sizes = {"imagenet": 1000, "cifar10": 10, "cifar100": 100}
    width = config.model.embedding_dim
    config.model.text = dict(name="embedding_table", vocab_size=sizes[data], width=width)
    config.model.text_projection = False  # §4.1: "a simple linear embedding layer"
    config.data.classes = evaluator.names = classes
    # Some names of ImageNet belong to two classes; descriptions distinguish them.
    template = "{}, {description}" if data == "imagenet" else "{}"
    config.data.templates = evaluator.templates = (template,)


def towers(image: str) -> dict:
    """Returns the node of an image tower."""
    if image.startswith("swin"):
        size = image.removeprefix("swin_")
        rate = 0.5 if size == "base" else 0.2  # the released code's
        return dict(name="swin", variant=size, drop_path=rate, dtype="bfloat16")
    return dict(name="resnet", variant=image.removeprefix("resnet"), dtype="bfloat16")


def sgd_settings() -> dict:
    """Returns the node of SGD (B.1)."""
    return dict(name="sgd", weight_decay=1e-4, clip_norm=CLIP_NORM)


def adamw_settings(weight_decay: float, texts: bool = True) -> dict:
    """Returns the node of AdamW.

    The released code means not to decay positions and tokens of the text encoder, nor positions and
    tables of relative ones of Swin, but lists the former under a prefix that no parameter has. Here
    none of them decay.

    Args:
      weight_decay: of the rest.
      texts: False where the tower of texts is a table of classes, which decays as a classifier.
    """
    kept = ("position_embedding", "token_embedding") if texts else ()
    return dict(
        name="adamw", weight_decay=weight_decay, clip_norm=CLIP_NORM, exclude=(*EXCLUDE, *kept)
    )
