"""A clock whose time passes when a test says so."""

from big_align.training.logs.goodput import Clock


class FakeClock(Clock):
    def __init__(self):
        self.now = 0.0
        super().__init__(lambda: self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
