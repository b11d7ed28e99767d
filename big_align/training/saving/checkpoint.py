"""Checkpoints: written in the background, atomic, checked, restored on any number of devices.

A checkpoint holds the training state, what it was made with, checksums of its files, and `parts`,
such as a position in the data. A damaged one is set aside, and the one before it is used.
"""

import contextlib
import itertools
import sys
import time
import types
from collections.abc import Mapping
from typing import Any, Literal

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import multihost

from big_align.core import formats
from big_align.core.errors import DamagedCheckpoint, NotSavedError, UserError, suggest
from big_align.core.nodes import Given
from big_align.core.types import SavedPart
from big_align.parallel.distributed import agreement, processes
from big_align.training.logs.directions import UNSAID, Said
from big_align.training.logs.evaluations import read_training_numbers
from big_align.training.saving import (
    checksums,
    handlers,
    leftovers,
    ownership,
    rounds,
    step_folders,
)
from big_align.training.saving.reading import read_state
from big_align.training.saving.retention import Evaluated, Numbers, Retention, Which

ATTEMPTS = 3  # saves in a row that may fail: a full disk may be freed, a file system come back
PAUSE_SECONDS = 20.0  # pause between two attempts to save the final state of a run
_CALLS = itertools.count(1)  # this process's questions whether to stop, in all of its runs


class Checkpointer:
    """Saves and restores the training state of a workdir.

    Args:
      workdir: checkpoints are in `workdir/checkpoints/STEP`.
      keep_last: how many of the latest checkpoints are kept.
      keep_every: checkpoints at multiples of this step are kept for good; None keeps no others.
      keep_best: the number that decides which checkpoint is best, as "flickr/text_to_image_r10";
        the best one is saved and kept.
      folder: another folder for the checkpoints, as in `gs://bucket/run`.
      deadline: seconds that a save may take; then the run ends, and says which process is late.
      read_only: whether nothing is ever written (evaluation).
      said: which way the numbers of evaluators are better.
      parts: what is saved besides the training state, by name; each writes and reads itself.
    """

    def __init__(
        self,
        workdir: Given[str],
        keep_last: int = 2,
        keep_every: int | None = None,
        keep_best: str | None = None,
        folder: str | None = None,
        deadline: int = 1800,
        read_only: Given[bool] = False,
        said: Given[Said] = UNSAID,
        parts: Mapping[str, SavedPart] = types.MappingProxyType({}),
    ):
        self.folder = step_folders.find_folder(workdir, folder)  # every host writes its part
        self._retention = Retention(keep_last, keep_every, keep_best, said)
        if read_only:
            ownership.check_seen(self.folder, workdir)
        else:
            leftovers.clear(self.folder)  # Orbax would remove more in a bucket
        step_folders.check_files(self.folder)
        self._manager = _Manager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self._retention,
                create=not read_only,
                read_only=read_only,
                enable_async_checkpointing=not read_only,
                async_options=ocp.AsyncOptions(
                    # In the background, a failure is noticed only after ten minutes.
                    create_directories_asynchronously=False,
                    # A process that fails never reaches them; `rounds.Round` does without.
                    barrier_sync_fn=lambda **_: None,
                    timeout_secs=2 * deadline,
                ),
            ),
            item_handlers={
                "state": handlers.make_state_handler(self._wait_for_others),
                "record": ocp.JsonCheckpointHandler(),
                **{name: handlers.PartHandler() for name in parts},
                checksums.ITEM: handlers.ChecksumHandler(),  # last, since it covers all the others
            },
        )
        self._parts, self._read_only = parts, read_only
        self._damaged: dict[int, str] = {}
        self._failed, self._fault, self._deadline = 0, "", rounds.check_deadline(deadline)
        self._round: rounds.Round | None = None
        if keep_best:
            logged = read_training_numbers(workdir)
            found = step_folders.read_numbers(self.folder, self._steps, logged)
            self._retention.numbers |= dict(agreement.share("numbers", list(found.items())))

    @property
    def _steps(self) -> list[int]:
        return sorted(set(self._manager.all_steps()) - set(self._damaged))

    @property
    def latest_step(self) -> int | None:
        """The step of the newest complete checkpoint, None if there is none."""
        return max(self._steps, default=None)

    @property
    def _evaluated(self) -> list[Evaluated]:
        return [Evaluated(step, self._retention.numbers.get(step)) for step in self._steps]

    def improves(self, numbers: Numbers) -> bool:
        """Returns whether an evaluation is better by `keep_best` than that of any checkpoint."""
        name = self._retention.keep_best
        if name is None:
            return False
        if name not in numbers:
            raise UserError(
                f"config.checkpoint.keep_best = {name!r} is no number that was measured"
                f"{suggest(name, numbers)}; there are: {', '.join(numbers) or 'none'}"
            )
        best = self._retention.find_best(self._evaluated)
        before = self._retention.rank(None if best is None else best.numbers)
        # Another process may see other checkpoints, and all save or none does.
        return agreement.share("improves", self._retention.rank(numbers) > before)

    def note(self, step: int, numbers: Numbers) -> None:
        """Takes note of the evaluation of a checkpoint that was saved before it was measured."""
        if step in self._steps:
            self._retention.numbers[step] = numbers

    def find(self, which: Which) -> int | None:
        """Returns the step of a complete checkpoint; None if there is no checkpoint at all."""
        return self._retention.find(which, self._evaluated, self.folder)

    def save(
        self, state: Any, record: dict[str, Any], numbers: Numbers | None = None, last: bool = False
    ) -> None:
        """Starts to write a checkpoint; returns once the state may be changed.

        A failed save is reported, and the next one tries again; older checkpoints stay as they are.
        If no save follows, it waits for the end and tries several times. NotSavedError means that
        it has failed too often.
        """
        step = int(state.step)
        self.settle()
        if agreement.share(f"saved/{step}", step in self._steps):
            return
        noted = {**record, "numbers": numbers and dict(numbers)}
        arguments = ocp.args.Composite(
            state=ocp.args.PyTreeSave(state),
            record=ocp.args.JsonSave(formats.stamp(step_folders.KIND, noted)),
            **{name: handlers.PartSave(part) for name, part in self._parts.items()},
            **{checksums.ITEM: handlers.ChecksumSave(step)},
        )
        self._retention.numbers[step] = numbers
        while not self._write(step, arguments, last) and last:
            time.sleep(PAUSE_SECONDS)

    def _write(self, step: int, arguments: ocp.args.Composite, wait: bool) -> bool:
        """Starts to write, and waits for the end if asked to; returns whether all went well."""
        self._round = rounds.Round(self.folder, step, self._deadline)
        if fault := self._round.probe():
            return self._note_failure(fault)
        try:
            if jax.process_index() == 0 and (self.folder / str(step)).exists():
                self._say(step_folders.set_aside(self.folder, step, "it was there before the save"))
            if self._failed:
                self._manager.reload()
            self._manager.save(step, args=arguments)
        except BaseException as error:  # a file system, or code that writes to it, may raise any
            self._round.cancel()
            several = jax.process_count() > 1
            if not isinstance(error, Exception) or (several and processes.LOST.search(str(error))):
                raise
            if not several:  # the others wait for this process where nothing reaches them
                leftovers.remove(self.folder)
            fault = jax.process_index(), step_folders.find_reason(error)
            return self._note_failure(fault, last=several)
        self._round.follow(self._manager.wait_until_finished)
        return not wait or self.settle()

    def _wait_for_others(self) -> None:
        assert self._round is not None  # what is finished has begun
        self._round.wait_for_others()

    def settle(self) -> bool:
        """Waits for what is being written; returns whether all went well, in every process."""
        if self._round is None:
            return True
        if fault := self._round.wait():
            with contextlib.suppress(Exception):  # the same one, which it tells every thread once
                self._manager.wait_until_finished()
            return self._note_failure(fault)
        self._failed, self._round = 0, None
        return True

    def _note_failure(self, fault: rounds.Fault, last: bool = False) -> Literal[False]:
        """Reports that a save has failed, or raises it if it was the last attempt."""
        self._failed, self._round = self._failed + 1, None
        with contextlib.suppress(OSError):  # a stale folder; it is listed again before a save
            self._manager.reload()
        newest, (process, reason) = self.latest_step, fault
        have = "there is none yet" if newest is None else f"the newest is of step {newest}"
        self._fault = f"{self.folder}: a checkpoint was not saved ({reason}); {have}"
        if jax.process_count() > 1:
            self._fault = f"process {process} could not write to {self._fault}"
        if last or self._failed >= ATTEMPTS:
            raise NotSavedError(f"{self._fault}. The same command goes on from there")
        self._say(f"{self._fault}. Saving is tried again ({self._failed} of {ATTEMPTS} failed)")
        return False

    def restore(self, described: Any, record: dict[str, Any], step: Which = None) -> Any:
        """Restores a checkpoint onto the placement of a described state; None if there is none.

        The files are first compared with their checksums. If the newest checkpoint is asked for and
        is damaged, it is set aside, and the one before it is used.

        `described` may also be a dictionary of some fields of the state, which is then returned.
        What the run was made with must be as in the `record` of the checkpoint, where that has it;
        if it is not, or parameters differ, a CheckpointMismatch lists which.
        """
        self.settle()
        lost: list[int] = []
        # While a run saves, or where storage is slow, processes may find different ones.
        while (found := agreement.share("checkpoint", self.find(step))) is not None:
            fault = self._find_fault(found)
            if fault is None:
                state = read_state(self.folder / str(found), described, record, self._parts)
                if lost and found < lost[0]:
                    again = "" if self._read_only else f"; {lost[0] - found} steps are repeated"
                    self._say(f"using step {found} instead of {lost[0]}{again}")
                return state
            if step is not None:
                raise DamagedCheckpoint(f"{self.folder / str(found)} is damaged: {fault}")
            lost.append(found)
            self._set_aside(found, fault)
        if broken := len(step_folders.list_damaged(self.folder) or self._damaged):
            raise DamagedCheckpoint(
                f"no checkpoint in {self.folder} is whole ({broken} are damaged); use another "
                "--workdir to train from the start"
            )
        return None

    def _find_fault(self, step: int) -> str | None:
        """Returns the first fault that a process finds, in all; each compares some of the files."""
        step_folders.read_record(self.folder / str(step))  # a newer format is no fault
        share = jax.process_index(), jax.process_count()
        fault = checksums.find_fault(self.folder / str(step), step, share)
        return next(filter(None, agreement.gather(f"checkpoint/{step}", fault)), None)

    def _set_aside(self, step: int, fault: str) -> None:
        """Renames a damaged checkpoint or, if read-only, ignores it."""
        if self._read_only:
            if (self.folder / str(step)).exists():
                self._damaged[step] = fault
                self._say(f"{self.folder / str(step)} is damaged ({fault}) and left out")
            self._manager.reload()  # the run may have removed it meanwhile, as older ones are
            return
        if jax.process_index() == 0:
            self._say(step_folders.set_aside(self.folder, step, fault))
        agreement.share(f"set aside/{step}", None)  # the other processes wait until it is done
        self._manager.reload()

    def _say(self, message: str) -> None:
        if jax.process_index() == 0:  # what only reads may print results for another program
            print(message, flush=True, file=sys.stderr if self._read_only else sys.stdout)

    def preempted(self) -> bool:
        """Returns whether the cluster has asked all processes to save and stop now.

        All of them call it after each step. XLA stops them at the first call that none has made
        yet, and takes calls for numbered from 1: the steps of a run that continues are not.
        """
        return multihost.reached_preemption(next(_CALLS))

    def close(self) -> None:
        """Waits for what is being written; raises NotSavedError if it has failed."""
        saved = self.settle()
        self._manager.close()
        if not saved:
            raise NotSavedError(f"{self._fault}. The same command goes on from there")


class _Manager(ocp.CheckpointManager):
    """Never asks whether to stop: with numbers of steps, it would move the call at which all do."""

    def reached_preemption(self, step: int) -> bool:
        return False
