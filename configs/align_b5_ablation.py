"""ALIGN's studies of towers, parameters and data, from B5 + BERT-base (Jia et al. 2021, §6).

Arguments, separated by commas:
  image=b1 | b3 | b5 | b7 | l2, text=mini | medium | base | large
                                a cell of the grid of Figure 3 (baseline b5 and base)
  dim=320 | 160 | 80            size of the embedding (baseline 640)
  negatives=0.5 | 0.25          fraction of the batch that takes part in a softmax (baseline 1)
  temperature=128 | 64 | 32     a fixed temperature of 1/128, 1/64, 1/32 (baseline learned)
  data=tenth | 12m | 6m | 3m    a sample of the pairs, each part of the larger ones
  data=cc3m                     Conceptual Captions, a tenth of the steps (§6.2)
  default_steps=1m | 1.2m       of which that is a tenth: of the studies (§6.1), or of ALIGN (§5)

| row | argument |
|---|---|
| Figure 3, all 20 points | `image=b1,text=mini` to `image=l2,text=large` |
| Table 8, row 1 | none |
| Table 8, rows 2 to 4 | `dim=320`, `dim=160`, `dim=80` |
| Table 8, rows 5 and 6 | `negatives=0.5`, `negatives=0.25` |
| Table 8, rows 7 to 9 | `temperature=128`, `temperature=64`, `temperature=32` |
| Table 9, B7 + BERT-base | `image=b7`, `image=b7,data=tenth`, `image=b7,data=cc3m` |
| Table 9, B3 + BERT-mini | `image=b3,text=mini`, and with `data=tenth`, `data=cc3m` |
| Table 10 | `image=b7,data=12m`, `image=b7,data=6m`, `image=b7,data=3m`, `image=b7,data=cc3m` |

The columns, COCO's retrieval and ImageNet's nearest neighbors, are evaluators; their data are those
of `python -m big_align.tools.benchmark --list`.
"""

from big_align.config.defaults import complete_config
from big_align.configs import align_l2, common

ROWS = {
    "image": ("b1", "b3", "b5", "b7", "l2"),
    "text": ("mini", "medium", "base", "large"),
    "dim": ("640", "320", "160", "80"),
    "negatives": ("1", "0.5", "0.25"),
    "temperature": ("128", "64", "32"),
    "data": ("full", "tenth", "12m", "6m", "3m", "cc3m"),
    "default_steps": ("1m", "1.2m"),
}
PAIRS = 1.8e9  # §3
SAMPLES = {"tenth": PAIRS / 10, "12m": 12e6, "6m": 6e6, "3m": 3e6}


def get_config(arg: str = ""):
    """Returns the config of a point of Figure 3, or of a row of Tables 8 to 10."""
    rows = common.parse_argument(arg, ROWS)
    image, text, dim = rows.get("image", "b5"), rows.get("text", "base"), int(rows.get("dim", 640))
    config = align_l2.get_config()
    config.total_steps = 1_000_000  # §6.1: 1M steps
    config.model.image.variant, config.model.text.variant = image, text
    config.model.image_projection = image != "b7" or dim != 640  # §6.1: B7 has 640 features itself
    config.model.embedding_dim = dim
    config.objective.negative_fraction = float(rows.get("negatives", 1))
    if "temperature" in rows:
        config.objective.temperature = 1 / int(rows["temperature"])
        config.objective.learn_temperature = False
    choose_data(config, rows)
    _, transform = common.paper_transforms()
    measured = dict(name="benchmark", data="data", transform=transform)
    config.evaluators = dict(
        coco=measured | dict(benchmark="coco", task="retrieval"),
        imagenet=measured | dict(benchmark="imagenet", task="knn"),
    )
    config.evaluate_every = config.total_steps // 10
    return complete_config(config)


def choose_data(config, rows: dict[str, str]) -> None:
    """Sets what is trained on; `config` is changed in place."""
    data = rows.get("data", "full")
    if data == "cc3m":
        config.data.source.path = "data/cc3m-*.tar"
        default = {"1m": 1_000_000, "1.2m": 1_200_000}[rows.get("default_steps", "1m")]
        config.total_steps = default // 10  # §6.2: "1/10 of the default number of steps"
    elif "default_steps" in rows:
        raise ValueError("default_steps is of data=cc3m, which has a tenth of them")
    elif data != "full":
        # For 12M and fewer, the paper gives no number of steps: all use the default.
        config.data.hold_out = 1 - SAMPLES[data] / PAIRS
