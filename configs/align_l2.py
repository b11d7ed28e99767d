"""ALIGN as published: EfficientNet-L2 and BERT-Large (Jia et al. 2021, §5).

Give it your image-text pairs, --config.data.source.path, and a vocabulary made from their texts by
`python -m big_align.tools.build_vocab`, --config.tokenizer.vocabulary.
"""

from big_align.config.defaults import complete_config
from big_align.configs import common


def get_config():
    """Returns the config."""
    config = common.get_base()
    train, evaluate = common.paper_transforms()  # §5: 346 x 346, then a crop of 289 x 289
    config.batch_size = 16384  # §5: 1024 cores with 16 pairs each
    config.total_steps = 1_200_000  # §5: 1.2M steps
    config.data.source = dict(name="tar", path="data/pairs-*.tar", caption="txt")
    config.data.transform = train
    config.tokenizer = dict(name="wordpiece", vocabulary="data/vocabulary.txt", length=64)  # §5: 64
    config.model.image = dict(
        name="efficientnet",
        variant="l2",
        group_size=16,  # the 16 pairs of a core, without communication; §5 says nothing of groups
        dtype="bfloat16",
        remat="auto",
    )
    config.model.text = dict(
        name="bert",
        variant="large",
        vocab_size=100_000,  # §4.1: 100k wordpieces
        max_length=64,
        dtype="bfloat16",
        remat="auto",
    )
    config.objective = dict(
        name="align",
        temperature=1.0,  # §5: starts at 1.0, shared
        label_smoothing=0.1,  # §5: 0.1
    )
    config.optimizer = dict(name="lamb", weight_decay=1e-5)  # §5
    config.schedule = dict(
        decay="linear",  # §5: linearly to zero
        learning_rate=1e-3,  # §5: 1e-3
        warmup_steps=10_000,  # §5: 10k steps
    )
    config.log_every = 100
    config.evaluators = dict(
        flickr=dict(
            name="retrieval",
            source=dict(name="tar", path="data/flickr30k-test-*.tar", caption="json.captions"),
            transform=evaluate,
        )
    )
    config.evaluate_every = 10_000
    config.evaluate_batch_size = 1024
    config.checkpoint = dict(every=5_000, keep_last=3, keep_every=100_000)
    return complete_config(config)
