"""Stops processes that disagree, which otherwise would each train on something different.

Process 0 writes its facts to the key-value store once. The others read only a digest of them, and
the facts themselves only if their own digest differs. Topics are for people who read the store.
"""

import functools
import importlib.metadata
import itertools
import json
import os
import pathlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from ml_collections import ConfigDict

import big_align
from big_align.core.digests import fingerprint
from big_align.core.errors import UserError
from big_align.parallel.distributed import processes

LIBRARIES = ("jax", "jaxlib", "numpy", "flax", "optax", "orbax-checkpoint")
FACTS_A_VALUE = 1000  # each value of the store is a message; gRPC allows 4 MB
FLAG_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
OWN_FLAGS = re.compile(r"dump|device_count$|_(dir|file|path)s?$")
"""Where each process writes, and its number of devices, which is compared as such."""
OWN_VARIABLES = re.compile("DEBUG|FILE|HOSTID|AFFINITY|SOCKET_IFNAME|IB_HCA|IB_GID_INDEX")
"""Those of NCCL that say what a host has and what it logs; the others are how hosts talk."""
DAY = 24 * 3600 * 1000  # process 0 may index its data first; others watch whether it is alive

T = TypeVar("T")

_digest = functools.partial(fingerprint, digits=16)
_NUMBERS = itertools.count()  # of comparisons and shared values, unique even across first runs


def check_start(config: ConfigDict) -> None:
    """Checks that all processes have the same config, code, flags and number of devices."""
    _check("config", lambda: dict(_flatten("config", json.loads(config.to_json_best_effort()))))
    _check("code", _describe_code)
    _check("flags", _describe_flags)
    _check("devices", lambda: {"number of devices": str(jax.local_device_count())})


def check_data(shards: Mapping[str, str]) -> None:
    """Checks that all processes find the same shards: their names and contents, by their places."""
    _check("data", lambda: shards)


def check_inputs(topic: str, describe: Callable[[], Mapping[str, str]]) -> None:
    """Checks that all processes have read the same; all must call it, in the same order.

    Files of the same path, such as a vocabulary or weights, may differ between hosts.
    """
    _check(topic, describe, "; all hosts must read the same files")


def check_weights(topic: str, arrays: Mapping[str, Any]) -> None:
    """Checks that all processes have read the same arrays, by name, as `check_inputs` does."""
    check_inputs(topic, lambda: {name: _describe_array(array) for name, array in arrays.items()})


def check_index(index: Mapping[str, Any], free: Collection[str] = ("model",)) -> None:
    """Checks that all processes are about to fill a folder with the same.

    One that comes before there is an index in the folder would not notice that it differs. Only
    entries of `made_by` that are `free` may differ.
    """

    def describe() -> dict[str, str]:
        made_by = {k: v for k, v in index["made_by"].items() if k not in free}
        rest = {k: v for k, v in index.items() if k != "shards"} | {"made_by": made_by}
        shards = {f"shard {n}": json.dumps(each) for n, each in enumerate(index["shards"])}
        return dict(_flatten("index", rest)) | shards

    _check("index", describe)


def check_step(lowered: jax.stages.Lowered) -> None:
    """Checks that all processes are about to compile the same train step."""
    _check("step", lambda: {"StableHLO of the train step": _digest(lowered.as_text())})


def share(topic: str, value: Any) -> Any:
    """Returns the value of process 0 in every process; all must call it, in the same order.

    If each computed its own value, these might differ in the last digit and lead to other
    decisions.
    """
    state = processes.coordination()
    if state.num_processes == 1:
        return value
    key = f"big_align/shared/{next(_NUMBERS)}/{topic}"
    if state.process_id == 0:
        state.client.key_value_set(key, json.dumps(value))
        return value
    return json.loads(state.client.blocking_key_value_get(key, DAY))


def gather(topic: str, value: Any) -> list[Any]:
    """Returns the values of all processes, in order; all must call it, in the same order."""
    state = processes.coordination()
    if state.num_processes == 1:
        return [value]
    key = f"big_align/gathered/{next(_NUMBERS)}/{topic}"
    state.client.key_value_set(f"{key}/{state.process_id}", json.dumps(value))
    keys = [f"{key}/{process}" for process in range(state.num_processes)]
    return [json.loads(state.client.blocking_key_value_get(each, DAY)) for each in keys]


def attempt(topic: str, act: Callable[..., T], *arguments: Any) -> T:
    """Returns what a function returns here, if no process gets a UserError of it; all must call it.

    Otherwise all raise that of the first such process.
    """
    found: Any = None
    fault = ""
    try:
        found = act(*arguments)
    except UserError as error:
        fault = str(error)
    if first := next(filter(None, gather(topic, fault)), ""):
        raise UserError(first)
    return found


def _check(topic: str, describe: Callable[[], Mapping[str, str]], hint: str = "") -> None:
    state = processes.coordination()
    if state.num_processes == 1:
        return
    facts, key = describe(), f"big_align/{topic}/{next(_NUMBERS)}/"
    digest = _digest(json.dumps(facts, sort_keys=True))
    if state.process_id == 0:
        names = iter(facts)
        for number in itertools.count():
            part = {name: facts[name] for name in itertools.islice(names, FACTS_A_VALUE)}
            if not part:
                break
            state.client.key_value_set(f"{key}facts/{number}", json.dumps(part))
        state.client.key_value_set(f"{key}digest", digest)  # last, once the facts are there
        return
    if state.client.blocking_key_value_get(f"{key}digest", DAY) != digest:
        parts = dict(state.client.key_value_dir_get(f"{key}facts/"))
        ordered = sorted(parts, key=lambda path: int(path.rpartition("/")[2]))
        others = {name: fact for path in ordered for name, fact in json.loads(parts[path]).items()}
        name = next(each for each in {**others, **facts} if facts.get(each) != others.get(each))
        mine, other = facts.get(name, "nothing"), others.get(name, "nothing")
        raise UserError(
            f"process {state.process_id} has {name} = {mine}, process 0 has {other}{hint}"
        )


def _flatten(name: str, node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _flatten(f"{name}.{key}", value)
    else:
        yield name, json.dumps(node)


def _describe_code() -> dict[str, str]:
    package = pathlib.Path(big_align.__file__).parent
    files = {
        str(path.relative_to(package.parent)): f"a file of SHA-256 {_digest(path.read_bytes())}"
        for path in package.rglob("*.py")
    }
    return files | {f"version of {name}": importlib.metadata.version(name) for name in LIBRARIES}


def _describe_flags() -> dict[str, str]:
    """Returns what the environment tells XLA and NCCL, without what may differ between hosts."""
    facts = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("NCCL_") and not OWN_VARIABLES.search(name)
    }
    for variable in FLAG_VARIABLES:
        for flag in os.environ.get(variable, "").split():
            name, _, value = flag.partition("=")
            if not OWN_FLAGS.search(name):
                facts[f"{variable} {name}"] = value or "true"
    return facts


def _describe_array(array: Any) -> str:
    # As bytes, since a buffer of bfloat16 is none for NumPy.
    values = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return f"{array.dtype} {list(array.shape)} of SHA-256 {_digest(values.data)}"
