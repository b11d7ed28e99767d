"""`big-align`: its list of commands, what it makes of a path, and that it is the same programs."""

import ast
import os
import subprocess
import sys

import pytest

import big_align
from big_align.config import program_name
from big_align.config.config_files import CONFIG_JSON
from big_align.core.errors import UserError
from big_align.tools import __main__ as console
from tests.console_command import write_command
from tests.house import MODULES, ROOT, trees
from tests.run_main import TINY, environment


def run(*command):
    """Runs a program that prints, from the checkout."""
    return subprocess.run(
        command, cwd=ROOT, env=environment(1),
        capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return write_command(tmp_path_factory.mktemp("bin"))


def test_the_list_tells_every_command_with_its_first_line():
    lines = console.write_list().splitlines()
    told = dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))
    tools = {k.rpartition(".")[2]: tree for k, tree in trees().items() if ".tools." in k}
    for name in console.NO_TOOLS:
        del tools[name]
    firsts = {name: ast.get_docstring(tree).splitlines()[0] for name, tree in tools.items()}
    assert told == console.RUNS | firsts
    assert all(line.endswith(".") for line in told.values())
    with_main = {k for k, tree in tools.items() if "__main__" in ast.unparse(tree)}
    assert with_main == tools.keys(), "what is no command has no place among the tools"


def test_the_list_waits_for_nothing(program):
    done = run(program, "--help")
    assert (done.returncode, done.stdout) == (0, console.write_list() + "\n"), done.stderr
    code = (
        "import sys; from big_align.tools import __main__ as m; m.write_list(); print(*sys.modules)"
    )
    imported = run(sys.executable, "-c", code).stdout.split()
    assert not {"numpy", "absl", "jax", "argparse"} & set(imported)


def test_python_prints_the_same_list(program):
    lists = [run(program), run(sys.executable, "-m", "big_align.tools")]
    assert [(x.returncode, x.stdout) for x in lists] == [(0, console.write_list() + "\n")] * 2


def test_it_says_which_version_it_is(program):
    assert run(program, "--version").stdout == f"big_align {big_align.__version__}\n"


@pytest.mark.parametrize(
    ("word", "told"),
    [("serach", " (did you mean 'search'?)"), ("zzzz", "; big-align --help lists them")],
)
def test_an_unknown_command_is_one_line(word, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["big-align", word])
    assert console.main() == 2
    assert capsys.readouterr() == ("", f"error: big-align has no command {word!r}{told}\n")


@pytest.mark.parametrize("name", ["describe_classes", "describe-classes"])
def test_a_tool_is_called_by_its_name_and_says_so(name, program):
    done = run(program, name, "--help")
    assert done.stdout.startswith("usage: big-align describe_classes [-h]")
    assert "\n  big-align describe_classes --classes=imagenet" in done.stdout
    assert "python -m big_align" not in done.stdout
    wrong = run(program, name)
    assert wrong.returncode == 2 and "big-align describe_classes: error: " in wrong.stderr
    assert run(program, name, "--classes=no-such", "--output=o.json").returncode == 2


def test_every_text_of_commands_is_spelled_as_the_program_was_called(monkeypatch):
    text = "python -m big_align.tools.index, python -m big_align --workdir=DIR, "
    text += "python -m big_align --mode=eval --workdir=DIR"
    for called, expected in (
        ("/usr/bin/big-align", "big-align index, big-align train --workdir=DIR, "
         "big-align eval --workdir=DIR"),
        ("main.py", text),
        ("-m", text),
    ):  # fmt: skip
        monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", called, "train", "a b"])
        assert program_name.spell(text) == expected
        first = ["big-align"] if "big-align" in expected else ["python", called]
        assert program_name.own_words() == [*first, "train", "a b"]
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3"])
    assert program_name.spell(text) == text and program_name.own_words() == ["python"]


@pytest.mark.slow
def test_help_of_a_run_and_wrong_usage_are_those_of_main(program):
    own, main = run(program, "train", "--help"), run(sys.executable, "main.py", "--help")
    assert own.stdout.partition("Flags:")[2] == main.stdout.partition("Flags:")[2] != ""
    assert "  big-align eval --workdir=DIR " in own.stdout
    for words in (["--confg=x"], ["--config=quickstart"], ["--workdir=x", "data/photos"]):
        ends = [run(program, "train", *words), run(sys.executable, "main.py", *words)]
        assert ends[0].returncode == ends[1].returncode == 2
        assert ends[0].stderr == ends[1].stderr != ""


PAIRS = {
    "data/photos": "photos",
    "data/photos/": "photos",
    "data/pairs-*.tar": "pairs",
    "data/pairs-{00000..00099}.tar": "pairs",
    "photos/**/*.jpg": "photos",
    "data/captions.csv": "captions",
    "s3://bucket/cc3m/*.tar": "cc3m",
    "data/my photos.v2": "my_photos",
    "data/photos,cores=2": "photos",
    ".": "here",
    "*.tar": "here",
    "/*": "own_pairs",
}


def test_a_workdir_is_named_after_the_pairs(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert {path: console.name_pairs(path) for path in PAIRS} == PAIRS


def test_a_path_stands_for_the_flags_of_pairs_or_of_a_workdir(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pairs = console.read_path("train", "data/photos", ["--config.seed=1"])
    own = ["--config=own_pairs:data/photos", "--workdir=workdirs/photos", "--config.seed=1"]
    assert pairs == own and capsys.readouterr().out == "workdir: workdirs/photos\n"
    for flags in (["--workdir=w"], ["--workdir", "w"], ["-workdir=w"]):
        given = console.read_path("train", "data/photos", flags)
        assert given == [own[0], *flags] and capsys.readouterr().out == ""
    assert console.read_path("eval", "w", ["--checkpoint=2"]) == ["--workdir=w", "--checkpoint=2"]
    os.mkdir("w")
    open(f"w/{CONFIG_JSON}", "w").close()
    config = ["--config=quickstart"]  # as for main.py: it may change what is continued
    assert console.read_path("train", "w", config) == ["--workdir=w", *config]


def test_a_config_of_the_package_is_trained_by_its_name_unless_pairs_have_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given, workdir in {
        "quickstart": "quickstart",
        "clip_vit:image=b32": "clip_vit_image_b32",
    }.items():
        expected = [f"--config={given}", f"--workdir=workdirs/{workdir}"]
        assert console.read_path("train", given, []) == expected
        assert console.read_path("train", given, ["--workdir=w"]) == [expected[0], "--workdir=w"]
    os.mkdir("quickstart")
    pairs = ["--config=own_pairs:quickstart", "--workdir=workdirs/quickstart"]
    assert console.read_path("train", "quickstart", []) == pairs


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("train", "w", ["--workdir=v"]), "the path is a workdir; leave --workdir out"),
        (("eval", "w", ["--workdir=v"]), "the path is a workdir; leave --workdir out"),
        (("train", "photos", ["--config=align_l2"]), "leave it or --config out"),
        (
            ("train", "quickstart", ["--config=mlcd"]),
            "the path is a config; leave it or --config out",
        ),
    ],
)
def test_a_path_beside_a_flag_that_says_the_same_is_refused(words, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("w")
    open(f"w/{CONFIG_JSON}", "w").close()
    with pytest.raises(UserError, match=f"^big-align {words[0]} {words[1]}: .*{told}$"):
        console.read_path(*words)


@pytest.mark.slow
def test_a_run_is_trained_continued_and_evaluated(program, tmp_path):
    """What its report calls its command trains it, too."""
    workdir = tmp_path / "run"
    first = run(
        program, "train", f"--config={TINY}", f"--workdir={workdir}", "--config.total_steps=2"
    )
    assert first.returncode == 0, first.stderr
    words = f"big-align train --config={TINY} --workdir={workdir} --config.total_steps=2"
    assert words in (workdir / "report.html").read_text()
    again = run(program, "train", workdir, "--config.total_steps=4")
    assert again.returncode == 0, again.stderr
    done = run(program, "eval", workdir)
    assert done.returncode == 0 and f"{workdir} at step 4" in done.stdout, done.stderr


def test_no_other_module_of_the_tools_has_the_name_of_a_run():
    assert not {f"big_align.tools.{name}" for name in console.RUNS} & MODULES.keys()
