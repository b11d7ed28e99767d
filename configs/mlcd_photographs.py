"""MLCD in small: 11,050 photographs, without captions or labels, by the clusters of an encoder.

The encoder is one of configs/unicl_flickr8k.py. Its clusters come from

  python -m big_align.tools.embed --model=WORKDIR --output=embeddings \
      --source='../shared/data/{flickr8k,tiny_imagenet}/train-*.tar'
  python -m big_align.tools.cluster --embeddings=embeddings --k=1000 --output=clusters

and are given as --config.data.precomputed.clusters=clusters.
`benchmarks/clusters.py` does all of it.
"""

from big_align.runs.defaults import complete_config
from configs import two_cores

CLUSTERS = 1000


def get_config():
    """Returns the config."""
    config = two_cores.get_base()
    config.total_steps = 800
    config.data.source = two_cores.tar("{flickr8k,tiny_imagenet}/train-*.tar", caption="")
    config.data.captions_per_image = 0
    config.tokenizer = dict(name="none")
    config.model.text = {}
    # ArcFace's scale of 64 learns slowly from scratch in these few steps.
    config.objective = dict(name="mlcd", num_clusters=CLUSTERS, scale=16.0)
    config.schedule.learning_rate = 3e-3
    config.evaluators = two_cores.features()
    return complete_config(config)
