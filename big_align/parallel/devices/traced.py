"""Which devices the function that is being traced will run on, and where its weights are."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh


class WeightPlace(NamedTuple):
    """Where weights are split into pieces, and the type in which their gradients are summed."""

    mesh: Mesh
    sum_dtype: str


_PLACE: contextvars.ContextVar[WeightPlace | None] = contextvars.ContextVar("place", default=None)
_DEVICE: contextvars.ContextVar[Any] = contextvars.ContextVar("device", default=None)


@contextlib.contextmanager
def weights_on(mesh: Mesh | None, sum_dtype: str = "float32") -> Iterator[None]:
    """Traces layers whose weights are split over a mesh.

    No mesh means that a function is traced for one of several devices and has its weights whole.
    Gradients of weights are summed over devices in `sum_dtype`: a tower that computes in bfloat16
    makes its gradients in bfloat16; the sum of a thousand such numbers needs more.
    """
    place = _PLACE.set(None if mesh is None else WeightPlace(mesh, sum_dtype))
    device = _DEVICE.set(_DEVICE.get() if mesh is None else mesh.devices.flat[0])
    try:
        yield
    finally:
        _DEVICE.reset(device)
        _PLACE.reset(place)


def weight_place() -> WeightPlace | None:
    """Returns where the weights of the traced layer are; None where it has them whole."""
    return _PLACE.get()


def traced_device() -> Any:
    """Returns a device for which code is traced, real or described: all are of one kind."""
    device = _DEVICE.get()
    return jax.devices()[0] if device is None else device


def describing() -> contextlib.AbstractContextManager[Any]:
    """Traces kernels for `traced_device` where JAX itself would compile them for its own device."""
    device = traced_device()
    if device in jax.devices() or not jax.sharding.get_abstract_mesh().empty:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(Mesh([device], ("device",)).abstract_mesh)


def may_be_split() -> bool:
    """Returns whether XLA may have to split arrays over devices, which it cannot for a kernel."""
    return jax.device_count() > 1 and not jax.sharding.get_abstract_mesh().manual_axes
