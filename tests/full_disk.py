"""A disk that is full: no file becomes larger than a limit."""

import contextlib
import resource
import signal
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def limit_files(size: int) -> Iterator[None]:
    """Lets no file of this process become larger than `size` bytes, as a full disk does.

    A module that is imported meanwhile leaves no bytecode: Python would put a truncated file in
    its place (`importlib` looks at no count of what was written), and every later import fail.
    """
    usual, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (usual, most))
        sys.dont_write_bytecode = writes_none
        signal.signal(signal.SIGXFSZ, handler)
