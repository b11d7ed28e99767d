"""How a model of one's own pairs is measured: by those that are never trained on."""

from ml_collections import ConfigDict

from big_align.config.own_files import OwnPairs
from big_align.configs import common

CLASS_TEMPLATES = ("a photo of a {}.", "a picture of a {}.", "{}.")


def get_base(pairs: OwnPairs) -> ConfigDict:
    """Returns what every run on them shares; evaluators follow when the transform is known."""
    config = common.get_base()
    config.data.source = pairs.source
    config.data.hold_out = pairs.held_out
    if not pairs.has_captions:
        config.data.classes = pairs.classes
        config.data.templates = CLASS_TEMPLATES
    return config


def evaluate(config: ConfigDict, pairs: OwnPairs, transform: str) -> None:
    """Measures what is held out, in place: by its captions, and by the names of its classes."""
    node = dict(source=dict(name="held_out"), transform=transform)
    if pairs.has_captions:
        config.evaluators.retrieval = dict(name="retrieval") | node
    if pairs.classes:
        named = dict(name="zero_shot", names=pairs.classes, templates=CLASS_TEMPLATES)
        config.evaluators.zero_shot = named | node
