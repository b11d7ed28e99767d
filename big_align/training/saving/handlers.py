"""Orbax handlers for what a checkpoint holds."""

import dataclasses
import fnmatch
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from big_align.core.errors import CheckpointMismatch
from big_align.core.types import SavedPart
from big_align.training.saving import checksums

SMALLEST_SLICE = 2**14  # bytes; a smaller array is written by one of the devices that have it


def make_state_handler(complete: Callable[[], None]) -> ocp.PyTreeCheckpointHandler:
    """Returns what writes the training state, a tree of arrays.

    Orbax lets every device that has an array write a slice of it. A slice costs a program and an
    entry in the index of the files, so for biases and scales that takes longer than writing them.

    `complete` is called in process 0 before the files of all processes become one checkpoint.
    """
    types = ocp.type_handlers
    kinds = {kind: types.get_type_handler(kind) for kind in types.supported_types()}
    kinds[jax.Array] = types.ArrayHandler(min_slice_bytes_for_replica_parallel=SMALLEST_SLICE)
    registry = types.create_type_handler_registry(*kinds.items())
    handler: Any = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
    finalize = handler.finalize

    def finalize_all(directory: epath.Path) -> None:
        complete()
        finalize(LiteralPath(directory))

    # Not in a subclass: Orbax knows the arguments of a handler, and makes others, by its class.
    handler.finalize = finalize_all
    return handler


class LiteralPath(type(epath.Path())):  # type: ignore[misc]  # etils exports no class for it
    """A folder whose name may have [, ] or *.

    Orbax lists by `glob` what the processes have written, in order to merge it. A path's `glob`
    takes the folder's own name for a pattern, and where that matches nothing Orbax merges nothing
    and reports success: nobody could read such a checkpoint.
    """

    def glob(self, pattern: str) -> Iterator[epath.Path]:
        """Yields what the folder has of names that match a pattern."""
        return (path for path in self.iterdir() if fnmatch.fnmatch(path.name, pattern))


class PartHandler(ocp.AsyncCheckpointHandler):
    """Lets a part write itself into a folder of its process."""

    def save(self, directory: epath.Path, args: "PartSave") -> None:
        """Writes a part."""
        folder = directory / _name_folder()
        folder.mkdir(parents=True)
        args.part.write(os.fspath(folder))

    async def async_save(self, directory: epath.Path, args: "PartSave") -> list[Future]:
        """Writes a part at once; what goes wrong is told later, when no process waits for this."""
        written: Future[None] = Future()
        try:
            self.save(directory, args)
            written.set_result(None)
        except Exception as error:
            written.set_exception(error)
        return [written]

    def restore(self, directory: epath.Path, args: Any = None) -> None:
        """Restores nothing: parts read their folders themselves."""


@ocp.args.register_with_handler(PartHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class PartSave(ocp.args.CheckpointArgs):
    """What `PartHandler` writes."""

    part: SavedPart


def find_part(directory: epath.Path) -> str:
    """Returns the folder of a part of this process."""
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

    Orbax finalizes the items of a checkpoint in the order in which it gets the handlers, so this
    one is the last.
    """

    def save(self, directory: epath.Path, args: "ChecksumSave") -> None:
        """Stores the step; the files are still being written."""
        self._step = args.step

    def restore(self, directory: epath.Path, args: Any = None) -> None:
        """Restores nothing: `checksums.find_fault` reads what was written."""

    def finalize(self, directory: epath.Path) -> None:
        """Writes the checksums, in one process, once all processes have written their files."""
        checksums.write_checksums(directory.parent, directory / checksums.FILE, self._step)


@ocp.args.register_with_handler(ChecksumHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class ChecksumSave(ocp.args.CheckpointArgs):
    """What `ChecksumHandler` writes."""

    step: int
