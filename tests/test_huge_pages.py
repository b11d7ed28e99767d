"""The program starts itself again, once, as it was started, where huge pages can be asked for."""

import json
import os
import subprocess
import sys

import pytest

from big_align import huge_pages
from tests.manual import ROOT

TELL = """
import json, os, sys
from big_align import huge_pages
if {supported} is not None:
    huge_pages.are_on_request = lambda: {supported}
huge_pages.restart()
print(json.dumps([os.getpid(), sys.argv[1:], os.environ.get("GLIBC_TUNABLES"), sys.stdin.read()]))
"""


def start(code, *arguments, tunables=None):
    """Returns the process id that was started, and what the program prints in the end."""
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    if tunables is not None:
        environment["GLIBC_TUNABLES"] = tunables
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    output, _ = process.communicate("given", timeout=60)
    assert process.returncode == 0
    return process.pid, output


@pytest.mark.parametrize(
    ("supported", "before", "after"),
    [
        (True, None, "glibc.malloc.hugetlb=1"),
        (True, "glibc.malloc.check=0", "glibc.malloc.check=0:glibc.malloc.hugetlb=1"),
        (True, "glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
        (False, None, None),
    ],
)
def test_it_is_the_same_process_with_the_same_arguments(supported, before, after):
    code = TELL.format(supported=supported)
    pid, output = start(code, "--config=a b", "", tunables=before)
    lines = output.splitlines()
    assert len(lines) == 1
    expected = [pid, ["--config=a b", ""], after, "given"]
    assert json.loads(lines[0]) == expected


def test_huge_pages_are_asked_for_large_arrays():
    """The kernel notes a request as "hg"; how many it grants depends on the memory that is free."""
    if not huge_pages.are_on_request():
        pytest.skip(f"this system has no huge pages on request: see {huge_pages.SYSTEM}")
    code = """
import ctypes, pathlib
from big_align import huge_pages
huge_pages.restart()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
array = libc.malloc(ctypes.c_size_t(1 << 26))
for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
    first, *rest = line.split()
    if "-" in first:  # a range of addresses, then what the kernel says of it
        start, end = (int(address, 16) for address in first.split("-"))
    elif first == "VmFlags:" and start <= array < end:
        print(int("hg" in rest))
"""
    found = [start(code, tunables=given)[1].strip() for given in (None, "glibc.malloc.hugetlb=0")]
    assert found == ["1", "0"]


@pytest.mark.parametrize(
    ("text", "version", "expected"),
    [
        ("always [madvise] never", "glibc 2.36", True),
        ("always [madvise] never", "glibc 2.34", False),
        ("[always] madvise never", "glibc 2.36", False),  # it gives them unasked
        ("always madvise [never]", "glibc 2.36", False),
        (None, "glibc 2.36", False),
        ("always [madvise] never", None, False),
    ],
)
def test_only_systems_that_give_them_on_request_are_asked(
    text, version, expected, monkeypatch, tmp_path
):
    monkeypatch.setattr(huge_pages, "SYSTEM", tmp_path / "enabled")
    if text is not None:
        huge_pages.SYSTEM.write_text(text + "\n")
    monkeypatch.setattr(os, "confstr", lambda _: version)
    assert huge_pages.are_on_request() is expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["main.py"], ["-m", "big_align"], ["-m", "big_align.tools.embed"]]
)
def test_commands_ask_before_they_import_what_takes_time(command):
    if not huge_pages.are_on_request():
        pytest.skip(f"this system has no huge pages on request: see {huge_pages.SYSTEM}")
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    log = subprocess.run(
        [sys.executable, "-X", "importtime", *command, "--help"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    ).stderr
    first = log.split("| site\n")[1]  # what is imported before the second start of Python
    assert "big_align.huge_pages" in first and "absl" not in first and "jax" not in first
    assert log.count("| site\n") == 2
