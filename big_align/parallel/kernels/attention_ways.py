"""In which way attention is computed: by device, type and shape."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from big_align.parallel.devices import traced
from big_align.parallel.kernels import cudnn_attention, tpu_attention, triton_attention

WAYS = {
    "auto": "a kernel of the device, where there is one for the type and the shape; else plain",
    "plain": "the formula, which writes a weight for every pair of tokens to memory",
    "triton": "our kernels for NVIDIA GPUs where they can be used; else plain; emulated on other "
    "devices",
    "cudnn": "cuDNN's kernel where it can be used; else plain",
    "pallas": "the kernel for TPUs where it can be used; else plain; emulated on other devices",
}
"""What can be asked for."""
MOST_AUTO_TOKENS = 0
"""Up to how many tokens "auto" prefers our kernel for long sequences on NVIDIA GPUs to cuDNN's. It
has not run on one yet; 640 has all lengths of CLIP's image towers."""


class Problem(NamedTuple):
    """What is to be computed."""

    query: tuple[int, int, int, int]  # batch over all devices, queries, heads, channels
    keys: int
    dtype: str
    causal: bool = False  # whether a query attends to no key after its own position
    masked: bool = False
    dropped: bool = False  # whether some weights are set to zero at random
    biases: int = 0  # that examples have by turns; 0 if none is added to the logits
    mesh: Mesh | None = None  # devices that the batch is split over, if they are known

    @property
    def devices(self) -> int:
        """Number of devices that share the batch."""
        return 1 if self.mesh is None else self.mesh.size


def choose_way(asked: str, problem: Problem, device: Any) -> tuple[str, str]:
    """Chooses how attention is computed.

    Args:
      asked: a name in `WAYS`.
      problem: what is to be computed.
      device: a device that it is for, real or described.

    Returns:
      "plain" or the name of a kernel; and a line that tells it, with the reason where no kernel was
      taken though one was asked for or the device has one.

    Raises:
      ValueError: `asked` is another name.
    """
    if asked not in WAYS:
        known = ", ".join(f"{name!r} ({what})" for name, what in WAYS.items())
        raise ValueError(f"attention={asked!r} is unknown; choose one of {known}")
    kernels = _list_kernels(problem, device.platform) if asked == "auto" else (asked,)
    if kernels in ((), ("plain",)):
        return "plain", _tell("plain", problem, "")
    reason = _refuse(problem)
    for kernel in () if reason else kernels:
        refused = _REFUSALS[kernel](problem, device)
        reason = reason or refused  # the first is of the kernel that would be best
        if not refused:
            queries = problem.query[1]
            padded = cudnn_attention.pad_tokens(queries) if kernel == "cudnn" else queries
            rest = f", padded to {padded}" if padded > queries else ""
            return kernel, _tell(kernel, problem, rest)
    return "plain", _tell("plain", problem, f", since {reason}")


def _list_kernels(problem: Problem, platform: str) -> tuple[str, ...]:
    """Returns the kernels for a platform; the first that can be used is taken."""
    (_, queries, _, channels), keys = problem.query, problem.keys
    most = max(queries, keys)
    if platform == "gpu":
        ours = triton_attention.fits(queries, keys, channels) or most <= MOST_AUTO_TOKENS
        return ("triton", "cudnn") if ours else ("cudnn",)
    return ("pallas",) if platform == "tpu" else ()


def _tell(way: str, problem: Problem, rest: str) -> str:
    _, queries, heads, channels = problem.query
    tokens = f"{queries} tokens" if queries == problem.keys else f"{queries} to {problem.keys}"
    return f"attention: {way} for {tokens}, {heads} heads of {channels}, {problem.dtype}{rest}"


def _refuse(problem: Problem) -> str | None:
    """Returns why no kernel computes this, None if nothing speaks against one."""
    if not isinstance(problem.query[0], int):
        return "the size of the batch is left open"
    if problem.query[0] % problem.devices:
        return f"{problem.query[0]} examples do not divide over {problem.devices} devices"
    if problem.biases and problem.query[0] // problem.devices % problem.biases:
        part = problem.query[0] // problem.devices
        return f"the {part} examples of a device are not whole turns of {problem.biases} biases"
    return None


def _refuse_terms(problem: Problem, kernel: str) -> str | None:
    """Returns why a kernel that has no bias and no dropout cannot be used."""
    if problem.dropped:
        return f"{kernel} has no dropout of weights"
    return f"{kernel} adds no bias" if problem.biases else None


def _refuse_triton(problem: Problem, device: Any) -> str | None:
    if problem.query[-1] > triton_attention.MOST_CHANNELS:
        return f"the kernel is for heads of {triton_attention.MOST_CHANNELS} channels at most"
    (_, queries, _, channels), keys = problem.query, problem.keys
    if not triton_attention.fits(queries, keys, channels):
        if reason := _refuse_terms(problem, "the kernel for long sequences"):
            return reason
    if device.platform != "gpu":  # it is emulated
        return None
    if jax.__version_info__ < (0, 11):
        return "the kernel needs jax 0.11"
    if problem.mesh is None and traced.may_be_split():
        return "it is not known which devices share the batch"
    return _refuse_nvidia(problem, device)


def _refuse_nvidia(problem: Problem, device: Any) -> str | None:
    """Returns why neither cuDNN's kernel nor ours for NVIDIA's GPUs can be used."""
    if device.platform != "gpu" or "NVIDIA" not in device.device_kind:
        return "the kernel is for NVIDIA GPUs"
    if float(device.compute_capability) < 8:
        return "the kernel is for compute capability 8.0 on"
    if problem.dtype not in ("bfloat16", "float16"):
        return "the kernel is for bfloat16 and float16"
    return None


def _refuse_cudnn(problem: Problem, device: Any) -> str | None:
    if reason := _refuse_nvidia(problem, device) or _refuse_terms(problem, "cuDNN's kernel"):
        return reason
    batch, queries, heads, channels = problem.query
    query = jax.ShapeDtypeStruct((batch, queries, heads, channels), problem.dtype)
    key = jax.ShapeDtypeStruct((batch, problem.keys, heads, channels), problem.dtype)
    mask = jax.ShapeDtypeStruct((batch, problem.keys), bool) if problem.masked else None

    def both_passes(query: Any, key: Any, mask: Any) -> Any:
        def attend(query: Any, key: Any) -> Any:
            return cudnn_attention.attend_by_cudnn(query, key, key, mask, problem.causal, None)

        out, pull_back = jax.vjp(attend, query, key)
        return pull_back(jnp.zeros_like(out))

    try:  # JAX checks what this version of it and the installed cuDNN can do.
        jax.eval_shape(both_passes, query, key, mask)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        return f"JAX says: {error}"
    return None


def _refuse_pallas(problem: Problem, device: Any) -> str | None:
    if problem.dtype not in tpu_attention.DTYPES:
        return f"the kernel is for {' and '.join(tpu_attention.DTYPES)}"
    if device.device_kind in ("TPU v2", "TPU v3"):
        return "these chips have no products of bfloat16 for kernels"
    if device.platform == "tpu" and problem.mesh is None and traced.may_be_split():
        return "it is not known which devices share the batch"
    batch, *rest = problem.query
    query = (batch // problem.devices // max(problem.biases, 1), *rest)
    how = problem.keys, jnp.dtype(problem.dtype).itemsize, problem.biases > 0, problem.dropped
    if tpu_attention.choose_share(query, *how) is None:
        return "a sequence does not fit into the vector memory"
    return None


# Functions that return why a kernel cannot be used, None if it can.
_REFUSALS: dict[str, Callable[[Problem, Any], str | None]] = {
    "triton": _refuse_triton,
    "cudnn": _refuse_cudnn,
    "pallas": _refuse_pallas,
}
