"""What a run does about a number that is a bad sign: it says so, or goes back and leaves data out.

A run that goes back takes other data from its last checkpoint on: the batches from there to the
step of the alarm are left out. Not that step's alone, since runs are exact: the others would lead
to the same parameters again, which a little was enough to upset (Chowdhery et al. 2022, §5.1, leave
out hundreds of batches for that reason). So the batch of a step is a function of what was decided,
which stands in the workdir: whoever continues the run decides the same.
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from tqdm import tqdm

from big_align.distributed import agreement
from big_align.errors import DivergedError, NotFiniteError, Rewound
from big_align.training.health.guard import Alarm, Guard
from big_align.training.health.spread import Side
from big_align.training.logs.line_files import append_line, read_lines

REWINDS, SPREADS, SUSPECTS = "rewinds.jsonl", "spreads.jsonl", "suspects.jsonl"
REPORT, REWIND = RESPONSES = ("report", "rewind")
"""What a run does about an alarm."""
MOST = 10
"""Rewinds of a run; what diverges more often does not do so for its data."""
KEPT = 8
"""Saved steps whose spreads are kept."""
ADVICE = "lower config.schedule.learning_rate or set config.optimizer.clip_norm"


@dataclasses.dataclass(frozen=True)
class Rewind:
    """A decision to go back.

    Attributes:
      checkpoint: the step that the run went back to.
      step: that of the alarm.
    """

    checkpoint: int
    step: int


def find_data_step(rewinds: Sequence[Rewind], step: int) -> int:
    """Returns which batch of the data stream is the one of a step, both counted from 0."""
    return step + sum(each.step - each.checkpoint for each in rewinds if each.checkpoint <= step)


class Health:
    """Watches a run and keeps what it decides in the workdir.

      suspects.jsonl  a line an alarm, with the names of the examples of its batch
      rewinds.jsonl   a line a rewind
      spreads.jsonl   what was known of the spreads at the last saved steps

    Args:
      workdir: of the run; only the first process writes to it.
      step: that the run begins at, or continues from.
      rewinds: whether it goes back at an alarm.
      list_examples: from the number of a batch of the data stream to the names of its examples.
      last_good: gives the step of the newest checkpoint, None if there is none.
      watched: numbers that the objective would have watched, see `Guard`.
      say: tells of an alarm.
    """

    def __init__(
        self,
        workdir: str,
        step: int,
        *,
        rewinds: bool,
        list_examples: Callable[[int], Sequence[str]],
        last_good: Callable[[], int | None],
        watched: Mapping[str, Side] | None = None,
        say: Callable[[str], None] = tqdm.write,
    ):
        self._folder = pathlib.Path(workdir)
        self._goes_back, self._list_examples, self._last_good = rewinds, list_examples, last_good
        self._say = say
        self._guard = Guard(self._respond, watched)
        self.check = self._guard.check
        made, spreads = agreement.share("health", self._read(step))
        self._rewinds = [Rewind(*each) for each in made]
        self._spreads = spreads
        if spreads and spreads[-1]["step"] == step:
            self._guard.restore(spreads[-1]["spreads"])

    def data_step(self, step: int) -> int:
        """Returns which batch of the data stream is the one of a step, both counted from 0."""
        return find_data_step(self._rewinds, step)

    def save(self, step: int) -> None:
        """Writes down the spreads of a step that is about to be saved."""
        self._spreads = [each for each in self._spreads if each["step"] < step][1 - KEPT :]
        self._spreads.append({"step": step, "spreads": self._guard.state()})
        if jax.process_index() == 0:
            path = self._folder / SPREADS
            path.unlink(missing_ok=True)
            for each in self._spreads:
                append_line(path, each)

    def _read(self, step: int) -> tuple[list[list[int]], list[dict[str, Any]]]:
        """Returns the rewinds, and the spreads until a step, of the first process's workdir."""
        if jax.process_index() != 0:
            return [], []
        lines = read_lines(self._folder / REWINDS, ("checkpoint", "step"))
        made = [[each["checkpoint"], each["step"]] for each in lines]
        spreads = read_lines(self._folder / SPREADS, ("step", "spreads"))
        return made, [each for each in spreads if each["step"] <= step]

    def _respond(self, alarm: Alarm) -> None:
        """Writes an alarm down, tells it, and ends or rewinds the run where that is due."""
        good, suspects = self._last_good(), self._folder / SUSPECTS
        if jax.process_index() == 0:
            self._note(alarm)
        if not self._goes_back:
            if alarm.expected is None:
                raise NotFiniteError(_explain(alarm, good))
            if jax.process_index() == 0:
                self._say(f"warning: {alarm.describe()}; its examples are in {suspects}")
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
    """Returns a number as JSON has it: NaN and infinity are texts."""
    return value if math.isfinite(value) else str(value)


def _explain(alarm: Alarm, saved: int | None) -> str:
    good = "none yet" if saved is None else f"that of step {saved}"
    return (
        f"{alarm.describe()}; the last good checkpoint is {good}. {ADVICE[0].upper()}{ADVICE[1:]}, "
        "and run the same command again."
    )
