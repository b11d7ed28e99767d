"""Learning rates by parameter path: factors, layer-wise decay, late starts."""

import dataclasses
import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from big_align.core.errors import UserError
from big_align.core.module_paths import fits, split_path
from big_align.core.types import Params

BLOCK = re.compile(r"block_(\d+)")
BETWEEN = re.compile(r"merge_\d+")
"""A module between two stages that doubles the width; it belongs to the block after it."""

BEHIND = ("final_norm", "head_conv", "head_norm")  # modules that follow the last block of a tower


@dataclasses.dataclass(frozen=True)
class LayerRates:
    """How the learning rate differs between parameters. Each entry is "PATH=NUMBER".

    A path is that of a module or a parameter, such as "model/image", and applies to everything
    below it; `*` and `?` match any characters within a name, as in `model/*/block_0*`. If several
    entries of a field match a parameter, the last one counts. The fields combine: factors multiply,
    and steps add up.

    The layers of a tower are what comes before its blocks, each block, and what follows the last
    block; the layers of a path are counted from the last one down to the first.

    Args:
      rates: factors of the learning rate; 0 leaves parameters as they are, and in a run the batch
        statistics of their modules (`still`).
      layer_decay: ratio of a layer's learning rate to that of the layer above it, in (0, 1]. What
        follows the last block has the full rate, the last block this fraction of it
        (Bao et al., 2022).
      unfreeze: the step from which parameters are trained. Until then they stay as they are, but
        their gradients count in moments and in `clip_norm`, batch statistics move, and dropout is
        on.
      unfreeze_layers: steps between the start of a layer and that of the one below it: what follows
        the last block starts at once, the last block after this many steps (Howard and Ruder,
        2018).

    Raises:
      ValueError: an entry is not of this form, or its number is impossible.

    Examples:
      >>> import jax.numpy as jnp
      >>> import big_align
      >>> layers = big_align.LayerRates(rates=("model=0.1", "model/text=0"))
      >>> bias = jnp.zeros(2)
      >>> params = {"model": {"image": {"bias": bias}, "text": {"bias": bias}}, "log_scale": bias}
      >>> factors = layers.factors(params)
      >>> factors["model"]["image"], factors["model"]["text"], factors["log_scale"]
      ({'bias': 0.1}, {'bias': 0.0}, 1.0)
    """

    rates: tuple[str, ...] = ()
    layer_decay: tuple[str, ...] = ()
    unfreeze: tuple[str, ...] = ()
    unfreeze_layers: tuple[str, ...] = ()

    def __post_init__(self):
        for field in dataclasses.fields(self):
            _parse(field.name, getattr(self, field.name))

    @property
    def uniform(self) -> bool:
        """Whether all parameters have the same rate at every step."""
        return not any(getattr(self, field.name) for field in dataclasses.fields(self))

    @property
    def still(self) -> tuple[str, ...]:
        """The paths of factor 0, except those of `partly_still`."""
        zeros = ("/".join(path) for path, factor in _parse("rates", self.rates) if factor == 0)
        return tuple(path for path in zeros if path not in self.partly_still)

    @property
    def partly_still(self) -> tuple[str, ...]:
        """The paths of factor 0 where a later entry may give a part another factor."""
        parsed = _parse("rates", self.rates)
        return tuple(
            "/".join(path)
            for number, (path, factor) in enumerate(parsed)
            if factor == 0
            and any(rate and _may_meet(path, other) for other, rate in parsed[number + 1 :])
        )

    def factors(self, params: Params) -> Any:
        """Returns the factor of each parameter's rate, as a pytree of floats."""
        rates = _look_up("rates", self.rates, params, 1.0)
        decays = _look_up("layer_decay", self.layer_decay, params, 1.0)
        heights = _measure(self.layer_decay, "layer_decay", params)
        return jax.tree.map(lambda rate, d, h: rate * d**h, rates, decays, heights)

    def starts(self, params: Params) -> Any:
        """Returns the step from which each parameter is trained, as a pytree of ints."""
        starts = _look_up("unfreeze", self.unfreeze, params, 0.0)
        steps = _look_up("unfreeze_layers", self.unfreeze_layers, params, 0.0)
        heights = _measure(self.unfreeze_layers, "unfreeze_layers", params)
        return jax.tree.map(lambda start, n, h: int(start + n * h), starts, steps, heights)


class RateState(NamedTuple):
    """The number of updates so far."""

    updates: Int[Array, ""]


def scale_by_rates(layers: LayerRates) -> optax.GradientTransformation:
    """Makes a transformation that multiplies the updates of every parameter by its own rate."""

    def init(params: Params) -> RateState | optax.EmptyState:
        layers.factors(params), layers.starts(params)  # raises if a path matches nothing
        late = layers.unfreeze or layers.unfreeze_layers
        return RateState(jnp.zeros((), jnp.int32)) if late else optax.EmptyState()

    def update(updates: Params, state: Any, params: Params | None = None):
        factors, starts = layers.factors(updates), layers.starts(updates)
        if not isinstance(state, RateState):
            return jax.tree.map(lambda u, f: u * jnp.asarray(f, u.dtype), updates, factors), state

        def scale(u: Array, factor: float, start: int) -> Array:
            return jnp.where(state.updates >= start, u * jnp.asarray(factor, u.dtype), 0)

        scaled = jax.tree.map(scale, updates, factors, starts)
        return scaled, RateState(optax.safe_increment(state.updates))

    return optax.GradientTransformation(init, update)


def _parse(field: str, entries: Sequence[str]) -> list[tuple[tuple[str, ...], float]]:
    """Returns the names in each path, with its number."""
    parsed = []
    for entry in entries:
        path, equals, text = entry.rpartition("=")
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not equals or not path.strip("/") or not 0 <= number < math.inf:
            raise ValueError(f"{field} has {entry!r}, which is not PATH=NUMBER with a number >= 0")
        if field == "layer_decay" and not 0 < number <= 1:
            raise ValueError(f"{field} has {entry!r}, but {number:g} is not in (0, 1]")
        if field.startswith("unfreeze") and number != int(number):
            raise ValueError(f"{field} has {entry!r}, but {number:g} is no number of steps")
        parsed.append((split_path(path), number))
    return parsed


def list_names(path: tuple) -> tuple[str, ...]:
    """Returns the names on the way to a parameter, from a path of `jax.tree_util`."""
    return split_path(jax.tree_util.keystr(path, simple=True, separator="/"))


def _may_meet(pattern: Sequence[str], other: Sequence[str]) -> bool:
    """Returns whether a parameter may fit two patterns."""
    pairs = list(zip(pattern, other, strict=False))
    return all(
        fnmatch.fnmatchcase(a, b) or fnmatch.fnmatchcase(b, a) or ("*" in a and "*" in b)
        for a, b in pairs
    )


def _look_up(field: str, entries: Sequence[str], params: Params, default: float) -> Any:
    """Returns the number of the last entry that matches each parameter."""
    parsed = _parse(field, entries)
    faults = [f"{field} has {entry!r}: no parameter is there" for entry in entries]
    found = find_patterns([pattern for pattern, _ in parsed], params, faults)
    return jax.tree.map(lambda place: default if place < 0 else parsed[place][1], found)


def find_patterns(patterns: Sequence[Sequence[str]], params: Params, faults: Sequence[str]) -> Any:
    """Returns the place of the last pattern that fits each parameter, in a pytree; -1 for none."""
    paths = [list_names(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    for pattern, fault in zip(patterns, faults, strict=True):
        if not any(fits(path, pattern) for path in paths):
            known = ", ".join(sorted({"/".join(path[:2]) for path in paths}))
            raise UserError(f"{fault}; there are: {known}")

    def find(path: tuple, _: Any) -> int:
        names = list_names(path)
        return max((i for i, each in enumerate(patterns) if fits(names, each)), default=-1)

    return jax.tree_util.tree_map_with_path(find, params)


def _measure(entries: Sequence[str], field: str, params: Params) -> Any:
    """Returns how many layers of its tower are above each parameter; 0 where no entry matches."""
    shapes = {list_names(p): x.shape for p, x in jax.tree_util.tree_leaves_with_path(params)}
    heights: dict[tuple[str, ...], int] = {}
    for entry, (pattern, _) in zip(entries, _parse(field, entries), strict=True):
        below = [path for path in shapes if fits(path, pattern)]
        towers = {path[: len(pattern)] for path in below}
        for tower in towers:
            own = {p[len(tower) :]: shapes[p] for p in below if p[: len(tower)] == tower}
            layers = _number_layers(own)
            if layers is None:
                raise UserError(f"{field} has {entry!r}, but {'/'.join(tower)} has no block_00")
            heights |= {tower + path: height for path, height in layers.items()}
    return jax.tree_util.tree_map_with_path(
        lambda path, _: heights.get(list_names(path), 0), params
    )


def _number_layers(shapes: Mapping[tuple[str, ...], tuple[int, ...]]) -> dict | None:
    """Returns how many layers of a tower are above each path; None if the tower has no blocks."""
    # What an entry names may also be a single parameter, with nothing below it.
    matches = {path: BLOCK.fullmatch(path[0]) for path in shapes if path}
    blocks = {path: int(match[1]) for path, match in matches.items() if match}
    count = 1 + max(blocks.values(), default=-1)
    if not count:
        return None

    def layer(path: tuple[str, ...]) -> int:
        if path in blocks:
            return blocks[path] + 1
        if BETWEEN.fullmatch(path[0]):
            return _find_first(path[0]) + 1
        return count + 1 if path[0] in BEHIND else 0

    def _find_first(merge: str) -> int:
        """Returns the first block as wide as the output of a merging."""
        width = next(s[-1] for p, s in shapes.items() if p[0] == merge and p[-1] == "kernel")
        return min(n for p, n in blocks.items() if p[-1] == "scale" and shapes[p] == (width,))

    return {path: count + 1 - layer(path) for path in shapes}


UNIFORM = LayerRates()
"""The same rate for all parameters."""
