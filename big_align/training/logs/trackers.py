"""Where a run's numbers and pictures go besides its workdir's `metrics.jsonl`."""

import importlib.util
import json
import pathlib
import secrets
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from big_align.core.errors import UserError, tell_in_a_line
from big_align.core.nodes import Given
from big_align.core.regular_files import read_regular
from big_align.core.whole_files import write_whole

Pictures = Mapping[str, UInt8[np.ndarray, "h w 3"]]


@runtime_checkable
class Tracker(Protocol):
    """Receives what a run logs."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Logs the scalars of a step."""

    def show(self, step: int, pictures: Pictures) -> None:
        """Logs pictures of a step."""

    def close(self) -> None:
        """Writes what is left."""


def open_trackers(
    workdir: Given[str], described: Given[Mapping[str, Any]], wandb: str | None = None
) -> list[Tracker]:
    """Opens the trackers of a run besides TensorBoard.

    Args:
      workdir: workdir of the run.
      described: what to show about the run: its config.
      wandb: a project of Weights & Biases; None does not use it.

    Raises:
      UserError: the package wandb is missing, or it cannot start a run.
    """
    check_wandb(wandb)
    return [WeightsAndBiases(workdir, wandb, described)] if wandb else []


def check_wandb(project: str | None) -> None:
    """Checks that Weights & Biases is installed, if a project is given."""
    if project and importlib.util.find_spec("wandb") is None:
        raise UserError(
            f"config.log.wandb = {project!r} needs the package wandb: pip install "
            "'big_align[wandb]', or leave config.log.wandb out"
        )


def check_login(project: str | None) -> None:
    """Checks that Weights & Biases knows who logs, if a project is given; asks no server."""
    if not project:
        return
    import wandb
    from requests.utils import get_netrc_auth

    settings = wandb.setup().settings
    known = settings.api_key or getattr(settings, "identity_token_file", None)
    if settings.mode == "online" and not known and not get_netrc_auth(settings.base_url):
        raise UserError(
            f"config.log.wandb = {project!r} needs an account: write wandb login, set "
            "WANDB_API_KEY, or log here alone, WANDB_MODE=offline"
        )


class WeightsAndBiases:
    """A run of Weights & Biases, shared by all processes that continue the run.

    Its id and its last complete step are in `WORKDIR/wandb.json`. Steps that are repeated after a
    kill are left out: their numbers are already there, and they are the same. With
    $WANDB_MODE=offline it needs neither a network nor an account.
    """

    def __init__(self, workdir: str, project: str, config: Mapping[str, Any]):
        import wandb

        folder = pathlib.Path(workdir).absolute()
        self._path = folder / "wandb.json"
        self._id, self._whole = self._read()
        self._newest = self._whole
        self._save(self._whole)
        self._image = wandb.Image
        try:
            self._run = wandb.init(
                project=project,
                id=self._id,
                name=folder.name,
                dir=str(folder),
                resume="allow",
                config=dict(config),
                settings=wandb.Settings(silent=True),
            )
        except wandb.errors.Error as error:
            reason = " ".join(str(error).split())
            raise UserError(f"config.log.wandb = {project!r}: {reason}") from error

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Logs the scalars of a step."""
        self._log(step, scalars)

    def show(self, step: int, pictures: Pictures) -> None:
        """Logs pictures of a step."""
        self._log(step, {name: self._image(pixels) for name, pixels in pictures.items()})

    def close(self) -> None:
        """Ends the run of this process."""
        self._run.finish()
        self._save(self._newest)

    def _read(self) -> tuple[str, int]:
        """Returns the run's id and its last complete step."""
        if not self._path.exists():
            return secrets.token_hex(4), 0
        try:
            record = json.loads(read_regular(self._path))
            return str(record["id"]), int(record["step"])
        except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
            raise UserError(
                f"{self._path} does not name a run of Weights & Biases "
                f"({tell_in_a_line(error)}); remove it to begin another there"
            ) from error

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        if step <= self._whole or not values:
            return
        if step > self._newest:  # the previous step is complete
            self._save(self._newest)
            self._newest = step
        self._run.log(dict(values), step=step)

    def _save(self, step: int) -> None:
        write_whole(self._path, json.dumps({"id": self._id, "step": step}).encode() + b"\n")
