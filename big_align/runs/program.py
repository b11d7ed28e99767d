"""What a config trains: the objective, the state of a run and its step, on real devices or not."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from big_align.config.stages import count_steps_before
from big_align.core.nodes import Node
from big_align.core.types import Batch, Metrics, Objective, Params
from big_align.parallel.devices import choices, compilation, rematerialization, traced
from big_align.parallel.devices.compiler_flags import choose_options
from big_align.parallel.distributed import agreement
from big_align.runs import build
from big_align.training.flops import model_flops
from big_align.training.state import TrainState, describe_state
from big_align.training.step import compile_step, make_train_step, trace_step


@dataclasses.dataclass(frozen=True)
class Program:
    """The train step of a config on a mesh, of real devices or a topology's, and its state."""

    mesh: Mesh
    objective: Objective
    learning_rate: optax.Schedule
    state: TrainState  # shapes of a fresh state, with their placement
    create: Callable[[], TrainState]  # makes the fresh state
    step: Callable[[TrainState, Batch], tuple[TrainState, Metrics]]
    options: dict[str, Any]  # of the compiler, by name
    frozen: tuple[str, ...] = ()  # paths of parameters that are not trained
    microbatches: int = 1  # parts of a device's batch that are encoded one after another

    def trace(self, batch: Batch) -> jax.stages.Traced:
        """Traces the step for a batch of arrays, or of shapes with their placement."""
        return trace_step(self.step, self.state, batch, self.mesh)

    def compile(self, batch: Batch) -> jax.stages.Compiled:
        """Compiles the step for a batch; recomputes the least that fits where that is "auto"."""
        limit = room = compilation.memory_limit(self.mesh.local_devices[0])
        count_stored = functools.cache(functools.partial(self.count_stored, batch))
        level, levels = rematerialization.AUTO_LEVELS[0], rematerialization.AUTO_LEVELS
        while True:
            if room is not None:
                level = rematerialization.find_least(count_stored, room, level)
            # Processes decide together: their devices may report a few bytes more or less.
            level = agreement.share("remat", level)
            with rematerialization.auto_is(level) as asked, choices.collect() as chosen:
                may_fail = limit is not None and level != levels[-1]
                made = self._compile(batch, asked, may_fail)
            used = None if made is None else compilation.count_memory(made)
            fits = limit is None or (used is not None and used <= limit)
            if not asked or level == levels[-1] or all(agreement.gather("fits", fits)):
                break
            _tell([f"remat: {level} takes {_format_taken(used, limit)}; compiling what takes less"])
            room = rematerialization.take_room(limit, room, count_stored(level), used)
            level = levels[levels.index(level) + 1]
        if asked:
            chosen[f"remat: auto is {level}, the least that fits"] = None
        _tell(chosen)
        return made

    def _compile(
        self, batch: Batch, asked: list[str], may_fail: bool
    ) -> jax.stages.Compiled | None:
        """Compiles the step; returns None if it may fail, and "auto" asked for what has no room."""
        try:
            return compile_step(self.step, self.state, batch, self.mesh, self.options)
        except jax.errors.JaxRuntimeError as error:
            if not (may_fail and asked) or "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return None

    def count_stored(self, batch: Mapping[str, Any], level: str) -> int:
        """Counts the bytes of a device for the state, its gradients, and what encoders store.

        What they store is that with a level for "auto". Where nothing asks for it, there is nothing
        to find, and the count is 0.
        """
        with rematerialization.auto_is(level) as asked:
            stored = self._count_stored(batch)
        return stored if asked else 0

    def _count_stored(self, batch: Mapping[str, Any]) -> int:
        def store(state: TrainState, batch: Mapping[str, Any]) -> Any:
            batch = self.objective.augment(batch, state.rng, state.step)

            def encode(params: Params) -> Any:
                return self.objective.encode(params, state.model_state, batch, state.rng)[0]

            with traced.weights_on(self.mesh):
                return jax.vjp(encode, state.params)[1]

        def size(shapes: Any) -> int:
            return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))

        held = [x for x in jax.tree.leaves(self.state) if hasattr(x, "sharding")]
        pieces = (x.dtype.itemsize * math.prod(x.sharding.shard_shape(x.shape)) for x in held)
        kept = size(jax.eval_shape(store, self.state, dict(batch)))
        return sum(pieces) + kept // (self.mesh.size * self.microbatches)

    def count_flops(self, batch: Batch) -> float:
        """Counts the model FLOPs of a step, over all devices."""
        return model_flops(self.objective, self.state, batch, self.mesh, self.frozen)

    def compile_and_count(self, batch: Batch) -> tuple[jax.stages.Compiled, float]:
        """Compiles the step, and prints mesh and options; returns it and the FLOPs per device.

        All processes return together: one that found the step in the cache would wait in its first
        step for those that compile, and take that for training.
        """
        if self.mesh.size > 1:
            _tell(["mesh: " + ", ".join(f"{axis} {n}" for axis, n in self.mesh.shape.items())])
        if self.options:
            shown = ", ".join(f"{name}={value}" for name, value in self.options.items())
            _tell([f"compiler options: {shown}"])
        with compilation.watch_cache() as found:
            compiled = self.compile(batch)
        flops = self.count_flops(batch) / self.mesh.size
        everywhere = [last for (*_, last) in filter(None, agreement.gather("compiled", found))]
        if everywhere:
            _tell([compilation.tell_found(everywhere)])
        return compiled, flops


def _tell(lines: Iterable[str]) -> None:
    """Prints lines in the first process."""
    if jax.process_index() == 0:
        for line in lines:
            print(line)


def _format_taken(used: int | None, limit: int) -> str:
    taken = "more than the" if used is None else f"{used / 2**30:.1f} of"
    return f"{taken} {limit / 2**30:.1f} GiB"


def build_program(config: Node, mesh: Mesh, objective: Objective, example: Batch) -> Program:
    """Builds the step of a config and describes its state; makes nothing but shapes."""
    frozen = build.find_frozen(config, objective)
    optimizer, learning_rate = build.build_optimizer(config, frozen)
    row_optimizer = build.build_row_optimizer(config)
    state, create = describe_state(
        objective,
        optimizer,
        example,
        mesh,
        seed=config["seed"],
        averaged=config["average_decay"] is not None,
        row_optimizer=row_optimizer,
    )
    step = make_train_step(
        objective,
        optimizer,
        mesh,
        microbatches=config["microbatches"],
        average_decay=config["average_decay"],
        row_optimizer=row_optimizer,
        learning_rate=learning_rate,
        gradient_dtype=config["gradient_dtype"],
        frozen=frozen,
        steps_before=count_steps_before(config),
    )
    options = choose_options(mesh, config["compiler_options"])
    parts = config["microbatches"]
    return Program(mesh, objective, learning_rate, state, create, step, options, frozen, parts)
