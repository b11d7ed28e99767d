"""CLIP with a vision transformer, from scratch: its published recipe, or a third of its cost.

  python main.py --config=configs/clip_vit.py:'data/pairs-*.tar',size=l14,reduced=yes \
      --workdir=workdirs/l14

Behind the colon are the pairs, as for own_pairs.py (`data=` before them may be written), and
arguments, parted by commas:
  size=b16          of both towers, as in CLIP and open_clip: b32, b16, l14 or h14
  samples=12.8e9    images seen in training, over all stages
  reduced=yes       small images and few words first, then 4% of the samples at 224 pixels (CLIPA);
                    l14 and h14 keep nouns first, which takes `pip install -e '.[syntax]'`
  objective=clip    or siglip
  batch=N           of every stage; by default what was published
  vocabulary=PATH   CLIP's merges, or a WordPiece vocabulary (.txt). By default one is learned from
                    the texts, which are all read for it: for hundreds of millions, name one
  depth=N           blocks of both towers, to try it: b32 with depth=2 and batch=32 runs on a laptop
  pairs, classes, source and FIELD=VALUE, as in own_pairs.py
"""

import re
from typing import NamedTuple

from ml_collections import ConfigDict

from big_align.config.defaults import complete_config
from big_align.config.own_files import OwnPairs, split_argument
from big_align.configs.parts import held_out
from big_align.core.errors import UserError, check_known
from big_align.weights.formats.preprocessing import CLIP_MEAN, CLIP_STD

SAMPLES = 32 * 400e6  # CLIP Table 18: 32 epochs; §2.2: 400 million pairs
BATCH = 32_768  # CLIP Table 18; CLIPA trains at full resolution with it too
PIXELS = 224
LENGTH = 77  # tokens of a text in CLIP
FULL = 0.04  # of the samples, at full resolution: CLIPA-v2's 512 million after 12.8 billion
FULL_LENGTH = 32  # tokens of a text there, CLIPA's code


class Size(NamedTuple):
    """A model, and how its reduced stage is."""

    text: str  # CLIP's text tower, named after the image towers that it goes with
    dim: int
    rate: float  # CLIP, by model
    pixels: int  # of a reduced image
    tokens: int  # of a shortened text
    shorten: str  # what is kept of it, CLIPA's code
    batch: int  # of the reduced stage
    warmup: float = 52_428_800  # samples of the reduced stage, CLIPA's code
    keep: float = 1.0  # fraction of the patches that the last stage sees


SIZES = {
    "b32": Size("b", 512, 5e-4, 128, 16, "truncate", BATCH),  # reduced as B/16 is, by us
    "b16": Size("b", 512, 5e-4, 112, 16, "truncate", BATCH),  # CLIPA-B/16 (I50, T16)
    "l14": Size("l", 768, 4e-4, 84, 8, "syntax", 65_536),  # CLIPA-v2: 12.8B@84
    # CLIPA-v2's code; with fewer steps of warm-up it collapses. CLIP has no H/14: L/14's rate.
    "h14": Size("h", 1024, 4e-4, 84, 8, "syntax", 65_536, warmup=3200 * 65_536, keep=0.7),
}


ARGUMENTS = {
    "size": SIZES,
    "reduced": ("yes", "no"),
    "objective": ("clip", "siglip"),
    **dict.fromkeys(("samples", "batch", "vocabulary", "depth"), ()),
}
"""Those of this config, with their values; none stand for any."""


def get_config(arg: str = ""):
    """Returns the config; `arg` is described above."""
    given, pairs = split_argument(re.sub(r"(^|,)data=", r"\1", arg), ARGUMENTS)
    given = dict(size="b16", reduced="no", objective="clip", samples=f"{SAMPLES:g}") | given
    for name in ("size", "reduced", "objective"):
        check_known(name, given[name], ARGUMENTS[name])
    if not pairs.has_captions:
        raise UserError("CLIP learns from texts, and these have none; own_pairs.py learns classes")
    if given["reduced"] == "yes":
        return _train_reduced(given, pairs)
    config = _make_model(given, pairs, PIXELS, LENGTH, LENGTH)
    # Radford et al. §2.3: a random square of the resized image; its range is that of open_clip.
    config.data.transform = f"random_resized_crop({PIXELS}, 0.9, 1.0)"
    steps = _set_steps(config, _read_number(given, "samples"), given, BATCH)
    config.optimizer = dict(name="adamw", weight_decay=0.2, b2=0.98)  # CLIP Table 18
    config.schedule = dict(
        decay="cosine",
        learning_rate=SIZES[given["size"]].rate,
        warmup_steps=min(2000, steps // 10),  # CLIP Table 18
    )
    return complete_config(config)


def _train_reduced(given: dict[str, str], pairs: OwnPairs) -> ConfigDict:
    """Returns the config of CLIPA's two stages; only weights go from one to the other.

    The first has a rate of 8e-6 for each 256 of the batch, and the second a twentieth of that
    (CLIPA-v2's code). Where this would be less than CLIP's own, it is CLIP's, with which DataComp
    trains on batches of 4096 too.
    """
    size, samples = SIZES[given["size"]], _read_number(given, "samples")
    first = _make_model(given, pairs, size.pixels, size.tokens, FULL_LENGTH)
    config = _make_model(given, pairs, PIXELS, FULL_LENGTH, FULL_LENGTH)
    tuned = round(FULL * samples)
    _set_steps(first, samples - tuned, given, size.batch)
    _set_steps(config, tuned, given, BATCH)
    rate = max(size.rate, 8e-6 * first.batch_size / 256)
    for stage, peak, warmup in ((first, rate, size.warmup), (config, rate / 20, 26_214_400)):
        pixels = size.pixels if stage is first else PIXELS
        stage.data.transform = f"random_resized_crop({pixels}, 0.4, 1.0)"  # CLIPA's code
        stage.optimizer = dict(name="adamw", weight_decay=0.2, b2=0.95)  # CLIPA's code
        # At most a fifth of the steps, as in CLIPA's fine-tuning.
        steps = min(round(warmup / stage.batch_size), stage.total_steps // 5)
        stage.schedule = dict(decay="cosine", learning_rate=peak, warmup_steps=steps)
    first.tokenizer.shorten, config.model.image.keep = size.shorten, size.keep
    config.first = complete_config(first)
    config.init.temperature = "all"  # the first stage's, and SigLIP's bias
    return complete_config(config)


def _make_model(
    given: dict[str, str], pairs: OwnPairs, pixels: int, length: int, longest: int
) -> ConfigDict:
    """Returns a config with the towers and evaluators of a stage.

    Args:
      given: the arguments.
      pairs: what is trained on.
      pixels: of an edge of an image.
      length: tokens of a text.
      longest: tokens of a text in any stage, for which the text tower has positions.
    """
    config, size, objective = held_out.get_base(pairs), SIZES[given["size"]], given["objective"]
    vocabulary = given.get("vocabulary", "from_data")
    merges = vocabulary.endswith((".gz", "merges.txt"))
    config.tokenizer = (
        dict(name="clip", merges=vocabulary, length=length)
        if merges
        else dict(name="wordpiece", vocabulary=vocabulary, length=length)
    )
    shared = dict(dtype="bfloat16", remat="auto", layer_norm_eps=1e-5, activation="gelu")
    if "depth" in given:
        shared["depth"] = _read_number(given, "depth")
    config.model.image = dict(
        name="vit",
        variant=f"{given['size'][0]}/{given['size'][1:]}",
        input_norm=True,  # this, the patches without bias and the next are CLIP's
        patch_bias=False,
        **shared,
    )
    config.model.text = dict(
        name="clip_text",
        variant=size.text,
        max_length=longest,
        vocab_size=49_408 if merges else 32_000,  # CLIPA's, into which BERT's vocabulary fits
        **shared,
    )
    config.model.image_projection = True
    config.model.projection_bias = False
    config.model.embedding_dim = size.dim
    config.model.image_mean, config.model.image_std = CLIP_MEAN, CLIP_STD
    config.objective = dict(name=objective)  # temperature and bias start as in its paper
    held_out.evaluate(config, pairs, f"resize_small({pixels})|central_crop({pixels})")
    return config


def _set_steps(config: ConfigDict, samples: int, given: dict[str, str], batch: int) -> int:
    """Sets the batch of a stage and what counts its steps, in place; returns the steps."""
    batch = _read_number(given, "batch") if "batch" in given else batch
    config.batch_size, config.total_steps = batch, (steps := round(samples / batch))
    if not steps:
        raise UserError(
            f"samples={given['samples']} leaves {samples} for a stage with batches of {batch}; "
            "write more, or batch=N"
        )
    config.evaluate_batch_size = min(1024, batch)
    config.log_every = max(1, min(100, steps // 20))
    config.evaluate_every = max(1, min(10_000, steps // 2))
    config.checkpoint.every = max(1, min(1000, steps // 2))
    return steps


def _read_number(given: dict[str, str], name: str) -> int:
    """Returns a whole number, which may be written as 2.56e9."""
    try:
        number = float(given[name])
    except ValueError:
        number = 0
    if not number >= 1 or number % 1:
        raise UserError(f"{name}={given[name]} must be a whole number above 0, such as 2.56e9")
    return int(number)
