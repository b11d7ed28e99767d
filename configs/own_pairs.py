"""Your own images and their texts: from files to a model that finds them, by one command.

  python main.py --config=configs/own_pairs.py:photos/ --workdir=workdirs/mine

Behind the colon is where they are: a folder of images beside texts, or with a folder for each
class; a table (CSV, Parquet, COCO's JSON); shards ('data/pairs-*.tar'); an address. What they are
read as is printed. Some are held out, and all numbers are of those. Arguments may follow, parted by
commas:
  start=pretrained  published towers, whose features are computed once; then two linear layers are
                    trained, and from 1000 pairs on half of the text tower (the default)
  start=scratch     a new CLIP, which opens in transformers and open_clip, with a vocabulary learned
                    from the texts
  start=WEIGHTS     a model of your own or of a hub, as in start=openai/clip-vit-base-patch32
  size=cores        for a laptop, gpu for one accelerator, pod for many; by default what is here. A
                    new CLIP is as large; of WEIGHTS, a laptop trains the text tower alone
  pairs=N           how many there are, so that they need not be counted
  classes=LIST      names the classes of their labels (label=FIELD): a class list of the package, a
                    file, or `source` for names in the data. They are learned where there are no
                    captions (caption=), and each held-out image is classified
  source=NAME       what they are read as: csv, files, folder, tar, ... (docs/data.md)
  FIELD=VALUE       another field of this source, as in caption=title
"""

from big_align.config.defaults import complete_config
from big_align.config.own_files import OwnPairs, split_argument
from big_align.configs.parts import held_out, published
from big_align.core.errors import check_known
from big_align.parallel.devices.machine import find_accelerator, is_one_of_several

LENGTH = 32  # tokens; one caption of Flickr8k in 500 is longer
LEAST_STEPS = 60
TRAINS_TEXTS = 1000
"""Pairs from which it pays to train half of the text tower as well.

R@10 among 1000 other photographs, image to text and text to image: after 120 pairs of Flickr8k
17.6% and 17.9%, without 18.6% and 20.7%; after 1350, 48.1% and 48.9%, without 45.6% and 46.1%.
"""


def get_config(arg: str = ""):
    """Returns the config; `arg` is described above."""
    given, pairs = split_argument(arg, dict(start=("pretrained", "scratch", "WEIGHTS"), size=NEW))
    start, size = given.get("start", "pretrained"), given.get("size") or _find_size()
    check_known("size", size, NEW)
    if start == "pretrained":
        return _start_pretrained(pairs)
    return _start_fresh(pairs, size) if start == "scratch" else _start_from(start, pairs, size)


def _find_size() -> str:
    return "cores" if not find_accelerator() else "pod" if is_one_of_several() else "gpu"


def _start_pretrained(pairs: OwnPairs):
    """Returns the config of published towers."""
    batch, steps = _plan(pairs, most=512, epochs=44, decline=7000)
    first = held_out.get_base(pairs)
    _use_published(first)
    published.train_layers(first, batch, steps)
    held_out.evaluate(first, pairs, first.data.transform)
    if not pairs.has_captions:  # the few words of classes leave the text tower as it is
        first.objective.name = "unicl"
        first.cached_features.towers = ("image",)
    if not pairs.has_captions or pairs.count < TRAINS_TEXTS:
        return complete_config(first)
    batch, steps = _plan(pairs, most=256, epochs=6.5, decline=7000)
    config = held_out.get_base(pairs)
    _use_published(config)
    published.train_texts(config, complete_config(first), batch, steps)
    held_out.evaluate(config, pairs, config.data.transform)
    return complete_config(config)


def _use_published(config) -> None:
    """Makes the towers published ones, in a model that opens in open_clip as a whole, in place."""
    published.use_towers(config, LENGTH)
    config.model.projection_bias = False


def _plan(pairs: OwnPairs, most: int, epochs: float, decline: int) -> tuple[int, int]:
    """Returns the batch size, a power of two that the pairs can fill, and the number of steps.

    Above `decline` pairs, epochs fall with the square root of their number.
    """
    batch = min(most, 2 ** max(1, pairs.trained.bit_length() - 1))
    epochs *= min(1.0, (decline / pairs.trained) ** 0.5)
    return batch, max(LEAST_STEPS, round(epochs * pairs.trained / batch))


def _start_from(weights: str, pairs: OwnPairs, size: str):
    """Returns the config of a dual encoder that is trained on, and stays what it is."""
    config = held_out.get_base(pairs)
    config.init.all, config.init.temperature = weights, "all"
    config.model.image = dict(name="from_init")
    config.model.text = dict(name="from_init")
    config.tokenizer = dict(name="from_init")
    config.data.transform = "from_init"  # the whole of what it sees of an image
    most = dict(cores=64, gpu=256, pod=8192)[size]
    config.batch_size, config.total_steps = _plan(pairs, most, epochs=10, decline=100_000)
    if size == "cores":
        config.model.locked = ("image",)
        config.cached_features.towers = ("image",)
    else:
        for tower in (config.model.image, config.model.text):
            tower.update(dtype="bfloat16", remat="auto")
    config.objective = dict(name="clip" if pairs.has_captions else "unicl", label_smoothing=0.1)
    config.optimizer = dict(name="adamw", weight_decay=0.1, b2=0.98, clip_norm=1.0)
    warmup = config.total_steps // 10
    config.schedule = dict(decay="cosine", learning_rate=1e-5, warmup_steps=warmup)
    config.checkpoint.every = config.evaluate_every = 500
    held_out.evaluate(config, pairs, "from_init")
    return complete_config(config)


def _start_fresh(pairs: OwnPairs, size: str):
    """Returns the config of a new CLIP of a size."""
    config = held_out.get_base(pairs)
    config.model.image_projection = True
    config.model.projection_bias = False
    config.tokenizer = dict(name="wordpiece", vocabulary="from_data", length=64)
    config.model.image = dict(
        name="vit", pool="cls", positions="learned", input_norm=True, patch_bias=False
    )
    config.model.text = dict(name="clip_text", activation="gelu", vocab_size=30_000, max_length=64)
    config.objective = dict(name="clip" if pairs.has_captions else "unicl", temperature=0.07)
    config.optimizer = dict(name="adamw", weight_decay=0.1, b2=0.98, clip_norm=1.0)
    transform = NEW[size](config, pairs)
    held_out.evaluate(config, pairs, transform)
    return complete_config(config)


def _fit_cores(config, pairs: OwnPairs) -> str:
    """Sizes a new CLIP for a laptop, in place; returns the image operations of evaluation."""
    config.batch_size, steps = _plan(pairs, most=128, epochs=32, decline=3_000_000)
    config.total_steps = steps = min(steps, 1000)
    config.average_decay = 0.99
    config.data.transform = "resize_small(72)|random_resized_crop(64, 0.5, 1.0)|flip_horizontal"
    config.tokenizer.length = config.model.text.max_length = 32
    config.model.image.update(variant="ti/8", depth=4)
    config.model.text.update(variant="b", width=192, depth=2, mlp_dim=768, heads=3)
    config.model.embedding_dim = 128
    config.objective.label_smoothing = 0.1
    config.schedule = dict(
        decay="cosine", learning_rate=1e-3, warmup_steps=config.total_steps // 10
    )
    config.evaluate_every = config.checkpoint.every = 250
    return "resize_small(64)|central_crop(64)"


def _fit_gpu(config, pairs: OwnPairs) -> str:
    """Sizes a new CLIP for one accelerator with 16 GB or more; returns the same."""
    config.batch_size, config.total_steps = _plan(pairs, most=512, epochs=10, decline=1_000_000)
    config.data.transform = "random_resized_crop(224, 0.5, 1.0)|flip_horizontal"
    # Storing everything takes 48 GB; "full" saves most of that for a quarter more time.
    config.model.image.update(variant="s/16", dtype="bfloat16", remat="auto")
    config.model.text.update(variant="b", dtype="bfloat16", remat="auto")
    config.model.embedding_dim = 512
    warmup = min(1000, config.total_steps // 10)
    config.schedule = dict(decay="cosine", learning_rate=5e-4, warmup_steps=warmup)
    config.log_every, config.evaluate_every, config.checkpoint.every = 50, 2000, 1000
    return "resize_small(224)|central_crop(224)"


def _fit_pod(config, pairs: OwnPairs) -> str:
    """Sizes a new CLIP for many accelerators, as CLIP's ViT-B/16; returns the same."""
    transform = _fit_gpu(config, pairs)
    config.batch_size, config.total_steps = _plan(pairs, 16_384, epochs=32, decline=100_000_000)
    config.model.image.variant = "b/16"
    config.schedule.warmup_steps = min(2000, config.total_steps // 10)
    return transform


NEW = dict(cores=_fit_cores, gpu=_fit_gpu, pod=_fit_pod)
