"""What a process says when it leaves a run."""

import subprocess
import sys

FAILED = """
import os, threading, time
from big_align.distributed import failures

def write():
    while True:
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
    process = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    assert process.returncode == 1
    *others, reason = process.stderr.splitlines()
    assert reason == r"error: process 1 failed: no room in caf\udce9"  # a name in Latin-1
    assert set(others) == {"Check earlier logs"}
