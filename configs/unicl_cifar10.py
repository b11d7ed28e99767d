"""UniCL's Table 2 on its own CIFAR-10: cross-entropy, SupCon and UniCL from scratch on two cores.

The paper trains a ResNet-50 for 500 epochs in batches of 4096, this a small ResNet for three in
batches of 128. Arguments are those of configs/unicl_grocery.py. The data are in
$BIG_ALIGN_DATA/cifar10, or wherever the benchmark cifar10 is found.
"""

from big_align.config.defaults import complete_config
from big_align.configs import common
from big_align.configs.parts import two_cores
from big_align.configs.unicl_grocery import METHODS, set_method
from big_align.configs.unicl_imagenet import SMALL_EVALUATE, SMALL_TRAIN


def get_config(arg: str = "unicl"):
    """Returns the config of a method."""
    arg, _ = common.choose(arg, METHODS, "unicl")
    config = two_cores.get_base()
    config.total_steps = 1200  # three epochs
    source = dict(name="benchmark", benchmark="cifar10", data=common.data_dir())
    config.data.update(source=source | dict(split="train"), classes="cifar10")
    config.data.update(transform=SMALL_TRAIN, templates=two_cores.TEMPLATES)
    config.model.image.stem = "patch"  # of 32 pixels, 16 x 16 are left
    measured = dict(source=source | dict(split="test"), transform=SMALL_EVALUATE)
    set_method(config, arg, measured, "cifar10", 10)
    return complete_config(config)
