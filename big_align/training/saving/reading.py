"""Reading a training state, or a part of it, from the folder of a checkpoint."""

from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from big_align.core.errors import CheckpointMismatch
from big_align.core.types import SavedPart
from big_align.training.saving import handlers, step_folders

Shapes = dict[str, tuple[int, ...]]  # of arrays by path


def read_state(
    folder: epath.Path, described: Any, record: Mapping[str, Any], parts: Mapping[str, SavedPart]
) -> Any:
    """Reads a checkpoint as `Checkpointer.restore` returns it; the parts read themselves."""
    known = step_folders.read_record(folder) or {}
    for name in record:  # in this order, to report the first difference
        if name in known and record[name] != known[name]:
            raise CheckpointMismatch(
                f"{folder} was made with {name} = {known[name]}, the config "
                f"has {record[name]}; use another --workdir or the former value"
            )
    # Not with Orbax's manager, which reads metadata of its own that may be damaged.
    handler = ocp.PyTreeCheckpointHandler()
    fields = dict(described if isinstance(described, dict) else vars(described))
    metadata = handler.metadata(folder / "state").tree
    saved = _list_shapes({k: metadata.get(k) for k in fields})
    wanted = _list_shapes(fields)
    if saved != wanted:
        raise CheckpointMismatch(
            f"{folder} belongs to another model or optimizer than the config; use another "
            f"--workdir or the config that it was trained with:\n"
            + _describe_difference(saved, wanted)
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


def _list_shapes(tree: Any) -> Shapes:
    """Flattens a tree into path -> shape; absent entries (None) do not appear.

    The number of rows of tables is left out, since their padding depends on the number of devices.
    """
    is_leaf = lambda x: hasattr(x, "shape")  # noqa: E731
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    shapes = {
        jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape)
        for path, leaf in leaves
        if getattr(leaf, "shape", None) is not None
    }
    return {k: v[1:] if k.startswith("tables/") else v for k, v in shapes.items()}


def _describe_difference(saved: Shapes, wanted: Shapes, most: int = 12) -> str:
    """Lists, one per line, the differences between the shapes of a checkpoint and those wanted."""
    lines = [f"only in the checkpoint: {k} {saved[k]}" for k in saved.keys() - wanted.keys()]
    lines += [f"only in the config's model: {k} {wanted[k]}" for k in wanted.keys() - saved.keys()]
    lines += [
        f"{k}: {saved[k]} in the checkpoint, {wanted[k]} in the config's model"
        for k in saved.keys() & wanted.keys()
        if saved[k] != wanted[k]
    ]
    more = [f"... and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join(f"  {line}" for line in sorted(lines)[:most] + more)
