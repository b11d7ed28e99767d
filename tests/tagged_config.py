"""A config of IDEA that trains in seconds, on images and tags in a folder that a test fills."""

from big_align.configs import common
from big_align.configuration.defaults import complete_config

WORDS = ("a", "the", "dog", "ball", "grass", "sky", "on", "under", "with")


def get_config(folder: str):
    """Returns the config; `folder` holds images.tar and tags.json."""
    config = common.get_base()
    config.batch_size = config.evaluate_batch_size = 8
    config.total_steps = 2
    config.data.source = dict(name="tar", path=f"{folder}/images.tar", caption="json.captions")
    config.data.transform = "resize(8)"
    config.data.captions_used = 1
    config.data.tags = dict(path=f"{folder}/tags.json", max_tags=4, truth=True)
    config.tokenizer = dict(name="words", words=WORDS, length=8)
    config.model.image = dict(name="resnet", variant="18", width=8, depths=(1, 1), stem="small")
    config.model.text = dict(
        name="bert",
        variant="mini",
        width=16,
        depth=1,
        heads=2,
        mlp_dim=32,
        vocab_size=16,
        max_length=8,
    )
    config.objective = dict(name="idea", decoder_width=8, threshold=0.5)
    examples = dict(
        source=config.data.source.to_dict(), transform="resize(8)", tags=f"{folder}/tags.json"
    )
    config.evaluators = dict(
        found=dict(name="found_tags", threshold=0.5, **examples),
        recognition=dict(name="tag_recognition", **examples),
    )
    return complete_config(config)
