"""The table of experiments; each paper's rows are in its module."""

from experiments import align, iclip, idea, mlcd, noise, reduced, unicl
from experiments.experiment import Experiment
from experiments.training import Training

EXPERIMENTS: dict[str, Experiment] = (
    align.EXPERIMENTS
    | noise.EXPERIMENTS
    | unicl.EXPERIMENTS
    | iclip.EXPERIMENTS
    | mlcd.EXPERIMENTS
    | idea.EXPERIMENTS
    | reduced.EXPERIMENTS
)
"""By name."""


def train(name: str, training: Training) -> dict[str, float]:
    """Trains a row of an experiment and measures it."""
    return EXPERIMENTS[name].train(EXPERIMENTS[name], training)
