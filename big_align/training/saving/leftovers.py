"""What interrupted saves leave behind.

On a disk, Orbax writes a checkpoint under another name and renames it when it is complete. In a
bucket, where nothing can be renamed, it writes under the final name and adds a file in the end.
Every folder without that file is unfinished to Orbax, data and other runs in the bucket too, so it
is not left to it what to remove.
"""

import contextlib

import jax
from etils import epath
from orbax import checkpoint as ocp

from big_align.parallel.distributed import agreement
from big_align.training.saving import checksums, step_folders

UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of a checkpoint that is being written to a disk
COMMITTED = "commit_success.txt"  # the file that a finished checkpoint in a bucket has


def clear(folder: epath.Path) -> None:
    """Removes the leftovers of saves, in process 0; the other processes wait."""
    if jax.process_index() == 0:
        _remove(folder)
    agreement.share("leftovers", None)


def remove(folder: epath.Path) -> None:
    """Removes, as far as that is possible, the leftovers of a save that has failed."""
    with contextlib.suppress(Exception):  # what cannot be written may not be removable either
        _remove(folder)


def _remove(folder: epath.Path) -> None:
    """Removes the leftovers of saves and nothing else.

    A checkpoint in a bucket whose files are all there, but for the one that says so, gets it again.
    It is set aside if others are damaged.
    """
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith(f".{step_folders.PROBE}"):
            path.unlink(missing_ok=True)
        elif UNFINISHED in path.name:
            path.rmtree(missing_ok=True)
        elif path.name.isdecimal() and path.is_dir() and ocp.utils.is_tmp_checkpoint(path):
            _finish_or_remove(path)


def _finish_or_remove(path: epath.Path) -> None:
    """Deals with a folder of a bucket that is named like a checkpoint and lacks `COMMITTED`."""
    if not any((path / item).exists() for item in ("state", "record")):
        return  # not ours
    if not (path / checksums.ITEM / checksums.FILE).exists():  # they are written last
        path.rmtree(missing_ok=True)
        return
    fault = checksums.find_fault(path, int(path.name))
    if fault is None:
        (path / COMMITTED).write_text("")
        print(f"{path} is whole, and {COMMITTED}, which was missing, is written again", flush=True)
    else:
        print(step_folders.set_aside(path.parent, int(path.name), fault), flush=True)
