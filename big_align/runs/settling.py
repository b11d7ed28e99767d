"""A config with all that it leaves to find out, which a run's own config says from then on."""

from ml_collections import ConfigDict

from big_align.runs.initial_weights import fix_names, take_settings
from big_align.runs.own_vocabulary import take_vocabulary


def settle(config: ConfigDict, workdir: str) -> ConfigDict:
    """Returns the config of a run with the revisions, settings and vocabulary that it found.

    What a workdir has found before stays, so that a run continues when its sources are gone.
    """
    named = fix_names(config, workdir)
    return take_vocabulary(take_settings(named, workdir), workdir)
