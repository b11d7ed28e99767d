"""MLCD in small: 11,050 photographs, without captions or labels, by the clusters of an encoder.

The encoder is one of configs/unicl_flickr8k.py. Its clusters come from

  python -m big_align.tools.embed --model=WORKDIR --output=embeddings \
      --source='../shared/data/{flickr8k,tiny_imagenet}/train-*.tar'
  python -m big_align.tools.cluster --embeddings=embeddings --k=1000 --output=clusters

and are given as --config.data.precomputed.clusters=clusters.
`experiments/run.py text_towers` does all of it. Arguments, separated by commas:
  scale=16 | 64      64 is ArcFace's, as in configs/mlcd.py
  init=pretrained    the tower is EfficientNet-Lite0, trained on ImageNet
  and those of configs/mlcd.py:ROWS, for the rows of Tables 5 and 6 in small: ratio=0.01
"""

from big_align.config.defaults import complete_config
from big_align.configs import common, mlcd
from big_align.configs.parts import two_cores

LEGAL = mlcd.ROWS | {"scale": ("16", "64"), "init": ("pretrained",)}
CLUSTERS = 1000


def get_config(arg: str = ""):
    """Returns the config."""
    given = common.parse_argument(arg, LEGAL)
    config = two_cores.get_base()
    config.total_steps = 800
    config.data.source = two_cores.tar("{flickr8k,tiny_imagenet}/train-*.tar", caption="")
    config.data.captions_per_image = 0
    config.tokenizer = dict(name="none")
    config.model.text = {}
    # ArcFace's scale of 64 learns slowly from scratch in these few steps.
    scale = float(given.get("scale", 16))
    config.objective = dict(name="mlcd", num_clusters=CLUSTERS, scale=scale)
    mlcd.set_row(config.objective, given)
    config.schedule.learning_rate = 3e-3
    config.evaluators = two_cores.features()
    if "init" in given:
        two_cores.use_pretrained(config)
    return complete_config(config)
