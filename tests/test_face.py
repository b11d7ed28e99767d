"""The public face: it defines no flags, tells its names and types, and takes what users have."""

import ast
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import big_align
from big_align.config.config_files import CONFIG_JSON
from tests.house import MODULES, ROOT
from tests.run_main import TINY, environment

MISUSED = [(), [[0, 1]], [0.5], [1, 0], [-1], [16], ["0"]]


PROGRAM = """
import importlib, pathlib, sys
import big_align

def use(workdir):
    config = big_align.load_config({tiny!r}, "--config.total_steps=2", "--config.evaluators={{}}")
    assert big_align.train(config, workdir) == {{}}
    model = big_align.load(workdir)
    assert model.embed_texts("one").shape == (1, model.embedding_dim)
    with big_align.make_loader(workdir / "config.json", rows=range(4)) as loader:
        assert len(loader.batch(0)["image"]) == 4
    try:
        big_align.load_index(workdir)
    except big_align.UserError:
        print("used")
"""
OF_A_TRAINER = """
from absl import app, flags

WORKDIR = flags.DEFINE_string("workdir", None, "Mine.")
for name in ("config", "mode", "checkpoint", "profile", "distributed", "output"):
    flags.DEFINE_string(name, None, "Mine, too.")
app.run(lambda _: use(pathlib.Path(WORKDIR.value)))
"""
OF_A_NOTEBOOK = """
workdir = pathlib.Path(sys.argv.pop().partition("=")[2])
sys.argv.clear()
use(workdir)
"""
OF_ALL = """
for name in {names}:
    importlib.import_module(name)
from absl import flags
ours = [m for m in flags.FLAGS.flags_by_module_dict() if m.startswith("big_align")]
print(*ours or ["used"])
"""


def is_command(name):
    return name.startswith("big_align.tools") or name.endswith("__main__")


PROGRAMS = {"flags": OF_A_TRAINER, "no words": OF_A_NOTEBOOK, "all modules": OF_ALL}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_program_has_its_own_flags_or_none(kind, tmp_path):
    rest = PROGRAMS[kind]
    names = [name for name in MODULES if not is_command(name)]
    code = (PROGRAM + rest.replace("{names}", repr(names).replace("{", "{{"))).format(tiny=TINY)
    done = subprocess.run(
        [sys.executable, "-c", code, f"--workdir={tmp_path / 'run'}"],
        cwd=ROOT, env=environment(1), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "used"


def test_a_typed_program_uses_every_name():
    """mypy checks it in .ci/run; its settings name the file."""
    path = ROOT / "tests" / "typed_face.py"
    used = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "big_align"
    }
    assert used == set(big_align.__all__)
    assert f'"tests/{path.name}"' in (ROOT / "pyproject.toml").read_text()


def test_only_public_names_are_listed():
    assert dir(big_align) == sorted([*big_align.FACE, "__version__"])
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        big_align.lod  # noqa: B018


def test_the_version_is_that_of_pyproject_toml():
    assert f'\nversion = "{big_align.__version__}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda rows: range(1, 4)])
def test_rows_are_any_sequence_of_numbers(kind):
    with big_align.make_loader(pathlib.Path(TINY)) as loader:
        whole = loader.batch(3)
    with big_align.make_loader(big_align.load_config(TINY), rows=kind([1, 2, 3])) as loader:
        for name, array in loader.batch(3).items():
            np.testing.assert_array_equal(array, whole[name][1:4])


@pytest.mark.parametrize("rows", MISUSED, ids=str)
def test_rows_that_are_none_are_refused_in_one_line(rows, without_type_checks):
    with pytest.raises(big_align.UserError, match="^rows .* ascending rows of .*batch_size=16$"):
        big_align.make_loader(TINY, rows=rows)


@pytest.mark.parametrize("use", [big_align.make_loader, big_align.train])
def test_overrides_need_a_file_to_override(use, tmp_path):
    given = [big_align.load_config(TINY), *([tmp_path] if use is big_align.train else [])]
    with pytest.raises(big_align.UserError, match="^--config.seed=1 changes a config file"):
        use(*given, "--config.seed=1")
    assert not (tmp_path / CONFIG_JSON).exists()
