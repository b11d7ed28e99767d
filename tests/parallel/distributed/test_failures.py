"""What a process says when it leaves a run."""

import json
import socket
import subprocess
import sys

import jax
import pytest

from big_align.parallel.distributed import failures

FAILED = """
import os, threading, time
from big_align.parallel.distributed import failures

def write():
    while True:
        os.write(1, b"Check earlier logs\\n")
        os.write(2, b"Check earlier logs\\n")
        time.sleep(0.001)

class Store:
    def blocking_key_value_get(self, key, milliseconds):
        threading.Thread(target=write, daemon=True).start()
        time.sleep(0.1)
        return '[1, "error: process 1 failed: no room in caf\\\\udce9", 1]'

failures.Watch(Store(), process=0, count=2)._wait_for_outcome()
"""


def test_the_reason_is_the_last_line_though_others_write():
    """Process 0 takes two seconds to leave, in which much could follow its reason."""
    command = [sys.executable, "-c", FAILED]
    streams = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    process = subprocess.run(command, **streams, text=True, timeout=60)
    assert process.returncode == 1
    *others, reason = process.stdout.splitlines()
    assert reason == r"error: process 1 failed: no room in caf\udce9"  # a name in Latin-1
    assert set(others) == {"Check earlier logs"}


class Shaky:
    """A store that does not answer the first calls, as one behind a bad network."""

    def __init__(self, unanswered: int):
        self.unanswered, self.beats = unanswered, []

    def _answer(self):
        if self.unanswered:
            self.unanswered -= 1
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: connection reset by peer")

    def blocking_key_value_get(self, key, milliseconds):
        self._answer()
        return json.dumps([1, "error: process 1 failed: no room", 1])

    def key_value_set(self, key, value, allow_overwrite=False):
        self._answer()
        self.beats.append(json.loads(value)["number"])


@pytest.fixture
def left(monkeypatch):
    """What a process says as it leaves."""
    said = []
    monkeypatch.setattr(failures, "RETRY_SECONDS", 0)

    def leave(_, text, status=1):
        said.append(text)
        raise SystemExit(status)

    monkeypatch.setattr(failures.Watch, "_leave", leave)
    return said


def test_a_message_that_is_lost_does_not_make_process_0_gone(left):
    for unanswered, text in (
        (failures.RETRIES, "error: process 1 failed: no room"),
        (failures.RETRIES + 1, failures.GONE),
    ):
        with pytest.raises(SystemExit):
            failures.Watch(Shaky(unanswered), process=2, count=3)._wait_for_outcome()
        assert left.pop() == text


def test_a_beat_that_is_lost_is_not_the_last(monkeypatch):
    monkeypatch.setattr(failures, "BEAT_SECONDS", 0)
    store = Shaky(2)
    watch = failures.Watch(store, process=1, count=2)

    def describe():
        if len(store.beats) == 3:
            watch._over.set()
        return {}

    monkeypatch.setattr(failures.activity, "describe", describe)
    watch._beat()
    assert store.beats == [3, 4, 5, 6]


def test_what_a_silent_process_does_it_does_since_before_its_silence():
    """Its last report is as old as its silence; and this process knows what it does now."""
    watch = failures.Watch(None, process=0, count=2)
    last = {"host": "there", "what": "in a step", "step": 7, "seconds": 2.0}
    watch._beats = {0: (last, 4), 1: (last, 4)}
    table = watch.activities()
    silent = 4 * failures.BEAT_SECONDS
    assert table[1] == last | {"seconds": 2.0 + silent, "silent": silent}
    assert table[0]["silent"] == 0 and table[0]["host"] == socket.gethostname()


def test_only_a_process_that_was_stopped_and_just_woke_says_so(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(failures.time, "monotonic", lambda: now[0])
    watch = failures.Watch(None, process=1, count=2)
    monkeypatch.setattr(watch._over, "wait", lambda x: bool(now.append(now.pop() + x)))
    watch._sleep(failures.BEAT_SECONDS)
    assert watch._tell_pause() == ""
    watch._sleep(200)
    assert "process 1 failed: it was stopped for 200 s" in watch._tell_pause()
    now[0] += 60  # the others went on with it: what comes now has another cause
    assert watch._tell_pause() == ""
