"""ALIGN's B7 + BERT-base, the model of its study of data sets (Jia et al. 2021, §6.2, Table 9).

configs/align_b5_ablation.py:image=b7 has the rows of that study.
"""

from big_align.configs import align_l2


def get_config():
    """Returns the config."""
    config = align_l2.get_config()
    config.total_steps = 1_000_000  # §6.1
    config.model.image.variant = "b7"  # 640 features, the embedding itself (§6.1)
    config.model.text.variant = "base"
    return config
