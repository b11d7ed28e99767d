"""Checkpoints: written in the background, atomic, restored on any number of devices.

A checkpoint holds the training state and a small record of what it was made with. The random keys
need nothing of their own, nor does the position in the data where it is a function of the step;
where it is not, `parts` hold it.
"""

import dataclasses
import os
import types
from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from big_align.errors import CheckpointMismatch, MissingCheckpoint
from big_align.nodes import Given
from big_align.row_tables import adopt_earlier, describe_earlier
from big_align.training.state import TrainState
from big_align.types import SavedPart

FOLDER = "checkpoints"
"""Where a workdir has its checkpoints, each in a folder that is named by its step."""


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Flattens a tree into path -> shape; absent entries (None) do not appear."""
    is_leaf = lambda x: hasattr(x, "shape")  # noqa: E731
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    name = lambda key: str(  # noqa: E731
        next(getattr(key, a) for a in ("key", "name", "idx") if hasattr(key, a))
    )
    return {
        "/".join(map(name, path)): tuple(leaf.shape)
        for path, leaf in leaves
        if getattr(leaf, "shape", None) is not None
    }


def _drop_padding(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Leaves out how many rows tables have: their padding depends on the number of devices."""
    return {k: v[1:] if k.startswith("tables/") else v for k, v in shapes.items()}


def _describe_difference(saved: dict, wanted: dict, most: int = 12) -> str:
    """Lists, a line each, what differs between two tables of path -> shape."""
    lines = [f"only in the checkpoint: {k} {saved[k]}" for k in saved.keys() - wanted.keys()]
    lines += [f"only in the config's model: {k} {wanted[k]}" for k in wanted.keys() - saved.keys()]
    lines += [
        f"{k}: {saved[k]} in the checkpoint, {wanted[k]} in the config's model"
        for k in saved.keys() & wanted.keys()
        if saved[k] != wanted[k]
    ]
    more = [f"... and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join(f"  {line}" for line in sorted(lines)[:most] + more)


def _replace(state: Any, tables: dict[str, Any]) -> Any:
    """Returns a state, or a dictionary of some of its fields, with other tables."""
    if isinstance(state, dict):
        return {**state, "tables": tables}
    return state.replace(tables=tables)


class _PartHandler(ocp.CheckpointHandler):
    """Has a part write itself into a folder of its process."""

    def save(self, directory: epath.Path, args: "_PartSave") -> None:
        folder = _part_folder(directory)
        folder.mkdir(parents=True)
        args.part.write(os.fspath(folder))

    def restore(self, directory: epath.Path, args: Any = None) -> None:
        """Nothing is restored here: parts read their folders themselves."""


@ocp.args.register_with_handler(_PartHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class _PartSave(ocp.args.CheckpointArgs):
    """What `_PartHandler` writes."""

    part: SavedPart


def _part_folder(directory: epath.Path) -> epath.Path:
    """Returns where a part of this process lies."""
    return directory / f"process_{jax.process_index()}_of_{jax.process_count()}"


class Checkpointer:
    """Saves and restores the training state of a workdir.

    Args:
      workdir: checkpoints lie in `workdir/checkpoints/STEP`.
      keep_last: how many of the latest stay.
      keep_every: checkpoints at multiples of this step stay for good; None keeps no others.
      folder: where checkpoints lie instead, as in `gs://bucket/run`.
      read_only: nothing is ever written (evaluation).
      parts: what is saved beside the training state, by name, each with its own words.
    """

    def __init__(
        self,
        workdir: Given[str],
        keep_last: int = 2,
        keep_every: int | None = None,
        folder: str | None = None,
        read_only: Given[bool] = False,
        parts: Mapping[str, SavedPart] = types.MappingProxyType({}),
    ):
        # Every process writes its part, so on several hosts this is storage that they share.
        self.folder = epath.Path(folder or os.path.join(os.path.abspath(workdir), FOLDER))
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep_last,
            keep_period=keep_every,
            create=not read_only,
            read_only=read_only,
            enable_async_checkpointing=not read_only,
        )
        if keep_last < 1 or (keep_every is not None and keep_every < 1):
            raise ValueError(f"keep_last = {keep_last} and keep_every = {keep_every} must be >= 1")
        if read_only and not self.folder.is_dir():
            raise MissingCheckpoint(f"no checkpoints in {workdir}: train with this workdir first")
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=options,
            item_handlers={
                "state": ocp.PyTreeCheckpointHandler(),
                "record": ocp.JsonCheckpointHandler(),
                **{name: _PartHandler() for name in parts},
            },
        )
        self._parts = parts

    @property
    def latest_step(self) -> int | None:
        """The step of the newest complete checkpoint, None if there is none."""
        return self._manager.latest_step()

    def save(self, state: TrainState, record: dict[str, Any]) -> None:
        """Starts to write a checkpoint; returns once the state may be changed."""
        step = int(state.step)
        if step == self.latest_step:
            return
        arguments = ocp.args.Composite(
            state=ocp.args.PyTreeSave(state),
            record=ocp.args.JsonSave(record),
            **{name: _PartSave(part) for name, part in self._parts.items()},
        )
        self._manager.save(step, args=arguments)

    def restore(self, described: Any, record: dict[str, Any], step: int | None = None) -> Any:
        """Restores a checkpoint onto the placement of what is described.

        Args:
          described: the abstract training state, or a dictionary of some of its fields.
          record: what the run is made with; entries that a checkpoint also has must be equal.
          step: of the checkpoint; None for the newest.

        Returns:
          The state (or the fields), None if there is no checkpoint.

        Raises:
          CheckpointMismatch: parameters or the record differ; the message lists which.
          MissingCheckpoint: there is none of this step.
        """
        steps = sorted(self._manager.all_steps())
        if not steps:
            return None
        step = steps[-1] if step is None else step
        if step not in steps:
            have = ", ".join(map(str, steps))
            raise MissingCheckpoint(
                f"{self.folder} has no checkpoint of step {step}; it has {have}"
            )
        folder = self.folder / str(step)
        self._check_record(step, record)
        fields = {
            k: v for k, v in (described if isinstance(described, dict) else vars(described)).items()
        }
        metadata = self._manager.item_metadata(step)["state"]
        saved = _drop_padding(_shapes({k: metadata.get(k) for k in fields}))
        tables = fields.get("tables", {})
        earlier = bool(tables) and all(f"tables/{name}/count" in saved for name in tables)
        if earlier:
            fields["tables"] = {name: describe_earlier(table) for name, table in tables.items()}
            described = _replace(described, fields["tables"])
        wanted = _drop_padding(_shapes(fields))
        if saved != wanted:
            raise CheckpointMismatch(
                f"{folder} belongs to another model or optimizer than the config; use another "
                f"--workdir or the config that it was trained with:\n"
                + _describe_difference(saved, wanted)
            )
        item = ocp.args.PyTreeRestore(
            item=described,
            restore_args=ocp.checkpoint_utils.construct_restore_args(described, strict=False),
            partial_restore=isinstance(described, dict),
        )
        state = self._manager.restore(step, args=ocp.args.Composite(state=item))["state"]
        for name, part in self._parts.items():
            part.read(self._find_part(folder / name))
        if not earlier:
            return state
        restored = state["tables"] if isinstance(state, dict) else state.tables
        return _replace(state, {k: adopt_earlier(v, tables[k]) for k, v in restored.items()})

    def _find_part(self, directory: epath.Path) -> str:
        folder = _part_folder(directory)
        if not folder.is_dir():
            there = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
            raise CheckpointMismatch(
                f"{directory} has {', '.join(there) or 'nothing'} and not {folder.name}: continue "
                "with as many processes as it was saved by, or use another --workdir"
            )
        return os.fspath(folder)

    def _check_record(self, step: int, record: dict[str, Any]) -> None:
        arguments = ocp.args.Composite(record=ocp.args.JsonRestore())
        saved = self._manager.restore(step, args=arguments)["record"]
        for name in record:  # in its order: the first difference is the one to tell
            if name in saved and record[name] != saved[name]:
                raise CheckpointMismatch(
                    f"{self.folder / str(step)} was made with {name} = {saved[name]}, the config "
                    f"has {record[name]}; use another --workdir or the former value"
                )

    def preempted(self, step: int) -> bool:
        """Tells whether the cluster has asked all processes to save and stop at this step."""
        return self._manager.reached_preemption(step)

    def close(self) -> None:
        """Waits for what is being written."""
        self._manager.wait_until_finished()
        self._manager.close()
