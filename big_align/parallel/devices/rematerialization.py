"""What is recomputed in the backward pass instead of being stored, in one place.

Every recomputation goes through this module, so that the FLOPs of a model can be counted without it
(`flops.model_flops`): work that a machine repeats to save memory is not progress.
"""

import bisect
import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from big_align.core.errors import check_known

LEVELS = ("none", "attention", "dots", "full")
"""What a block recomputes, each level more than the one before and with less memory: nothing; the
logits of attention, where no kernel does so anyway; all but its products and convolutions; all but
a few numbers (`keep_few`)."""
AUTO = "auto"
"""The least of `AUTO_LEVELS` with which a step fits; whoever compiles it says which (`auto_is`)."""
AUTO_LEVELS = (
    *LEVELS[:2],
    *(
        f"{level}:{Fraction(i, 12)}" if i < 12 else level
        for level in LEVELS[2:]
        for i in range(1, 13)
    ),
)
"""Levels and what lies between them: "full:5/12" is "full" for the first five twelfths of a tower's
blocks, and the level before it for the others. They are the first, since what later blocks store is
gone when the backward pass comes to them."""
_RESULT = "result"
_FEW = "few"

_LEFT_OUT = contextvars.ContextVar("recomputation is left out", default=False)
# JAX keeps traces of what a function calls, too: those inside are never taken for others.
_APART = jax.make_user_context(None)
_AUTO: contextvars.ContextVar[tuple[str, list[str]]] = contextvars.ContextVar(
    "level of auto, and who asked", default=(LEVELS[0], [])
)
_LEVEL = contextvars.ContextVar("level of the traced block", default=LEVELS[0])


@contextlib.contextmanager
def _setting(variable: contextvars.ContextVar, value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """Traces the code inside as if everything were stored; the result must not be run."""
    with _setting(_LEFT_OUT, True), _APART("left out"):
        yield


def is_left_out() -> bool:
    """Returns whether code is traced to be counted, and not to be run."""
    return _LEFT_OUT.get()


@contextlib.contextmanager
def auto_is(level: str) -> Iterator[list[str]]:
    """Traces the code inside with a level for "auto"; the list is empty if nothing asked for it."""
    asked: list[str] = []
    with _setting(_AUTO, (level, asked)), _APART(level):
        yield asked


def find_levels(remat: str, count: int) -> list[str]:
    """Returns the level of each block of a tower by its setting, which may be "auto"."""
    if _LEFT_OUT.get():
        remat = LEVELS[0]
    if remat == AUTO:
        remat, asked = _AUTO.get()
        asked.append(remat)
    level, _, share = remat.partition(":")
    if level not in LEVELS:
        check_known("remat", remat, (*LEVELS, AUTO))
    first = math.ceil(_read_share(remat, share) * count) if share else count
    before = LEVELS[max(0, LEVELS.index(level) - 1)]
    return [level] * first + [before] * (count - first)


def _read_share(remat: str, share: str) -> Fraction:
    try:
        read = Fraction(share)
    except (ValueError, ZeroDivisionError):
        read = Fraction(-1)
    if not 0 <= read <= 1:
        raise ValueError(f"remat = {remat!r}: after the colon comes a share of blocks, as in 5/12")
    return read


def find_least(count_stored: Callable[[str], int], room: int, first: str = AUTO_LEVELS[0]) -> str:
    """Returns the least of `AUTO_LEVELS`, from the first on, that stores what there is room for.

    The room is in bytes. It is the last if none does. Of those between, few are counted.
    """
    steps = AUTO_LEVELS[AUTO_LEVELS.index(first) :]
    if count_stored(first) <= room:
        return first
    last = len(steps) - 1
    place = bisect.bisect_left(steps, True, 1, last, key=lambda level: count_stored(level) <= room)
    return steps[min(place, last)]


def take_room(limit: int, room: int, stored: int, used: int | None) -> int:
    """Returns the room for what is stored, in bytes, after a program that took more than a limit.

    It was compiled to store so much, and used so much in all. Where the compiler does not say that,
    the room shrinks by a fiftieth of the limit, and then by twice as much each time.
    """
    excess = max(limit // 50, 2 * (limit - room)) if used is None else max(0, used - limit)
    return min(room, stored) - excess


def remat_block(block_class: type[nn.Module], train: int, level: str) -> type[nn.Module]:
    """Returns a class of blocks that store what a level says; `train` is an argument's index."""
    if level in ("none", "attention"):
        return block_class
    return nn.remat(block_class, static_argnums=(train,), policy=_POLICIES[level])


def remat_body(body: Callable[..., Any], level: str = "full") -> Callable[..., Any]:
    """Returns a loop body that stores what a level says; loops need no protection from CSE."""
    if _LEFT_OUT.get() or level in ("none", "attention"):
        return body
    return jax.checkpoint(body, prevent_cse=False, policy=_POLICIES[level])


def in_block(level: str) -> contextlib.AbstractContextManager[None]:
    """Traces the layers inside as those of a block with a level."""
    return _setting(_LEVEL, level)


def remat_attention(attend: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that stores only its inputs, if the level of its block is "attention"."""
    return jax.checkpoint(attend) if _LEVEL.get() == LEVELS[1] else attend


def keep_result(x: Any) -> Any:
    """Marks what "dots" stores, as it does products: what a kernel, or one with a product, writes.

    Where a bias or a residual branch is added by the product's kernel, the product alone is nowhere
    in memory, and what is made of it is as large.
    """
    return checkpoint_name(x, _RESULT)


def keep_few(x: Any) -> Any:
    """Marks few numbers that took a pass over many, which every level stores."""
    return checkpoint_name(x, _FEW)


def _is_product(primitive: Any, *_: Any, **parameters: Any) -> bool:
    """Whether an operation is a convolution, cuDNN's attention, or a product of rows."""
    if primitive is jax.lax.dot_general_p:
        _, (batched, _) = parameters["dimension_numbers"]
        return not batched  # else it is one of the products in attention
    names = "conv_general_dilated", "dot_product_attention_fwd_wrapper"
    return primitive.name in names


_POLICIES: dict[str, Callable[..., Any]] = {
    "dots": jax.checkpoint_policies.save_from_both_policies(
        _is_product, jax.checkpoint_policies.save_only_these_names(_RESULT, _FEW)
    ),
    "full": jax.checkpoint_policies.save_only_these_names(_FEW),
}


def recompute(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function whose results an earlier pass computed but did not store."""
    if not _LEFT_OUT.get():
        return function(*arguments)
    shapes = jax.eval_shape(function, *arguments)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
