"""What is installed: the package with its types, and the versions that are written down."""

import importlib.metadata
import importlib.resources
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement

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


@pytest.mark.parametrize("name", ["setup.py", "requirements.lock", "requirements.hashes"])
def test_scann_which_has_wheels_for_linux_only_is_installed_there_only(name):
    (written,) = re.findall(r"scann==[^\"\\\n]+", (ROOT / name).read_text())
    marker = Requirement(written).marker
    systems = {s for s in ("linux", "darwin", "win32") if marker.evaluate({"sys_platform": s})}
    assert systems == {"linux"}


def test_starlette_is_one_that_knows_the_host_of_an_ipv6_address():
    """Up to 1.6 it takes the host of [::1]:8000 for "[", and refuses the page of --host=::1."""
    written = re.findall(r"starlette[^\"\\\n]+", (ROOT / "setup.py").read_text())
    assert len(written) == 2
    for each in written:
        found = Requirement(each).specifier
        assert "1.6.0" not in found and "1.7.0" in found


def test_the_package_says_that_it_has_types():
    assert importlib.resources.files("big_align").joinpath("py.typed").is_file()


@pytest.mark.slow
def test_a_wheel_holds_what_is_no_python(tmp_path):
    pytest.importorskip("setuptools")
    clean = tmp_path / "clean"  # what an earlier build has left would be packed too
    for folder in ("big_align", "configs"):
        shutil.copytree(ROOT / folder, clean / folder)
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, clean)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, f"--wheel-dir={tmp_path}", str(clean)], check=True)
    wheel = zipfile.ZipFile(next(tmp_path.glob("*.whl")))
    names = set(wheel.namelist())
    files = [
        p for p in (ROOT / "big_align").rglob("*") if p.suffix in (".html", ".css", ".json", ".pyi")
    ]
    expected = {str(p.relative_to(ROOT)) for p in files} | {"big_align/py.typed"}
    expected |= {f"big_align/configs/{path.name}" for path in (ROOT / "configs").glob("*.py")}
    assert len(expected) > 5 and expected <= names, expected - names
    (commands,) = (wheel.read(name) for name in names if name.endswith("/entry_points.txt"))
    assert commands == b"[console_scripts]\nbig-align = big_align.tools.__main__:main\n"
