"""MLCD and UNICOM on ImageNet-1K in clusters instead of classes (An et al. 2024, A.2, Table 12).

Arguments, separated by commas:
  loss=mlcd | mlc | unicom
  clusters=500 | 1000 | 2000 | 4000 | 8000 | 20000 | 40000 | 80000 | 160000 | 320000 | 500000
  and the others of configs/mlcd.py:ROWS
Table 13's rows of MLCD are those of 1000, 160000 and 320000 clusters.
The clusters are those of CLIP's ViT-L/14, given as --config.data.precomputed.clusters=FOLDER:
  python -m big_align.tools.embed --model=FOLDER_OF_CLIP_VIT_L14 --output=embeddings \
      --source_name=tfds --source=imagenet2012 --source_argument=split=train
  python -m big_align.tools.cluster --embeddings=embeddings --k=320000 --output=clusters
"""

from big_align.config.defaults import complete_config
from big_align.configs import common, mlcd
from big_align.configs.parts import clip_text

LEGAL = mlcd.ROWS | {
    "clusters": (  # Table 12
        *("500", "1000", "2000", "4000", "8000", "20000"),
        *("40000", "80000", "160000", "320000", "500000"),
    ),
}


def get_config(arg: str = ""):
    """Returns the config of a row of Table 12."""
    given = common.parse_argument(arg, LEGAL)
    config = clip_text.get_base()
    # A.2 gives no schedule; this is ImageNet's usual one for ResNet-50.
    config.batch_size = 4096
    epoch = clip_text.IMAGENET_IMAGES / config.batch_size
    config.total_steps = round(100 * epoch)
    config.data.source = clip_text.imagenet("train")
    config.data.captions_per_image = 0
    config.data.transform = "random_resized_crop(224)|flip_horizontal"
    config.tokenizer = dict(name="none")
    config.model.image = dict(name="resnet", variant="50", dtype="bfloat16")
    # Table 12: "the same ResNet50" as others, CLIP among them; here it is the plain one
    config.model.text = {}
    config.model.embedding_dim = 512
    config.optimizer = dict(name="adamw", weight_decay=0.2)  # Table 10
    # §4.1: 1e-3, the rate of the paper that no tower of Table 9 has
    config.schedule = dict(decay="cosine", learning_rate=1e-3, warmup_steps=round(5 * epoch))
    config.objective = dict(
        name="mlcd",
        num_clusters=320_000,  # Table 12: the best of MLCD
        labels_per_image=8,  # A.2
        sampling_ratio=0.1,  # A.2
        margin=0.3,  # A.1
    )
    mlcd.set_row(config.objective, given)
    probe = clip_text.imagenet_linear_probe() | dict(transform=mlcd.EVALUATE)
    config.evaluators = dict(imagenet=probe)
    config.evaluate_every = config.total_steps
    return complete_config(config)
