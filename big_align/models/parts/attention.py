"""Scaled dot-product attention, with masks and rotary positions."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from big_align.models.parts import layers
from big_align.parallel.devices import choices, rematerialization, traced
from big_align.parallel.kernels import (
    attention_ways,
    cudnn_attention,
    tpu_attention,
    triton_attention,
)
from big_align.parallel.kernels.attention_dropout import Dropout
from big_align.parallel.kernels.attention_kernels import Terms

AWAY = -1e30
"""A bias that keeps a key away from a query which has other keys."""


def attend(
    query: Float[Array, "b q heads c"],
    key: Float[Array, "b k heads c"],
    value: Float[Array, "b k heads c"],
    mask: Bool[Array, "b k"] | None,
    *,
    bias: Float[Array, "n heads q k"] | None = None,
    dropout: Dropout | None = None,
    causal: bool = False,
    way: str = "auto",
    keys: int | None = None,
) -> Float[Array, "b q heads c"]:
    """Scaled dot-product attention with its softmax in float32; zero for a row without any key.

    Args:
      query: queries.
      key: keys that queries are compared with.
      value: values to be averaged.
      mask: True where a key may be attended to; None if all may.
      bias: finite numbers that are added to the logits, to those of example i the bias i % n, as
        for the windows of an image; n divides b.
      dropout: which weights are set to zero.
      causal: whether a query attends to no key after its own position.
      way: how it is computed, a name in `attention_ways.WAYS`.
      keys: number of the first keys that may be attended to, instead of a mask.
    """
    if bias is not None and query.shape[0] % len(bias):
        raise ValueError(f"{len(bias)} biases do not divide {query.shape[0]} examples")
    terms = Terms(mask, bias, dropout, causal)
    if rematerialization.is_left_out():
        return _attend_plainly(query, key, value, terms)
    problem = _describe(
        query.shape,
        key.shape[1],
        query.dtype.name,
        causal=causal,
        masked=mask is not None,
        dropped=dropout is not None,
        biases=0 if bias is None else len(bias),
    )
    device = traced.traced_device()
    taken, line = attention_ways.choose_way(way, problem, device)
    if keys is None:  # otherwise `pad_tokens` has told
        choices.note(line)
    mesh = None if problem.devices == 1 else problem.mesh
    if taken == "cudnn":
        return cudnn_attention.attend_by_cudnn(query, key, value, mask, causal, mesh, keys)
    if keys is not None:
        first = jnp.broadcast_to(jnp.arange(key.shape[1]) < keys, key.shape[:2])
        terms = terms._replace(mask=first)
    match taken:
        case "pallas":
            emulated = device.platform != "tpu"
            return tpu_attention.attend_on_tpu(query, key, value, terms, mesh, emulated)
        case "triton":
            emulated = device.platform != "gpu"
            return triton_attention.attend_by_triton(query, key, value, terms, mesh, emulated)
    plain = rematerialization.remat_attention(lambda *arrays: _attend_plainly(*arrays, terms))
    return plain(query, key, value)


def _attend_plainly(query: Array, key: Array, value: Array, terms: Terms) -> Array:
    query = query * query.shape[-1] ** -0.5
    logits = jnp.einsum("bqhc,bkhc->bhqk", query, key, preferred_element_type=jnp.float32)
    mask, bias, dropout, causal = terms
    if bias is not None:
        by_bias = logits.reshape(-1, *bias.shape)
        logits = (by_bias + bias).reshape(logits.shape)
    if mask is not None or causal:
        real = True if mask is None else mask[:, None, None, :]
        if causal:
            real &= jnp.tril(jnp.ones(logits.shape[-2:], bool))
        # A finite fill value keeps the softmax of a row without real keys finite; its weights are
        # then set to zero, so that padding never reaches the result.
        logits = jnp.where(real, logits, jnp.finfo(jnp.float32).min)
        weights = jnp.where(real, jax.nn.softmax(logits), 0.0)
    else:
        weights = jax.nn.softmax(logits)
    weights = weights if dropout is None else dropout.apply(weights)
    return jnp.einsum("bhqk,bkhc->bqhc", weights.astype(value.dtype), value)


def _describe(query: tuple, keys: int, dtype: str, **rest: Any) -> attention_ways.Problem:
    place = traced.weight_place()
    mesh = None if place is None else place.mesh
    return attention_ways.Problem(query=query, keys=keys, dtype=dtype, mesh=mesh, **rest)


class Tokens(NamedTuple):
    """What the blocks of a tower are given."""

    x: Array  # [b l c]
    mask: Array | None  # True on real tokens [b l]; None if all of the first `keys` are
    angles: Array | None  # as `rotate` takes them [*b l half]
    keys: int | None = None  # number of real tokens, the first; None if there is a mask or all are


def pad_tokens(tokens: Tokens, heads: int, dropped: bool, causal: bool, way: str) -> Tokens:
    """Adds a token to which none attends where attention takes a kernel for even numbers only.

    Done here, once, it saves each block from copying queries, keys and values. `dropped` says
    whether dropout is applied to the weights.
    """
    x, mask, angles, _ = tokens
    heads = heads if x.shape[-1] % heads == 0 else 1  # of no use: `project_heads` says so
    batch, count, width = x.shape
    rest = dict(causal=causal, masked=mask is not None, dropped=dropped)
    problem = _describe((batch, count, heads, width // heads), count, x.dtype.name, **rest)
    taken, line = attention_ways.choose_way(way, problem, traced.traced_device())
    more = cudnn_attention.pad_tokens(count) - count if taken == "cudnn" else 0
    if not more or rematerialization.is_left_out():
        return tokens
    choices.note(line)
    x = jnp.pad(x, ((0, 0), (0, more), (0, 0)))
    mask = None if mask is None else jnp.pad(mask, ((0, 0), (0, more)))
    angles = (
        None
        if angles is None
        else jnp.pad(angles, (*[(0, 0)] * (angles.ndim - 2), (0, more), (0, 0)))
    )
    return Tokens(x, mask, angles, count if mask is None else None)


def make_dropout(module: nn.Module, rate: float, train: bool) -> Dropout | None:
    """Draws which weights a module drops; None where nothing would change."""
    return Dropout(rate, module.make_rng("dropout")) if rate and train else None


def rotate(
    x: Float[Array, "b l heads c"], angles: Float[Array, "*b l half"]
) -> Float[Array, "b l heads c"]:
    """Rotates pairs of channels, so that products of two tokens depend on differences of angles.

    Rotary positions (Su et al., 2021); channel i is rotated together with channel i + c / 2, in
    float32. The angles are those of all examples or of each. The result has the type of `x`.
    """
    cos, sin = (wave(angles)[..., None, :] for wave in (jnp.cos, jnp.sin))
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def project_heads(
    x: Float[Array, "*b l c"], heads: int, dtype: str
) -> tuple[Float[Array, "*b l heads d"], ...]:
    """Makes queries, keys and values with layers "query", "key", "value" of the calling module."""
    width = x.shape[-1]
    if width % heads:
        raise ValueError(f"width={width} is not a multiple of heads={heads}")
    axes, names = ("embed", "heads"), ("query", "key", "value")
    three = [layers.DenseWeights(width, axes, dtype=dtype, name=name) for name in names]
    made = layers.apply_together(x, three)
    return tuple(y.reshape(*x.shape[:-1], heads, -1) for y in made)


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al., 2017), with dropout on the weights."""

    heads: int
    dropout: float = 0.0
    dtype: str = "float32"
    causal: bool = False
    way: str = "auto"
    keys: int | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b l c"],
        mask: Bool[Array, "b l"] | None,
        train: bool,
        angles: Float[Array, "*b l half"] | None = None,
    ) -> Float[Array, "b l c"]:
        """Lets every token attend to the real ones; `angles` rotate queries and keys."""
        query, key, value = project_heads(x, self.heads, self.dtype)
        if angles is not None:
            query, key = rotate(query, angles), rotate(key, angles)
        dropout = make_dropout(self, self.dropout, train)
        how = dict(dropout=dropout, causal=self.causal, way=self.way, keys=self.keys)
        y = attend(query, key, value, mask, **how).reshape(x.shape)
        return layers.Dense(x.shape[-1], ("heads", "embed"), dtype=self.dtype, name="out")(y)
