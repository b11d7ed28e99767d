"""Attention on NVIDIA GPUs by cuDNN, which does not write its weights to memory."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from big_align.parallel.shards import map_rows


def attend_by_cudnn(
    query: Float[Array, "b q heads c"],
    key: Float[Array, "b k heads c"],
    value: Float[Array, "b k heads c"],
    mask: Bool[Array, "b k"] | None,
    causal: bool,
    mesh: Mesh | None,
    real: int | None = None,
) -> Float[Array, "b q heads c"]:
    """Computes what `models.parts.attention.attend` does, of bfloat16 or float16, without dropout.

    JAX passes it only even numbers of tokens. So one may be added, which is not attended to:
    without a mask, the first `real` keys may be. JAX's primitive of the forward pass is named
    "dot_product_attention_fwd_wrapper", for policies of `jax.checkpoint`; its results are the
    output and the logarithms of the sums.
    """

    def on_device(_: tuple, arrays: tuple) -> Array:
        return _attend(*arrays, causal, real)

    arrays = query, key, value, mask
    return on_device((), arrays) if mesh is None else map_rows(on_device, (), arrays, mesh)


def pad_tokens(tokens: int) -> int:
    """Returns the number of tokens that cuDNN is given."""
    return tokens + tokens % 2


def _attend(
    query: Array, key: Array, value: Array, mask: Array | None, causal: bool, real: int | None
) -> Array:
    (batch, queries), keys = query.shape[:2], real or key.shape[1]
    visible = None if mask is None else _find_visible(mask, queries, causal)
    settings = {"is_causal": causal} if visible is None else {"mask": _fill_rows(visible)}
    if visible is None and (queries % 2 or keys % 2 or real):
        settings["query_seq_lengths"] = jnp.full((batch,), queries, jnp.int32)
        settings["key_value_seq_lengths"] = jnp.full((batch,), keys, jnp.int32)
    given = (_pad(x) for x in (query, key, value))
    out = jax.nn.dot_product_attention(*given, implementation="cudnn", **settings)[:, :queries]
    if visible is None:
        return out
    # No gradient passes a row without a key, whatever the kernel has computed for it.
    return jnp.where(visible.any(-1)[:, :queries, None, None], out, 0)


def _find_visible(mask: Array, queries: int, causal: bool) -> Bool[Array, "b q k"]:
    """Returns which keys a query may attend to, with as many of both as cuDNN is given."""
    shape = len(mask), pad_tokens(queries), pad_tokens(mask.shape[1])
    visible = jnp.broadcast_to(jnp.pad(mask, ((0, 0), (0, mask.shape[1] % 2)))[:, None], shape)
    return visible & jnp.tril(jnp.ones(shape[1:], bool)) if causal else visible


def _fill_rows(visible: Array) -> Bool[Array, "b 1 q k"]:
    """Lets a query without any key attend to all of them: a softmax over none is not finite."""
    return (visible | ~visible.any(-1, keepdims=True))[:, None]


def _pad(x: Array) -> Array:
    return jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0)))
