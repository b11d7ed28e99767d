"""Configs are found by file and by name, and a workdir's config.json is the config it was."""

import ast
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from ml_collections import ConfigDict

from big_align import configs
from big_align.config.config_files import find_config, list_packaged, read_config
from big_align.config.overrides import load_config
from big_align.core.errors import UserError
from tests.run_main import ROOT, environment

TINY = "tests/tiny_config.py"


def leave(config, folder):
    """Writes a config where and as a run does."""
    path = folder / "config.json"
    path.write_text(config.to_json_best_effort(indent=2) + "\n")
    return path


def list_types(node, place="config"):
    """Returns the type and the value of every field at any depth, by its place."""
    found = {place: (ConfigDict, None)}
    for name in node:
        where = f"{place}.{name}"
        if isinstance(node[name], ConfigDict):
            found |= list_types(node[name], where)
        else:
            found[where] = type(node[name]), node[name]
    return found


@pytest.mark.parametrize("name", list_packaged())
def test_a_config_read_back_is_the_one_that_was_written(name, tmp_path):
    written = load_config(name)
    path = leave(written, tmp_path)
    assert list_types(read_config(path)) == list_types(written)
    assert list_types(load_config(str(path))) == list_types(written)


@pytest.mark.parametrize("name", list_packaged())
def test_an_argument_that_no_config_has_is_told_with_all_that_there_are(name):
    told, _, listed = _try(f"{name}:strange=1").partition("strange=1 is not one of ")
    if not listed:
        assert told.endswith(f"{name}.py:strange=1: it takes no argument; leave :strange=1 out")
        return
    assert "..." not in listed
    for each in listed.partition("; a field of")[0].split("; "):
        field, equals, values = each.partition("=")
        named = equals and "|" not in field
        choices = [f"{field}={x}" for x in values.split("|")] if named else each.split("|")
        for choice in choices:
            if not choice.rpartition("=")[2].isupper():  # which stands for any value
                assert "is not one of" not in _try(f"{name}:{choice}")


def _try(config):
    """Returns why a config cannot be loaded, "" if it can: an argument may need another one."""
    try:
        load_config(config)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ["a.b", "__class__", "__init__", "a\0b", "a\nb"])
def test_a_name_that_no_config_can_have_is_a_line(tmp_path, name):
    path = leave(load_config(TINY), tmp_path)
    written = json.loads(path.read_text())
    for node in (written, written["data"], written["data"]["source"], written["evaluators"]):
        node[name] = {"name": 1}
        path.write_text(json.dumps(written))
        with pytest.raises(UserError, match="config.json.* has a field '.*'; names of") as error:
            read_config(path)
        assert "\n" not in str(error.value) and "\0" not in str(error.value)
        del node[name]


def test_a_config_read_back_takes_overrides_as_its_file_does(tmp_path):
    path = str(leave(load_config(TINY), tmp_path))
    source = "{'name': 'npz', 'path': 'a.npz'}"
    added = f"{{'name': 'retrieval', 'transform': 'resize(8)', 'source': {source}}}"
    flags = (
        "--config.average_decay=0.5",
        "--config.optimizer.clip_norm=2",
        "--config.init.all=somewhere",
        "--config.mesh.shape=(4, 2)",
        "--config.objective.name=siglip",
        "--config.data.num_threads=3",
        f"--config.evaluators.own={added}",
        "--config.evaluators.digits={}",
    )
    changed = load_config(path, *flags)
    assert list_types(changed) == list_types(load_config(TINY, *flags))
    assert changed.average_decay == 0.5 and changed.optimizer.clip_norm == 2.0
    with pytest.raises(ValueError, match="did you mean --config.batch_size="):
        load_config(path, "--config.batch_sise=8")


def test_a_component_that_cannot_be_imported_leaves_the_rest_of_a_config(tmp_path):
    fields = json.loads(load_config(TINY).to_json_best_effort())
    fields["evaluators"]["own"] = {"name": "gone:Evaluator", "times": None}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert read_config(tmp_path / "config.json").evaluators.own.times is None


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "config.json"), ("[]", "config.json"), ('{"seed": 0}', "lacks average_decay, batch")],
)
def test_a_damaged_config_is_named(text, message, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        load_config(str(tmp_path / "config.json"))
    assert "\n" not in str(error.value)


def test_a_packaged_config_is_found_by_its_name_and_a_file_comes_first(tmp_path, monkeypatch):
    installed = pathlib.Path(configs.__path__[0])
    monkeypatch.chdir(tmp_path)
    for given in ("mlcd", "mlcd.py", "configs/mlcd.py"):
        assert find_config(f"{given}:stage=text") == f"{installed / 'mlcd'}.py:stage=text"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mlcd.py").write_text("")
    assert find_config("configs/mlcd.py:x") == "configs/mlcd.py:x"
    assert find_config("mlcd") == f"{installed / 'mlcd'}.py"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("quickstrat", r"no file quickstrat \(did you mean 'quickstart'\?\)"),
        ("common", "no file common; packaged are: align_b5_ablation, .*, unicl_imagenet"),
        ("other/quickstart.py", "there is no file other/quickstart.py"),
        ("left/config.json", "there is no file left/config.json"),
        ("run", "is a folder; write --config=run/config.json"),
    ],
)
def test_a_config_that_is_not_there_is_named(given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    leave(ConfigDict(), tmp_path / "run")
    with pytest.raises(UserError, match=f"^--config={given}.*{message}"):
        find_config(given)


def test_configs_are_packaged_and_import_each_other_where_they_are_installed():
    for folder in (ROOT / "configs").rglob("__init__.py"):  # `find_packages` does not see these
        name = folder.parent.relative_to(ROOT).as_posix().replace("/", ".")
        assert f'"big_align.{name}"' in (ROOT / "setup.py").read_text()
    for path in (ROOT / "configs").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.module == "configs"), path


def test_whatever_lies_among_the_configs_is_one_but_their_base():
    there = {path.stem for path in (ROOT / "configs").glob("*.py")}
    assert there - set(list_packaged()) == {"__init__", "common"}


@pytest.mark.slow
def test_an_installed_package_trains_evaluates_and_continues_without_a_checkout(tmp_path):
    installed, home = tmp_path / "site", tmp_path / "home"
    shutil.copytree(ROOT / "big_align", installed / "big_align")
    shutil.copytree(ROOT / "configs", installed / "big_align/configs", dirs_exist_ok=True)
    home.mkdir()

    def run(*words):
        done = subprocess.run(
            [sys.executable, "-m", "big_align", *words],
            cwd=home, capture_output=True, text=True,
            env=environment(1) | {"PYTHONPATH": str(installed)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    short = ("--config.total_steps=2", "--config.schedule.warmup_steps=1")
    run("--config=quickstart", "--workdir=run", *short)
    assert os.listdir(home) == ["run"]
    assert "digits/top1" in run("--mode=eval", "--workdir=run")
    run("--workdir=run", "--config.total_steps=3")
    steps = [path.name for path in (home / "run" / "checkpoints").iterdir()]
    assert sorted(steps) == ["2", "3"]
