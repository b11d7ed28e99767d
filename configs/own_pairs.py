"""Your own image-text pairs: train on most of them, and evaluate on those that are held out.

  python -m big_align.tools.build_vocab --source='data/pairs-*.tar' --size=30000 \
      --output=data/vocabulary.txt
  python main.py --config=configs/own_pairs.py --workdir=workdirs/pairs \
      --config.data.source.path='data/pairs-*.tar'

docs/data.md has these two lines for every other layout of files. Arguments, parted by commas:
  cores=2        towers and images for a laptop, instead of one GPU with 16 GB or more
  classes=LIST   names the class of each held-out image too (zero-shot), where the data have labels:
                 a class list of the package or a file; or `source`, for names in the data
"""

from big_align.configs import common
from big_align.configuration.defaults import complete_config

ARGUMENTS = {"cores": ("2",), "classes": ()}


def get_config(arg: str = ""):
    """Returns the config; `arg` is described above."""
    given = common.parse_argument(arg, ARGUMENTS)
    config = common.get_base()
    # Where the pairs are. --config.data.source.name=csv (tfrecord, folder, ...) has other fields.
    config.data.source = dict(name="tar", path="data/pairs-*.tar", caption="txt")
    # One in twenty is never trained on, always the same ones: a hash of the example's key decides.
    # With very large data, a smaller fraction is enough; retrieval uses at most 5000 of them.
    config.data.hold_out = 0.05
    config.tokenizer = dict(name="wordpiece", vocabulary="data/vocabulary.txt", length=64)
    config.model.text = dict(name="bert", vocab_size=30_000, max_length=64, pool="mean")
    config.model.image_projection = True
    config.objective = dict(name="clip")
    config.optimizer = dict(name="adamw", weight_decay=0.1, b2=0.98, clip_norm=1.0)
    config.schedule = dict(decay="cosine")
    if "cores" in given:
        evaluate = _fit_two_cores(config)
    else:
        evaluate = _fit_one_gpu(config)
    # All metrics are measured on your data: on the held-out examples, and nothing else.
    held_out = dict(source=dict(name="held_out"), transform=evaluate)
    config.evaluators = dict(retrieval=dict(name="retrieval", **held_out))
    if "classes" in given:
        config.data.source.label = "cls"
        config.evaluators.zero_shot = dict(name="zero_shot", names=given["classes"], **held_out)
    return complete_config(config)


def _fit_one_gpu(config) -> str:
    """Sizes a config for one GPU; returns the image operations of evaluation."""
    config.batch_size = 512  # more negatives learn better: raise it with `microbatches`
    config.total_steps = 20_000  # about ten epochs of a million pairs
    config.data.transform = "random_resized_crop(224, 0.5, 1.0)|flip_horizontal"
    # Storing everything takes 48 GB; "full" saves most of that for a quarter more time.
    config.model.image.update(name="vit", variant="s/16", dtype="bfloat16", remat="auto")
    config.model.text.update(variant="medium", dtype="bfloat16", remat="auto")
    config.model.embedding_dim = 512
    config.schedule.update(learning_rate=5e-4, warmup_steps=1000)
    config.log_every = 50
    config.evaluate_every = 2000
    config.checkpoint.every = 1000
    return "resize_small(224)|central_crop(224)"


def _fit_two_cores(config) -> str:
    """Sizes a config for two cores, as configs/align_flickr8k.py; returns the same."""
    config.batch_size = 128
    config.total_steps = 1000
    config.average_decay = 0.99
    config.data.transform = "resize_small(72)|random_resized_crop(64, 0.5, 1.0)|flip_horizontal"
    config.tokenizer.length = config.model.text.max_length = 24
    config.model.image.update(
        name="resnet", variant="18", width=32, depths=(1, 1, 1), stem="patch4", drop_path=0.1
    )
    config.model.text.update(variant="mini", width=128, depth=1, mlp_dim=256)
    config.model.embedding_dim = 128
    config.schedule.update(learning_rate=1e-3, warmup_steps=10)
    config.evaluate_every = 250
    config.checkpoint.every = 250
    return "resize_small(72)|central_crop(64)"
