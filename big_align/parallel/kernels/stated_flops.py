"""What a kernel of ours costs, stated in the name of its scope, where XLA cannot tell."""

import re
from contextlib import AbstractContextManager

import jax

_STATED = re.compile(r"\bkernel_flops_(\d+)\b")
_BYTES = re.compile(r"\bkernel_bytes_(\d+)\b")


def state_flops(flops: int) -> AbstractContextManager:
    """States the FLOPs of one call of the kernel that is called inside, on one device."""
    return jax.named_scope(f"kernel_flops_{flops}")


def state_bytes(count: int) -> AbstractContextManager:
    """States what the kernel moves through memory if it reads some of its operands repeatedly."""
    return jax.named_scope(f"kernel_bytes_{count}")


def read_flops(name: str) -> int | None:
    """Returns the FLOPs stated in the name of an operation, None if there are none."""
    stated = _STATED.findall(name)
    return int(stated[-1]) if stated else None


def read_bytes(name: str) -> int:
    """Returns the bytes stated in the name of an operation, 0 if there are none."""
    stated = _BYTES.findall(name)
    return int(stated[-1]) if stated else 0
