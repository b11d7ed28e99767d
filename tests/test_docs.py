"""The pages of the manual: commands parse and run, Python runs, links lead somewhere."""

import argparse
import ast
import importlib
import os
import pathlib
import re
import runpy
import shlex
import signal
import subprocess
import sys

import pytest
from absl import flags
from PIL import Image

from big_align.config import own_files
from big_align.config.overrides import load_config
from big_align.runs import check
from tests.console_command import write_command
from tests.forked_programs import forking_python
from tests.manual import (
    LANGUAGES,
    PAGES,
    ROOT,
    find_program,
    read_anchors,
    read_blocks,
    read_commands,
    read_inline,
    read_links,
)
from tests.page_commands import ELSEWHERE, MADE, NOT_RUN, STAND_INS
from tests.paper_rows import ROWS, expand, name_run
from tests.run_main import KEEP_PROGRAMS

COMMANDS = [command for page in PAGES for command in read_commands(page)]
INLINE = [command for page in PAGES for command in read_inline(page) if "..." not in command.text]


def name_command(text: str) -> str:
    """Returns what a test of a command is called: its page, its program and how many before it."""
    page, *_ = [c.page for c in [*COMMANDS, *INLINE] if c.text == text]
    of_page = dict.fromkeys(c.text for c in [*COMMANDS, *INLINE] if c.page == page)
    words = [word for word in find_program(text) if word not in ("python", "-m")]
    program = pathlib.PurePath(words[0].rpartition("tools.")[2]).name
    name = page.removeprefix("docs/").removesuffix(".md")
    return f"{name}-{list(of_page).index(text)}-{program}"


def test_every_block_names_its_language():
    blocks = [block for page in PAGES for block in read_blocks(page)]
    strange = [(b.page, b.line, b.language) for b in blocks if b.language not in LANGUAGES]
    assert strange == [] and len(blocks) > 40


def test_links_and_pictures_are_there():
    pages = [*PAGES, "CONTRIBUTING.md", "benchmarks/README.md"]
    for page, link in [(each, link) for each in pages for link in read_links(each)]:
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page}: {link}"
        if anchor:
            assert anchor in read_anchors(str(target)), f"{page}: {link}"


def test_every_page_is_linked_from_the_front():
    linked = {link.partition("#")[0] for link in read_links("README.md")}
    for folder in ("objectives", "papers", "results", "scale"):
        front = {link.partition("#")[0] for link in read_links(f"docs/{folder}/README.md")}
        linked |= {f"docs/{folder}/{link}" for link in front}
    assert set(PAGES) - {"README.md"} <= linked
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_are_there(page):
    spans = re.findall(r"`([^`\n]+)`", (ROOT / page).read_text())
    folders = "big_align|benchmarks|colabs|configs|docs|examples|experiments|launch|tests"
    for span in spans:
        if re.fullmatch(rf"({folders})/[\w/.]+\.\w+", span):
            assert (ROOT / span).exists(), f"{page}: {span}"
        elif re.fullmatch(r"\w+\.py(:\S+)?", span):
            name, _, argument = span.partition(":")
            if (ROOT / "configs" / name).exists():
                for config in {name_run(row) for row in expand(span)} - LOADED:
                    load_config(f"configs/{config}")
            else:
                there = name == "main.py" or any(ROOT.glob(f"big_align/**/{name}"))
                assert there and not argument, f"{page}: {span}"


LOADED = {row for rows in ROWS.values() for row in rows}
"""By tests/runs/test_paper_rows.py."""


def test_what_a_page_says_is_in_a_module_is_there():
    """As in `losses/sigmoid.py`, `sigmoid_loss`."""
    missing, number = [], 0
    for page in PAGES:
        text = (ROOT / page).read_text()
        for path, names in re.findall(r"`(big_align/[\w/]+\.py)`((?:,?\s`\w+`)+)", text):
            for name in re.findall(r"\w+", names):
                number += 1
                defined = rf"^(def|class) {name}\b"
                if not re.search(defined, (ROOT / path).read_text(), re.MULTILINE):
                    missing.append((page, path, name))
    assert missing == [] and number > 40


SYMBOLS = "sum frac log exp mathrm left right cdot cos theta sigma in notin cup neq quad qquad"
"""What any renderer of equations is sure to know."""


def test_equations_are_plain():
    blocks = [block for page in PAGES for block in read_blocks(page) if block.language == "math"]
    assert len(blocks) > 25
    for block in blocks:
        where = f"{block.page}:{block.line}"
        assert set(re.findall(r"\\([a-zA-Z]+)", block.text)) <= set(SYMBOLS.split()), where
        assert set(re.findall(r"\\([^a-zA-Z])", block.text)) <= {","}, where
        for opening, closing in (("{", "}"), ("\\left", "\\right"), ("(", ")")):
            assert block.text.count(opening) == block.text.count(closing), where


class Parsed(Exception):
    """The command line of a program was understood."""


@pytest.fixture(autouse=True)
def read_no_files(monkeypatch):
    """The pairs of a reader are not here: their path is taken for that of a thousand."""

    def find(path, name, fields, number):
        given = dict(field.split("=", 1) for field in fields)
        return own_files.OwnPairs({"name": name or "tar", "path": path, **given}, 1000)

    monkeypatch.setattr(own_files, "_find_pairs", find)


@pytest.fixture
def stop_after_parsing(monkeypatch):
    """Ends a program when it has parsed its command line; it keeps what it parsed."""
    parse = argparse.ArgumentParser.parse_known_args
    intermixed = argparse.ArgumentParser.parse_intermixed_args

    def parse_and_stop(self, arguments=None, namespace=None):
        options, rest = parse(self, arguments, namespace)
        others = "--" if getattr(options, "runner", None) else "--config."  # Apache Beam's
        if unknown := [word for word in rest if not word.startswith(others)]:
            self.error(f"unknown {unknown}")
        raise Parsed(options, rest)

    def parse_intermixed_and_stop(self, arguments=None, namespace=None):
        with monkeypatch.context() as patch:  # it calls the other several times
            patch.setattr(argparse.ArgumentParser, "parse_known_args", parse)
            options = intermixed(self, arguments, namespace)
        raise Parsed(options, [])

    monkeypatch.setattr(argparse.ArgumentParser, "parse_intermixed_args", parse_intermixed_and_stop)
    for name in ("parse_args", "parse_known_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, parse_and_stop)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(sys, "path", [*sys.path])


def declared_flags(path: pathlib.Path) -> flags.FlagValues:
    """Declares the flags of a program with absl, in values of their own."""
    values = flags.FlagValues()
    for name in ("workdir", "checkpoint"):  # of command_line
        flags.DEFINE_string(name, None, "", flag_values=values)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("flags.DEFINE_"):
            define = getattr(flags, node.func.attr)
            define(*map(ast.literal_eval, node.args), flag_values=values)
    return values


def check_run(path: pathlib.Path, arguments: list[str]) -> None:
    """Parses the command line of the program, or of a tool with its flags."""
    config = [word for word in arguments if re.match("--config[.=]", word)]
    given = [word for word in config if word.startswith("--config=")]
    if given and not given[0].endswith("/config.json"):  # a workdir's own is there after a run
        load_config(given[0].partition("=")[2], *(word for word in config if word not in given))
    others = [word for word in arguments if word not in (*config, "--help")]
    rest = declared_flags(path)(["", *others])
    assert rest[1:] == [], f"{rest[1:]} are no flags"


def check_program(words: list[str]) -> None:
    """Parses the command line of a program of the checkout; there must be one."""
    for word in words:
        if re.match(r"(launch|tests|benchmarks|experiments)/", word):
            assert (ROOT / word).exists(), f"there is no {word}"
    if words[0] != "python":
        return
    module = words[2] if words[1] == "-m" else ""
    if words[1] == "main.py" or module == "big_align":
        check_run(ROOT / "big_align" / "__main__.py", words[2 + bool(module) :])
    elif module.startswith("big_align.tools."):
        path = ROOT / (module.replace(".", "/") + ".py")
        if "flags.DEFINE_" in path.read_text():
            check_run(path, words[3:])
            return
        with pytest.raises(Parsed) as parsed:
            importlib.import_module(module).main(words[3:])
        options, rest = parsed.value.args
        if rest and not getattr(options, "runner", None):
            load_config(options.config, *rest)
    elif words[1].startswith(("benchmarks/", "experiments/")):
        sys.argv = words[1:]
        with pytest.raises((Parsed, ModuleNotFoundError)) as parsed:
            runpy.run_path(str(ROOT / words[1]), run_name="__main__")
        if parsed.type is ModuleNotFoundError:
            assert parsed.value.name in ("torch", "transformers"), parsed.value
            return
        if config := getattr(parsed.value.args[0], "config", None):
            load_config(config)
    else:
        assert (
            module in ("nltk.downloader", "mkdocs", "build")
            or (ROOT / f"{module.replace('.', '/')}.py").exists()
        )


def test_commands_name_what_there_is(stop_after_parsing, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    wrong = {}
    for text in dict.fromkeys(c.text for c in [*COMMANDS, *INLINE]):
        try:
            check_program(find_program(text))
        except (Exception, SystemExit, pytest.fail.Exception) as error:
            wrong[text] = repr(error)
    assert wrong == {}


def reason_not_to_run(text: str) -> str | None:
    """Returns why a command is not run; None for one that is."""
    for reason, beginnings in NOT_RUN.items():
        if text.startswith(beginnings):
            return reason
    first = shlex.split(text)[0]
    return next((why for why, programs in ELSEWHERE.items() if first in programs), None)


RUN = list(dict.fromkeys(c.text for c in COMMANDS if not reason_not_to_run(c.text)))


def test_every_command_is_run_or_listed():
    ours = (
        r"(\w+=\S+ |time )*(launch/local.sh \d+ -- )?(python (main\.py|-m big_align[ .])|big-align)"
    )
    strange = [text for text in RUN if not re.match(ours, text)]
    assert strange == [], "commands that are neither run nor listed in tests/page_commands.py"
    listed = [beginning for beginnings in NOT_RUN.values() for beginning in beginnings]
    stale = [b for b in listed if not any(c.text.startswith(b) for c in COMMANDS)]
    assert stale == [], "listed commands that no page has"
    assert len(RUN) >= 20


class Scratch:
    """A folder that looks like a checkout, in which the commands of the pages are run."""

    def __init__(self, folder: pathlib.Path, variables: dict[str, str]):
        self.folder = folder
        self.variables = variables
        for name in ("main.py", "big_align", "configs", "examples", "launch", "tests"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "data").mkdir()

    def run(self, text: str) -> None:
        """Runs a command, after what it needs and nothing before it has made."""
        for name, maker in {**MADE, **STAND_INS}.items():
            if not re.search(rf"(?<![\w/-]){re.escape(name)}(?![\w-])", text):
                continue
            if name in MADE:
                if text.startswith(maker):
                    continue
                maker = next(command for command in RUN if command.startswith(maker))
            made = "data/pairs-00000.tar" if name.startswith("data/pairs") else name
            if maker != text and not (self.folder / made).exists():
                self.run(maker)
        process = subprocess.Popen(
            ["bash", "-c", text],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=360)  # two minutes on quiet cores
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, f"{text}\n{output[-3000:]}"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory, data_dir, reference_dir):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    programs = tmp_path_factory.mktemp("python")
    variables = kept | {
        "BIG_ALIGN_DATA": str(data_dir),
        "BIG_ALIGN_REFERENCE": str(reference_dir),
        "JAX_PLATFORMS": "cpu",
        # Many commands compile the same step, and the same small programs before it.
        **KEEP_PROGRAMS,
        "NLTK_DATA": os.environ.get("NLTK_DATA", str(data_dir / "nltk_data")),
        "PATH": f"{programs}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    with forking_python(programs, variables):
        write_command(programs)
        yield Scratch(tmp_path_factory.mktemp("checkout"), variables)


@pytest.mark.slow
@pytest.mark.parametrize("text", RUN, ids=name_command)
def test_a_command_runs_as_it_stands(text, scratch):
    scratch.run(text)


OWN_TESTS = ("docs/extend.md", "docs/losses.md", "docs/search.md", "docs/use.md")


def python_pages() -> list[str]:
    """Returns the pages that have Python, but for those that have tests of their own."""
    pages = [p for p in PAGES if any(block.language == "python" for block in read_blocks(p))]
    return [page for page in pages if page not in OWN_TESTS]


@pytest.fixture
def reader_files(tmp_path, data_dir, reference_dir, monkeypatch):
    """The files that a reader of the pages has, in the current folder."""
    (tmp_path / "clip-vit-base-patch32").symlink_to(reference_dir / "hf-clip")
    for name in ("blue jay", "robin"):
        (tmp_path / "data" / "birds" / name).mkdir(parents=True)
        Image.new("RGB", (80, 80)).save(tmp_path / "data" / "birds" / name / "0.png")
    (tmp_path / "data" / "cc3m-00000.tar").symlink_to(data_dir / "twemoji" / "train-00000.tar")
    (tmp_path / "data" / "openimages").mkdir()
    for name, lines in OPENIMAGES.items():
        (tmp_path / "data" / "openimages" / name).write_text("".join(f"{x}\n" for x in lines))
    monkeypatch.chdir(tmp_path)


OPENIMAGES = {
    "oidv6-class-descriptions.csv": ["LabelName,DisplayName", "/m/1,Dog", '/m/2,"Fox, red"'],
    "test-annotations-human-imagelabels.csv": [
        "ImageID,Source,LabelName,Confidence", "b,verification,/m/2,1", "a,verification,/m/1,0",
        "b,verification,/m/1,1", "a,verification,/m/2,1",
    ],
}  # fmt: skip
"""The files of OpenImages that a table is made of."""

LIBRARIES = ("sentence_transformers",)
"""What blocks of Python import and `.[test]` has not; tests/weights does the same with them."""


@pytest.mark.parametrize("page", python_pages())
def test_python_runs(page, reader_files, capsys):
    names, blocks = {"__name__": "page"}, read_blocks(page)
    for block in blocks:
        if block.language == "python" and not any(each in block.text for each in LIBRARIES):
            # Line numbers of a traceback are those of the page.
            code = "\n" * block.line + block.text
            exec(compile(code, str(ROOT / page), "exec"), names)
    if page.startswith("docs/papers/"):
        assert capsys.readouterr().out.strip() == blocks[-1].text
    if "get_config" in names:
        check.check_config(names["get_config"]())
    if page == "docs/data.md":
        table = pathlib.Path("data/openimages/test.csv").read_text().split()
        assert table[1:] == ['test/b.jpg,"Fox,', 'red|Dog",', 'test/a.jpg,"Fox,', 'red",Dog']
