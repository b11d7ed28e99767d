"""Reading a training state, or a part of it, from the folder of a checkpoint."""

from collections.abc import Mapping
from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from big_align.core.errors import CheckpointMismatch
from big_align.core.types import SavedPart
from big_align.training.saving import handlers, shapes, step_folders


def read_state(
    folder: epath.Path,
    described: Any,
    record: Mapping[str, Any],
    parts: Mapping[str, SavedPart],
) -> Any:
    """Reads a checkpoint onto the placement of a described state.

    Args:
      folder: folder of the checkpoint.
      described: the abstract training state, or a dictionary of some of its fields.
      record: what the run was made with; entries that the checkpoint also has must be equal.
      parts: what is saved besides the state and reads itself, by name.

    Returns:
      The state, or the fields.

    Raises:
      CheckpointMismatch: parameters or the record differ; the message lists which.
    """
    _check_record(folder, record)
    # Not with Orbax's manager, which reads metadata of its own that may be damaged.
    handler = ocp.PyTreeCheckpointHandler()
    fields = dict(described if isinstance(described, dict) else vars(described))
    metadata = handler.metadata(folder / "state").tree
    saved = shapes.list_shapes({k: metadata.get(k) for k in fields})
    wanted = shapes.list_shapes(fields)
    if saved != wanted:
        raise CheckpointMismatch(
            f"{folder} belongs to another model or optimizer than the config; use another "
            f"--workdir or the config that it was trained with:\n"
            + shapes.describe_difference(saved, wanted)
        )
    arguments = ocp.args.PyTreeRestore(
        item=described,
        restore_args=ocp.checkpoint_utils.construct_restore_args(described, strict=False),
        partial_restore=isinstance(described, dict),
    )
    try:
        state = handler.restore(folder / "state", args=arguments)
    except ValueError as error:
        if "tree structures do not match" not in str(error):
            raise
        raise CheckpointMismatch(
            f"{folder} belongs to another optimizer than the config: it had weight decay where "
            "there is none now, or the other way round; a run can change its weight_decay, but "
            "not from or to 0 (1e-30 does the same as 0)"
        ) from error
    for name, part in parts.items():
        part.read(handlers.find_part(folder / name))
    return state


def _check_record(folder: epath.Path, record: Mapping[str, Any]) -> None:
    saved = step_folders.read_record(folder) or {}
    for name in record:  # in this order, to report the first difference
        if name in saved and record[name] != saved[name]:
            raise CheckpointMismatch(
                f"{folder} was made with {name} = {saved[name]}, the config "
                f"has {record[name]}; use another --workdir or the former value"
            )
