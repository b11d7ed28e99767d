"""Huge pages for the memory of a process: on CPUs a step takes about 0.7 of the time with them."""

import os
import pathlib
import sys

TUNABLE = "glibc.malloc.hugetlb"
SYSTEM = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
GLIBC = (2, 35)  # the first that knows the tunable


def restart() -> None:
    """Starts the program again with huge pages, where the system gives them to those who ask.

    XLA takes the arrays of a step from the C library and gives them back after it, and the kernel
    clears and maps them anew, page by page. The C library reads what it does about that when a
    process starts, so the process executes its own command again, before anything else is imported:
    with the same id, arguments and standard files. Whoever sets the tunable in $GLIBC_TUNABLES has
    chosen (`glibc.malloc.hugetlb=0` for pages of 4 KiB), and nothing is done.
    """
    given = os.environ.get("GLIBC_TUNABLES", "")
    if TUNABLE in given or not sys.executable or not are_on_request():
        return
    os.environ["GLIBC_TUNABLES"] = f"{given}:{TUNABLE}=1".lstrip(":")
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    except OSError:  # it goes on as it is
        os.environ["GLIBC_TUNABLES"] = given


def are_on_request() -> bool:
    """Tells whether the kernel gives huge pages when asked, and the C library can ask."""
    try:
        kind, version = os.confstr("CS_GNU_LIBC_VERSION").split()
        numbers = tuple(int(part) for part in version.split(".")[:2])
        return kind == "glibc" and numbers >= GLIBC and "[madvise]" in SYSTEM.read_text()
    except (OSError, ValueError, AttributeError):  # another system
        return False
