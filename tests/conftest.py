"""Eight virtual CPU devices, shape-checked signatures, and where the real data lies."""

import os
import pathlib
import signal

# A shell ignores Ctrl-C for what it starts in the background, nohup ignores SIGHUP, and so would
# all that tests start. A handler of this process is not passed on.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Tests compile much and run little: less optimization saves most of their time.
for flag in (
    "--xla_force_host_platform_device_count=8",
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
):
    if flag.split("=")[0] not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " " + flag

from jaxtyping import install_import_hook  # noqa: E402

install_import_hook("big_align", "beartype.beartype")

import jax  # noqa: E402
import pytest  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module", autouse=True)
def bounded_memory():
    """Compiled programs are kept until they take gigabytes: few are of use to the next file."""
    yield
    statm = pathlib.Path("/proc/self/statm")
    if statm.exists() and int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > 4e9:
        jax.clear_caches()


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
