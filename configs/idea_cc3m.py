"""IDEA on Conceptual Captions 3M: ViT-B/16 and BERT-base (Huang et al. 2022, §4.1, Tables 1 and 2).

Arguments, separated by commas:
  method=itc | mlr | tag2text | retain     up to which row of Table 4 (default all)
  head=cls                                 instead of ML-Decoder (Table 3)
  loss=bce | weighted_bce | splc_focal     instead of SPLC (Table 3)
  towers=initialized                       from folders of transformers' weights: data/vit-base (on
                                           ImageNet) and data/bert-base-uncased
The paper starts from such weights but in its linear probe (Table 5). The tag list, without the most
frequent tags (RmTopFreq), comes from OpenImages' class names:
  python -m big_align.tools.build_tags --help
"""

from ml_collections import ConfigDict

from big_align.configs import clip_text, common
from big_align.runs.defaults import complete_config

PAIRS = 2_900_000  # §4.1
BATCH = 1024  # §4.1
LEGAL = {
    "method": ("itc", "mlr", "tag2text", "retain"),
    "head": ("ml_decoder", "cls"),
    "loss": ("bce", "weighted_bce", "splc", "splc_focal"),
    "towers": ("initialized",),
}
EVALUATE = "resize(256)"  # §4.1: "uniformly resized"


def get_config(arg: str = ""):
    """Returns the config."""
    config = get_recipe(arg, pairs=PAIRS)
    config.data.source = dict(name="tar", path="data/cc3m-*.tar", caption="txt")
    config.data.tags.path = "data/cc3m_tags.json"  # §4.1: 2,500 tags
    return complete_config(config)


def get_recipe(arg: str, pairs: int) -> ConfigDict:
    """Returns what both of the paper's data sets share.

    Args:
      arg: the arguments of the config.
      pairs: of image and text, of which the paper makes 30 epochs.
    """
    given = common.parse_argument(arg, LEGAL)
    config = common.get_base()
    epoch = pairs / BATCH
    config.batch_size = BATCH
    config.total_steps = round(30 * epoch)  # §4.1: 30 epochs
    # §4.1: RandAugment without colors, as ALBEF (Li et al. 2021), whose crops and strength it has.
    config.data.transform = (
        "random_resized_crop(256, 0.2)|flip_horizontal|rand_augment(2, 7, colors=False)"
    )
    config.data.captions_used = 1  # §4.1: one text an image
    config.tokenizer = dict(name="wordpiece", vocabulary="data/bert-base-uncased/vocab.txt")
    config.tokenizer.length = 40  # §4.1
    config.model.image = dict(name="vit", variant="b/16", dtype="bfloat16", remat=True)
    config.model.text = dict(name="bert", variant="base", dtype="bfloat16", remat=True)
    config.model.image_projection = True
    config.model.embedding_dim = 256  # §3.3
    if "towers" in given:
        config.init.image, config.init.text = "data/vit-base", "data/bert-base-uncased"
    config.objective = dict(
        name="idea",
        threshold=0.6,  # §4.1
        change_step=round(epoch),  # §4.1: the first epoch
        head=given.get("head", "ml_decoder"),
        loss=given.get("loss", "splc"),
        **ladder(given.get("method", "retain")),
    )
    config.optimizer = dict(name="adamw", weight_decay=0.02)  # §4.1
    config.schedule = dict(decay="cosine", learning_rate=1e-4)  # §4.1
    imagenet = clip_text.imagenet_zero_shot()
    config.evaluators = dict(imagenet=imagenet | dict(transform=EVALUATE))
    config.log_every = 100
    config.evaluate_every = round(5 * epoch)
    config.evaluate_batch_size = 1024
    config.checkpoint = dict(every=1000, keep_last=3)
    return config


def ladder(method: str) -> dict[str, bool]:
    """Returns the settings of a row of Table 4; RmTopFreq is a property of the tag list.

    Args:
      method: "itc", "mlr", "tag2text" or "retain".
    """
    rows = "itc", "mlr", "tag2text", "retain"
    row = rows.index(method)
    return dict(recognition=row >= 1, tag_to_text=row >= 2, retain=row >= 3)
