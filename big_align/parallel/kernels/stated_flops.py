"""FLOPs that a kernel states in the name of its scope, where it cannot give a `cost_estimate`."""

import re
from contextlib import AbstractContextManager

import jax

_STATED = re.compile(r"\bkernel_flops_(\d+)\b")


def state_flops(flops: int) -> AbstractContextManager:
    """States the FLOPs of one call of the kernel that is called inside, on one device."""
    return jax.named_scope(f"kernel_flops_{flops}")


def read_flops(name: str) -> int | None:
    """Returns the FLOPs stated in the name of an operation, None if there are none."""
    stated = _STATED.findall(name)
    return int(stated[-1]) if stated else None
