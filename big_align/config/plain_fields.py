"""Checks of the plain fields of a config, which need no component."""

import jax

from big_align.config.config_files import FIELDS
from big_align.config.stages import FIRST
from big_align.core.errors import ConfigError, DevicesMismatch, check_known, suggest
from big_align.core.nodes import Node
from big_align.parallel.batches import explain_division
from big_align.training.health.rewinds import RESPONSES

CHOICES = {"gradient_dtype": ("float32", "bfloat16"), "on_divergence": RESPONSES}
"""Fields that take one of a few values."""
COUNTS = (
    *("batch_size", "total_steps", "microbatches", "log_every"),
    *("evaluate_every", "evaluate_batch_size"),
)
"""Fields that are at least 1."""


def check_fields(config: Node, training: bool) -> None:
    """Checks which fields there are, and the values of those that stand for themselves."""
    for field in config:
        if field not in FIELDS:
            raise ConfigError(
                f"config.{field} is unknown{suggest(field, FIELDS)}; known: "
                f"{', '.join(sorted(FIELDS))}"
            )
    for field in sorted(FIELDS - {FIRST} - set(config)):
        raise ConfigError(f"config.{field} is missing; configs/common.py has all of them")
    check_values(config)
    if training:
        check_batch(config, "batch_size", jax.device_count(), config["microbatches"])
    check_batch(config, "evaluate_batch_size", jax.device_count())


def check_batch(config: Node, field: str, devices: int, parts: int = 1) -> None:
    """Checks that a batch divides over devices and, on each, into micro-batches."""
    if config[field] % (devices * parts):
        wrong = explain_division(config[field], devices, parts)
        raise DevicesMismatch(f"config.{field} = {config[field]} {wrong}")


def check_values(config: Node) -> None:
    """Checks the values of fields that stand for themselves, whatever the devices are."""
    counts = {field: config[field] for field in COUNTS}
    for field, count in (counts | {"checkpoint.every": config["checkpoint"]["every"]}).items():
        if not isinstance(count, int) or count < 1:
            wanted = "at least 1" if isinstance(count, int) else "a whole number of at least 1"
            raise ConfigError(f"config.{field} = {count} must be {wanted}")
    if not isinstance(config["seed"], int) or not 0 <= config["seed"] < 2**63:
        raise ConfigError(f"config.seed = {config['seed']} must be a whole number in [0, 2**63)")
    for field, known in CHOICES.items():
        check_known(f"config.{field}", config[field], known)
    if config["average_decay"] is not None and not 0 < config["average_decay"] < 1:
        raise ConfigError(f"config.average_decay = {config['average_decay']} is not in (0, 1)")
