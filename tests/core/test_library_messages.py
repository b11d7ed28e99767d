"""A plugin of JAX that does not start is one line with causes, and a failed save is one error."""

import os
import subprocess
import sys

import pytest

PLUGIN = """
def initialize():
    try:
        raise RuntimeError("no driver\\nwas found")
    except RuntimeError as error:
        raise ValueError("cannot load CUDA") from error
"""
PROGRAM = """
import logging
from big_align.core import library_messages
library_messages.shorten()
library_messages.shorten()
logging.basicConfig(format="%(levelname)s %(message)s")
import jax
assert jax.devices()
logging.getLogger(library_messages.LOGGER).warning("another %s", "message")
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


FULL = """
import asyncio, gc, jax, sys
from flax import struct
from big_align.core import library_messages
from big_align.core.errors import NotSavedError
from big_align.training.saving import checkpoint
from tests.full_disk import limit_files
if {shortened}:
    library_messages.shorten()


@struct.dataclass
class State:
    step: int
    params: dict


checkpoint.PAUSE_SECONDS = 0
saver = checkpoint.Checkpointer(sys.argv[1])
arrays = {{str(i): jax.numpy.arange(3000.0) + i for i in range(100)}}
with limit_files(4000):
    try:
        saver.save(State(3, arrays), {{}}, last=True)
    except NotSavedError as error:
        print(error)
    del saver
    gc.collect()


async def fail():
    asyncio.ensure_future(asyncio.to_thread(int, "no number"))
    await asyncio.sleep(0.2)


asyncio.run(fail())
"""


@pytest.mark.slow_repeats
@pytest.mark.parametrize("shortened", [False, True])
def test_a_failed_save_is_one_exception_and_other_tasks_are_told(tmp_path, shortened):
    ended = subprocess.run(
        [sys.executable, "-c", FULL.format(shortened=shortened), tmp_path / "run"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "a checkpoint was not saved (File too large)" in ended.stdout
    assert "ValueError: invalid literal for int() with base 10: 'no number'" in ended.stderr
    told = ended.stderr.count("Traceback")
    assert told == 1 if shortened else told > 10
