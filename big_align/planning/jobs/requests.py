"""What is asked of a plan of a job, and what a job consists of."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from big_align.core.errors import UserError, WrongValue, check_at_least
from big_align.planning.gpu_topologies import has_compiler
from big_align.planning.machines import Machine, check_machine
from big_align.planning.topologies import GENERATIONS

JOBS = ("embed", "cluster", "duplicates")
ITEM = 2
"""Bytes of a number of an embedding on the disk: float16."""


@dataclasses.dataclass(frozen=True)
class JobRequest:
    """A job, and the machine that it is planned for."""

    job: str  # one of `JOBS`
    topology: str
    rows: int  # images
    slices: int = 1  # of TPUs
    dim: int | None = None  # numbers of an embedding
    centers: int | None = None  # clusters, or images that are compared with
    labels: int = 8  # clusters of an image
    iterations: int = 20
    sample: int | None = None  # rows that k-means iterates over, before once over all
    candidates: int | None = 8  # see `nearest_centers`; None compares in float32
    batch_size: int | None = None  # images that a host embeds at a time
    config: str | None = None  # of the model that embeds
    overrides: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises a UserError that names what is missing or cannot be."""
        check_machine(self.topology, self.slices)
        kind = self.topology.partition(":")[0]
        if kind not in GENERATIONS and not has_compiler():
            raise UserError(
                f"--topology={self.topology}: jobs on GPUs are planned by XLA's compiler for them: "
                "pip install '.[cuda]', which needs no GPU"
            )
        needed = {"embed": ("config",), "cluster": ("dim", "centers"),
                  "duplicates": ("dim", "centers")}[self.job]  # fmt: skip
        if missing := [f"--{name}" for name in needed if getattr(self, name) is None]:
            raise WrongValue(f"--job={self.job} needs {' and '.join(missing)}")
        numbers = ("rows", "dim", "centers", "labels", "iterations", "sample", "candidates")
        check_at_least(1, **{name: getattr(self, name) for name in (*numbers, "batch_size")})
        if self.job == "cluster" and self.sized("centers") > self.rows:
            raise UserError(f"--centers={self.centers} are more than --rows={self.rows}")

    def sized(self, name: str) -> int:
        """Returns a number that the job needs."""
        value = getattr(self, name)
        assert value is not None, name
        return value


@dataclasses.dataclass
class JobProgram:
    """A program that the devices run, traced for the machine."""

    name: str
    lowered: jax.stages.Lowered
    times: int  # that it runs in the whole job
    useful: float  # FLOPs of one run that the mathematics asks for, over all devices
    pass_: int = 0  # times that it runs in a pass over all rows; 0: it is not part of one


@dataclasses.dataclass
class TracedJob:
    """What a job runs, and what it holds elsewhere than in its programs."""

    machine: Machine  # that its programs are compiled for, all of it or one host
    mesh: Mesh
    programs: list[JobProgram]
    held: int  # bytes of a device in addition to those of each program
    host: Mapping[str, float | int]  # bytes of a host's memory, by what they are
    disk: Mapping[str, float | int]  # bytes in all, by what they are
    read: Mapping[str, float | int]  # bytes that each host reads, by when
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
