"""The blocks of a tower: what they recompute, and many equal ones as a loop of the program.

Parameters are those of separate blocks, whatever the program is: checkpoints, rates by layer and
exports know no loop. Blocks that run in a loop are compiled once, and XLA's scheduler can put
nothing off beyond one of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from big_align.models.parts import layers, locking
from big_align.parallel.devices import rematerialization, traced


def run_blocks(
    tower: nn.Module,
    block_class: type[nn.Module],
    settings: Sequence[Mapping[str, Any]],
    x: Float[Array, "b *rest"],
    *arguments: Any,
    train: bool,
    start: int = 0,
) -> Float[Array, "b *rest2"]:
    """Runs blocks of a tower, one after another.

    Args:
      tower: the calling module; its fields `remat` and `scan` say what is recomputed and whether
        equal blocks run in a loop (None: where that keeps XLA from putting gradients off).
      block_class: called with activations, `arguments` and `train`.
      settings: the fields of each block, of which `drop_path` may differ within a loop.
      x: the activations before the first block.
      arguments: arrays, or None, for every block.
      train: whether dropout, stochastic depth and batch statistics are on.
      start: the number of the first block; their names are block_00, block_01, ...
    """
    levels = rematerialization.find_levels(tower.remat, sum(tower.stage_depths))
    blocks = [
        _Block(f"block_{start + i:02d}", levels[start + i], fields)
        for i, fields in enumerate(settings)
    ]
    for equal in _find_runs(tower, blocks):
        name, level, fields = equal[0]
        mode = train and not locking.is_locked((*tower.path, name))
        with rematerialization.in_block(level):
            if len(equal) > 1:
                x = _run_loop(tower, block_class, equal, x, arguments, mode)
                continue
            train_index = 2 + len(arguments)  # the block itself is 0
            made = rematerialization.remat_block(block_class, train_index, level)
            x = made(**fields, name=name)(x, *arguments, mode)
    return x


class _Block(NamedTuple):
    """A block by its name in the tower, with what it recomputes and the fields of its module."""

    name: str
    level: str
    fields: Mapping[str, Any]

    def variables(self, tower: nn.Module) -> dict[str, Any]:
        """Returns the variables of the block by collection."""
        held = {k: tree[self.name] for k, tree in tower.variables.items() if self.name in tree}
        return nn.meta.unbox(held)

    def kind(self, tower: nn.Module) -> Any:
        """Returns what equal blocks have in common; of their variables, the shapes."""
        path = *tower.path, self.name
        # A loop does not know the paths of what is in its blocks.
        mode = locking.is_locked(path) or (locking.has_locked(path) and self.name)
        fields = {name: x for name, x in self.fields.items() if name != "drop_path"}
        shapes = jax.tree.map(lambda x: (x.shape, x.dtype), self.variables(tower))
        return self.level, mode, fields, shapes


def _runs_loops(tower: nn.Module, level: str) -> bool:
    """Returns whether equal blocks run in a loop.

    A loop copies weights, gradients and whatever else its blocks store into stacks. On several GPUs
    it is worth that for blocks that store only their inputs: elsewhere XLA puts gradients off, and
    keeps what they read (`compiler_flags`).
    """
    if tower.is_initializing() or tower.scan is not None:
        return bool(tower.scan) and not tower.is_initializing()
    place = traced.weight_place()
    several = place is not None and place.mesh.size > 1
    return several and traced.traced_device().platform == "gpu" and level == "full"


def _find_runs(tower: nn.Module, blocks: Sequence[_Block]) -> Iterator[Sequence[_Block]]:
    """Cuts blocks into those that run in a loop together, and those that run by themselves."""

    def kind(block: _Block) -> Any:
        return block.kind(tower) if _runs_loops(tower, block.level) else block.name

    kinds = [kind(block) for block in blocks]
    first = 0
    while first < len(blocks):
        end = first + 1
        while end < len(blocks) and kinds[end] == kinds[first]:
            end += 1
        yield blocks[first:end]
        first = end


def _run_loop(
    tower: nn.Module,
    block_class: type[nn.Module],
    blocks: Sequence[_Block],
    x: Array,
    arguments: tuple,
    train: bool,
) -> Array:
    """Runs equal blocks in a loop, with their variables stacked."""
    _, level, first = blocks[0]
    stacked = _stack([block.variables(tower) for block in blocks], first["dtype"])
    rates = [block.fields.get("drop_path", 0.0) for block in blocks]
    changing = [kind for kind in stacked if kind != "params" and tower.is_mutable_collection(kind)]
    key = tower.make_rng("dropout") if train and tower.has_rng("dropout") else None

    def body(x: Array, block: tuple) -> tuple[Array, Any]:
        variables, number, rate = block
        fields = {**first, "drop_path": rate} if any(rates) else first
        rngs = {} if key is None else {"dropout": jax.random.fold_in(key, number)}
        made = block_class(**fields, parent=None)
        return made.apply(variables, x, *arguments, train, rngs=rngs, mutable=changing)

    each = stacked, jnp.arange(len(blocks)), jnp.asarray(rates, jnp.float32)
    x, changed = jax.lax.scan(rematerialization.remat_body(body, level), x, each)
    for kind, tree in changed.items():
        for place, block in enumerate(blocks):
            mine = jax.tree.map(lambda leaf, place=place: leaf[place], tree)
            tower.put_variable(kind, block.name, mine)
    return x


def _stack(blocks: Sequence[dict[str, Any]], dtype: str) -> dict[str, Any]:
    """Stacks the variables of blocks, kernels in the type in which their gradients are made."""
    place = traced.weight_place()
    several = place is not None and place.mesh.size > 1
    made = layers.compute_dtype(place.sum_dtype if several else dtype)

    def stack(path: tuple, *leaves: Any) -> Array:
        is_kernel = jax.tree_util.keystr(path, simple=True).endswith("kernel")
        return jnp.stack([jnp.asarray(x, made if is_kernel else x.dtype) for x in leaves])

    return jax.tree_util.tree_map_with_path(stack, *blocks)
