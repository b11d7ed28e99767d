"""The small installation of docs/install.md: its list of packages, and what works with these."""

import importlib.metadata
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.data.samples import make_members, write_tar
from tests.manual import ROOT
from tests.run_main import environment

LEFT_OUT = {"scann", "tensorflow", "tensorflow-datasets", "tensorflow-text"}
SHORT = "--config.schedule.warmup_steps=0 --config.log_every=1 --config.total_steps"
SCRATCH = "own_pairs.py:'pairs-*.tar',start=scratch,size=cores"
SHALLOW = f"{SHORT}=2 --config.model.image.depth=1 --config.model.text.depth=1"


def read_required() -> list[str]:
    """Returns what the package requires."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return about["project"]["dependencies"]


def read_listed() -> list[str]:
    """Returns the packages that docs/install.md lists."""
    page = (ROOT / "docs" / "install.md").read_text()
    (command,) = re.findall(r"^pip install -c requirements.lock ((?:.*\\\n)*.*)$", page, re.M)
    return shlex.split(command.replace("\\\n", ""))


def find_name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def test_the_list_is_that_of_pyproject_toml_but_for_what_is_left_out():
    required = read_required()
    assert set(map(find_name, required)) >= LEFT_OUT
    assert read_listed() == [each for each in required if find_name(each) not in LEFT_OUT]


def test_the_page_tells_of_every_package():
    page = (ROOT / "docs" / "install.md").read_text()
    rows = re.findall(r"^\| ([\w-]+) \|.*\| *[\d.]+ \| 20\d\d-\d\d \|$", page, re.M)
    assert list(map(canonicalize_name, rows)) == list(map(find_name, read_required()))


def list_hidden() -> list[str]:
    """Returns the modules of this environment that the list does not bring, nor what it needs."""
    brought: dict[str, set[str]] = {}
    to_do = [Requirement(each) for each in read_listed()]
    while to_do:
        needed = to_do.pop()
        name = canonicalize_name(needed.name)
        if name in brought and needed.extras <= brought[name]:
            continue
        extras = brought[name] = brought.get(name, set()) | needed.extras
        for each in map(Requirement, importlib.metadata.requires(name) or ()):
            if not each.marker or any(each.marker.evaluate({"extra": x}) for x in (*extras, "")):
                to_do.append(each)
    brought["big-align"] = set()
    modules = importlib.metadata.packages_distributions()
    return [
        module
        for module, packages in modules.items()
        if module.isidentifier() and not set(map(canonicalize_name, packages)) & set(brought)
    ]


HIDING = """
import importlib.machinery
import sys

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in {hidden}:
            return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
"""
"""A sitecustomize.py with which modules are not found."""


class SmallInstall:
    """Runs programs that can import only what the list brings."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        hidden = list_hidden()
        assert {"tensorflow", "tensorflow_text", "tensorflow_datasets", "scann"} <= set(hidden)
        site = folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(HIDING.format(hidden=set(hidden)))
        self._variables = environment(1) | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}

    def start(self, words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, *shlex.split(words)]
        return subprocess.run(
            command, cwd=self.folder, env=self._variables, capture_output=True, text=True
        )

    def run(self, words: str) -> str:
        done = self.start(words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def train(self, config: str, workdir: str, flags: str) -> pathlib.Path:
        """Trains to the end, and returns the workdir with its report."""
        main, path = ROOT / "main.py", ROOT / "configs" / config
        self.run(f"{main} --config={path} --workdir={workdir} {flags}")
        assert (self.folder / workdir / "report.html").stat().st_size > 10_000
        return self.folder / workdir

    def fail(self, words: str) -> str:
        """Returns the one line that a command ends with."""
        done = self.start(words)
        assert done.returncode in (1, 2) and "Traceback" not in done.stderr, done.stderr
        (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
        return line


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> SmallInstall:
    made = SmallInstall(tmp_path_factory.mktemp("small"))
    for first in (0, 20):
        members = [part for number in range(first, first + 20) for part in make_members(number)]
        write_tar(made.folder / f"pairs-{first:05d}.tar", members)
    return made


@pytest.mark.slow
def test_the_quick_start_runs_to_its_report(small):
    workdir = small.train("quickstart.py", "quickstart", f"{SHORT}=30")
    assert "zero_shot" in (workdir / "evaluations.jsonl").read_text()
    assert list(workdir.glob("events.out.tfevents.*"))
    index = "-m big_align.tools.index --model=quickstart --source=test --source_name=digits"
    small.run(f"{index} --output=index")
    refused = small.fail(f"{index} --output=other --search=scann")
    assert re.search("ScaNN .* needs the package scann .*pip install .*--search=exact", refused)
    assert "0." in small.run("-m big_align.tools.search --index=index 'the number three'")
    code = "import big_align, numpy as np; model = big_align.load('quickstart')"
    code += "; print(model.classify(np.zeros((16, 16, 3), np.uint8), ['one', 'two']))"
    assert "one" in small.run(f'-c "{code}"')


@pytest.mark.slow
def test_a_model_with_a_vocabulary_of_its_own_trains_from_shards(small):
    workdir = small.train(SCRATCH, "pairs", SHALLOW)
    assert "retrieval" in (workdir / "evaluations.jsonl").read_text()


@pytest.mark.slow
def test_shards_train_with_clips_tokenizer(small, data_dir):
    merges = data_dir / "text" / "clip_bpe_simple_vocab_16e6.txt.gz"
    flags = f"--config.tokenizer.name=clip --config.tokenizer.merges={merges}"
    small.train(SCRATCH, "clip", f"{SHALLOW} {flags} --config.model.text.vocab_size=49408")


@pytest.mark.slow
def test_what_needs_tensorflow_or_scann_says_so_in_a_line(small):
    train = f"{ROOT / 'main.py'} --config={ROOT / 'configs' / 'quickstart.py'} --workdir=refused"
    source, mnist = "--config.data.source", "dataset=mnist --config.data.source.split=train"
    cases = (
        (f"{train} --config.data.pipeline=big_align.runs.pipelines:image_text",
         "config.data.pipeline = .* needs the package tensorflow .*pip install"),
        (f"{train} {source}.name=tfds {source}.{mnist}",
         "config.data.source: .* tensorflow_datasets .*pip install .*'tfrecord'"),
        (f"{train} {source}.name=tar {source}.path=gs://bucket/a.tar",
         "config.data.source: gs://bucket/a.tar: .*gcsfs"),
        (f"{train} --config.checkpoint.folder=gs://bucket/run",
         "config.checkpoint.folder = 'gs://bucket/run': .*gcsfs"),
    )  # fmt: skip
    for words, message in cases:
        assert re.search(message, small.fail(words)), words
