"""What the tests of weight files ask of a file: that it reads equal, or is refused by name."""

import pytest

from big_align.core.errors import WeightFileError
from big_align.weights.arrays.weight_files import open_weights


def read_all(path):
    with open_weights(path) as weights:
        return {name: weights[name] for name in weights}


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype and actual[name].shape == array.shape
        assert actual[name].tobytes() == array.tobytes(), name


def refuse(path, message):
    with pytest.raises(WeightFileError, match=message) as error:
        open_weights(path)
    assert str(path) in str(error.value)


PEAK = """
with open("/proc/self/status") as lines:
    print(1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")))
"""
"""Prints the most memory that a process has had; `ru_maxrss` remembers its parent's too."""
