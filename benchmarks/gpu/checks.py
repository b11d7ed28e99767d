"""Every way of computing a loss or attention against the plain formula, on the device.

The plain formula is computed in float32 at the highest precision, from the same, already rounded
arrays. An error is the largest difference over the largest magnitude, of the result and of each
gradient.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu import ways
from benchmarks.gpu.calls import explain
from benchmarks.gpu.session import Session
from benchmarks.gpu.tables import Row
from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.losses.cluster_discrimination import mlcd_loss
from big_align.losses.contrastive import contrastive_loss
from big_align.losses.sampled_cluster_discrimination import sampled_cluster_loss
from big_align.losses.sigmoid import blockwise_sigmoid_loss, sigmoid_loss
from big_align.models.parts.attention import attend
from big_align.parallel.kernels.attention_dropout import Dropout

BOUNDS = {"float32": 5e-3, "bfloat16": 3e-2}
"""Largest errors: NVIDIA multiplies float32 with 10 bits of mantissa, and bfloat16 has 7."""


class Tokens(NamedTuple):
    """What attention is checked with."""

    name: str
    count: int
    batch: int = 8
    text: bool = False  # causal, and of several lengths
    biases: int = 0  # that examples have by turns
    rate: float = 0.0  # of dropout


TOKENS = (
    *(Tokens("images", 50), Tokens("images", 257), Tokens("images", 577)),
    *(Tokens("texts", 77, text=True), Tokens("texts with dropout", 40, text=True, rate=0.1)),
    # So many that a program has several windows with the same bias.
    *(Tokens("windows", 49, 1024, biases=4), Tokens("windows with dropout", 49, 8, False, 4, 0.1)),
)
FEW_TOKENS = (
    *(Tokens("images", 12, 2), Tokens("texts", 19, 2, text=True)),
    *(Tokens("windows", 9, 2, biases=2), Tokens("texts with dropout", 7, 2, True, 0, 0.5)),
)


class Case(NamedTuple):
    """A function to differentiate in several ways, with respect to all of its arrays."""

    name: str
    arrays: tuple[Any, ...]  # float32
    plain: Callable[..., Any]  # the formula: returns what is differentiated, and the result
    computed: dict[str, Callable[..., Any]]  # the same by the name of the way
    rounded: int  # how many of the arrays, from the first, are of the type that is checked
    fixed: tuple[Any, ...] = ()
    """Further arguments, of which there are no gradients; as constants of the program they would be
    computed with while it is compiled."""


def draw_unit(seed: int, rows: int, width: int, dtype: str = "float32") -> jax.Array:
    """Returns random rows of unit length."""
    x = jax.random.normal(jax.random.key(seed), (rows, width))
    return (x / jnp.linalg.norm(x, axis=1, keepdims=True)).astype(dtype)


def _softmax(tiny: bool) -> Iterator[Case]:
    rng = np.random.default_rng(0)
    for name, b, c, width in (("pairs", 2048, 2048, 512), ("labels and masks", 1531, 2045, 384)):
        b, c, width = (b // 32, c // 32, 16) if tiny else (b, c, width)
        given: dict[str, Any] = {}
        if name != "pairs":
            label = jnp.asarray(rng.integers(0, 300, c), jnp.int32)
            given = {
                "image_label": label[:b],
                "text_label": label,
                "image_mask": jnp.asarray(rng.random(b) < 0.9),
                "text_mask": jnp.asarray(rng.random(c) < 0.9),
                "text_queries": label < 250,
                "label_smoothing": 0.1,
            }
        arrays = draw_unit(0, b, width), draw_unit(1, c, width), jnp.float32(20.0)
        yield _make(
            f"softmax, {name}",
            arrays,
            lambda *x, given=given: sum(contrastive_loss(*x, **given)),
            lambda *x, given=given, **way: sum(blockwise_contrastive_loss(*x, **given, **way)),
            ways.CHECKED,
        )
        given = {k: v for k, v in given.items() if k not in ("text_queries", "label_smoothing")}
        yield _make(
            f"sigmoid, {name}",
            (*arrays[:2], jnp.float32(10.0), jnp.float32(-7.0)),
            functools.partial(sigmoid_loss, **given),
            functools.partial(blockwise_sigmoid_loss, **given),
            ways.CHECKED,
        )


def _make(
    name: str,
    arrays: tuple,
    plain: Callable,
    ours: Callable,
    table: ways.Ways,
    rounded: int = 2,
    fixed: tuple = (),
) -> Case:
    """Makes the case of a loss, which is what is differentiated and also the result."""
    computed = {way: _twice(functools.partial(ours, **given)) for way, given in table.items()}
    return Case(name, arrays, _twice(plain), computed, rounded, fixed)


def _twice(loss: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    return lambda *arrays: 2 * (loss(*arrays),)


def _centers(tiny: bool) -> Iterator[Case]:
    rng = np.random.default_rng(1)
    b, k, width = (24, 96, 16) if tiny else (1531, 8192, 512)
    labels = jnp.asarray(rng.integers(-1, k, (b, 8)), jnp.int32)
    sampled = jnp.asarray(rng.random(k) < 0.3)

    def plain(x: jax.Array, centers: jax.Array, labels: Any, sampled: Any) -> jax.Array:
        return mlcd_loss(x, centers, labels, sampled=jnp.where(sampled, jnp.arange(k), -1))

    def ours(x: jax.Array, centers: jax.Array, labels: Any, sampled: Any, **way: Any) -> jax.Array:
        real = jnp.ones(k, bool)
        return sampled_cluster_loss("mlcd", x, centers, real, labels, sampled=sampled, **way)[0]

    centers = jax.random.normal(jax.random.key(2), (k, width)) / width**0.5
    yield _make(
        "centers",
        (draw_unit(0, b, width), centers),
        plain,
        ours,
        ways.CHECKED,
        rounded=1,  # the table is float32
        fixed=(labels, sampled),
    )


def plain_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    dropout: Dropout | None = None,
    causal: bool = False,
) -> jax.Array:
    """Attention as a formula, as `attend` takes it; the result of a query without keys is zero."""
    logits = jnp.einsum("bqhc,bkhc->bhqk", query, key) / query.shape[-1] ** 0.5
    if bias is not None:
        logits += bias[jnp.arange(len(query)) % len(bias)]
    seen = jnp.ones(logits.shape[-2:], bool)
    seen = jnp.tril(seen) if causal else seen
    seen = seen if mask is None else seen & mask[:, None, None, :]
    powers = jnp.where(seen, jnp.exp(logits - logits.max(-1, keepdims=True)), 0.0)
    total = powers.sum(-1, keepdims=True)
    weights = powers / jnp.where(total > 0, total, 1.0)
    if dropout is not None:
        weights *= dropout.apply(jnp.ones_like(weights))
    return jnp.einsum("bhqk,bkhc->bqhc", weights, value)


def _attention(tiny: bool) -> Iterator[Case]:
    heads, width = (2, 8) if tiny else (12, 64)
    for tokens in FEW_TOKENS if tiny else TOKENS:
        shape = tokens.batch, tokens.count, heads, width
        *arrays, weights = (jax.random.normal(jax.random.key(n), shape) for n in range(4))
        if tokens.biases:
            pairs = tokens.biases, heads, tokens.count, tokens.count
            arrays.append(jax.random.normal(jax.random.key(4), pairs))
        terms: dict[str, Any] = {"mask": None, "dropout": None, "causal": tokens.text}
        if tokens.rate:
            terms["dropout"] = Dropout(tokens.rate, jax.random.key(5))
        if tokens.text:
            real = jnp.linspace(1, tokens.count, tokens.batch).astype(jnp.int32)
            terms["mask"] = jnp.arange(tokens.count) < real[:, None]

        def weigh(y: jax.Array, weights: jax.Array = weights, mask: Any = terms["mask"]) -> Any:
            # Whatever padding is as a query does not matter.
            y = y.astype(jnp.float32)
            y = y if mask is None else y * mask[..., None, None]
            return (y * weights).sum(), y

        def compute(
            *x: Any, attention: Callable[..., Any], weigh=weigh, terms=terms, **way: Any
        ) -> Any:
            bias = x[3] if len(x) > 3 else None
            return weigh(attention(*x[:3], bias=bias, **terms, **way))

        plain = functools.partial(compute, attention=plain_attention)
        computed = {
            name: functools.partial(compute, attention=attend, **way)
            for name, way in ways.ATTENTION.items()
        }
        name = f"attention, {tokens.name}, {tokens.count} tokens"
        yield Case(name, tuple(arrays), plain, computed, rounded=3)


def check(session: Session, make: Callable[[bool], Iterator[Case]]) -> list[Row]:
    """Compares every way of some cases with the plain formula, in both types."""
    rows = []
    for case in make(session.tiny):
        exact = differentiate(case.plain, len(case.arrays))
        for dtype, limit in list(BOUNDS.items())[-1 if session.tiny else 0 :]:
            rounded = [
                x.astype(dtype) if n < case.rounded else x for n, x in enumerate(case.arrays)
            ]
            with jax.default_matmul_precision("highest"):
                expected = exact(*(x.astype(jnp.float32) for x in rounded), *case.fixed)
            for way, function in case.computed.items():
                if way in ways.ONLY_BFLOAT16 and dtype != "bfloat16":
                    continue
                row: Row = {"what": f"{case.name}, {dtype}, {way}"}
                try:
                    got = differentiate(function, len(rounded))(*rounded, *case.fixed)
                    errors = compare(got, expected)
                    met = max(errors) <= limit
                    row |= {"error": max(errors), "errors": errors, "limit": limit, "met": met}
                except Exception as error:  # one way that fails must not hide the others
                    row |= {"failed": explain(error), "met": False}
                rows.append(row)
    return rows


def differentiate(function: Callable[..., Any], count: int) -> Callable[..., list[jax.Array]]:
    """Compiles a function to one that returns its result, and the gradients of some arguments."""
    derivative = jax.grad(function, argnums=tuple(range(count)), has_aux=True)
    compiled = jax.jit(derivative)

    def call(*arrays: jax.Array) -> list[jax.Array]:
        gradients, result = compiled(*arrays)
        return [result, *gradients]

    return call


def compare(got: list[jax.Array], expected: list[jax.Array]) -> list[float]:
    """Returns the largest difference of each over its largest magnitude; inf for NaN."""
    errors = []
    for x, y in zip(got, expected, strict=True):
        x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
        error = np.abs(x - y).max() / max(np.abs(y).max(), np.finfo(np.float32).tiny)
        errors.append(float(error) if np.isfinite(error) else float("inf"))
    return errors


def check_softmax(session: Session) -> list[Row]:
    """Checks the losses over pairs."""
    return check(session, _softmax)


def check_centers(session: Session) -> list[Row]:
    """Checks the loss over drawn centers."""
    return check(session, _centers)


def check_attention(session: Session) -> list[Row]:
    """Checks attention: images, texts with masks, windows with biases, and dropout."""
    return check(session, _attention)
