"""ALIGN's study of its key parameters: B5 + BERT-base (Jia et al. 2021, §6.1, Table 8).

Arguments, separated by commas:
  dim=320 | 160 | 80            size of the embedding (baseline 640)
  negatives=0.5 | 0.25          fraction of the batch that takes part in a softmax (baseline 1)
  temperature=128 | 64 | 32     a fixed temperature of 1/128, 1/64, 1/32 (baseline learned)
For example --config=configs/align_b5_ablation.py:dim=160,temperature=64
"""

from big_align.configs import align_l2, common

ROWS = {
    "dim": ("640", "320", "160", "80"),
    "negatives": ("1", "0.5", "0.25"),
    "temperature": ("128", "64", "32"),
}


def get_config(arg: str = ""):
    """Returns the config of a row of Table 8."""
    rows = common.parse_argument(arg, ROWS)
    config = align_l2.get_config()
    config.total_steps = 1_000_000  # §6.1: 1M steps
    config.model.image.variant = "b5"
    config.model.image_projection = True  # §6.1: a linear layer on B1, B3, B5 and L2
    config.model.embedding_dim = int(rows.get("dim", 640))
    config.model.text.variant = "base"
    config.objective.negative_fraction = float(rows.get("negatives", 1))
    if "temperature" in rows:
        config.objective.temperature = 1 / int(rows["temperature"])
        config.objective.learn_temperature = False
    config.mesh.fsdp = 1
    return config
