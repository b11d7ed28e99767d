"""A plugin of JAX that does not start is one line that tells why."""

import os
import subprocess
import sys

PLUGIN = """
def initialize():
    try:
        raise RuntimeError("no driver\\nwas found")
    except RuntimeError as error:
        raise ValueError("cannot load CUDA") from error
"""
PROGRAM = """
import logging
from big_align import startup_messages
startup_messages.shorten()
startup_messages.shorten()
logging.basicConfig(format="%(levelname)s %(message)s")
import jax
assert jax.devices()
logging.getLogger(startup_messages.LOGGER).warning("another %s", "message")
"""


def test_a_plugin_that_does_not_start_is_one_line_with_its_causes(tmp_path):
    folder = tmp_path / "jax_plugins/of_this_test"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(PLUGIN)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    told = [line for line in ended.stderr.splitlines() if line.startswith("WARNING ")]
    assert told == [
        "WARNING JAX goes on without jax_plugins.of_this_test: cannot load CUDA; no driver was "
        "found",
        "WARNING another message",
    ]
    assert "Traceback" not in ended.stderr
