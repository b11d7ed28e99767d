"""The small model that benchmarks are measured with, made once."""

import pytest

from tests.suites.measuring import small


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A dual encoder with weights that are drawn."""
    return small.save_model(tmp_path_factory.mktemp("models") / "dual")
