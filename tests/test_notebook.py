"""The notebook runs from top to bottom on a trained workdir, and shows what it promises."""

import ast

import nbformat
import pytest
from nbclient import NotebookClient

from tests.run_main import ROOT, Run, environment

PATH = ROOT / "colabs" / "evaluate.ipynb"


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    flags = ("--config.total_steps=24", "--config.evaluate_every=12")
    run = Run(
        tmp_path_factory.mktemp("quickstart"), *flags, config="configs/quickstart.py", devices=1
    )
    assert run.wait() == 0, run.err
    return run.workdir


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_it_defines_nothing_and_stores_no_output():
    for cell in code_cells(nbformat.read(PATH, as_version=4)):
        assert cell.outputs == [] and cell.execution_count is None
        lines = [line for line in cell.source.splitlines() if not line.startswith("%")]
        kinds = {type(node) for node in ast.walk(ast.parse("\n".join(lines)))}
        assert not kinds & {ast.FunctionDef, ast.ClassDef, ast.Lambda}


@pytest.mark.slow
def test_it_shows_numbers_curves_and_what_is_found(workdir):
    notebook = nbformat.read(PATH, as_version=4)
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": PATH.parent}}
    )
    client.execute(env=environment(devices=1) | {"BIG_ALIGN_WORKDIR": str(workdir)})
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    assert f"{workdir} at step 24" in text and "digits/top1" in text
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 3
    assert all(len(output.data["image/png"]) > 10_000 for output in pictures)
