"""Softmax over the pairs of a batch, in blocks of rows over the devices of a mesh.

The same numbers and gradients as `contrastive_loss`, without the full logits matrix.

Each device holds its images x and gathers all texts y. One matrix product S = scale * x y^T serves
both directions: rows are normalized at once, columns by a running (maximum, sum of exponentials)
over the blocks of rows and then over the devices. With A_i and B_j the weight of a row in either
direction (one over the number of rows that take part, or 0), the gradient with respect to the
logits is

    dS_ij = A_i exp(S_ij - row_lse_i) + B_j exp(S_ij - col_lse_j) - target_i [i and j are positive]
    dx = scale * dS y      dy = scale * dS^T x, summed over devices      dscale = sum(x * (dS y))

which takes four matrix products, or three if the logits were kept from the forward pass. The target
does not depend on j, because equal labels have equal numbers of positives. Positives are subtracted
within dS, before it is rounded to the precision of the embeddings: 1 - P can be far smaller than P.
Label smoothing is bilinear in weighted sums of embeddings, so it needs no matrix at all.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from big_align.losses.arguments import check_arrays
from big_align.losses.blocks import Block, Blocks, choose_blocks
from big_align.losses.contrastive import compute_cosines
from big_align.losses.explicit_axes import on_any_mesh, vary_like
from big_align.losses.rows import wide
from big_align.losses.targets import (
    Labels,
    Weights,
    arrange_pairs,
    check_smoothing,
    weigh_evenly,
    weigh_labels,
)
from big_align.losses.tile_functions import Sums, add_sums, differentiate_pairs, normalize_pairs
from big_align.parallel.devices.rematerialization import recompute
from big_align.parallel.shards import Shards

Losses = tuple[Float[Array, ""], Float[Array, ""]]
_LOWEST = -1e30  # the maximum of nothing; finite, so that differences are never NaN


@check_arrays
@on_any_mesh
def blockwise_contrastive_loss(
    zimg: Float[Array, "b d"],
    ztxt: Float[Array, "c d"],
    scale: Float[Array, ""] | float,
    *,
    image_label: Int[Array, " b"] | None = None,
    text_label: Int[Array, " c"] | None = None,
    image_mask: Bool[Array, " b"] | None = None,
    text_mask: Bool[Array, " c"] | None = None,
    text_queries: Bool[Array, " c"] | None = None,
    label_smoothing: float = 0.0,
    mesh: Mesh | Shards | None = None,
    block: Block = None,
    keep_logits_bytes: int = 2**28,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns what `big_align.contrastive_loss` returns, in less memory.

    Besides its arguments, a device needs memory for a few blocks [block c], for all texts [c d]
    and, if they fit in `keep_logits_bytes`, for its own logits. In tiles it needs memory for slopes
    in bfloat16 instead, for 512 MiB or 1024 rows at a time, and for no logits.

    The arguments that are not listed are those of `big_align.contrastive_loss`.

    Args:
      mesh: the devices that share the work, over all axes of a mesh, or over those of a
        `big_align.Shards(mesh, axes)`; None computes in one piece.
      block: rows of logits that a device computes at a time, or "tiles", which never writes them to
        memory; None for tiles on NVIDIA H100 and H200 in bfloat16 with jax 0.11, if the batch is
        large, or else for 256 or, on GPUs, for as many as make 256 MiB. On other devices, tiles are
        slow.
      keep_logits_bytes: the logits of a device are kept for the backward pass if they are no larger
        than this, which saves one of four matrix products; in tiles they are not.

    Returns:
      Two scalars, image-to-text and text-to-image, float32.

    Raises:
      ValueError: as for `big_align.contrastive_loss`, and if `block` is not positive.
      TypeError: an array has another type, or `mesh` is no mesh.

    Examples:
      The value is that of the plain formula; a block here holds 100 x 1000 logits:

      >>> import jax
      >>> import jax.numpy as jnp
      >>> import big_align
      >>> z = jax.random.normal(jax.random.key(0), (2, 1000, 64))
      >>> zimg, ztxt = z / jnp.linalg.norm(z, axis=-1, keepdims=True)
      >>> plain = big_align.contrastive_loss(zimg, ztxt, 10.0)
      >>> blockwise = big_align.blockwise_contrastive_loss(zimg, ztxt, 10.0, block=100)
      >>> bool(jnp.allclose(jnp.stack(plain), jnp.stack(blockwise), rtol=1e-5))
      True
    """
    check_smoothing(label_smoothing)
    shards = Shards.over(mesh)
    dtype = zimg.dtype if zimg.dtype == ztxt.dtype else wide(zimg.dtype)
    blocks = choose_blocks("contrastive loss", len(zimg), len(ztxt), shards, block, dtype)
    zimg, ztxt, labels = arrange_pairs(
        zimg, ztxt, image_label, text_label, image_mask, text_mask, blocks.multiples
    )
    dtype = wide(zimg.dtype)
    if not len(zimg) or not len(ztxt):
        return jnp.zeros((), dtype), jnp.zeros((), dtype)  # there is nothing to cut into blocks
    size = len(zimg) * len(ztxt) * dtype.itemsize
    keeps = blocks.compare is None and size <= keep_logits_bytes * shards.size
    if text_queries is not None:
        text_queries = jnp.pad(text_queries, (0, len(ztxt) - len(text_queries)))
    weights = weigh_labels(labels, text_queries, label_smoothing, dtype)
    scale = jnp.asarray(scale, dtype)
    arguments = zimg, ztxt, scale, labels, weights
    i2t, t2i = _contrast(blocks, keeps, *vary_like(arguments, arguments))
    if label_smoothing > 0:
        smooth = functools.partial(_sum_logits, zimg, ztxt, label_smoothing * scale)
        i2t -= smooth(weights.row, weigh_evenly(labels.column >= 0, dtype))
        t2i -= smooth(weigh_evenly(labels.row >= 0, dtype), weights.column)
    return i2t, t2i


def _sum_logits(
    zimg: Float[Array, "b d"],
    ztxt: Float[Array, "c d"],
    scale: Float[Array, ""],
    row: Float[Array, " b"],
    column: Float[Array, " c"],
) -> Float[Array, ""]:
    """Returns the sum of row_i logit_ij column_j over all pairs, without computing any logit."""
    images = (row[:, None] * zimg.astype(row.dtype)).sum(axis=0)
    texts = (column[:, None] * ztxt.astype(row.dtype)).sum(axis=0)
    return scale * (images * texts).sum()


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _contrast(
    blocks: Blocks,
    keeps: bool,
    zimg: Float[Array, "b d"],
    ztxt: Float[Array, "c d"],
    scale: Float[Array, ""],
    labels: Labels,
    weights: Weights,
) -> Losses:
    """Returns both losses, differentiable with respect to the embeddings and the scale.

    If `keeps`, the logits are kept for the backward pass, as cosines.
    """
    return _forward(blocks, False, zimg, ztxt, scale, labels, weights)[0]


def _forward(
    blocks: Blocks,
    keeps: bool,
    zimg: Float[Array, "b d"],
    ztxt: Float[Array, "c d"],
    scale: Float[Array, ""],
    labels: Labels,
    weights: Weights,
) -> tuple[Losses, Any]:
    """Returns both losses, and what the backward pass needs."""
    (row_lse, positive, cosines), column_lse = blocks.shards.run(
        functools.partial(_normalize, blocks, keeps), (zimg, ztxt, labels), scale
    )
    # Sums of products, not dot products, whose factors accelerators round by default.
    i2t = (weights.row * row_lse - weights.row_positive * positive).sum()
    t2i = (weights.column * column_lse).sum() - (weights.column_positive * positive).sum()
    return (i2t, t2i), (zimg, ztxt, scale, labels, weights, row_lse, column_lse, cosines)


def _backward_rule(blocks: Blocks, keeps: bool, residuals: Any, cotangents: Losses) -> tuple:
    """Scales the weights by the cotangents of the two losses, and differentiates."""
    zimg, ztxt, scale, labels, weights, row_lse, column_lse, cosines = residuals
    i2t, t2i = cotangents
    row, column = i2t * weights.row, t2i * weights.column
    positive = i2t * weights.row_positive + t2i * weights.column_positive
    (zimg_grad, ztxt_grad), scale_grad = blocks.shards.run(
        functools.partial(_differentiate, blocks),
        (zimg, ztxt, labels, row_lse, row, column, positive, cosines),
        (scale, column_lse),
    )
    return zimg_grad, ztxt_grad, scale_grad, None, None


_contrast.defvjp(_forward, _backward_rule)


def _mask(
    logits: Float[Array, "b c"], x_label: Int[Array, " b"], y_label: Int[Array, " c"]
) -> Float[Array, "b c"]:
    """Returns the logits of a block, -inf where either side is masked."""
    return jnp.where((x_label >= 0)[:, None] & (y_label >= 0), logits, -jnp.inf)


def _logsumexp(peak: Float[Array, " n"], total: Float[Array, " n"]) -> Float[Array, " n"]:
    """Returns peak + log(total); 0 over nothing, so that neither weight nor difference is NaN."""
    return jnp.where(total == 0, 0, peak + jnp.log(total))  # NaN stays NaN


def _reduce(
    logits: Float[Array, "b c"], x_label: Int[Array, " b"], y_label: Int[Array, " c"], columns: Sums
) -> tuple[Sums, Float[Array, " b"], Sums]:
    """Returns the sums of rows, the sum of their positive logits, and the new sums of columns."""
    peak = jnp.maximum(logits.max(axis=1), _LOWEST)
    total = jnp.exp(logits - peak[:, None]).sum(axis=1)
    positive = jnp.where(x_label[:, None] == y_label, logits, 0).sum(axis=1)
    old, column_total = columns
    new = jnp.maximum(logits.max(axis=0), old)
    column_total = column_total * jnp.exp(old - new) + jnp.exp(logits - new).sum(axis=0)
    return (peak, total), positive, (new, column_total)


def _normalize(
    blocks: Blocks,
    keeps: bool,
    split: tuple[Float[Array, "b d"], Float[Array, "c d"], Labels],
    scale: Float[Array, ""],
) -> tuple[Any, Float[Array, " columns"]]:
    """Normalizes the rows of one device, block by block, and the columns over all devices.

    Returns the logsumexp of its rows, the sum of their positive logits, and their cosines by block
    or None; and the logsumexp of all columns.
    """
    x, y, labels = split
    y, y_label = blocks.shards.gather((y, labels.column))
    dtype = wide(x.dtype)

    def step(columns: Sums, block: tuple) -> tuple[Any, Any]:
        x, x_label = block
        if blocks.compare is None:
            cosines = compute_cosines(x, y)
            if keeps:  # else XLA for GPUs makes them twice: where they are stored, and to be used
                cosines = jax.lax.optimization_barrier(cosines)
            logits = _mask(scale * cosines, x_label, y_label)
            rows, positive, columns = _reduce(logits, x_label, y_label, columns)
        else:
            rows, positive, added = normalize_pairs(blocks.compare, x, y, scale, x_label, y_label)
            columns = add_sums(columns, added)
        return columns, (_logsumexp(*rows), positive, cosines if keeps else None)

    start = vary_like((jnp.full(len(y), _LOWEST, dtype), jnp.zeros(len(y), dtype)), x)
    given = blocks.cut(x), blocks.cut(labels.row)
    (peak, total), (row_lse, positive, cosines) = jax.lax.scan(step, start, given)
    top = blocks.shards.max(peak)
    column_lse = _logsumexp(top, blocks.shards.sum(total * jnp.exp(peak - top)))
    return (row_lse.ravel(), positive.ravel(), cosines), column_lse


def _slopes(logits: Float[Array, "b c"], rows: Sequence, columns: Sequence) -> Float[Array, "b c"]:
    """Returns the gradient with respect to the logits; takes what `differentiate_pairs` takes."""
    (x_label, row_lse, row, positive), (y_label, column_lse, column) = rows, columns
    slope = row[:, None] * jnp.exp(logits - row_lse[:, None])
    slope += column * jnp.exp(logits - column_lse)
    return slope - jnp.where(x_label[:, None] == y_label, positive[:, None], 0)


def _differentiate(blocks: Blocks, split: tuple, whole: tuple) -> tuple[tuple, Float[Array, ""]]:
    """Returns the gradients of one device's images and texts, and that of the scale.

    `split` has images, texts, labels, logsumexp of the rows, factors of the softmax of rows and of
    columns, what is subtracted at the positives of a row, and the cosines by block or None; `whole`
    has the scale, and the logsumexp of all columns.
    """
    x, y, labels, row_lse, row, column, positive, cosines = split
    scale, column_lse = whole
    dtype = row.dtype
    y, y_label, column = blocks.shards.gather((y, labels.column, column))
    # Their sum with the cosines is the gradient of the scale. It takes a pass over all pairs, and
    # is needed only where products are of rounded slopes; tiles have no others.
    exact = blocks.compare is None and x.dtype != dtype

    def step(y_grad: Float[Array, "d c"], block: tuple) -> tuple[Any, Any]:
        x, *rows, cosines = block
        columns = y_label, column_lse, column
        if blocks.compare is None:
            if cosines is None:
                cosines = recompute(compute_cosines, x, y)
            slope = _slopes(_mask(scale * cosines, rows[0], y_label), rows, columns)
            scale_grad = (slope * cosines).sum() if exact else None
            slope = slope.astype(x.dtype)
        else:
            make = functools.partial(differentiate_pairs, blocks.compare)
            slope = recompute(make, x, y, scale, tuple(rows), columns)
        x_grad = jnp.einsum("bc,cd->bd", slope, y, preferred_element_type=dtype)
        # Transposed, so that the long axis is contiguous in both operands and in the result.
        y_grad += jnp.einsum("bd,bc->dc", x, slope, preferred_element_type=dtype)
        if not exact:
            scale_grad = (x.astype(dtype) * x_grad).sum()
        return y_grad, ((scale * x_grad).astype(x.dtype), scale_grad)

    rows = *map(blocks.cut, (x, labels.row, row_lse, row, positive)), cosines
    start = vary_like(jnp.zeros(y.shape[::-1], dtype), x)
    y_grad, (x_grad, scale_grad) = jax.lax.scan(step, start, rows)
    y_grad = scale * blocks.shards.scatter_sum(y_grad.T)
    scale_grad = blocks.shards.sum(scale_grad.sum())
    return (x_grad.reshape(x.shape), y_grad.astype(y.dtype)), scale_grad
