"""Lower bounds for the time of a step: what it computes, moves and sends at a chip's peaks."""

import dataclasses
from collections.abc import Sequence

from big_align.parallel.devices.chips import Chip
from big_align.planning.collectives import Collective


@dataclasses.dataclass(frozen=True)
class Bound:
    """Seconds that one device needs for each part of a step, at the peaks of its chip.

    FLOPs of any type are held against the bfloat16 peak: TPUs multiply float32 this way unless told
    otherwise. The device has its share of its host's network, whose speed may not be published.
    """

    compute: float
    memory: float  # bytes over the bandwidth of main memory
    inside: float  # bytes sent over all links of the slice or node
    between: float | None  # bytes sent to others; None if it is not known how fast

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by name, without unknown parts."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}

    @property
    def binds(self) -> str:
        """The part that takes longest."""
        return max(self.parts, key=self.parts.get)

    @property
    def seconds(self) -> float:
        """The least time of a step, if everything overlaps."""
        return max(self.parts.values())

    @property
    def in_turn(self) -> float:
        """The time of a step at the peaks if nothing overlaps."""
        return sum(self.parts.values())


def bound_step(
    chip: Chip, flops: float | int, traffic: float | int, sent: Sequence[Collective]
) -> Bound:
    """Bounds the time of a step; FLOPs and traffic with main memory are those of one device."""
    inside = sum(each.sent_inside for each in sent)
    between: float | None = 0.0
    if crossing := sum(each.sent_between for each in sent):
        between = crossing * chip.devices_per_host / chip.network if chip.network else None
    return Bound(
        compute=flops / chip.device_flops,
        memory=traffic / chip.device_memory_bandwidth,
        inside=inside / chip.device_interconnect,
        between=between,
    )
