"""Batch normalization with the activation that follows it, and a gate of its channels.

Convolutional towers are bound by memory, and most of what they read and write is the wide map
between two convolutions. Differentiated step by step, its normalization, activation and gate write
it again and again. Here they keep what the convolution wrote, compute the rest of it anew, and take
all sums of the backward pass at once: it is read twice there, and written once.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from big_align.models.parts import locking, narrow
from big_align.parallel.devices import traced
from big_align.parallel.devices.rematerialization import keep_few
from big_align.parallel.kernels import triton_norm


class BatchNorm(nn.Module):
    """Batch normalization over the whole batch or over groups of rows.

    Under jit the batch is the global one, so `group_size=None` computes statistics over all
    devices. `group_size=16` computes them over what a TPU core of ALIGN's had, on any number of
    devices, and without communication if no group spans several. ALIGN does not say which groups
    it used; the public EfficientNet code that it names shares statistics among cores.

    Statistics are float32 whatever the type of the input. The variance is the biased one, both for
    normalizing and for the running average, as in EfficientNet's TPU code and in
    `flax.linen.BatchNorm`. The running averages (collection `batch_stats`) move toward the mean,
    over the groups, of the groups' means and variances.

    Args:
      momentum: fraction of the running averages kept at each update.
      epsilon: added to the variance.
      group_size: examples that share their statistics, contiguous in the batch; None for all.
      fixed: whether to normalize by the running statistics in training too, and leave them
        unchanged.
      activation: of each normalized value, computed in float32; None for the value itself.
    """

    momentum: float = 0.99
    epsilon: float = 1e-3
    group_size: int | None = None
    fixed: bool = False
    activation: Callable[[Array], Array] | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b *spatial c"],
        train: bool,
        gate: Callable[..., Float[Array, "b c"]] | None = None,
        weights: Sequence[Array | np.ndarray] = (),
    ) -> Float[Array, "b *spatial c"]:
        """Normalizes every channel; training moves the running statistics, unless it is locked.

        If there is a gate, it gives what each channel of an example is multiplied by, from their
        means over space and the weights. It uses no other array.
        """
        channels = x.shape[-1:]
        scale = self.param("scale", nn.initializers.ones, channels)
        bias = self.param("bias", nn.initializers.zeros, channels)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, channels)
        running_var = self.variable("batch_stats", "var", jnp.ones, channels)
        given = not train or self.fixed or locking.is_locked(self.path)
        rows = None if given else self.group_size
        if rows and len(x) % rows:
            raise ValueError(
                f"a batch of {len(x)} examples does not divide into batch-norm groups of "
                f"group_size={rows}; make the (micro-)batch a multiple of it, or set it to None"
            )
        there = triton_norm.has_kernels(traced.traced_device())
        kernel = narrow.choose_kernel(there, x.shape)
        settings = BatchSettings(
            self.epsilon, rows, given, self.activation or _identity, gate, *kernel
        )
        running = (running_mean.value[None], running_var.value[None]) if given else None
        arrays = jax.tree.map(jnp.asarray, (x, scale, bias, running, tuple(weights)))
        # Without its kernel, XLA for GPUs would write what the faster form sums.
        plain = traced.traced_device().platform == "gpu" and not settings.kernel
        y, mean, var = (normalize_plainly if plain else normalize)(settings, *arrays)
        if not given and not self.is_initializing():
            running_mean.value = self._average(running_mean.value, mean)
            running_var.value = self._average(running_var.value, var)
        return y

    def _average(self, running: Float[Array, "c"], new: Float[Array, "g c"]) -> Float[Array, "c"]:
        return self.momentum * running + (1.0 - self.momentum) * new.mean(0)


class BatchSettings(NamedTuple):
    """How activations are normalized; all of it is known when a program is traced."""

    epsilon: float
    rows: int | None  # of a group; None for all, whose number may be left open
    given: bool  # whether statistics are given; else they are those of the groups
    activation: Callable[[Array], Array]
    gate: Callable[..., Array] | None
    kernel: bool  # whether a kernel makes the sums of the backward pass
    mesh: Mesh | None  # devices that the batch is split over; None for one that has all of it


class _Values(NamedTuple):
    """What each element of an array is on its way, in float32."""

    unit: Array  # normalized, before scale and bias
    y: Array  # after the activation
    slope: Array  # of the activation


def _identity(x: Array) -> Array:
    return x


def _group(x: Array, rows: int | None) -> Float[Array, "g r *spatial c"]:
    return x.reshape(-1, rows, *x.shape[1:]) if rows else x[None]


def _spread(x: Float[Array, "g *r c"], like: Array) -> Float[Array, "g *ones c"]:
    """Adds axes before the last, so that the numbers of groups or examples fit activations."""
    axes = tuple(range(x.ndim - 1, like.ndim - 1))
    return jnp.expand_dims(x, axes)


def _spread_all(arrays: tuple[Array, ...], like: Array) -> tuple[Array, ...]:
    """Spreads means and deviations; scales and biases fit as they are."""
    mean, inverse, *affine = arrays
    return _spread(mean, like), _spread(inverse, like), *affine


def _find_statistics(groups: Array) -> tuple[Float[Array, "g c"], Float[Array, "g c"]]:
    """Returns means and variances of groups."""
    wide, axes = groups.astype(jnp.float32), tuple(range(1, groups.ndim - 1))
    mean = wide.mean(axes)
    # E[x^2] - E[x]^2 reads the activations once; rounding could make it negative.
    return mean, jnp.maximum(jnp.square(wide).mean(axes) - jnp.square(mean), 0.0)


def normalize_plainly(
    settings: BatchSettings,
    x: Float[Array, "b *spatial c"],
    scale: Float[Array, "c"],
    bias: Float[Array, "c"],
    statistics: tuple[Float[Array, "g c"], Float[Array, "g c"]] | None,
    weights: tuple[Array, ...],
) -> tuple[Float[Array, "b *spatial c"], Float[Array, "g c"], Float[Array, "g c"]]:
    """Returns activations, and the means and variances by which they were normalized."""
    groups = _group(x, settings.rows)
    mean, var = statistics or _find_statistics(groups)
    factor = scale * jax.lax.rsqrt(var + settings.epsilon)
    z = (groups - _spread(mean, groups)) * _spread(factor, groups) + bias
    y = settings.activation(z.astype(x.dtype)).reshape(x.shape)
    if settings.gate is not None:
        pooled = y.mean(tuple(range(1, x.ndim - 1)))
        y *= _spread(settings.gate(pooled, *weights).astype(x.dtype), x)
    return y, mean, var


def _compute(
    activation: Callable[[Array], Array], x: Array, mean: Array, inverse: Array, *affine: Array
) -> _Values:
    scale, bias = affine
    unit = (x.astype(jnp.float32) - mean) * inverse
    y, pull = jax.vjp(activation, unit * scale + bias)
    return _Values(unit, y, *pull(jnp.ones_like(y)))


def _again(x: Array) -> Array:
    """As `narrow.again`; not on CPUs, where an exponential costs more than a pass over memory."""
    return x if traced.traced_device().platform == "cpu" else narrow.again(x)


def _forward(
    settings: BatchSettings,
    x: Float[Array, "b *spatial c"],
    scale: Float[Array, "c"],
    bias: Float[Array, "c"],
    statistics: tuple[Float[Array, "g c"], Float[Array, "g c"]] | None,
    weights: tuple[Array, ...],
) -> tuple[tuple[Array, Array, Array], tuple]:
    """Returns activations with their means and variances, and what the backward pass needs."""
    groups = _group(x, settings.rows)
    mean, var = statistics or keep_few(_find_statistics(groups))
    inverse = jax.lax.rsqrt(var + settings.epsilon)
    arrays = mean, inverse, scale, bias
    pooled = factor = None
    if settings.gate is not None:

        def activate(*arrays: Array) -> tuple[Array]:
            return (_compute(settings.activation, *arrays).y,)

        (total,) = _sum_space(settings, activate, [groups], *arrays)
        pooled = total.reshape(x.shape[0], -1) / math.prod(x.shape[1:-1])
        pooled = keep_few(pooled.astype(x.dtype))
        factor = _group(settings.gate(pooled, *weights).astype(jnp.float32), settings.rows)
        groups = _again(groups)
    y = _compute(settings.activation, groups, *_spread_all(arrays, groups)).y
    if factor is not None:
        y *= _spread(factor, groups)
    return (y.astype(x.dtype).reshape(x.shape), mean, var), (x, *arrays, pooled, weights)


def _list_terms(settings: BatchSettings, x: Array, cotangent: Array, *numbers: Array) -> tuple:
    """Returns of each element what is summed in the backward pass.

    It is what comes back through the activation, alone and times the normalized element; with a
    gate also the same for a cotangent of one, and what is summed for the gate itself.
    """
    unit, y, slope = _compute(settings.activation, x, *numbers)
    wide = cotangent.astype(jnp.float32)
    back = slope * wide
    more = (slope, slope * unit, wide * y) if settings.gate else ()
    return back, back * unit, *more


def _sum_space(
    settings: BatchSettings,
    function: Callable[..., tuple[Array, ...]],
    maps: Sequence[Float[Array, "g r *spatial c"]],
    mean: Float[Array, "g c"],
    inverse: Float[Array, "g c"],
    *affine: Float[Array, "c"],
) -> list[Float[Array, "g r c"]]:
    """Sums over space what a function computes, element by element, of maps and these numbers."""
    _, rows, *space, channels = maps[0].shape
    if not settings.kernel:
        terms = function(*maps, *_spread_all((mean, inverse, *affine), maps[0]))
        return [each.sum(tuple(range(2, maps[0].ndim - 1))) for each in terms]

    def add(affine: tuple, maps: tuple, numbers: tuple) -> tuple[Array, ...]:
        return triton_norm.sum_positions(function, maps, numbers, affine)

    flat = tuple(each.reshape(-1, math.prod(space), channels) for each in maps)
    numbers = tuple(jnp.repeat(each, rows, 0) for each in (mean, inverse))
    sums = narrow.on_devices(settings.mesh, add, (affine,), (flat, numbers))
    return [_group(each, settings.rows) for each in sums]


def _backward(settings: BatchSettings, kept: tuple, cotangents: tuple[Array, ...]) -> tuple:
    """Returns the gradients of activations, scale, bias and weights; statistics have none.

    The gate's gradient takes a sum over space, and adds to every element of its example and
    channel what its means have. So sums of the slope alone stand in for those that need it.
    """
    x, *arrays, pooled, weights = kept
    mean, inverse, scale, _ = arrays
    groups, cotangent = _group(x, settings.rows), _group(cotangents[0], settings.rows)
    count = math.prod(groups.shape[2:-1])
    list_terms = functools.partial(_list_terms, settings)
    sums = _sum_space(settings, list_terms, [groups, cotangent], *arrays)
    weight_grads: Sequence[Array] = ()
    if settings.gate is not None:
        made, pull = jax.vjp(settings.gate, pooled, *weights)
        pooled_grad, *weight_grads = pull(sums[4].reshape(made.shape).astype(made.dtype))
        factor, added = (
            _group(each.astype(jnp.float32), settings.rows) for each in (made, pooled_grad)
        )
        added = added / count
        sums = [factor * sums[0] + added * sums[2], factor * sums[1] + added * sums[3]]
    x_sum, unit_sum = (each.sum(1) for each in sums)  # [g c]

    numbers = _spread_all(tuple(arrays), groups)
    unit, _, slope = _compute(settings.activation, _again(groups), *numbers)
    wide = _again(cotangent).astype(jnp.float32)
    if settings.gate is not None:
        wide = wide * _spread(factor, groups) + _spread(added, groups)
    x_grad = slope * wide
    if not settings.given:
        size = groups.shape[1] * count
        x_grad -= _spread(x_sum / size, groups) + unit * _spread(unit_sum / size, groups)
    x_grad *= _spread(inverse * scale, groups)
    statistics = (jnp.zeros_like(mean), jnp.zeros_like(mean)) if settings.given else None
    return (
        x_grad.astype(x.dtype).reshape(x.shape),
        unit_sum.sum(0),
        x_sum.sum(0),
        statistics,
        tuple(weight_grads),
    )


def _normalize_once(settings: BatchSettings, *arrays) -> tuple[Array, Array, Array]:
    return _forward(settings, *arrays)[0]


normalize = jax.custom_vjp(_normalize_once, nondiff_argnums=(0,))
"""What `normalize_plainly` returns; its backward pass reads activations twice."""
normalize.defvjp(_forward, _backward)
