"""The command `big-align` as pip would write it, where it is not installed, or from elsewhere."""

import pathlib
import re
import sys

from tests.house import ROOT

SCRIPT = """#!{python}
import sys
sys.path.insert(0, {root!r})
from {module} import {function}
sys.exit({function}())
"""


def write_command(folder: pathlib.Path) -> pathlib.Path:
    """Writes the script of the entry point that pyproject.toml names."""
    text = (ROOT / "pyproject.toml").read_text()
    (found,) = re.findall(r'(big-align) = "([\w.]+):(\w+)"', text)
    name, module, function = found
    path = folder / name
    names = {"module": module, "function": function}
    path.write_text(SCRIPT.format(python=sys.executable, root=str(ROOT), **names))
    path.chmod(0o755)
    return path
