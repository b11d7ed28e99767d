"""Compiling: with options that are checked, and with a cache that outlives the process."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from big_align.core.errors import ConfigError
from big_align.core.nodes import Node


def use_cache(folder: str | None) -> None:
    """Keeps compiled programs in a folder or bucket, where later processes find them.

    If there are several processes, the first one writes and all read, so they should share the
    folder. That serves all of them on GPUs and TPUs; on CPUs it serves the first one alone, since
    XLA describes each process's own CPUs there, and the key has this description. Programs that
    compile in less than a second are not kept, unless JAX is configured otherwise
    (`JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS`).
    """
    if folder and folder != _find_cache():
        # JAX decides at its first compilation whether there is a cache; this may come later.
        compilation_cache.reset_cache()
        jax.config.update("jax_compilation_cache_dir", folder)


def _find_cache() -> str | None:
    return jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]  # JAX adds its flags


@contextlib.contextmanager
def watch_cache() -> Iterator[list[bool]]:
    """Yields a list that says of each program compiled inside whether the cache had it."""
    found: list[bool] = []

    def listen(event: str, **_: object) -> None:
        if not _find_cache():  # JAX counts requests without one, too
            return
        if event.endswith("/compile_requests_use_cache"):
            found.append(False)
        elif event.endswith("/cache_hits"):
            found[-1] = True

    jax.monitoring.register_event_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_listener(listen)


def tell_found(found: Sequence[bool]) -> str:
    """Tells for which processes, in their order, the cache had the train step."""
    if len(set(found)) == 1:
        return f"the train step was {'' if found[0] else 'not '}found in the compilation cache"
    missing = [str(process) for process, hit in enumerate(found) if not hit]
    more = ", ..." if len(missing) > 8 else ""
    return (
        f"the train step was found in the compilation cache by {sum(found)} of {len(found)} "
        f"processes, and compiled by process {', '.join(missing[:8])}{more}"
    )


def check_cache(folder: str | None) -> None:
    """Checks that a folder can hold the cache: that it is no file, and not inside one."""
    path = None if folder is None or "://" in folder else os.path.abspath(folder)
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    if path and not os.path.isdir(path):
        raise ConfigError(f"config.compilation_cache = {folder!r}: {path} is no folder")


def check_options(options: Node) -> None:
    """Checks that options have values that a compiler could accept; it alone knows the names."""
    for name, value in options.items():
        if not isinstance(value, str | int | float | None):
            raise ConfigError(
                f"config.compiler_options.{name} = {value!r} is not True, False, a number or a text"
            )


ROOM = 0.05  # share of a device's memory left to batches on their way, evaluation, libraries


def count_memory(compiled: jax.stages.Compiled) -> int:
    """Returns the bytes that a program takes on a device, its arguments included."""
    stats: Any = compiled.memory_analysis()
    made = stats.output_size_in_bytes - stats.alias_size_in_bytes
    used = stats.argument_size_in_bytes + stats.temp_size_in_bytes + made
    return used + stats.generated_code_size_in_bytes


def memory_limit(device: jax.Device) -> int | None:
    """Returns the bytes that a step may take on a device; None for CPUs, which do not tell."""
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return None if limit is None else leave_room(limit)


def leave_room(limit: int) -> int:
    """Returns the bytes that a step may take, of those that the arrays of a run can take."""
    return int((1 - ROOM) * limit)


def compile_lowered(lowered: jax.stages.Lowered, options: Mapping[str, Any]) -> jax.stages.Compiled:
    """Compiles a program with the compiler's options."""
    try:
        return lowered.compile(compiler_options=dict(options) or None)
    except jax.errors.JaxRuntimeError as error:
        # "No such compile option: 'name'", "While setting option name, 'x' is not a valid ..."
        known = re.search(r"No such compile option.*|While setting option.*", str(error))
        if not known:
            raise
        raise ConfigError(f"config.compiler_options: {known[0]}") from error
