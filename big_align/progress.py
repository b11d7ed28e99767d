"""Progress bars: on a terminal they move, and in a file they are lines that one can read."""

import sys
import time
from typing import Any

from tqdm import tqdm

FIRST, LONGEST = 5.0, 60.0  # seconds between lines; in between, a twentieth of the time so far
LINE = "{l_bar}{n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"


def make_bar(*arguments: Any, **options: Any) -> tqdm:
    """Makes a progress bar on standard error, with the time that is left.

    Schedulers and containers write standard error to a file, where each of the ten updates a second
    of a bar would stay. There it is a line every 5 to 60 seconds, and one at the end.

    Args:
      *arguments: of `tqdm`.
      **options: likewise.
    """
    # A notebook's output is no terminal, but moves a bar.
    moves = sys.stderr.isatty() or "ipykernel" in sys.modules
    return tqdm(*arguments, **options) if moves else LineBar(*arguments, **options)


class LineBar(tqdm):
    """Progress as lines; takes what `tqdm` takes."""

    def __init__(self, *arguments: Any, **options: Any):
        self._begun = self._told_at = time.monotonic()
        self._told: int | None = None
        options |= {"bar_format": LINE, "dynamic_ncols": False, "mininterval": FIRST / 5}
        super().__init__(*arguments, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Prints a line if it is time."""
        now = time.monotonic()
        if now - self._told_at >= min(LONGEST, max(FIRST, (now - self._begun) / 20)):
            self._tell(now)
        return True

    def clear(self, *_: Any, **__: Any) -> None:
        """Leaves lines where they are."""

    def close(self) -> None:
        """Prints the last line, unless what was done is short or has been told."""
        if self.disable:
            return
        self.disable = True
        self._decr_instances(self)
        now = time.monotonic()
        if self.leave is not False and now - self._begun >= self.delay and self._told != self.n:
            self._tell(now)

    def _tell(self, now: float) -> None:
        self._told_at, self._told = now, self.n
        self.fp.write(str(self).replace("|", " ", 1) + "\n")  # the edge of a bar that is not there
        self.fp.flush()
