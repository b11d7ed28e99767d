"""Cluster discrimination on the drawn rows of a table that is split over the devices of a mesh.

The same numbers and gradients as `cluster_discrimination`, without the full logits matrix. Each
device holds its drawn rows w and gathers all embeddings z. It goes through its rows block by block
and accumulates, for every example, the logsumexp over its negatives and the cosines of its
positives, which are excluded from the negatives wherever they are. The sums are then combined over
the devices; the rest, the margin and the loss itself, are formulas on [b] and [b p]. With n and p
their gradients with respect to the logsumexp N and the cosines of positives, the recomputed logits
S of a block give

    dS_ij = n_i scale exp(S_ij - N_i) [j is a negative of i] + p_ij [j is a positive of i]
    dz = dS u      dw = (dS^T z without its part along u) / |w|      u = w / |w|

and so only embeddings, their gradients and numbers per example move between devices.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from big_align.core.errors import check_known
from big_align.losses import tile_functions
from big_align.losses.arguments import check_arrays
from big_align.losses.blocks import Block, Blocks, choose_blocks
from big_align.losses.cluster_discrimination import (
    LOSSES,
    LOWEST,
    add_margin,
    check_range,
    combine,
    log_sum,
)
from big_align.losses.explicit_axes import on_any_mesh, vary_like
from big_align.losses.rows import clear_masked, divide, mean_over, normalize_rows, wide
from big_align.parallel.devices.rematerialization import recompute
from big_align.parallel.shards import Shards, locate_rows

BLOCK = 1024


@check_arrays
@on_any_mesh
def sampled_cluster_loss(
    loss: str,
    zimg: Float[Array, "b d"],
    rows: Float[Array, "n d"],
    row_mask: Bool[Array, " n"],
    columns: Int[Array, "b p"],
    *,
    sampled: Bool[Array, " n"] | None = None,
    scale: float = 64.0,
    margin: float = 0.3,
    mesh: Mesh | Shards | None = None,
    block: Block = None,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Returns what `big_align.mlcd_loss`, `mlc_loss` or `unicom_loss` returns, in less memory.

    The negatives of an example are the sampled rows that are not its positives. Besides its
    arguments and their gradients, a device needs memory for all embeddings [b d] and for a few
    blocks [block b].

    Args:
      loss: "mlcd", "mlc" or "unicom"; the last uses only the first column of `columns`.
      zimg: unit-length image embeddings [b d], float32 or bfloat16; cosines add up in float32.
      rows: drawn centers [n d], of any length; each device has the same number.
      row_mask: True on real rows [n].
      columns: the rows that are the positives of each example [b p], -1 for none, as is any beyond
        the rows or that is not real. A repeated one counts once. An example without positives takes
        no part.
      sampled: True on the rows [n] that are negatives of all examples except those whose positives
        they are (MLCD §3.2); the others are only for the examples that they are positive for. If
        None, all real rows are, so one example's positive is every other's negative.
      scale: factor of the cosines, positive.
      margin: added to the angle of positives, in radians, in [0, pi).
      mesh: the devices over which examples and rows are split, over all axes of a mesh, or over
        those of a `big_align.Shards(mesh, axes)`; None computes in one piece.
      block: rows that a device compares with all examples at a time, or "tiles", as
        `big_align.blockwise_contrastive_loss` takes it, but for its default of 1024. With `zimg` in
        bfloat16, tiles round the directions of centers to bfloat16, too.

    Returns:
      A scalar, and metrics of the examples that take part: the mean cosines, without margin,
      `positive_cosine` and `negative_cosine`, and the mean numbers of `positives` and `negatives`;
      0 if there are none.

    Raises:
      ValueError: `loss` is unknown, `block`, `scale` or `margin` is out of range, the rows do not
        divide over the devices, or an array has another shape.
      TypeError: an array has another type, or `mesh` is no mesh.

    Source: MLCD (An et al. 2024) §3.2 and eq. 3 to 5.

    Examples:
      With the whole table as rows it is the plain loss, here with 10 labels and 4 blocks:

      >>> import jax
      >>> import jax.numpy as jnp
      >>> import big_align
      >>> key, real = jax.random.key(0), jnp.ones(1000, bool)
      >>> zimg, centers = jax.random.normal(key, (32, 64)), jax.random.normal(key, (1000, 64))
      >>> zimg = zimg / jnp.linalg.norm(zimg, axis=-1, keepdims=True)
      >>> labels = jax.random.randint(key, (32, 10), 0, 1000)
      >>> loss, metrics = big_align.sampled_cluster_loss(
      ...     "mlcd", zimg, centers, real, labels, block=250
      ... )
      >>> bool(jnp.isclose(loss, big_align.mlcd_loss(zimg, centers, labels), rtol=1e-5))
      True
      >>> sorted(metrics)
      ['negative_cosine', 'negatives', 'positive_cosine', 'positives']
    """
    check_known("loss", loss, LOSSES)
    check_range(scale, margin)
    shards = Shards.over(mesh)
    if len(rows) % shards.size:
        raise ValueError(f"{len(rows)} rows do not divide over {shards.size} devices")
    blocks = choose_blocks(f"{loss} loss", len(rows), len(zimg), shards, block, zimg.dtype, BLOCK)
    if loss == "unicom":
        columns = columns[:, :1]
    inside = jnp.where(columns < 0, len(rows), columns)  # negative indices would count from the end
    columns = jnp.where(row_mask.at[inside].get(mode="fill", fill_value=False), columns, -1)
    columns = jnp.where(_mark_first(columns), columns, -1)
    count, dtype = len(zimg), wide(zimg.dtype)
    takes_part = (columns >= 0).any(axis=1)
    # Values in the other rows that are not finite must not reach any gradient.
    zimg = jnp.where(takes_part[:, None], zimg, 0)
    multiple, _, channels = blocks.tile
    padding, zeros = -count % (multiple * shards.size), -zimg.shape[1] % channels
    candidate = row_mask if sampled is None else row_mask & sampled
    split = (
        jnp.pad(zimg, ((0, padding), (0, zeros))),
        jnp.pad(rows, ((0, 0), (0, zeros))),
        (row_mask, candidate),
        jnp.pad(columns, ((0, padding), (0, 0)), constant_values=-1),
    )
    plan = _Plan(blocks, scale)
    log_sums, cosines, total, among = _contrast(plan, *vary_like(split, split))
    cosines, among, own = cosines[:count], among[:count], columns >= 0
    positives = log_sum(-scale * add_margin(cosines, margin), own)
    value = mean_over(combine(loss, log_sums[:count], positives), takes_part)

    own_sum = jnp.where(own, cosines, 0).sum()
    # Positives that are also candidates are not negatives of their own examples.
    examples, among = takes_part.sum(), own & (among > 0)
    pairs = candidate.sum().astype(dtype) * examples.astype(dtype) - among.sum().astype(dtype)
    pair_sum = (split[0].astype(dtype) * total).sum() - jnp.where(among, cosines, 0).sum()
    metrics = {
        "positive_cosine": divide(own_sum, own.sum()),
        "negative_cosine": divide(pair_sum, pairs),
        "positives": divide(own.sum().astype(dtype), examples),
        "negatives": divide(pairs, examples),
    }
    return value, jax.lax.stop_gradient(metrics)


def _mark_first(columns: Int[Array, "b p"]) -> Bool[Array, "b p"]:
    """Returns which positives exist and do not occur earlier in the same row."""
    same = columns[:, :, None] == columns[:, None, :]
    before = jnp.tril(jnp.ones(same.shape[1:], bool), -1)
    return (columns >= 0) & ~(same & before).any(axis=2)


# Which rows are real, and which of these are negatives except where they are positives.
Masks = tuple[Bool[Array, " n"], Bool[Array, " n"]]


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How the work is split, and the scale; known at compile time."""

    blocks: Blocks
    scale: float

    def cut(
        self, rows: Float[Array, "n d"], masks: Masks
    ) -> tuple[Float[Array, "blocks r d"], tuple[Array, Array], Int[Array, " blocks"]]:
        """Cuts the rows of a device into blocks, and returns the number of each block's first row.

        The last block is padded; if all blocks are full, rows are not copied.
        """
        count, multiple = len(rows), self.blocks.tile[1]
        size = max(math.ceil(count / (self.blocks.count * multiple)), 1) * multiple
        padding = -count % size
        rows = jnp.pad(rows, ((0, padding), (0, 0)))
        real, candidate = (jnp.pad(mask, (0, padding)).reshape(-1, size) for mask in masks)
        first = jnp.arange(0, len(rows), size, dtype=jnp.int32) + count * self.blocks.shards.index()
        return rows.reshape(-1, size, rows.shape[1]), (real, candidate), first


Found = tuple[Float[Array, " b"], Float[Array, "b p"], Float[Array, " d"], Float[Array, "b p"]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _contrast(
    plan: _Plan,
    zimg: Float[Array, "b d"],
    rows: Float[Array, "n d"],
    masks: Masks,
    columns: Int[Array, "b p"],
) -> Found:
    """Compares examples with rows; differentiable with respect to both.

    Returns, for each example, the logsumexp of its negatives, `LOWEST` for an empty sum, and the
    cosines of its positives, 0 where there is none. Without derivatives: the sum of the candidates'
    directions, and 1 for each positive that is a candidate.
    """
    split = zimg, rows, masks, columns
    return plan.blocks.shards.run(functools.partial(_accumulate, plan), split, ())[1]


def _forward_rule(
    plan: _Plan, zimg: Array, rows: Array, masks: Masks, columns: Array
) -> tuple[Found, Any]:
    sums = _contrast(plan, zimg, rows, masks, columns)
    return sums, (zimg, rows, masks, columns, sums[0])


def _backward_rule(plan: _Plan, residuals: Any, cotangents: Found) -> tuple:
    *split, log_sums = residuals
    grads, _ = plan.blocks.shards.run(
        functools.partial(_differentiate, plan), tuple(split), (log_sums, *cotangents[:2])
    )
    return *grads, None, None


_contrast.defvjp(_forward_rule, _backward_rule)


def _place(columns: Int[Array, "b p"], first: Int[Array, ""], size: int) -> tuple[Array, Array]:
    """Returns the places of positives in a block [size b]; beyond its end if not in the block."""
    return locate_rows(columns, first, size), jnp.arange(len(columns))[:, None]


def _compare(
    plan: _Plan, directions: Float[Array, "r d"], zimg: Float[Array, "b d"]
) -> Float[Array, "r b"]:
    """Returns the logits of a block; rows first, so that no product needs a transposed copy."""
    return plan.scale * jnp.einsum("rd,bd->rb", directions, zimg)


def _accumulate(plan: _Plan, split: tuple, whole: tuple) -> tuple[tuple, Found]:
    """Goes through the rows of one device and combines its sums with those of the others."""
    zimg, rows, masks, columns = split
    dtype, compare = wide(zimg.dtype), plan.blocks.compare
    zimg, columns = plan.blocks.shards.gather(zimg), plan.blocks.shards.gather(columns)

    def add(sums: tuple, block: tuple) -> tuple:
        negatives, cosines, total, among = sums
        rows, (real, candidate), first = block
        directions, _ = normalize_rows(clear_masked(rows, real).astype(dtype))
        own = _place(columns, first, len(rows))
        if compare is None:
            logits = _compare(plan, directions, zimg.astype(dtype))
            cosines += logits.at[own].get(mode="fill", fill_value=0) / plan.scale
            negatives = _add_negatives(negatives, logits, candidate, own)
        else:
            pairs = zimg, directions.astype(zimg.dtype), plan.scale, candidate, own[0]
            negatives = tile_functions.add_sums(
                negatives, tile_functions.sum_negatives(compare, *pairs)
            )
        among += candidate.astype(dtype).at[own[0]].get(mode="fill", fill_value=0)
        total += jnp.where(candidate[:, None], directions, 0).sum(axis=0)
        return negatives, cosines, total, among

    def step(sums: tuple, block: tuple) -> tuple[Any, Any]:
        # The space for positives is for the worst case, and mostly empty.
        return jax.lax.cond(block[1][0].any(), add, lambda sums, _: sums, sums, block), None

    start = (
        (jnp.full(len(zimg), LOWEST, dtype), jnp.zeros(len(zimg), dtype)),
        jnp.zeros(columns.shape, dtype),
        jnp.zeros(zimg.shape[1], dtype),
        jnp.zeros(columns.shape, dtype),
    )
    sums, _ = jax.lax.scan(step, vary_like(start, zimg), plan.cut(rows, masks))
    (peak, exponentials), cosines, total, among = sums
    if compare is not None:
        own = locate_rows(columns, len(rows) * plan.blocks.shards.index(), len(rows))
        cosines = tile_functions.find_cosines(zimg, rows, own)
    top = plan.blocks.shards.max(peak)
    exponentials = plan.blocks.shards.sum(exponentials * jnp.exp(peak - top))
    # NaN stays NaN.
    log_sums = jnp.where(exponentials == 0, LOWEST, top + jnp.log(exponentials))
    cosines, total, among = map(plan.blocks.shards.sum, (cosines, total, among))
    return (), (log_sums, cosines, total, among)


def _add_negatives(
    sums: tile_functions.Sums, logits: Float[Array, "r b"], candidate: Bool[Array, " r"], own: tuple
) -> tile_functions.Sums:
    """Returns the sums over the negatives before and those of a block."""
    peak, exponentials = sums
    negatives = jnp.where(candidate[:, None], logits, -jnp.inf)
    negatives = negatives.at[own].set(-jnp.inf, mode="drop")
    new = jnp.maximum(peak, negatives.max(axis=0))
    exponentials *= jnp.exp(peak - new)
    return new, exponentials + jnp.exp(negatives - new).sum(axis=0)


def _differentiate(plan: _Plan, split: tuple, whole: tuple) -> tuple[tuple, tuple]:
    """Computes the gradients of one device's examples and rows, block by block."""
    zimg, rows, masks, columns = split
    narrow, dtype = zimg.dtype, whole[0].dtype
    zimg, columns = plan.blocks.shards.gather(zimg), plan.blocks.shards.gather(columns)
    if plan.blocks.compare is None:
        zimg = zimg.astype(dtype)

    def pull(zimg_grad: Float[Array, "b d"], block: tuple) -> tuple:
        rows, (real, candidate), first = block
        directions, inverse = normalize_rows(clear_masked(rows, real).astype(dtype))
        own = _place(columns, first, len(rows))
        factors = zimg, directions.astype(zimg.dtype)
        slope = _slopes(plan, *factors, candidate, own, whole)
        zimg_grad += jnp.einsum("rb,rd->bd", slope, factors[1], preferred_element_type=dtype)
        grad = jnp.einsum("rb,bd->rd", slope, zimg, preferred_element_type=dtype)
        along = (grad * directions).sum(axis=1, keepdims=True)
        return zimg_grad, ((grad - along * directions) * inverse).astype(rows.dtype)

    def step(zimg_grad: Float[Array, "b d"], block: tuple) -> tuple[Any, Any]:
        skip = lambda zimg_grad, block: (zimg_grad, jnp.zeros_like(block[0]))  # noqa: E731
        return jax.lax.cond(block[1][0].any(), pull, skip, zimg_grad, block)

    start = jnp.zeros_like(zimg, dtype)
    zimg_grad, row_grads = jax.lax.scan(step, start, plan.cut(rows, masks))
    row_grads = row_grads.reshape(-1, rows.shape[1])[: len(rows)]
    return (plan.blocks.shards.scatter_sum(zimg_grad).astype(narrow), row_grads), ()


def _slopes(
    plan: _Plan,
    zimg: Float[Array, "b d"],
    directions: Float[Array, "r d"],
    candidate: Bool[Array, " r"],
    own: tuple[Array, Array],
    whole: tuple[Array, Array, Array],
) -> Float[Array, "r b"]:
    """Returns the gradient with respect to the products of a block.

    `own` are the places of positives. `whole` has, for each example, the logsumexp of its
    negatives, the gradient with respect to it, and those with respect to the cosines of its
    positives.
    """
    log_sums, log_sum_grad, cosine_grad = whole
    if plan.blocks.compare is not None:
        make = functools.partial(tile_functions.differentiate_negatives, plan.blocks.compare)
        slope = recompute(make, zimg, directions, plan.scale, candidate, log_sums, log_sum_grad)
        return slope.at[own[::-1]].set(cosine_grad.astype(slope.dtype), mode="drop").T
    logits = recompute(functools.partial(_compare, plan), directions, zimg)
    logits = jnp.where(candidate[:, None], logits, -jnp.inf)
    slope = plan.scale * log_sum_grad * jnp.exp(logits - log_sums)
    return slope.at[own].set(cosine_grad, mode="drop")
