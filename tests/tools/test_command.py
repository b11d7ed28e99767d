"""Every command ends alike: one line for what the user can change, and for Ctrl-C."""

import importlib
import pathlib
import re
import sys

import pytest

from big_align import tools
from big_align.core.errors import Stopped, UserError
from big_align.tools import command

BAD = {
    "benchmark": "--model=m --data=d --output=o.csv --benchmarks=no-such",
    "build_tags": "--source=captions.txt --output=tags.txt",
    "build_vocab": "--source=captions.txt --output=.",
    "classify": "--model=m --names=a,b a.jpg --top=0",
    "cluster": "--k=2 --output=o --embeddings=no-such",
    "convert": "--output=o --input=no-such",
    "describe_classes": "--classes=imagenet --output=classes.txt",
    "embed": "--model=m --source=a.tar --output=o --key_column=id",
    "find_duplicates": "--output=o.jsonl --against=a.tar --input=no-such",
    "flickr8k": "--input=i --output=o --side=-1",
    "index": "--model=m --source=a.tar --output=o --recall=2",
    "inspect_data": "--config=no-such",
    "plan": "--config=quickstart --images_per_core=1 --topology=no-such:8",
    "plot_metrics": "--workdir=w --output=curves.txt",
    "prepare": "--input=a.tar --output=o --rules=no-such",
    "report": "--workdir=no-such",
    "search": "--index=i text --output=hits.txt",
    "serve": "--index=i --host=0.0.0.0",
    "show_clusters": "--output=o --images=0",
    "show_tsne": "--models m --names=imagenet --others=cifar100 --most=0",
}
"""Arguments of each command of which the last has a bad value."""
ABSENT = ("build_vocab", "cluster", "convert", "find_duplicates", "report")
"""Of these it is a path that might lead somewhere another time, or be written to."""


def test_the_list_is_complete():
    paths = pathlib.Path(tools.__file__).parent.glob("*.py")
    commands = {path.stem for path in paths if "command.run(" in path.read_text()}
    assert commands == BAD.keys()


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_one_line(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = BAD[name].split()
    status = importlib.import_module(f"big_align.tools.{name}").main(words)
    assert status == (1 if name in ABSENT else 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match("error: [^ ]", line)
    flag, _, value = words[-1].strip("-").partition("=")
    assert value in line or flag in line


@pytest.mark.parametrize("name", ["benchmark", "cluster", "embed", "index"])
def test_one_of_several_processes_does_not_take_a_folder_for_its_own(name, monkeypatch, capsys):
    words = {
        "cluster": "--k=2 --output=o --embeddings=e",
        "embed": "--model=m --source=a.tar --output=o",
        "index": "--model=m --source=a.tar --output=o",
        "benchmark": BAD["benchmark"],
    }[name].split()
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    assert importlib.import_module(f"big_align.tools.{name}").main(words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    advice = "an index is built by one process" if name == "index" else "add --distributed"
    assert line.startswith(f"error: 2 processes were started (JAX_NUM_PROCESSES=2): {advice}")


@pytest.mark.parametrize("name", BAD)
def test_ctrl_c_is_one_line(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(f"big_align.tools.{name}")
    (act,) = re.findall(r"command\.run\((\w+), ", pathlib.Path(module.__file__).read_text())

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, act, interrupt)
    assert module.main(BAD[name].split()) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


@pytest.mark.parametrize("strict", [True, False])
def test_the_home_folder_in_a_flag_is_that_of_the_user(strict, monkeypatch):
    """Shells leave the ~ of --flag=~/path as it is; a new folder of that name is nobody's wish."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(sys, "argv", ["name", "--output=~/a/b", "--output=~", "--output=b~/c"])
    parser = command.make_parser("name", "What it does.")
    parser.add_argument("--output", action="append")
    options = parser.parse_args() if strict else parser.parse_known_args()[0]
    assert options.output == ["/home/me/a/b", "/home/me", "b~/c"]


def raise_error(error):
    raise error


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [
        (UserError("k = 0"), 1, ("", "error: k = 0\n")),
        (OSError(28, "full", "a.npy"), 1, ("", "error: [Errno 28] full: 'a.npy'\n")),
        (Stopped("continue it"), Stopped.STATUS, ("continue it\n", "")),
    ],
)
def test_what_ends_a_command_is_told(error, status, printed, capsys):
    assert command.run(raise_error, error) == status
    assert capsys.readouterr() == printed


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ValueError, match="shapes"):
        command.run(raise_error, ValueError("shapes differ"))


def test_a_command_without_a_status_has_succeeded():
    assert command.run(lambda: None) == 0 and command.run(lambda status: status, 3) == 3


@pytest.mark.parametrize(
    "name, arguments",
    [("cluster", "--k=2 --embeddings=e"), ("index", "--model=m --source=a.tar"),
     ("convert", "--input=hf-none")],
)  # fmt: skip
def test_no_command_makes_a_folder_of_an_address(name, arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tool = importlib.import_module(f"big_align.tools.{name}")
    arguments = [*arguments.split(), "--output=gs://bucket/out"]
    try:
        assert tool.main(arguments) != 0
    except SystemExit as ended:
        assert ended.code == 2
    told = capsys.readouterr().err
    assert "gs://bucket/out is an address" in told or name == "convert"
    assert not list(tmp_path.iterdir())
