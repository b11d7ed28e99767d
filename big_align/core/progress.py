"""Progress bars: they move on a terminal, and in a file they are readable lines."""

import sys
import time
from typing import Any

from tqdm import tqdm

FIRST, LONGEST = 5.0, 60.0  # seconds between lines; in between, a twentieth of the time so far
LINE = "{l_bar}{n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
ENDLESS = "{l_bar}{n_fmt}{unit} [{elapsed}, {rate_fmt}{postfix}]"


def make_bar(*arguments: Any, **options: Any) -> tqdm:
    """Makes a progress bar of `tqdm` on standard error that shows the time left.

    Schedulers and containers write standard error to a file, where each of a bar's ten updates per
    second would remain. There it is a line every 5 to 60 seconds, and one at the end.
    """
    # A notebook's output is not a terminal, but can move a bar.
    moves = sys.stderr.isatty() or "ipykernel" in sys.modules
    return tqdm(*arguments, **options) if moves else LineBar(*arguments, **options)


class LineBar(tqdm):
    """Progress as lines; takes what `tqdm` takes."""

    def __init__(self, *arguments: Any, **options: Any):
        self._begun = self._told_at = time.monotonic()
        self._told: int | None = None
        options |= {"bar_format": LINE, "dynamic_ncols": False, "mininterval": FIRST / 5}
        super().__init__(*arguments, **options)
        if self.total is None:
            self.bar_format = ENDLESS

    @property
    def format_dict(self) -> dict[str, Any]:
        """What a line is made of: the rate of late, and in the last one that of all the work."""
        found = super().format_dict
        return found | {"rate": None} if self.disable else found

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Prints a line if it is time."""
        now = time.monotonic()
        if now - self._told_at >= min(LONGEST, max(FIRST, (now - self._begun) / 20)):
            self._tell(now)
        return True

    def clear(self, *_: Any, **__: Any) -> None:
        """Leaves the lines where they are."""

    def close(self) -> None:
        """Prints the last line, unless the job was short or that line is already there."""
        if self.disable:
            return
        self.disable = True
        self._decr_instances(self)
        now = time.monotonic()
        if self.leave is not False and now - self._begun >= self.delay and self._told != self.n:
            self._tell(now)

    def _tell(self, now: float) -> None:
        self._told_at, self._told = now, self.n
        edge = " " if self.total is not None else ""  # of a bar that is not there
        self.fp.write(str(self).replace("|", edge, 1) + "\n")
        self.fp.flush()
