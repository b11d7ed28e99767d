"""Eight virtual CPU devices, shape-checked signatures, and where the real data lies."""

import ctypes
import gc
import importlib.util
import logging as python_logging
import os
import pathlib
import signal

from tests.run_main import KEEP_PROGRAMS
from tests.xla_flags import list_flags

# A shell ignores Ctrl-C for what it starts in the background, nohup ignores SIGHUP, and so would
# all that tests start. A handler of this process is not passed on.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# As commands do for themselves (big_align/core/huge_pages.py): for workers and what tests start.
os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
for flag, value in list_flags(devices=8).items():
    if flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}={value}"
# A test compiles for longer than it computes, and the next run would compile the same.
for name, value in KEEP_PROGRAMS.items():
    os.environ.setdefault(name, value)

from tests import checked_signatures  # noqa: E402

checked_signatures.install()

import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402
from absl import logging  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERBOSITY = logging.get_verbosity()


LONG = (
    "test_docs.py", "test_faults.py", "test_torture.py", "test_slurm.py", "test_main.py",
    "test_elastic.py", "test_killed_work.py",
)  # fmt: skip
"""Files that take minutes, the longest first: dealt and begun before the others."""


def pytest_addoption(parser):
    parser.addoption("--part", metavar="K/N", help="of N parts of the test files, the Kth, from 1")


def _rank(path):
    return LONG.index(path.name) if path.name in LONG else len(LONG), path


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    begun = set()
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if "slow_repeats" in marks and "slow" not in marks:
            law = item.path, item.originalname
            if law in begun:
                item.add_marker("slow")
            begun.add(law)
    if part := config.getoption("part"):
        number, count = map(int, part.split("/"))
        files = sorted({item.path for item in items}, key=_rank)[number - 1 :: count]
        config.hook.pytest_deselected(items=[item for item in items if item.path not in files])
        items[:] = [item for item in items if item.path in files]
    items.sort(key=lambda item: _rank(item.path)[0])


def pytest_runtest_setup(item):
    if item.get_closest_marker("libtpu") and importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu describes and compiles for TPUs: pip install -e '.[plan]'")


def pytest_collection_finish():
    """What is there after collecting stays, so the garbage collector need not go over it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


def _resident_bytes() -> int:
    statm = pathlib.Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


@pytest.fixture(scope="session")
def released():
    """How much memory a process held when it last let go of compiled programs."""
    return {"bytes": _resident_bytes()}


@pytest.fixture(scope="module", autouse=True)
def bounded_memory(released):
    """Compiled programs are kept until they take much: few are of use to the next file."""
    yield
    if _resident_bytes() > released["bytes"] + 2e8:  # it takes a second
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        released["bytes"] = _resident_bytes()


@pytest.fixture
def without_type_checks(monkeypatch):
    """Calls as users make them: only here signatures are checked before a function is entered."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub on loopback that this process uses, with a cache of its own, and without waiting."""
    from tests import hub_server

    with hub_server.serve(hub_server.Hub()) as served:
        hub_server.use(served, tmp_path / "hf", monkeypatch)
        yield served


@pytest.fixture
def bucket(monkeypatch):
    """An empty bucket, s3://pairs, on loopback, which this process and what it starts use."""
    from tests import s3_server

    s3_server.skip_without()
    with s3_server.serve() as served:
        s3_server.use(served, monkeypatch)
        yield served


@pytest.fixture(autouse=True)
def own_verbosity():
    """A command says how much its process logs, and where: that must not last longer than it."""
    yield
    logging.set_verbosity(VERBOSITY)
    python_logging.getLogger().removeHandler(logging.get_absl_handler())


def _find(variable: str, default: str) -> pathlib.Path:
    path = pathlib.Path(os.environ.get(variable, ROOT.parent / "shared" / default)).resolve()
    if not path.is_dir():
        pytest.skip(f"no {default} at {path}; set ${variable} to the folder that holds it")
    return path


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
    """The folder of real data (flickr8k, twemoji, ...), or a skip that says how to give it."""
    return _find("BIG_ALIGN_DATA", "data")


@pytest.fixture(scope="session")
def reference_dir() -> pathlib.Path:
    """The folder of golden numbers, or a skip that says how to give it."""
    return _find("BIG_ALIGN_REFERENCE", "reference")
