"""What the small comparisons share: towers, images and texts that train on two cores in minutes."""

from ml_collections import ConfigDict

from big_align.configs import common

TRAIN = (
    "resize(72)|random_resized_crop(64, 0.35, 1.0)|flip_horizontal|color_jitter(0.3, 0.3, 0.3, 0.0)"
)
EVALUATE = "resize(72)|central_crop(64)"
PRETRAINED_TRAIN = "random_resized_crop(128, 0.5, 1.0)|flip_horizontal"
PRETRAINED_EVALUATE = "resize(128)"
PRETRAINED = "init=pretrained"
"""The argument by which a config's towers start from installed packages."""
TEMPLATES = ("a photo of a {}.", "a picture of a {}.", "{}.")


def get_base(length: int = 24) -> ConfigDict:
    """Returns the base.

    Args:
      length: tokens of a text.
    """
    config = common.get_base()
    config.batch_size = 128
    config.average_decay = 0.99
    config.data.transform = TRAIN
    config.tokenizer = dict(
        name="wordpiece",
        vocabulary=f"{common.data_dir()}/text/bert-base-uncased-vocab.txt",
        length=length,
    )
    config.model.image = dict(
        name="resnet", variant="18", width=32, depths=(1, 1, 1), stem="patch4", drop_path=0.1
    )
    config.model.text = dict(
        name="bert",
        variant="mini",
        width=128,
        depth=1,
        mlp_dim=256,
        vocab_size=30522,
        max_length=length,
        pool="mean",
    )
    config.model.image_projection = True
    config.model.embedding_dim = 128
    config.optimizer = dict(name="adamw", weight_decay=0.1)
    config.schedule = dict(decay="cosine", learning_rate=1e-3, warmup_steps=50)
    config.evaluate_batch_size = 256
    config.evaluate_every = 100_000  # at the end
    config.checkpoint.every = 100_000
    return config


def use_pretrained(config: ConfigDict) -> None:
    """Makes the towers those of `common.use_pretrained_towers`, and images larger.

    What is new keeps its learning rate, and the towers have a tenth of it.
    """
    has_text = bool(config.model.text)
    length = config.tokenizer.length if has_text else 0
    common.use_pretrained_towers(config, length, text=has_text)
    towers = ("image", "text") if has_text else ("image",)
    config.optimizer.rates = tuple(f"model/{tower}=0.1" for tower in towers)
    config.data.transform = PRETRAINED_TRAIN
    for evaluator in config.evaluators.values():
        evaluator.transform = PRETRAINED_EVALUATE


def tar(pattern: str, **members: str) -> dict[str, str]:
    """Returns the config node of tar shards in the folder of data sets."""
    return dict(name="tar", path=f"{common.data_dir()}/{pattern}", **members)


def flickr8k_captions() -> dict:
    """Returns the part of captioned photographs."""
    return dict(weight=0.5, source=tar("flickr8k/train-*.tar", caption="json.captions"))


def labels_of(name: str) -> dict:
    """Returns the part of labeled photographs of "grocery" or "tiny_imagenet"."""
    return dict(
        weight=0.5,
        source=tar(f"{name}/train-*.tar", caption="", label="cls"),
        classes=f"{common.data_dir()}/{name}/classes.json",
        templates=TEMPLATES,
    )


def zero_shot(name: str, split: str, classes: str | None = None, **options) -> dict:
    """Returns the evaluator that names the class of a photograph among class texts."""
    return dict(
        name="zero_shot",
        source=tar(f"{name}/{split}-*.tar", caption="", label="cls"),
        transform=EVALUATE,
        names=classes or f"{common.data_dir()}/{name}/classes.json",
        templates=TEMPLATES,
        **options,
    )


def classification(name: str, split: str) -> dict:
    """Returns the evaluator of an objective's own classifier."""
    return dict(
        name="classification",
        source=tar(f"{name}/{split}-*.tar", caption="", label="cls"),
        transform=EVALUATE,
    )


def retrieval() -> dict:
    """Returns the evaluator of captions and photographs by each other."""
    return dict(
        name="retrieval",
        source=tar("flickr8k/test-*.tar", caption="json.captions"),
        transform=EVALUATE,
    )


def linear_probe() -> dict:
    """Returns the evaluator of frozen features on the shop photographs."""
    return dict(
        name="linear_probe",
        train_source=tar("grocery/train-*.tar", caption="", label="cls"),
        validation_source=tar("grocery/val-*.tar", caption="", label="cls"),
        source=tar("grocery/test-*.tar", caption="", label="cls"),
        transform=EVALUATE,
    )


def features() -> dict:
    """Returns the evaluators of frozen features, linear probe and k-NN, on both sets of labels."""
    tiny = dict(
        train_source=tar("tiny_imagenet/train-*.tar", caption="", label="cls"),
        source=tar("tiny_imagenet/val-*.tar", caption="", label="cls"),
        transform=EVALUATE,
    )
    grocery = linear_probe()
    return dict(
        tiny_imagenet=dict(name="linear_probe", **tiny),
        tiny_imagenet_knn=dict(name="knn", **tiny),
        grocery=grocery,
        grocery_knn=dict(
            name="knn", **{k: grocery[k] for k in ("train_source", "source", "transform")}
        ),
    )
