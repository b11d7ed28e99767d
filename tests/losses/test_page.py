"""docs/losses.md: its program trains as it stands, and its table has the real signatures."""

import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest

import big_align

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "losses.md").read_text()


@pytest.mark.slow
def test_the_training_loop_of_the_page_trains(tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    path = tmp_path / "loop.py"
    path.write_text(program)
    flags = "--xla_force_host_platform_device_count=4"
    environment = os.environ | {
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, path], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    losses = [float(x) for x in re.findall(r"loss (\d+\.\d+)", done.stdout)]
    assert len(losses) == 4 and losses[-1] < losses[0] / 3


def test_the_table_has_every_loss_with_its_signature():
    rows = [row for row in PAGE.splitlines() if re.match(r"\| .*_(loss|entropy)\b", row)]
    listed = set()
    for row in rows:
        signature = row.split("|")[2]
        names = re.findall(r"\w+_(?:loss|entropy)\b", signature)
        given = signature[signature.index("(") + 1 : signature.rindex(")")]
        for name in names:
            listed.add(name)
            own = list(inspect.signature(getattr(big_align, name)).parameters)
            if "the same" in given:
                last = re.findall(r"\w+", given.split(",", 1)[1])
                assert own[-len(last) :] == last
            else:
                assert own == re.findall(r"\w+", given)
    public = {x for x in big_align.FACE if x.endswith(("_loss", "_entropy"))}
    assert listed == public


def test_every_public_name_is_there():
    for name in big_align.FACE:
        assert getattr(big_align, name).__name__ == name
