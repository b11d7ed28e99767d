"""Faults that somebody could make are found by the tests named beside them."""

import ast

import pytest

from tests.mutations.faults import FAULTS
from tests.mutations.planting import ROOT, Fault, planter

HARMLESS = Fault(
    "none: another spelling of the same",
    "big_align/losses/cluster_discrimination.py",
    "return jax.nn.softplus(negatives + positives)",
    "return jax.nn.softplus(positives + negatives)",
    [
        "tests/losses/test_cluster_discrimination.py"
        "::test_eq_4_pulls_positives_harder_unless_negatives_are_far"
    ],
)
HARMFUL = HARMLESS._replace(title="a sign", wrong="return jax.nn.softplus(positives - negatives)")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with planter(tmp_path_factory.mktemp("planted")) as run:
        yield run


def test_faults_can_be_planted_and_their_tests_are_there():
    """Quick, so that who moves or rewrites what a fault stands in moves the fault too."""
    for fault in FAULTS:
        assert fault.plant() != (ROOT / fault.file).read_text(), fault.title
        ast.parse(fault.plant())
        for test in fault.tests:
            file, _, function = test.partition("::")
            assert f"def {function}(" in (ROOT / file).read_text(), f"{fault.title}: no {test}"


@pytest.mark.slow
def test_what_is_no_fault_is_not_found(run):
    outcome = run(HARMLESS)
    assert (outcome.status, outcome.failed) == (0, []), outcome.output[-3000:]
    assert run(HARMFUL).failed == HARMFUL.tests


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.title)
def test_a_fault_is_found(run, fault):
    outcome = run(fault)
    assert outcome.status == 1 and outcome.failed == sorted(fault.tests), outcome.output[-3000:]
