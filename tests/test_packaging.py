"""What is installed: the package with its types, and the versions that are written down."""

import importlib.metadata
import importlib.resources
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest
from packaging.requirements import Requirement

from tests.run_main import environment

ROOT = pathlib.Path(__file__).resolve().parent.parent


def read_pins(name):
    """Returns the lines of a file that name a version, without what follows on further lines."""
    lines = (ROOT / name).read_text().splitlines()
    return [line.removesuffix(" \\") for line in lines if re.match(r"[a-z].*==", line)]


def test_both_files_pin_the_same_versions():
    pins = read_pins("requirements.lock")
    assert pins == read_pins("requirements.hashes") and len(pins) > 100
    assert (ROOT / "requirements.lock").read_text().splitlines() == pins


def test_every_version_has_hashes():
    text = (ROOT / "requirements.hashes").read_text()
    for requirement in re.split(r"\n(?=[a-z])", text)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", requirement), requirement


def test_what_the_package_requires_is_pinned():
    names = {pin.partition("==")[0] for pin in read_pins("requirements.lock")}
    for requirement in importlib.metadata.requires("big_align") or []:
        if "extra ==" not in requirement:
            name = re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")
            assert name in names, requirement


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements.lock", "requirements.hashes"])
def test_scann_which_has_wheels_for_linux_only_is_installed_there_only(name):
    (written,) = re.findall(r"scann==[^\"\\\n]+", (ROOT / name).read_text())
    marker = Requirement(written).marker
    systems = {s for s in ("linux", "darwin", "win32") if marker.evaluate({"sys_platform": s})}
    assert systems == {"linux"}


def test_starlette_is_one_that_knows_the_host_of_an_ipv6_address():
    """Up to 1.6 it takes the host of [::1]:8000 for "[", and refuses the page of --host=::1."""
    written = re.findall(r"starlette[^\"\\\n]+", (ROOT / "pyproject.toml").read_text())
    assert len(written) == 2
    for each in written:
        found = Requirement(each).specifier
        assert "1.6.0" not in found and "1.7.0" in found


def test_the_package_says_that_it_has_types():
    assert importlib.resources.files("big_align").joinpath("py.typed").is_file()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source archive and the wheel that is built from it, and what was said of it."""
    clean = tmp_path_factory.mktemp("clean")  # what an earlier build has left would be packed too
    for folder in ("big_align", "configs"):
        shutil.copytree(ROOT / folder, clean / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "LICENSES.md"):
        shutil.copy(ROOT / name, clean)
    command = [sys.executable, "-m", "build", "--no-isolation"]
    done = subprocess.run(command, cwd=clean, check=True, capture_output=True, text=True)
    return *sorted(
        (clean / "dist").iterdir(), key=lambda path: path.suffix
    ), done.stdout + done.stderr


@pytest.mark.slow
def test_a_wheel_holds_what_is_no_python(built):
    archive, path, told = built
    assert "would be ignored" not in told and "Deprecat" not in told
    wheel = zipfile.ZipFile(path)
    names = set(wheel.namelist())
    kinds = (".html", ".css", ".json", ".pyi", ".svg")
    files = [p for p in (ROOT / "big_align").rglob("*") if p.suffix in kinds]
    expected = {str(p.relative_to(ROOT)) for p in files} | {"big_align/py.typed"}
    expected |= {f"big_align/configs/{path.name}" for path in (ROOT / "configs").glob("*.py")}
    assert len(expected) > 5 and expected <= names, expected - names
    (commands,) = (wheel.read(name) for name in names if name.endswith("/entry_points.txt"))
    assert commands == b"[console_scripts]\nbig-align = big_align.tools.__main__:main\n"


@pytest.mark.slow
def test_an_index_takes_both_and_shows_a_page_without_dead_links(built):
    *files, _ = built
    check = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("PASSED") == 2, done.stdout
    wheel = zipfile.ZipFile(files[1])
    (page,) = (wheel.read(x).decode() for x in wheel.namelist() if x.endswith("/METADATA"))
    assert "\n# big_align\n" in page
    targets = re.findall(r"\]\(([^)\s]*)\)", page)
    assert [target for target in targets if "://" not in target] == []


EXAMPLES = """
import doctest, big_align
runner = doctest.DocTestRunner()
for name in sorted(set(big_align.__all__) - {"as_dataset", "train"}):
    for test in doctest.DocTestFinder().find(getattr(big_align, name), name, globs={}):
        runner.run(test)
assert not runner.summarize(verbose=False).failed
print(runner.tries)
"""
"""Runs the examples of docstrings, but for those that train."""


@pytest.mark.slow
def test_what_is_installed_from_a_wheel_trains_without_a_checkout(built, tmp_path):
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*install, str(tmp_path / "installed"), str(built[1])], check=True)
    folder = tmp_path / "empty"
    folder.mkdir()
    few = ["--config.total_steps=24", "--config.evaluate_every=12"]
    variables = environment(1) | {"PYTHONPATH": str(tmp_path / "installed")}

    def run(*words):
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, env=variables, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()

    where = run("-c", "import big_align; print(big_align.__file__, big_align.__version__)")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert where == f"{tmp_path}/installed/big_align/__init__.py {version}"
    assert int(run("-c", EXAMPLES)) > 50
    run("-m", "big_align.tools", "train", "quickstart", *few)
    assert (folder / "workdirs" / "quickstart" / "report.html").is_file()
