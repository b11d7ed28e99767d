"""Errors that a user can mend; main.py prints them as one line, without a traceback."""


class UserError(ValueError):
    """What the user gave cannot be used; the message says what and what would be right."""


class ConfigError(UserError):
    """A config that cannot be built."""


class CheckpointMismatch(UserError):
    """The checkpoints of a workdir belong to another model or another order of examples."""


class MissingCheckpoint(ConfigError, FileNotFoundError):
    """The workdir has no checkpoint to evaluate."""


class BrokenDataError(UserError):
    """More examples are broken than the config allows."""


class NotFiniteError(UserError):
    """The loss is NaN or infinite."""


class WeightsMismatch(UserError):
    """Weights do not fit the model that they are meant for."""


class WeightFileError(UserError):
    """A file of weights is missing, damaged, not what its name says, or cannot be written."""
