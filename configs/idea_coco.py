"""IDEA on COCO and Visual Genome, one caption an image (Huang et al. 2022, §4.1, Tables 1 to 5).

The arguments are those of configs/idea_cc3m.py, where a table says which gives which row. `caption`
and the shards are as img2dataset and webdataset write them: --config.data.source.path,
--config.data.source.caption. Rows with a recognizer find the tags that the first caption of COCO's
test photographs leaves out; `tools.show_tags` draws them (Figures 5, 8 and 10). With `figure=6` the
captions that are not trained on tell which of the tags that are found were missing, and how many of
these are found: `found_precision` and `found_recall` of the metrics.
"""

from big_align.configs import common, idea_cc3m
from big_align.configuration.defaults import complete_config

PAIRS = 213_000  # §4.1: COCO with 113K, VG with 100K


def get_config(arg: str = ""):
    """Returns the config of a row."""
    given = common.parse_argument(arg, idea_cc3m.LEGAL)
    config = idea_cc3m.get_recipe(given, pairs=PAIRS)
    config.data.source = dict(name="tar", path="data/{coco,vg}-*.tar", caption="json.captions")
    idea_cc3m.use_tags(config, "data/coco_vg_tags", given)  # §4.1: 1,000 tags
    config.data.tags.truth = "figure" in given
    if config.objective.recognition and "evaluate" not in given:
        config.evaluators.found = dict(
            name="found_tags",
            source=dict(name="benchmark", benchmark="coco", split="test", data="data"),
            transform=idea_cc3m.EVALUATE,
            tags=config.data.tags.path,
        )
    return complete_config(config)
