"""Jobs in this process, and the brute force that they are compared with."""

import pytest

from big_align.tools import prepare


@pytest.fixture
def run(tmp_path, capsys):
    """Runs the tool; returns its exit status, what it printed, and what it said was wrong."""
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed (.[prepare])")

    def run(source, name, *flags):
        status = prepare.main([f"--input={source}", f"--output={tmp_path / name}", *flags])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run
