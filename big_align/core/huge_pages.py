"""Huge pages for the memory of a process: on CPUs, a step takes about 0.7 of the time with them."""

import os
import pathlib
import sys

TUNABLE = "glibc.malloc.hugetlb"
SYSTEM = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
GLIBC = (2, 35)  # the first version that knows the tunable


def restart() -> None:
    """Restarts the program with huge pages, if the system grants them on request.

    XLA allocates the arrays of a step through the C library and frees them after it, so the kernel
    clears and maps them again, page by page, in every step. The C library reads its setting for
    this when a process starts, so the process executes its own command again, before anything else
    is imported, with the same process id, arguments and standard streams. If $GLIBC_TUNABLES
    already sets the tunable (`glibc.malloc.hugetlb=0` for pages of 4 KiB), that choice stands, and
    nothing is done.
    """
    given = os.environ.get("GLIBC_TUNABLES", "")
    if TUNABLE in given or not sys.executable or not are_on_request():
        return
    os.environ["GLIBC_TUNABLES"] = f"{given}:{TUNABLE}=1".lstrip(":")
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    except OSError:  # it goes on without them
        os.environ["GLIBC_TUNABLES"] = given


def are_on_request() -> bool:
    """Returns whether the kernel grants huge pages on request and the C library can ask."""
    try:
        kind, version = os.confstr("CS_GNU_LIBC_VERSION").split()
        numbers = tuple(int(part) for part in version.split(".")[:2])
        return kind == "glibc" and numbers >= GLIBC and "[madvise]" in SYSTEM.read_text()
    except (OSError, ValueError, AttributeError):  # another operating system
        return False
