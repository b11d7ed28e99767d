"""Folders of checkpoints as files: records, and what is not, or no longer, a checkpoint."""

import json
from typing import Any

from etils import epath

DAMAGED = "damaged_"
"""What the name of a checkpoint begins with once it is set aside."""
STRAY = "stray_"
"""The same, of a folder that is named like a checkpoint and holds none."""
UNFINISHED = ".orbax-checkpoint-tmp"


def read_record(checkpoint: epath.Path) -> dict[str, Any] | None:
    """Reads what a checkpoint was made with; None where it cannot be read."""
    try:
        found = json.loads((checkpoint / "record" / "metadata").read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def set_aside(folder: epath.Path, step: int, fault: str) -> str:
    """Gives what is named like a checkpoint another name, where it is in nobody's way.

    Args:
      folder: of the checkpoints.
      step: of the checkpoint.
      fault: what is wrong with it.

    Returns:
      What was done, in a line.
    """
    old = folder / str(step)
    holds = old.is_dir() and any((old / item).exists() for item in ("state", "record"))
    name = f"{DAMAGED if holds else STRAY}{step}"
    taken = {path.name for path in folder.iterdir()}
    names = (name, *(f"{name}_{number}" for number in range(2, len(taken) + 3)))
    new = folder / next(free for free in names if free not in taken)
    old.rename(new)
    what = "is damaged" if holds else "is not a checkpoint"
    return f"{old} {what} ({fault}); its name is now {new.name}"


def list_damaged(folder: epath.Path) -> list[str]:
    """Lists the checkpoints that were set aside."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(DAMAGED))


def remove_leftovers(folder: epath.Path) -> None:
    """Removes what a save that has failed has left."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if UNFINISHED in path.name:
            path.rmtree(missing_ok=True)
