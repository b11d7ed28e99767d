"""How a run responds to a sign of divergence: it reports it, or goes back and leaves data out.

A run that goes back uses different data from its last checkpoint on: the batches from there to the
step of the alarm are left out. Leaving out only the batch of that step would not do: runs are
reproducible, so the others would lead to the same fragile parameters again (Chowdhery et al. 2022,
§5.1, leave out hundreds of batches for that reason). So the batch of a step is a function of the
decisions made so far. These are kept in the workdir and in checkpoints, so that any process that
continues the run uses the same ones.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from tqdm import tqdm

from big_align.core.errors import DivergedError, NotFiniteError, Rewound
from big_align.core.types import Batch
from big_align.core.whole_files import write_whole
from big_align.parallel.distributed import agreement
from big_align.training.health.guard import Alarm, Guard
from big_align.training.health.spread import Side
from big_align.training.logs.line_files import append_line, read_lines

HEALTH = "health"  # what decisions and spreads are called in the record of a checkpoint
REWINDS, SPREADS, SUSPECTS = "rewinds.jsonl", "spreads.jsonl", "suspects.jsonl"
REPORT, REWIND = RESPONSES = ("report", "rewind")  # how a run responds to an alarm
MOST = 10  # rewinds of a run; if it diverges more often, the data is not the cause
KEPT = 8  # number of saved steps whose spreads are kept
ADVICE = "lower config.schedule.learning_rate or set config.optimizer.clip_norm"


@dataclasses.dataclass(frozen=True)
class Rewind:
    """A decision to go back."""

    checkpoint: int  # the step that the run went back to
    step: int  # the step of the alarm


def find_data_step(rewinds: Sequence[Rewind], step: int) -> int:
    """Returns the number of the data stream's batch that a step uses; both count from 0."""
    return step + sum(each.step - each.checkpoint for each in rewinds if each.checkpoint <= step)


class Health:
    """Watches a run and keeps its decisions in the workdir, to which only the first process writes.

      suspects.jsonl  a line per alarm, with the names of the examples of its batch
      rewinds.jsonl   a line per rewind
      spreads.jsonl   the state of the spreads at the last saved steps, and that being saved

    `list_examples` takes the number of a batch in the data stream. `saved` is `state` as the
    checkpoint of `step` holds it, since a workdir on the disk of a machine may be lost, and
    checkpoints be in a bucket.
    """

    def __init__(
        self,
        workdir: str,
        step: int,
        *,
        rewinds: bool,
        list_examples: Callable[[int], Sequence[str]],
        last_good: Callable[[], int | None],
        saved: Mapping[str, Any] | None = None,
        watched: Mapping[str, Side] | None = None,
        skipped: int = 0,
    ):
        self._folder = pathlib.Path(workdir)
        self._goes_back, self._list_examples, self._last_good = rewinds, list_examples, last_good
        self._skipped = skipped
        self._guard = Guard(self._respond, watched)
        self.check = self._guard.check
        made, spreads = agreement.share("health", self._read(step, saved))
        self._rewinds = [Rewind(*each) for each in made]
        self._spreads = spreads
        if spreads and spreads[-1]["step"] == step:
            self._guard.restore(spreads[-1]["spreads"])

    def data_step(self, step: int) -> int:
        """Returns the number of the data stream's batch that a step uses; both count from 0."""
        return self._skipped + find_data_step(self._rewinds, step)

    def leave_out(self, iterate: Callable[[int], Iterator[Batch]], step: int) -> Iterator[Batch]:
        """Yields the batches that the steps after one use.

        There may be rewinds to later steps, if the run continues from an older checkpoint.
        """
        begin = self.data_step(step)
        for number, batch in enumerate(iterate(begin), begin):
            if number == self.data_step(step):
                yield batch
                step += 1

    def save(self, step: int) -> None:
        """Stores the spreads of a step that is about to be saved, once earlier saves are settled.

        Those of saves that have failed are dropped.
        """
        good = min(step - 1, self._last_good() or 0)
        self._spreads = [each for each in self._spreads if each["step"] <= good][1 - KEPT :]
        self._spreads.append({"step": step, "spreads": self._guard.state()})
        if jax.process_index() == 0:
            lines = "".join(f"{json.dumps(each)}\n" for each in self._spreads)
            write_whole(self._folder / SPREADS, lines.encode(), sync=True)

    def state(self) -> dict[str, Any]:
        """Returns the rewinds and spreads so far as JSON values, for a checkpoint."""
        made = [[each.checkpoint, each.step] for each in self._rewinds]
        return {"rewinds": made, "spreads": self._guard.state()}

    def _read(
        self, step: int, saved: Mapping[str, Any] | None
    ) -> tuple[list[list[int]], list[dict[str, Any]]]:
        """Returns the rewinds, and the spreads up to a step, from the first process's workdir."""
        if jax.process_index() != 0:
            return [], []
        told = read_lines(self._folder / REWINDS, ("checkpoint", "step"))
        made = [[each["checkpoint"], each["step"]] for each in told]
        stored = read_lines(self._folder / SPREADS, ("step", "spreads"))
        spreads = [each for each in stored if each["step"] <= step]
        if saved is None:
            return made, spreads
        if made[: len(saved["rewinds"])] != saved["rewinds"]:  # the workdir has lost some
            made = saved["rewinds"]
            lines = [json.dumps({"checkpoint": back, "step": end}) for back, end in made]
            content = "".join(f"{x}\n" for x in lines).encode()
            write_whole(self._folder / REWINDS, content, sync=True)
        if not spreads or spreads[-1]["step"] != step:
            spreads.append({"step": step, "spreads": saved["spreads"]})
        return made, spreads

    def _respond(self, alarm: Alarm) -> None:
        """Records and reports an alarm, and ends or rewinds the run if that is due."""
        good, suspects = self._last_good(), self._folder / SUSPECTS
        if jax.process_index() == 0:
            self._note(alarm)
        if not self._goes_back:
            if alarm.expected is None:
                saved = "none yet" if good is None else f"that of step {good}"
                raise NotFiniteError(
                    f"{alarm.describe()}; the last good checkpoint is {saved}. "
                    f"{ADVICE[0].upper()}{ADVICE[1:]}, and run the same command again."
                )
            if jax.process_index() == 0:
                tqdm.write(f"warning: {alarm.describe()}; its examples are in {suspects}")
            return
        if len(self._rewinds) >= MOST:
            raise DivergedError(
                f"{alarm.describe()}, after {MOST} rewinds, which is the most: {ADVICE}, and run "
                f"the same command again. {suspects} names the examples"
            )
        back = Rewind(good or 0, alarm.step)
        if jax.process_index() == 0:
            told = {"name": alarm.name, "value": _plain(alarm.value)}
            append_line(self._folder / REWINDS, dataclasses.asdict(back) | told)
        raise Rewound(
            f"{alarm.describe()}; going back to step {back.checkpoint}, and leaving out the data "
            f"of {back.step - back.checkpoint} steps"
        )

    def _note(self, alarm: Alarm) -> None:
        names = list(self._list_examples(self.data_step(alarm.step - 1)))
        expected = None if alarm.expected is None else [_plain(x) for x in alarm.expected]
        line = {"step": alarm.step, "what": alarm.name, "value": _plain(alarm.value)}
        append_line(self._folder / SUSPECTS, line | {"expected": expected, "keys": names})


def _plain(value: float) -> float | str:
    """Returns a number for JSON, with NaN and infinity as text."""
    return value if math.isfinite(value) else str(value)
