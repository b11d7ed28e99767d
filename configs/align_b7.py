"""ALIGN's B7 + BERT-base, the model of its study of data sets (Jia et al. 2021, §6.2, Table 9).

Argument: `cc3m` trains a tenth of the steps, as the paper does on Conceptual Captions.
"""

from big_align.configs import align_l2


def get_config(arg: str = ""):
    """Returns the config."""
    if arg not in ("", "cc3m"):
        raise ValueError(f"configs/align_b7.py takes no argument or cc3m, not {arg!r}")
    config = align_l2.get_config()
    config.total_steps = 100_000 if arg == "cc3m" else 1_000_000  # §6.1: 1M, §6.2: a tenth on CC-3M
    config.model.image.variant = "b7"  # 640 features, the embedding itself (§6.1)
    config.model.text.variant = "base"
    config.mesh.fsdp = 1
    return config
