"""The list of data sets and suites, whole and cut off by who reads it."""

import subprocess
import sys

import pytest

from big_align.core.errors import UserError
from big_align.suites import catalog
from big_align.tools import benchmark
from tests.run_main import ROOT


def test_every_name_is_listed_once(capsys):
    assert benchmark.main(["--list"]) == 0
    first = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert first == ["suites:", *catalog.suites(), "data", *catalog.names()]


def test_empty_names_are_left_out():
    assert list(benchmark.read_names("cifar10, ,mnist,")) == ["cifar10", "mnist"]


def test_a_suite_may_have_templates_of_its_own():
    """IDEA, A.2: CLIP's 80 of ImageNet for all, but one for DTD and Pets."""
    templates = benchmark.read_names("idea9,mnist")
    assert templates["dtd"] == templates["pets"] == ("a photo of a {}",)
    assert len(templates) == 10 and templates["mnist"] is None
    assert len(templates["flowers102"]) == 80 and "itap of my {}." in templates["flowers102"]
    given = benchmark.read_names("idea9,clip", ("a {}",))
    assert set(given.values()) == {("a {}",)} and len(given) == 27
    for names in ("idea9,clip", "pets,idea9"):
        with pytest.raises(UserError, match="has other templates in .* than in what is named"):
            benchmark.read_names(names)


@pytest.mark.slow
def test_a_reader_may_leave_before_the_end():
    command = [sys.executable, "-m", "big_align.tools.benchmark", "--list"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as listing:
        listing.stdout.close()
        error = listing.stderr.read()
    assert listing.returncode == 0 and error == ""
