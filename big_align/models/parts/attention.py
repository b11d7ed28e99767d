"""Scaled dot-product attention, with masks and rotary positions."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from big_align.devices import choices, rematerialization, traced
from big_align.kernels import attention_ways, cudnn_attention, tpu_attention
from big_align.models.parts import layers

Drop = Callable[[Array], Array]


def attend(
    query: Float[Array, "b q heads c"],
    key: Float[Array, "b k heads c"],
    value: Float[Array, "b k heads c"],
    mask: Bool[Array, "b k"] | None,
    drop: Drop | None = None,
    causal: bool = False,
    way: str = "auto",
) -> Float[Array, "b q heads c"]:
    """Scaled dot-product attention with its softmax in float32.

    Args:
      query: queries.
      key: keys that queries are compared with.
      value: values to be averaged.
      mask: True where a key may be attended to; None if all may.
      drop: applied to the weights, which have shape [b heads q k]; None if nothing is.
      causal: whether a query attends to no key after its own position.
      way: how it is computed, a name in `attention_ways.WAYS`.

    Returns:
      The weighted means of the values; zero for a row that may not attend to any key.

    Raises:
      ValueError: `way` is another name.
    """
    if rematerialization.is_left_out():
        return _attend_plainly(query, key, value, mask, drop, causal)
    place, device = traced.weight_place(), traced.traced_device()
    mesh = None if place is None else place.mesh
    problem = attention_ways.Problem(
        query=query.shape,
        keys=key.shape[1],
        dtype=query.dtype.name,
        causal=causal,
        masked=mask is not None,
        dropped=drop is not None,
        mesh=mesh,
    )
    taken, line = attention_ways.choose_way(way, problem, device)
    choices.note(line)
    mesh = None if problem.devices == 1 else mesh
    match taken:
        case "cudnn":
            return cudnn_attention.attend_by_cudnn(query, key, value, mask, causal, mesh)
        case "pallas":
            emulated = device.platform != "tpu"
            return tpu_attention.attend_on_tpu(query, key, value, mask, causal, mesh, emulated)
    plain = rematerialization.remat_attention(
        lambda query, key, value: _attend_plainly(query, key, value, mask, drop, causal)
    )
    return plain(query, key, value)


def _attend_plainly(
    query: Array, key: Array, value: Array, mask: Array | None, drop: Drop | None, causal: bool
) -> Array:
    query = query * query.shape[-1] ** -0.5
    logits = jnp.einsum("bqhc,bkhc->bhqk", query, key, preferred_element_type=jnp.float32)
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
    weights = weights.astype(value.dtype)
    weights = weights if drop is None else drop(weights)
    return jnp.einsum("bhqk,bkhc->bqhc", weights, value)


def make_drop(rate: float, train: bool) -> Drop | None:
    """Makes dropout of weights in the calling module; None where it would change nothing.

    Args:
      rate: probability that a weight is set to zero.
      train: whether dropout is on.
    """
    return nn.Dropout(rate, deterministic=False) if rate and train else None


def rotate(
    x: Float[Array, "b l heads c"], angles: Float[Array, "l half"]
) -> Float[Array, "b l heads c"]:
    """Rotates pairs of channels, so that products of two tokens depend on differences of angles.

    Rotary positions (Su et al., 2021); channel i is rotated together with channel i + c / 2.

    Args:
      x: queries or keys.
      angles: radians for each token and pair of channels.

    Returns:
      The rotated array, computed in float32, in the type of `x`.
    """
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def project_heads(
    x: Float[Array, "*b l c"], heads: int, dtype: str
) -> tuple[Float[Array, "*b l heads d"], ...]:
    """Makes queries, keys and values with layers "query", "key" and "value" of the calling module.

    Args:
      x: tokens.
      heads: number of heads; divides the width.
      dtype: name of the type of the computation.

    Returns:
      Queries, keys and values.

    Raises:
      ValueError: the width is not a multiple of the number of heads.
    """
    width = x.shape[-1]
    if width % heads:
        raise ValueError(f"width={width} is not a multiple of heads={heads}")
    made = (
        layers.Dense(width, ("embed", "heads"), dtype=dtype, name=name)(x)
        for name in ("query", "key", "value")
    )
    return tuple(y.reshape(*x.shape[:-1], heads, -1) for y in made)


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al., 2017).

    Args:
      heads: number of heads; divides the width.
      dropout: rate on the attention weights.
      dtype: name of the type of the computation.
      causal: whether a token does not attend to those after it.
      way: how it is computed, a name in `attention_ways.WAYS`.
    """

    heads: int
    dropout: float = 0.0
    dtype: str = "float32"
    causal: bool = False
    way: str = "auto"

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b l c"],
        mask: Bool[Array, "b l"] | None,
        train: bool,
        angles: Float[Array, "l half"] | None = None,
    ) -> Float[Array, "b l c"]:
        """Lets every token attend to the real ones.

        Args:
          x: tokens.
          mask: True on real tokens; None if all are.
          train: whether dropout is on.
          angles: angles by which queries and keys are rotated (see `rotate`); None for no rotation.

        Returns:
          Tokens of the same shape.

        Raises:
          ValueError: the width is not a multiple of the number of heads, or `way` is unknown.
        """
        query, key, value = project_heads(x, self.heads, self.dtype)
        if angles is not None:
            query, key = rotate(query, angles), rotate(key, angles)
        drop = make_drop(self.dropout, train)
        y = attend(query, key, value, mask, drop, self.causal, self.way).reshape(x.shape)
        return layers.Dense(x.shape[-1], ("heads", "embed"), dtype=self.dtype, name="out")(y)
