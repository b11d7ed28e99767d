"""The numbers of devices that a law of an objective is tested on."""

import pytest

DEVICES = [pytest.param(1, marks=pytest.mark.slow), 8]
"""What holds on 8 devices and not on 1 is rare, and -m slow finds it."""
