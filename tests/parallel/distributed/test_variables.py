"""Numbers in environment variables: whatever else is there is named, in one line."""

import pytest

from big_align.core.errors import UserError
from big_align.data.loading import parallel
from big_align.parallel.distributed import processes
from big_align.parallel.distributed.variables import read_number

WRONG = ["0", "-1", "2.0", "two", "1_0", "²", "9" * 5000, "3 4", "\x1b[31m3"]
VARIABLES = {
    parallel.LOCAL_PROCESSES: parallel.count_cores,
    "JAX_NUM_PROCESSES": processes.join_processes,
}


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_number_is_named_with_its_variable(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(UserError, match=f"variable {name} is .* at least 1$") as raised:
        VARIABLES[name]()
    assert str(raised.value).isprintable() and len(str(raised.value)) < 500


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch):
    for text in ("", " "):
        monkeypatch.setenv("NUMBER", text)
        assert read_number("NUMBER", least=0, default=7) == 7
    monkeypatch.setenv("NUMBER", " 12\n")
    assert read_number("NUMBER", least=12) == 12
