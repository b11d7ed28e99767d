"""UniCL, cross-entropy and SupCon on ImageNet-1K (Yang et al. 2022, §4.1, Tables 2 to 4, B.1).

Arguments, separated by commas:
  method=unicl | cross_entropy | supcon | unicl_table | unicl_table_one_direction
  image=swin_tiny | resnet50 | resnet101
  mixing=yes          with MixUp and CutMix (the last column of Table 2)
  batch=1024 | 2048   instead of 4096 (Table 4: the same number of epochs)
"""

from big_align.configs import clip_text, common
from big_align.runs.defaults import complete_config

LEGAL = {
    "method": ("unicl", "cross_entropy", "supcon", "unicl_table", "unicl_table_one_direction"),
    "image": ("swin_tiny", "resnet50", "resnet101"),
    "mixing": ("yes",),
    "batch": ("1024", "2048", "4096"),
}
# B.1: "the same set of data augmentation and regularization" as Swin's (Liu et al. 2021).
TRAIN = "random_resized_crop(224)|flip_horizontal|rand_augment(2, 9)|random_erasing(0.25)"


def get_config(arg: str = ""):
    """Returns the config of a cell of Tables 2 to 4."""
    given = common.parse_argument(arg, LEGAL)
    method, image = given.get("method", "unicl"), given.get("image", "swin_tiny")
    config = clip_text.get_base()
    config.batch_size = int(given.get("batch", 4096))  # B.1: 4096
    epoch = clip_text.IMAGENET_IMAGES / config.batch_size
    config.total_steps = round(500 * epoch)  # B.1: 500 epochs
    config.data.source = clip_text.imagenet("train")
    config.data.classes = "imagenet"  # §4: one of CLIP's templates at random, all 80 in validation
    config.data.transform = TRAIN
    config.model.image = towers(image)
    # B.1: SGD with 0.4 and 1e-4 for CNNs alone, AdamW with 0.002 and 0.05 with any transformer.
    sgd = image != "swin_tiny" and method in ("cross_entropy", "supcon")
    config.optimizer = dict(name="sgd" if sgd else "adamw", weight_decay=1e-4 if sgd else 0.05)
    config.schedule = dict(
        decay="cosine",
        learning_rate=0.4 if sgd else 0.002,
        warmup_steps=round((20 if image == "swin_tiny" else 5) * epoch),  # B.1: 5 and 20 epochs
    )
    config.objective = dict(name="unicl")  # §3.4: tau starts at 1
    if method in ("cross_entropy", "supcon"):
        config.objective = dict(name=method)
        config.model.text, config.evaluators = {}, {}
        config.model.embedding_dim, config.model.image_projection = None, False
        if method == "cross_entropy":
            config.objective.label_smoothing = 0.1  # Swin's
            config.evaluators.imagenet = dict(
                name="classification",
                source=clip_text.imagenet("validation"),
                transform=clip_text.EVALUATE,
            )
        else:
            config.data.views_per_image = 2
    if method.startswith("unicl_table"):
        config.tokenizer = dict(name="class_names", classes="data/imagenet_described.json")
        config.model.text = dict(name="embedding_table", vocab_size=1000)
        config.data.classes = config.evaluators.imagenet.names = "data/imagenet_described.json"
        config.data.describe_classes = config.evaluators.imagenet.with_descriptions = True
        config.data.templates = config.evaluators.imagenet.templates = ("{}",)
    if method == "unicl_table_one_direction":
        config.objective.direction = "image_to_text"
    if "mixing" in given:
        config.mixing = dict(mixup_alpha=0.8, cutmix_alpha=1.0)  # Swin's
    return complete_config(config)


def towers(image: str) -> dict:
    """Returns the node of an image tower."""
    if image == "swin_tiny":
        return dict(name="swin", variant="tiny", drop_path=0.2, dtype="bfloat16")
    return dict(name="resnet", variant=image.removeprefix("resnet"), dtype="bfloat16")
