"""Random numbers that belong to a position of the stream."""

MASK = 2**64 - 1


class PositionRandom:
    """SplitMix64 (Steele, Lea & Flood 2014): made and sent to another process in a microsecond.

    Args:
      seed: the seed of the run.
      position: the position of the example in the stream.
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int, position: int):
        # two rounds of mixing, so that streams of neighboring seeds or positions are not shifted
        # copies of each other
        self._state = _mix(_mix(seed & MASK) ^ (position & MASK))

    def random(self) -> float:
        """Returns a number in [0, 1)."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & MASK
        return (_mix(self._state) >> 11) * 2.0**-53


def _mix(bits: int) -> int:
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)
