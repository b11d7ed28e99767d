"""Fine-tuning as ALIGN does it: retrieval (Jia et al. 2021, §5.1) and classification (§5.3).

Arguments, separated by commas:
  data=flickr30k | coco                                        retrieval, Table 1 (the default)
  data=imagenet | flowers102 | pets | stanford_cars | food101  classification, Tables 5 and 7
  stage=head        of classification: the classifier alone, on frozen features (Table 5)
  image=l2 | b7     the towers of align_l2.py, or those of align_b7.py
  layer_decay=0.9   a layer's learning rate is this much of that of the layer above (not ALIGN's)
Retrieval starts from --config.init.all=WORKDIR. Classification first trains the classifier, then
all layers: give it --config.first.init.image=WORKDIR, or --config.init.image=WORKDIR with
stage=head. The data are benchmarks in the folder data/, which say how they are got.
"""

import copy

from ml_collections import ConfigDict

from big_align.config.defaults import complete_config
from big_align.configs import align_b7, align_l2, common
from big_align.configs.parts import clip_text
from big_align.suites.catalog import read_benchmark

RETRIEVAL = {"flickr30k": 3_000, "coco": 6_000}  # §5.1: steps
FINE_GRAINED = ("flowers102", "pets", "stanford_cars", "food101")  # Table 7
LEGAL = {
    "data": (*RETRIEVAL, "imagenet", *FINE_GRAINED),
    "stage": ("head",),
    "image": ("l2", "b7"),
    "layer_decay": (),
}
DATA = "data"
SMALL, LARGE = (289, 360), (475, 600)  # §5.3: pixels in training and evaluation


def get_config(arg: str = ""):
    """Returns the config of a data set."""
    given = common.parse_argument(arg, LEGAL)
    data, decay = given.get("data", "flickr30k"), given.get("layer_decay")
    base = {"l2": align_l2, "b7": align_b7}[given.get("image", "l2")]
    if data in RETRIEVAL:
        if "stage" in given:
            raise ValueError(f"stage=head is of classification, and data={data} is retrieval")
        config = get_retrieval(base.get_config(), data)
    else:
        head = get_classification(base.get_config(), data, head=True)
        if "stage" in given:
            return head
        config = get_classification(base.get_config(), data, head=False)
        with head.unlocked():
            head.evaluators = {}
        config.first = head
    if decay:
        towers = ("image", "text") if config.model.text else ("image",)
        config.optimizer.layer_decay = tuple(f"model/{tower}={decay}" for tower in towers)
    return config


def get_retrieval(config: ConfigDict, data: str) -> ConfigDict:
    """Returns ALIGN's own config with the numbers of §5.1; what it does not say stays."""
    config = copy.deepcopy(config).unlock()
    config.batch_size = 2048
    config.total_steps = RETRIEVAL[data]
    config.init.temperature = "all"  # 3,000 steps at this rate would hardly move it from 1
    # "The initial learning rate" is at the first step: a warm-up of 10,000 steps would not end.
    config.schedule = dict(decay="linear", learning_rate=1e-5, warmup_steps=0)
    config.data.source = open_split(data, "train")
    _, evaluate = common.paper_transforms()
    config.evaluators = {
        data: dict(name="benchmark", benchmark=data, data=DATA, transform=evaluate)
    }
    config.evaluate_every = 1_000
    config.checkpoint = dict(every=500, keep_last=3)
    return complete_config(config)


def get_classification(config: ConfigDict, data: str, head: bool) -> ConfigDict:
    """Returns one of the two stages of §5.3.

    Args:
      config: ALIGN's own.
      data: the data set.
      head: whether the classifier is trained alone.
    """
    config = copy.deepcopy(config).unlock()
    train, evaluate = LARGE if data == "imagenet" and not head else SMALL
    # Nothing is chosen by validation images, so all of Pets and Flowers are trained on, as by those
    # that Table 7 compares with; ALIGN does not say.
    config.data.source = open_split(data, "train" if data == "imagenet" else "train+validation")
    config.data.classes = read_benchmark(data).class_list
    config.data.captions_per_image = 0
    config.data.transform = f"random_resized_crop({train})|flip_horizontal"
    config.tokenizer = dict(name="none")
    config.model.text = {}
    # §5.3: "fine-tune all layers, except with batch norm statistics frozen" for the small data
    # sets, and so not for ImageNet; a tower that only gives features keeps its own.
    config.model.image.fixed_statistics = head or data != "imagenet"
    if config.model.image.fixed_statistics:
        config.model.image.group_size = None
    config.objective = dict(name="cross_entropy")
    config.optimizer = dict(name="sgd", momentum=0.9, weight_decay=0.0)
    if head:
        config.model.locked = ("image",)
    else:
        # "10x smaller ... on the backbone", of ImageNet; we read it as part of "the same ...
        # optimizer" of the others too, whose rates are given without it.
        config.optimizer.rates = ("model/image=0.1",)
    if data == "imagenet":
        config.batch_size = 1024
        epoch = clip_text.IMAGENET_IMAGES / config.batch_size
        config.total_steps = round(100 * epoch)
        config.schedule = dict(
            decay="step",
            learning_rate=0.1 if head else 0.01,
            decay_every=round(30 * epoch),
            decay_rate=0.2,
        )
    else:
        config.batch_size = 256
        config.total_steps = 20_000
        config.schedule = dict(decay="cosine", learning_rate=1e-2 if head else 1e-3)
        config.optimizer.weight_decay = 1e-5
    # "A single central crop with ratio of 0.875"
    view = f"resize_small({round(evaluate / 0.875)})|central_crop({evaluate})"
    source = open_split(data, "test")
    config.evaluators = {data: dict(name="classification", source=source, transform=view)}
    config.evaluate_every = 5_000
    config.evaluate_batch_size = 256
    config.checkpoint = dict(every=2_000, keep_last=3)
    return complete_config(config)


def open_split(data: str, split: str) -> dict[str, str]:
    """Returns the source of a split."""
    return dict(name="benchmark", benchmark=data, split=split, data=DATA)
