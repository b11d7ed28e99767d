"""Every command with its options, as its own --help tells them."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from big_align.tools import __main__ as console
from website.addresses import ROOT

PROGRAM = "import sys; from big_align.tools.__main__ import main; sys.exit(main())"


def make_pages() -> dict[str, str]:
    """Returns the page of all commands."""
    names = [*console.RUNS, *console.list_tools()]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        program = pathlib.Path(folder, "big-align")  # texts spell commands as they were called
        program.write_text(PROGRAM)
        texts = dict(
            zip(names, pool.map(lambda name: read_help(program, name), names), strict=True)
        )
    parts = [
        "# Commands\n\n`big-align NAME` is the same program as `python -m big_align.tools.NAME`. "
        "`train` is `python main.py`, and `eval` the same with `--mode=eval`.",
        f"```text\n{console.write_list()}\n```",
    ]
    for name, text in texts.items():
        parts.append(f"## {name}\n\n```text\n{text}\n```")
    return {"reference/commands.md": "\n\n".join(parts) + "\n"}


def read_help(program: pathlib.Path, name: str) -> str:
    """Returns what `big-align NAME --help` prints."""
    variables = os.environ | {"JAX_PLATFORMS": "cpu", "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(program), name, "--help"]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    if not done.stdout.strip():
        raise RuntimeError(f"big-align {name} --help: {done.stderr}")
    text = done.stdout.replace(f"{program.parent}/", "").replace(f"{ROOT}/", "")
    return re.sub(r"\n{3,}", "\n\n", text).strip()
