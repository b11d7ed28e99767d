"""What a checkpoint holds beside the training state, in the words of Orbax."""

import dataclasses
import os
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from big_align.errors import CheckpointMismatch
from big_align.training.saving import checksums
from big_align.types import SavedPart


class PartHandler(ocp.CheckpointHandler):
    """Has a part write itself into a folder of its process."""

    def save(self, directory: epath.Path, args: "PartSave") -> None:
        """Writes a part."""
        folder = directory / _name_folder()
        folder.mkdir(parents=True)
        args.part.write(os.fspath(folder))

    def restore(self, directory: epath.Path, args: Any = None) -> None:
        """Nothing is restored here: parts read their folders themselves."""


@ocp.args.register_with_handler(PartHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class PartSave(ocp.args.CheckpointArgs):
    """What `PartHandler` writes."""

    part: SavedPart


def find_part(directory: epath.Path) -> str:
    """Returns where a part of this process lies.

    Raises:
      CheckpointMismatch: it was saved by another number of processes.
    """
    folder = directory / _name_folder()
    if not folder.is_dir():
        there = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
        raise CheckpointMismatch(
            f"{directory} has {', '.join(there) or 'nothing'} and not {folder.name}: continue "
            "with as many processes as it was saved by, or use another --workdir"
        )
    return os.fspath(folder)


def _name_folder() -> str:
    return f"process_{jax.process_index()}_of_{jax.process_count()}"


class ChecksumHandler(ocp.CheckpointHandler):
    """Writes the checksums of everything else, in the background, before the checkpoint counts.

    Orbax finishes what a checkpoint holds in the order in which it is told the handlers, so this
    is the last of them.
    """

    def save(self, directory: epath.Path, args: "ChecksumSave") -> None:
        """Notes the step; the files are still being written."""
        self._step = args.step

    def restore(self, directory: epath.Path, args: Any = None) -> None:
        """Nothing is restored here: `checksums.find_fault` reads what was written."""

    def finalize(self, directory: epath.Path) -> None:
        """Writes the checksums, in one process, once all have written their files."""
        checksums.write_checksums(directory.parent, directory / checksums.FILE, self._step)


@ocp.args.register_with_handler(ChecksumHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class ChecksumSave(ocp.args.CheckpointArgs):
    """What `ChecksumHandler` writes."""

    step: int
