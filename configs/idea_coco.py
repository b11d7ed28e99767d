"""IDEA on COCO and Visual Genome, one caption an image (Huang et al. 2022, §4.1, Tables 1 to 5).

The arguments are those of configs/idea_cc3m.py. `caption` and the shards are as img2dataset and
webdataset write them: --config.data.source.path, --config.data.source.caption.
"""

from big_align.configs import idea_cc3m
from big_align.runs.defaults import complete_config

PAIRS = 213_000  # §4.1: COCO with 113K, VG with 100K


def get_config(arg: str = ""):
    """Returns the config."""
    config = idea_cc3m.get_recipe(arg, pairs=PAIRS)
    config.data.source = dict(name="tar", path="data/{coco,vg}-*.tar", caption="json.captions")
    config.data.tags.path = "data/coco_vg_tags.json"  # §4.1: 1,000 tags
    return complete_config(config)
