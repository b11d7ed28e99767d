"""IDEA on Conceptual Captions 3M: ViT-B/16 and BERT-base (Huang et al. 2022, §4).

Arguments, separated by commas:
  method=itc | recognition | mlr | tag2text | rm_top_freq | retain      (default retain: IDEA)
  head=cls                                 instead of ML-Decoder
  loss=bce | weighted_bce | splc_focal     instead of SPLC
  tags=all                                 the tag list with its most frequent tags
  init=none                                the image tower from scratch (§4.4)
  probe=yes                                a linear probe of ImageNet at the end
  evaluate=idea9                           zero-shot accuracy on the paper's 9 data sets (Table 2),
                                           and its means (Tables 1, 2 and 4)
  data=blip                                captions by BLIP's CapFilt (here alone, not on COCO)
  figure=6                                 every epoch is measured, and on COCO what is found

| row (COCO&VG: configs/idea_coco.py) | argument |
|---|---|
| Table 1: CLIP; MLR alone; IDEA*; IDEA | `method=itc`; `method=recognition`; as +MLR below; none |
| Table 3: CLS and BCE | `method=recognition,head=cls,loss=weighted_bce` |
| Table 3: ML-Decoder and BCE; SPLC | `method=recognition,loss=weighted_bce`; `method=recognition` |
| Table 4: ITC; +MLR; +Tag2Text | `method=itc`; `method=mlr,tags=all`; `method=tag2text,tags=all` |
| Table 4: +RmTopFreq; +Retain | `method=rm_top_freq`; none |
| Table 5: CLIP; IDEA*; IDEA | `init=none,probe=yes` with `method=itc`; as +MLR above; none |
| Table 6 | `method=itc`; none; `data=blip,method=itc`; `data=blip` |
| Figure 6 | `method=itc,figure=6`; `figure=6` |
| Figure 7 b | `method=itc` and none: `imagenet/seen_top1`, `imagenet/unseen_top1` |

The towers start from folders of transformers' weights: data/vit-base, a ViT-B/16 trained on
ImageNet, and data/bert-base-uncased (§4.1). Zero-shot prompts are those of appendix A.2. The tag
lists, without the most frequent tags (RmTopFreq) and with them, come from the names of
OpenImages' 9,600 trainable classes (§4.1); how many are removed is not published:
  python -m big_align.tools.build_tags --source='data/cc3m-*.tar' --captions_used=1 \\
      --names=oidv6-class-descriptions.csv --ids=oidv6-classes-trainable.txt \\
      --compounds=without_hypernyms_inside --remove_top=COUNT --max_tags=2500 \\
      --tokenizer_argument=vocabulary=data/bert-base-uncased/vocab.txt --output=data/cc3m_tags.json
OpenImages' test images are a table, docs/data.md#openimages.
"""

from ml_collections import ConfigDict

from big_align.config.defaults import complete_config
from big_align.configs import common
from big_align.configs.parts import clip_text

PAIRS = 2_900_000  # §4.1
BATCH = 1024  # §4.1
ROWS = ("itc", "recognition", "mlr", "tag2text", "rm_top_freq", "retain")
LEGAL = {
    "method": ROWS,
    "head": ("ml_decoder", "cls"),
    "loss": ("bce", "weighted_bce", "splc", "splc_focal"),
    "tags": ("all",),
    "init": ("none",),
    "probe": ("yes",),
    "evaluate": ("idea9",),
    "figure": ("6",),
}
EVALUATE = "resize(256)"  # §4.1: "uniformly resized"


def get_config(arg: str = ""):
    """Returns the config of a row."""
    given = common.parse_argument(arg, LEGAL | {"data": ("blip",)})
    config = get_recipe(given, pairs=PAIRS)
    shards = "cc3m_blip" if "data" in given else "cc3m"
    config.data.source = dict(name="tar", path=f"data/{shards}-*.tar", caption="txt")
    use_tags(config, "data/cc3m_tags", given)  # §4.1: 2,500 tags
    return complete_config(config)


def get_recipe(given: dict[str, str], pairs: int) -> ConfigDict:
    """Returns what both of the paper's data sets share.

    Args:
      given: the arguments of the config.
      pairs: of image and text, of which the paper makes 30 epochs.
    """
    config = common.get_base()
    epoch = pairs / BATCH
    config.batch_size = BATCH
    config.total_steps = round(30 * epoch)  # §4.1: 30 epochs
    # §4.1: RandAugment without colors, as in ALBEF (Li et al. 2021), whose code has these crops.
    config.data.transform = (
        "random_resized_crop(256, 0.2)|flip_horizontal|rand_augment(2, 7, recipe='albef')"
    )
    config.data.captions_used = 1  # §4.1: one text per image, drawn at random; here the first
    config.tokenizer = dict(name="wordpiece", vocabulary="data/bert-base-uncased/vocab.txt")
    config.tokenizer.length = 40  # §4.1
    config.model.image = dict(name="vit", variant="b/16", dtype="bfloat16", remat="auto")
    config.model.text = dict(name="bert", variant="base", dtype="bfloat16", remat="auto")
    config.model.image_projection = True
    config.model.embedding_dim = 256  # §3.3
    config.init.text = "data/bert-base-uncased"  # §4.1 names BERT, and says "trained" of ViT alone
    if "init" not in given:  # §4.1
        config.init.image = "data/vit-base"
    method = given.get("method", "retain")
    config.objective = dict(
        name="idea",
        threshold=0.6,  # §4.1
        change_step=round(epoch),  # §4.1: the first epoch
        head=given.get("head", "ml_decoder"),
        loss=given.get("loss", "splc"),
        **ladder(method),
    )
    config.optimizer = dict(name="adamw", weight_decay=0.02)  # §4.1
    # §4.1, which gives no warm-up. The authors' code has one of 2000 steps, and ends at 1e-5.
    config.schedule = dict(decay="cosine", learning_rate=1e-4)
    config.log_every = 100
    config.evaluate_every = round((1 if "figure" in given else 5) * epoch)
    config.evaluate_batch_size = 1024
    config.checkpoint = dict(every=1000, keep_last=3)
    if method == "recognition":  # no text side
        config.model.text, config.init.text = {}, None
        config.model.embedding_dim, config.model.image_projection = None, False
    else:
        imagenet = clip_text.imagenet_zero_shot()  # A.2, Fig. 9: CLIP's 80 prompts
        config.evaluators = dict(imagenet=imagenet | dict(transform=EVALUATE))
    if "evaluate" in given:  # Tables 1, 2 and 4: the mean of top-1, and of top-5
        suite = dict(name="suite", suite="idea9", data="data", transform=EVALUATE)
        config.evaluators = dict(idea9=suite)
    if "probe" in given:
        # The paper's probe has DINO's settings; this one has CLIP's protocol.
        probe = clip_text.imagenet_linear_probe() | dict(transform=EVALUATE)
        config.evaluators.linear_probe = probe
        config.evaluate_every = config.total_steps
    return config


def use_tags(config: ConfigDict, path: str, given: dict[str, str]) -> None:
    """Names the tag list, and measures it: on OpenImages (Tables 1 and 3), and classes in it.

    Zero-shot evaluation tells these apart as seen (Fig. 7).
    """
    path = f"{path}_all.json" if "tags" in given else f"{path}.json"
    config.data.tags.path = path
    if "imagenet" in config.evaluators and config.evaluators.imagenet.name == "zero_shot":
        config.evaluators.imagenet.tags = path
    if config.objective.recognition and not given.keys() & {"figure", "probe"}:
        table = "data/openimages/test.csv"  # docs/data.md#openimages
        config.evaluators.openimages = dict(
            name="tag_recognition",
            source=dict(name="csv", path=table, image="image", label="present", caption=""),
            transform=EVALUATE,
            tags=path,
            truth="idea",  # §4.2
        )


def ladder(method: str) -> dict[str, bool]:
    """Returns the settings of a row of Tables 1 and 4; RmTopFreq is a property of the tag list.

    Args:
      method: one of `ROWS`.
    """
    return dict(
        contrast=method != "recognition",
        recognition=method != "itc",
        tag_to_text=method in ("tag2text", "rm_top_freq", "retain"),
        retain=method == "retain",
    )
