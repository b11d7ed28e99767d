"""Jobs in this process."""

from typing import NamedTuple

import pytest
from raw_pairs import SMALL, make_rows, write_parquet

from big_align.tools import prepare


class Job(NamedTuple):
    """A job that has been run: its input, its output, what is in between, and its flags."""

    raw: str
    output: str
    flags: tuple[str, ...]


@pytest.fixture(scope="session")
def raw(tmp_path_factory):
    return write_parquet(tmp_path_factory.mktemp("raw"), make_rows())


@pytest.fixture(scope="session")
def done(raw, tmp_path_factory):
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed (.[prepare])")
    folder = tmp_path_factory.mktemp("done")
    flags = f"--input={raw}", f"--work={folder}/work", *SMALL
    assert prepare.main([*flags, f"--output={folder}/out"]) == 0
    return Job(raw, f"{folder}/out", flags)


@pytest.fixture
def run(tmp_path, capsys):
    """Runs the tool; returns its exit status, what it printed, and what it said was wrong."""
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed (.[prepare])")

    def run(name, *flags):
        status = prepare.main([*flags, f"--output={tmp_path / name}"])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run
