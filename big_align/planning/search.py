"""Finds what to change in a config so that it fits, at the least cost."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ml_collections import ConfigDict

from big_align.core.errors import UserError

DTYPES = ("bfloat16", "float32")
REMATS = ("none", "auto")


@dataclasses.dataclass(frozen=True)
class Choice:
    """One way to run a config."""

    dtype: str | None  # in which towers compute; None if they have no choice
    remat: str | None  # what the blocks of towers recompute; None likewise
    microbatches: int  # parts of a device's batch
    fsdp: int | None  # devices that parameters are split over; None for what the config has

    def overrides(self, towers: Iterable[str], place: str = "") -> tuple[str, ...]:
        """Returns the choice as command-line flags, for the towers that have the fields.

        The place is that of the stage's config in the run's, as in "first".
        """
        given = [("microbatches", self.microbatches), ("mesh.fsdp", self.fsdp)]
        for tower in towers:
            given += [(f"model.{tower}.dtype", self.dtype), (f"model.{tower}.remat", self.remat)]
        prefix = "--config." + f"{place}." * bool(place)
        return tuple(f"{prefix}{name}={value}" for name, value in given if value is not None)

    def costs_no_less(self, other: "Choice") -> bool:
        """Whether it computes and sends at least as much as another choice.

        What pieces cost and save differs by model and machine.
        """
        if (self.dtype, self.fsdp) != (other.dtype, other.fsdp):
            return False
        if self.microbatches < other.microbatches:
            return False
        if other.remat == "auto" and self.microbatches == other.microbatches:
            return False  # with more room, it may recompute less
        return other.remat in (self.remat, "none")


def list_towers(config: ConfigDict) -> list[str]:
    """Returns the towers that can recompute blocks and choose a type."""
    return [name for name in ("image", "text") if {"dtype", "remat"} <= set(config.model[name])]


def list_choices(
    config: ConfigDict, num_devices: int, fsdp: Iterable[int] | None, microbatches: Iterable[int]
) -> list[Choice]:
    """Lists choices that divide the devices and the batch, the cheapest computation first."""
    towers = list_towers(config)
    dtypes = [config.model[tower].dtype for tower in towers][:1] or [None]
    dtypes += [each for each in DTYPES if towers and each not in dtypes]
    remats = REMATS if towers else (None,)
    choices = [
        Choice(dtype, remat, parts, split)
        for dtype, remat, parts, split in itertools.product(
            dtypes, remats, sorted(microbatches), [None] if fsdp is None else sorted(fsdp)
        )
        if num_devices % (split or 1) == 0 and config.batch_size % (num_devices * parts) == 0
    ]
    if not choices:
        raise UserError(
            f"config.batch_size = {config.batch_size} divides over {num_devices} devices with none "
            "of the numbers of micro-batches"
        )
    return choices


def search(
    choices: Iterable[Choice], compile_choice: Callable[[Choice], dict[str, Any] | None]
) -> Iterator[tuple[Choice, dict[str, Any] | None]]:
    """Compiles choices in turn; yields each with its report, None if it is impossible.

    A choice is skipped if one that computes and sends no more already fits.
    """
    fitting: list[Choice] = []
    for choice in choices:
        if any(choice.costs_no_less(other) for other in fitting):
            continue
        report = compile_choice(choice)
        if report is not None and report["fits"]:
            fitting.append(choice)
        yield choice, report


def find_cheapest(reports: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the report with the fewest chip-hours among those that fit, None if none fits."""
    fitting = [report for report in reports if report["fits"]]
    return min(fitting, key=lambda report: report["run"]["chip_hours"], default=None)
