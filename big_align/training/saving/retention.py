"""Which checkpoints of a run are kept, and which of them is the best."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from etils import epath

from big_align.core.errors import MissingCheckpoint, check_at_least
from big_align.training.logs.directions import LOWER, UNSAID, Said, find_direction

Numbers = Mapping[str, float]  # evaluation results, by `evaluator/name`
BEST = "best"  # stands for the step of the best checkpoint
Which = int | Literal["best"] | None  # the checkpoint of a step, the best, or the newest


class Evaluated(NamedTuple):
    """A checkpoint and its evaluation."""

    step: int
    numbers: Numbers | None  # None if it was not evaluated


class Retention:
    """Keeps the latest checkpoints, every nth, and the one with the best evaluation (for Orbax).

    A checkpoint holds the numbers of its evaluation, so the best one is determined from what is
    there: no other record has to be kept in sync, and the run may be killed at any time. Of two
    equally good checkpoints, the earlier one is the better. Arguments are those of `Checkpointer`.
    """

    def __init__(
        self,
        keep_last: int = 2,
        keep_every: int | None = None,
        keep_best: str | None = None,
        said: Said = UNSAID,
    ):
        check_at_least(1, keep_last=keep_last, keep_every=keep_every)
        if keep_best is not None and not all(keep_best.partition("/")):
            raise ValueError(f"keep_best = {keep_best!r} is no number: write EVALUATOR/NAME")
        self.keep_last, self.keep_every, self.keep_best = keep_last, keep_every, keep_best
        self._sign = -1 if find_direction(keep_best or "", said) == LOWER else 1
        self.numbers: dict[int, Numbers | None] = {}

    def rank(self, numbers: Numbers | None) -> float:
        """Returns the score of an evaluation, higher is better; minus infinity for none, or NaN."""
        value = self._sign * float((numbers or {}).get(self.keep_best or "", math.nan))
        return -math.inf if math.isnan(value) else value

    def find_best(self, checkpoints: Sequence[Evaluated]) -> Evaluated | None:
        """Returns the best of some checkpoints, which are in order; None if none was evaluated."""
        measured = [each for each in checkpoints if self.rank(each.numbers) > -math.inf]
        return max(measured, key=lambda each: self.rank(each.numbers), default=None)

    def find(
        self, which: Which, checkpoints: Sequence[Evaluated], folder: epath.Path
    ) -> int | None:
        """Returns the step of a complete checkpoint; None if there is no checkpoint at all."""
        if not checkpoints or which is None:
            return checkpoints[-1].step if checkpoints else None
        have = f"it has those of the steps {', '.join(str(each.step) for each in checkpoints)}"
        if which != BEST:
            if which not in [each.step for each in checkpoints]:
                raise MissingCheckpoint(f"{folder} has no checkpoint of step {which}; {have}")
            return which
        if self.keep_best is None:
            raise MissingCheckpoint(
                f"{folder} has no best checkpoint, since config.checkpoint.keep_best was not set; "
                f"{have}"
            )
        best = self.find_best(checkpoints)
        if best is None:
            raise MissingCheckpoint(
                f"{folder} has no checkpoint with the number {self.keep_best} of "
                f"config.checkpoint.keep_best; {have}"
            )
        return best.step

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Returns which checkpoints are kept; they are in order, and as Orbax describes them."""
        steps = [info.step for info in checkpoints]
        best = self.find_best([Evaluated(step, self.numbers.get(step)) for step in steps])
        return [
            step in steps[-self.keep_last :]
            or (best is not None and step == best.step)
            or (self.keep_every is not None and step % self.keep_every == 0)
            for step in steps
        ]
