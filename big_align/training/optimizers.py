"""Optimization: learning-rate schedules, weight-decay masks, and chains of updates.

The chains are built from optax's parts so that one list of excluded parameters applies to both
weight decay and LAMB's trust ratio. Parameters are global arrays, so norms here are those of the
whole parameter, however it is sharded. State is float32, and nothing relies on implicit type
promotion.
"""

import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from big_align.core.errors import check_at_least, check_known
from big_align.core.module_paths import split_path
from big_align.core.nodes import Given
from big_align.core.types import Params
from big_align.training.layer_rates import (
    UNIFORM,
    LayerRates,
    find_patterns,
    list_names,
    scale_by_rates,
)
from big_align.training.row_tables import RowOptimizer

DECAYS = ("linear", "cosine", "step", "constant")
OPTIMIZERS = ("lamb", "adamw", "sgd")
EXCLUDE = (
    *("bias", "scale", "temperature", "log_scale"),
    # Offset tables; and fixed queries, which get no gradient and should not shrink either.
    *("relative_position_bias", "queries"),
)


TABLES = "token_type_embedding", "class_position"
"""Vectors that are rows of a table elsewhere: BERT's segments, of which a text has one, and the
position of ViT's class token, which is the first row of CLIP's and of timm's tables."""


def make_schedule(
    total_steps: Given[int],
    learning_rate: float,
    decay: str = "linear",
    warmup_steps: int = 0,
    end_value: float = 0.0,
    decay_every: int | None = None,
    decay_rate: float = 0.97,
) -> optax.Schedule:
    """Makes a learning rate that rises linearly from 0 and then decays.

    ALIGN (Jia et al., 2021, §5) rises to 1e-3 in 10k steps and falls linearly to 0 at 1.2M steps.

    Args:
      total_steps: steps of the whole run, warm-up included.
      learning_rate: the peak, reached after the warm-up.
      decay: "linear" or "cosine" to `end_value` at the last step; "step" multiplies by `decay_rate`
        after every `decay_every` steps, down to `end_value`; "constant" stays at the peak.
      warmup_steps: steps of linear warm-up.
      end_value: the value at which the decay ends.
      decay_every: steps between two multiplications, counted from the end of the warm-up.
      decay_rate: the factor of "step", in (0, 1].

    Returns:
      A function from the step, counted from 0, to the learning rate; `optax` takes it as one.

    Raises:
      ValueError: `decay` is unknown or a value is impossible.

    Examples:
      >>> import big_align
      >>> schedule = big_align.make_schedule(total_steps=100, learning_rate=0.4, warmup_steps=20)
      >>> [f"{schedule(step):.2f}" for step in (0, 10, 20, 60, 100)]
      ['0.00', '0.20', '0.40', '0.20', '0.00']
    """
    for field, value in (("total_steps", total_steps), ("learning_rate", learning_rate)):
        if not isinstance(value, numbers.Real):
            raise ValueError(f"{field} = {value!r} must be a number")
    check_known("decay", decay, DECAYS)
    for field, steps in (("total_steps", total_steps), ("warmup_steps", warmup_steps)):
        if steps % 1:
            raise ValueError(f"{field} = {steps} must be a whole number")
    check_at_least(1, total_steps=total_steps)
    if not 0 <= warmup_steps <= total_steps:
        raise ValueError(
            f"warmup_steps = {warmup_steps} is not in [0, total_steps = {total_steps}]"
        )
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"learning_rate = {learning_rate} must be positive and finite")
    if not 0 <= end_value <= learning_rate:
        raise ValueError(f"end_value = {end_value} is not in [0, learning_rate = {learning_rate}]")
    steps = max(total_steps - warmup_steps, 1)
    if decay == "linear":
        after = optax.linear_schedule(learning_rate, end_value, steps)
    elif decay == "cosine":
        after = optax.cosine_decay_schedule(learning_rate, steps, end_value / learning_rate)
    elif decay == "step":
        after = _make_staircase(learning_rate, decay_every, decay_rate, end_value)
    else:
        after = optax.constant_schedule(learning_rate)
    warmup = optax.linear_schedule(0.0, learning_rate, max(warmup_steps, 1))
    joined = optax.join_schedules([warmup, after], [warmup_steps])
    return lambda step: joined(jnp.asarray(step, jnp.float32))


def _make_staircase(
    learning_rate: float, every: int | None, rate: float, end_value: float
) -> optax.Schedule:
    if every is None or every < 1 or every != int(every):
        raise ValueError(
            f"decay_every = {every} must be a whole number of steps, at least 1, for decay = 'step'"
        )
    if not 0 < rate <= 1:
        raise ValueError(f"decay_rate = {rate} is not in (0, 1]")
    if rate == 1:  # optax would take `end_value` for the most that it may be
        return optax.constant_schedule(learning_rate)
    return optax.exponential_decay(learning_rate, every, rate, staircase=True, end_value=end_value)


def decay_mask(params: Params, exclude: tuple[str, ...] | None = EXCLUDE) -> Any:
    """Returns which parameters decay and have a trust ratio: kernels and embeddings.

    Args:
      params: the parameters.
      exclude: names that are left out wherever they occur in the path of a parameter, in addition
        to parameters with fewer than two axes (biases, scales of norms, temperature) that are not
        in `TABLES`. None leaves nothing out at all.

    Returns:
      A pytree of booleans shaped like `params`.
    """

    def decays(path: tuple, value: Any) -> bool:
        if exclude is None:
            return True
        names = list_names(path)
        is_table = jnp.ndim(value) > 1 or bool({*names[-1:]} & {*TABLES})
        return is_table and not set(names) & set(exclude)

    return jax.tree_util.tree_map_with_path(decays, params)


def frozen_mask(params: Params, frozen: tuple[str, ...]) -> Any:
    """Returns which parameters are at or under given paths.

    Args:
      params: the parameters.
      frozen: paths such as "model/image", or patterns, as in `LayerRates`.

    Returns:
      A pytree of booleans shaped like `params`.

    Raises:
      UserError: there is nothing at a path.
    """
    faults = [f"frozen = {path!r} is the path of no parameter" for path in frozen]
    found = find_patterns([split_path(path) for path in frozen], params, faults)
    return jax.tree.map(lambda place: place >= 0, found)


def make_optimizer(
    learning_rate: optax.ScalarOrSchedule,
    name: str = "lamb",
    weight_decay: float = 0.0,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    momentum: float = 0.9,
    nesterov: bool = False,
    clip_norm: float | None = None,
    exclude: tuple[str, ...] | None = EXCLUDE,
    frozen: tuple[str, ...] = (),
    layers: LayerRates = UNIFORM,
) -> optax.GradientTransformation:
    """Makes the chain that turns gradients into updates.

    Decay is decoupled from the moments in LAMB and AdamW; in SGD it is added to the gradient, as is
    usual there. Excluded parameters get neither decay nor trust ratio: those with fewer than two
    axes (biases, scales of norms, temperature), and those whose path has a name in `exclude`.

    Args:
      learning_rate: a number, or a function from the step to one.
      name: "lamb" (You et al., 2020), "adamw" (Loshchilov and Hutter, 2019) or "sgd".
      weight_decay: factor of the parameter that is added to the update (ALIGN §5: 1e-5).
      b1: decay of the first moment, for "lamb" and "adamw".
      b2: decay of the second moment, likewise.
      eps: added to the root of the second moment.
      momentum: momentum of "sgd".
      nesterov: whether "sgd" uses Nesterov momentum.
      clip_norm: largest norm of the whole gradient; a larger one is first scaled down to it. None
        does not clip.
      exclude: names that exclude a parameter wherever they occur in its path; None leaves nothing
        out at all.
      frozen: paths, such as "model/image", of parameters that stay as they are, without decay or
        moments, and do not count in the norm of `clip_norm`. In a run, modules there are in
        evaluation mode: their statistics stay, too, and they drop nothing.
      layers: how the learning rate differs between parameters, a `big_align.LayerRates`. A config
        has its fields (`rates`, `layer_decay`, `unfreeze`, `unfreeze_layers`) beside the others.

    Returns:
      A transformation of optax, whose `update` needs the parameters as well.

    Raises:
      TypeError: an argument is of another kind, such as a text in place of a tuple of texts.
      ValueError: `name` is unknown or a value is impossible; or, once the optimizer gets the
        parameters, there are none at a path.

    Examples:
      >>> import jax.numpy as jnp
      >>> import big_align
      >>> optimizer = big_align.make_optimizer(0.1, "adamw")
      >>> params = {"kernel": jnp.ones((2, 2))}
      >>> gradients = {"kernel": jnp.full((2, 2), 5.0)}
      >>> updates, state = optimizer.update(gradients, optimizer.init(params), params)
      >>> print(f"{updates['kernel'][0, 0]:.4f}")
      -0.1000
    """
    check_known("name", name, OPTIMIZERS)
    _check_kinds(learning_rate, exclude, frozen, layers)
    rates = {"b1": b1, "b2": b2, "momentum": momentum}
    _check_numbers(learning_rate, rates, weight_decay, eps, clip_norm)

    def mask(params: Params) -> Any:
        return decay_mask(params, exclude)

    clip = optax.identity() if clip_norm is None else optax.clip_by_global_norm(clip_norm)
    decays = isinstance(weight_decay, jax.Array) or weight_decay
    decay = optax.add_decayed_weights(weight_decay, mask) if decays else optax.identity()
    if name == "sgd":
        parts = [decay, _trace(momentum, nesterov)]
    else:
        parts = [_scale_by_adam(b1, b2, eps), decay]
    if name == "lamb":
        parts.append(optax.masked(_scale_by_trust_ratio(), mask))
    chain = optax.chain(clip, *parts, optax.scale_by_learning_rate(learning_rate))
    chain = _freeze(chain, frozen) if frozen else chain
    return chain if layers.uniform else optax.chain(chain, scale_by_rates(layers))


def _check_kinds(learning_rate: Any, exclude: Any, frozen: Any, layers: Any) -> None:
    """Raises a TypeError if an argument is of another kind; a text is a tuple of its letters."""
    if not isinstance(learning_rate, numbers.Real | jax.Array | np.ndarray | Callable):
        raise TypeError(f"learning_rate = {learning_rate!r} must be a number or a schedule")
    for field, value in (("exclude", exclude), ("frozen", frozen)):
        if isinstance(value, str):
            raise TypeError(f"{field} = {value!r} must be a tuple of texts, such as ({value!r},)")
    if not isinstance(layers, LayerRates):
        raise TypeError(f"layers = {layers!r} must be a big_align.LayerRates")


def _check_numbers(
    learning_rate: Any, rates: dict[str, Any], weight_decay: Any, eps: Any, clip_norm: Any
) -> None:
    """Raises a ValueError if a number is impossible; arrays, which jit may trace, are taken."""
    if isinstance(learning_rate, numbers.Real) and not 0 <= float(learning_rate) < math.inf:
        raise ValueError(f"learning_rate = {learning_rate} must be 0 or a positive number")
    for field, value in rates.items():
        if not isinstance(value, jax.Array) and not 0 <= value < 1:
            raise ValueError(f"{field} = {value} is not in [0, 1)")
    if not isinstance(weight_decay, jax.Array) and not 0 <= weight_decay < math.inf:
        raise ValueError(f"weight_decay = {weight_decay} must be 0 or a positive number")
    if not isinstance(eps, jax.Array) and not 0 < eps < math.inf:
        raise ValueError(f"eps = {eps} must be positive")
    if clip_norm is not None and not isinstance(clip_norm, jax.Array) and not clip_norm > 0:
        raise ValueError(f"clip_norm = {clip_norm} must be positive, or None not to clip")


def make_row_optimizer(name: str, **settings: Any) -> RowOptimizer:
    """Makes the optimizer of the rows of a table: the chain of `make_optimizer`, row by row.

    Args:
      name: as for `make_optimizer`.
      **settings: as for `make_optimizer`, including the fields of `layers`. Settings that concern
        all parameters together (`clip_norm`, `exclude`) or paths do not apply to rows, which all
        decay.
    """
    paths = (field.name for field in dataclasses.fields(LayerRates))
    left_out = {"clip_norm", "exclude", "frozen", *paths}
    own = {k: v for k, v in settings.items() if k not in left_out}
    return RowOptimizer(make_optimizer(1.0, name, **own, exclude=None), name)


def _freeze(
    chain: optax.GradientTransformation, frozen: tuple[str, ...]
) -> optax.GradientTransformation:
    """Hides parameters from a chain and makes their updates zero."""

    def stays(params: Params) -> Any:
        return frozen_mask(params, frozen)

    def moves(params: Params) -> Any:
        return jax.tree.map(lambda stays: not stays, frozen_mask(params, frozen))

    # Not optax.partition: its state is a dictionary, whose keys would appear in the paths by which
    # moments are placed like their parameters.
    return optax.chain(optax.masked(chain, moves), optax.masked(optax.set_to_zero(), stays))


def _scale_by_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Adam's update with float32 moments; optax's raises under strict type promotion."""

    def init(params: Params) -> optax.ScaleByAdamState:
        def zeros() -> Params:
            return jax.tree.map(lambda x: jnp.zeros_like(x, jnp.float32), params)

        return optax.ScaleByAdamState(count=jnp.zeros((), jnp.int32), mu=zeros(), nu=zeros())

    def update(grads: Params, state: optax.ScaleByAdamState, params: Params | None = None):
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)
        count = optax.safe_increment(state.count)
        seen_mu, seen_nu = (1 - b ** count.astype(jnp.float32) for b in (b1, b2))
        updates = jax.tree.map(lambda m, v: (m / seen_mu) / (jnp.sqrt(v / seen_nu) + eps), mu, nu)
        return updates, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


def _scale_by_trust_ratio() -> optax.GradientTransformation:
    """LAMB's ratio of the norms of a parameter and its update, of all parameters at once.

    Where parameters are in pieces, devices then sum one vector. Of optax's norms, one after the
    other, they sum two numbers for each parameter: 652 sums in a step of EfficientNet-B7 with BERT.
    """

    def update(updates: Params, state: optax.EmptyState, params: Params | None = None):
        leaves, tree = jax.tree.flatten(updates)
        if not leaves:
            return updates, state
        squares = [jnp.sum(jnp.square(x)) for x in (*jax.tree.leaves(params), *leaves)]
        of_params, of_updates = jnp.sqrt(jnp.stack(squares)).reshape(2, -1)
        zero = (of_params == 0) | (of_updates == 0)
        ratios = jnp.where(zero, 1, of_params / jnp.where(zero, 1, of_updates))
        scaled = [x * ratio for x, ratio in zip(leaves, ratios, strict=True)]
        return jax.tree.unflatten(tree, scaled), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _trace(momentum: float, nesterov: bool) -> optax.GradientTransformation:
    """Momentum in float32, also of narrower gradients."""
    trace = optax.trace(momentum, nesterov, accumulator_dtype=jnp.float32)

    def update(grads: Params, state: optax.TraceState, params: Params | None = None):
        return trace.update(jax.tree.map(lambda g: g.astype(jnp.float32), grads), state)

    return optax.GradientTransformation(trace.init, update)


def update_average(average: Any, new: Any, decay: float, step: ArrayLike) -> Any:
    """Moves exponential moving averages of arrays by one step.

    Early on the decay is min(decay, (1 + step) / (10 + step)), so that the average forgets the
    initial values and needs no correction.

    Args:
      average: the average of each array so far; initially the first arrays.
      new: the arrays after this step's update.
      decay: fraction of the old average that is kept, in [0, 1).
      step: number of updates before this one.

    Returns:
      The new average.
    """
    step = jnp.asarray(step, jnp.float32)
    share = 1 - jnp.minimum(decay, (1 + step) / (10 + step))
    return jax.tree.map(lambda old, new: old + share.astype(old.dtype) * (new - old), average, new)
