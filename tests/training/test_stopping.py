"""One signal asks to stop, two leave at once, even where Python's own handlers would not run."""

import contextlib
import signal
import subprocess
import sys
import time

import pytest

from big_align.core.errors import Stopped
from big_align.data.boundary import ONE_EXAMPLE
from big_align.training import stopping
from tests.run_main import ROOT, environment

BUSY = """
import hashlib
from big_align.training.stopping import StopSignals
with StopSignals() as signals:
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes without an instruction of Python
"""


def test_a_signal_is_noticed_and_the_former_handlers_return():
    former = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for number in (signal.SIGINT, signal.SIGTERM):
        with stopping.StopSignals() as signals:
            assert not signals.received
            signal.raise_signal(number)
            end = time.monotonic() + 10
            while not signals.received and time.monotonic() < end:
                time.sleep(0.01)
            assert signals.received
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == former


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_may_be_interrupted_is(number):
    with stopping.StopSignals() as signals:
        with pytest.raises(Stopped, match="half way"):
            with signals.interrupting("half way"):
                signal.raise_signal(number)
                time.sleep(10)
        assert signals.received
        with pytest.raises(Stopped, match="never begun"):  # it was asked before
            with signals.interrupting("never begun"):
                raise AssertionError
        time.sleep(0.01)  # and what follows goes on


def test_nothing_is_interrupted_afterwards():
    with stopping.StopSignals() as signals:
        with signals.interrupting("no"):
            pass
        signal.raise_signal(signal.SIGINT)
        end = time.monotonic() + 10
        while not signals.received and time.monotonic() < end:
            time.sleep(0.01)
        assert signals.received


def test_a_request_is_no_error_of_an_example_or_of_a_picture():
    """It arrives anywhere, and what passes over errors would lose it."""
    with stopping.StopSignals() as signals, pytest.raises(Stopped):
        with signals.interrupting("half way"):
            for _ in range(2):
                with contextlib.suppress(Exception), ONE_EXAMPLE:
                    signal.raise_signal(signal.SIGINT)
                    time.sleep(10)


def test_a_request_that_comes_where_nothing_can_be_interrupted_counts_at_the_end():
    with stopping.StopSignals() as signals, pytest.raises(Stopped, match="half way"):
        with signals.interrupting("half way"):
            signals.received = True


def test_a_request_to_the_run_inside_is_one_to_the_run_around_it():
    for _ in range(200):
        with stopping.StopSignals() as around:
            with stopping.StopSignals():
                signal.raise_signal(signal.SIGINT)  # the last thing that it does
            assert around.received
    with stopping.StopSignals() as around:
        with stopping.StopSignals():
            pass
        assert not around.received


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_leaves_at_once_and_a_repeated_one_does_not(number):
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY], cwd=ROOT, env=environment(1), stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"ready\n"
    for _ in range(2):
        process.send_signal(number)
        time.sleep(0.1)
    assert process.poll() is None
    time.sleep(stopping.SAME_REQUEST_SECONDS)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 128 + signal.SIGINT
