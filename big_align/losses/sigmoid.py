"""Pairwise sigmoid loss: each pair of an image and a text is a separate decision.

SigLIP (Zhai et al. 2023, "Sigmoid loss for language image pre-training", §3.2 and Algorithm 1).
With the logits s_ij = scale * x_i y_j + bias, a pair costs softplus(-s_ij) if it belongs together
and softplus(s_ij) if it does not; a batch costs the sum over all pairs, divided by its images.

Pairs are independent, so nothing is normalized: the blockwise version goes through the pairs once,
a block of rows at a time on every device, and takes value and gradient from the same logits,

    dS_ij = -sigmoid(-s_ij) or sigmoid(s_ij)      dx = scale * dS y      dy = scale * dS^T x

which takes three matrix products. It keeps the gradients for the backward pass, but no logits.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from big_align.losses.arguments import check_arrays
from big_align.losses.blocks import Block, Blocks, choose_blocks
from big_align.losses.contrastive import compute_cosines, compute_logits
from big_align.losses.explicit_axes import on_any_mesh, vary_like
from big_align.losses.rows import clear_masked, divide, wide
from big_align.losses.targets import Labels, arrange_pairs, complete_targets
from big_align.losses.tile_functions import add_costs, judge_pairs
from big_align.parallel.shards import Shards


@check_arrays
@on_any_mesh
def sigmoid_loss(
    zimg: Float[Array, "b d"],
    ztxt: Float[Array, "c d"],
    scale: Float[Array, ""] | float,
    bias: Float[Array, ""] | float,
    *,
    image_label: Int[Array, " b"] | None = None,
    text_label: Int[Array, " c"] | None = None,
    image_mask: Bool[Array, " b"] | None = None,
    text_mask: Bool[Array, " c"] | None = None,
) -> Float[Array, ""]:
    """Returns the sum of -log sigmoid(+-logit) over real pairs, per real image.

    The logit of a pair counts with + if the labels are equal and with - otherwise. A pair is real
    if both sides are. An image without positives counts: its pairs are negatives. The denominator
    is the number of real images, whatever the number of texts, so with k texts per image the loss
    is a sum over k times as many pairs; without real images the loss is 0.

    Args:
      zimg: unit-length image embeddings [b d], float32 or bfloat16.
      ztxt: unit-length text embeddings [c d].
      scale: factor of the cosines; SigLIP learns its logarithm, initially log(10).
      bias: added to all logits, initially -10. This follows Algorithm 1; the formula of §3.2 has
        the opposite sign, with which that value would classify all pairs as positive.
      image_label: a label per image [b]; if None, image i and text i are the only positives.
      text_label: a label per text [c]; given if and only if `image_label` is.
      image_mask: True on real images [b]; None if all are.
      text_mask: True on real texts [c]; None if all are.

    Returns:
      A scalar, float32.

    Raises:
      ValueError: one of the labels is missing, the batches differ in size but there are no labels,
        or an array has another shape.
      TypeError: an array has another type.

    Source: SigLIP (Zhai et al. 2023) §3.2 and Algorithm 1.

    Examples:
      Of the four pairs, two cost log(1 + exp(-1)) and two log(2); there are two images:

      >>> import jax.numpy as jnp
      >>> import big_align
      >>> z = jnp.eye(2)
      >>> print(f"{big_align.sigmoid_loss(z, z, scale=1.0, bias=0.0):.4f}")
      1.0064
    """
    image_label, text_label, image_mask, text_mask = complete_targets(
        zimg, ztxt, image_label, text_label, image_mask, text_mask
    )
    zimg, ztxt = clear_masked(zimg, image_mask), clear_masked(ztxt, text_mask)
    logits = compute_logits(zimg, ztxt, scale)
    logits += jnp.asarray(bias, logits.dtype)
    positive = image_label[:, None] == text_label
    each = jax.nn.softplus(jnp.where(positive, -logits, logits))
    total = jnp.where(image_mask[:, None] & text_mask, each, 0).sum()
    return divide(total, image_mask.sum())


@check_arrays
@on_any_mesh
def blockwise_sigmoid_loss(
    zimg: Float[Array, "b d"],
    ztxt: Float[Array, "c d"],
    scale: Float[Array, ""] | float,
    bias: Float[Array, ""] | float,
    *,
    image_label: Int[Array, " b"] | None = None,
    text_label: Int[Array, " c"] | None = None,
    image_mask: Bool[Array, " b"] | None = None,
    text_mask: Bool[Array, " c"] | None = None,
    mesh: Mesh | Shards | None = None,
    block: Block = None,
) -> Float[Array, ""]:
    """Returns what `big_align.sigmoid_loss` returns, in less memory.

    Besides its arguments and their gradients, a device needs memory for a few blocks [block c] and
    for all texts [c d] with their gradient.

    The arguments that are not listed are those of `big_align.sigmoid_loss`.

    Args:
      mesh: the devices that share the work, over all axes of a mesh, or over those of a
        `big_align.Shards(mesh, axes)`; None computes in one piece.
      block: rows of logits that a device computes at a time, or "tiles", as
        `big_align.blockwise_contrastive_loss` takes it.

    Returns:
      A scalar, float32.

    Raises:
      ValueError: as for `big_align.sigmoid_loss`, and if `block` is not positive.
      TypeError: an array has another type, or `mesh` is no mesh.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import big_align
      >>> z = jax.random.normal(jax.random.key(0), (2, 1000, 64))
      >>> zimg, ztxt = z / jnp.linalg.norm(z, axis=-1, keepdims=True)
      >>> plain = big_align.sigmoid_loss(zimg, ztxt, 10.0, -10.0)
      >>> blockwise = big_align.blockwise_sigmoid_loss(zimg, ztxt, 10.0, -10.0, block=100)
      >>> bool(jnp.isclose(plain, blockwise, rtol=1e-5))
      True
    """
    shards = Shards.over(mesh)
    dtype = zimg.dtype if zimg.dtype == ztxt.dtype else wide(zimg.dtype)
    blocks = choose_blocks("sigmoid loss", len(zimg), len(ztxt), shards, block, dtype)
    zimg, ztxt, labels = arrange_pairs(
        zimg, ztxt, image_label, text_label, image_mask, text_mask, blocks.multiples
    )
    if not len(zimg) or not len(ztxt):
        return jnp.zeros((), wide(zimg.dtype))  # there is nothing to cut into blocks
    scale, bias = (jnp.asarray(number, wide(zimg.dtype)) for number in (scale, bias))
    arguments = zimg, ztxt, scale, bias, labels
    total = _sum_pairs(blocks, *vary_like(arguments, arguments))
    return divide(total, (labels.row >= 0).sum())


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sum_pairs(
    blocks: Blocks,
    zimg: Float[Array, "b d"],
    ztxt: Float[Array, "c d"],
    scale: Float[Array, ""],
    bias: Float[Array, ""],
    labels: Labels,
) -> Float[Array, ""]:
    """Returns the sum over all pairs, differentiable with respect to embeddings and numbers."""
    add_up = functools.partial(_add_up, blocks)
    return blocks.shards.run(add_up, (zimg, ztxt, labels), (scale, bias))[1]


def _forward_rule(
    blocks: Blocks, zimg: Array, ztxt: Array, scale: Array, bias: Array, labels: Labels
) -> tuple[Float[Array, ""], Any]:
    """Computes the gradients right away, for a cotangent of 1."""
    (zimg_grad, ztxt_grad), (total, scale_grad, bias_grad) = blocks.shards.run(
        functools.partial(_differentiate, blocks), (zimg, ztxt, labels), (scale, bias)
    )
    # An empty array records the type of each argument.
    types = tuple(jnp.zeros(0, x.dtype) for x in (zimg, ztxt, scale, bias))
    return total, ((zimg_grad, ztxt_grad, scale_grad, bias_grad), types)


def _backward_rule(blocks: Blocks, residuals: Any, cotangent: Float[Array, ""]) -> tuple:
    grads = ((cotangent * grad).astype(like.dtype) for grad, like in zip(*residuals, strict=True))
    return *grads, None


_sum_pairs.defvjp(_forward_rule, _backward_rule)


def _mask(
    cosines: Float[Array, "b c"],
    numbers: tuple[Float[Array, ""], Float[Array, ""]],
    x_label: Int[Array, " b"],
    y_label: Int[Array, " c"],
) -> tuple[Float[Array, "b c"], Bool[Array, "b c"]]:
    """Returns logits and which are positive; masked pairs are certain negatives, at no cost."""
    scale, bias = numbers
    real = (x_label >= 0)[:, None] & (y_label >= 0)
    return jnp.where(real, scale * cosines + bias, -jnp.inf), x_label[:, None] == y_label


def _cost(logits: Float[Array, "b c"], positive: Bool[Array, "b c"]) -> Float[Array, ""]:
    return jax.nn.softplus(jnp.where(positive, -logits, logits)).sum()


def _judge(
    x: Array, y: Array, numbers: tuple, x_label: Array, y_label: Array
) -> tuple[Float[Array, "b c"], Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Returns what `judge_pairs` returns, and the gradient of the scale."""
    cosines = compute_cosines(x, y)
    logits, positive = _mask(cosines, numbers, x_label, y_label)
    # Not sigmoid - 1, which loses the small remainder of a pair that is nearly solved.
    slope = jnp.where(positive, -jax.nn.sigmoid(-logits), jax.nn.sigmoid(logits))
    return slope.astype(x.dtype), _cost(logits, positive), slope.sum(), (slope * cosines).sum()


def _add_up(blocks: Blocks, split: tuple, numbers: tuple) -> tuple[tuple, Float[Array, ""]]:
    """Sums the pairs of one device's images, block by block, and then over the devices."""
    x, y, labels = split
    y, y_label = blocks.shards.gather((y, labels.column))

    def step(block: tuple) -> Float[Array, ""]:
        x, x_label = block
        if blocks.compare is not None:
            return add_costs(blocks.compare, x, y, numbers, x_label, y_label)
        return _cost(*_mask(compute_cosines(x, y), numbers, x_label, y_label))

    costs = jax.lax.map(step, (blocks.cut(x), blocks.cut(labels.row)))
    return (), blocks.shards.sum(costs.sum())


def _differentiate(blocks: Blocks, split: tuple, numbers: tuple) -> tuple[tuple, tuple]:
    """Returns the gradients of one device's images and texts, in float32 or better.

    It also returns, over all devices, the sum of all pairs and the gradients of scale and bias.
    """
    x, y, labels = split
    y, y_label = blocks.shards.gather((y, labels.column))
    scale, dtype = numbers[0], wide(x.dtype)

    def step(y_grad: Float[Array, "d c"], block: tuple) -> tuple[Any, Any]:
        x, x_label = block
        compare, pairs = blocks.compare, (x, y, numbers, x_label, y_label)
        slope, *sums = _judge(*pairs) if compare is None else judge_pairs(compare, *pairs)
        x_grad = jnp.einsum("bc,cd->bd", slope, y, preferred_element_type=dtype)
        y_grad += jnp.einsum("bd,bc->dc", x, slope, preferred_element_type=dtype)
        if compare is not None or x.dtype == dtype:  # see `blockwise_contrastive._differentiate`
            sums = [*sums[:2], (x.astype(dtype) * x_grad).sum()]
        return y_grad, (scale * x_grad, *sums)

    start = vary_like(jnp.zeros(y.shape[::-1], dtype), x)
    given = blocks.cut(x), blocks.cut(labels.row)
    y_grad, (x_grad, *sums) = jax.lax.scan(step, start, given)
    total, bias_grad, scale_grad = (blocks.shards.sum(each.sum()) for each in sums)
    y_grad = scale * blocks.shards.scatter_sum(y_grad.T)
    return (x_grad.reshape(x.shape), y_grad), (total, scale_grad, bias_grad)
