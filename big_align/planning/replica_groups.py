"""Which devices take part in a collective together: the notations in HLO text.

Explicit lists {{0,1},{2,3}}, iota tilings [2,4]<=[4,2]T(1,0), mesh axes mesh['a'=2,'b'=4] {'b'},
and the pairs of a permutation {{0,1},{1,0}}.
"""

import math
import re

import numpy as np

Groups = list[list[int]]


def parse_groups(text: str | None, num_devices: int) -> Groups:
    """Returns the groups of a collective; no text, or "{}", is one group of all devices."""
    text = (text or "{}").strip()
    if text.startswith("mesh["):
        return _parse_mesh(text)
    if text.startswith("["):
        shape, _, source = text.partition("<=")
        return _iota(source).reshape(_numbers(shape)).tolist()
    if not text.startswith("{"):
        raise ValueError(f"replica_groups={text[:100]} is in no known notation")
    return parse_lists(text) or [list(range(num_devices))]


def parse_lists(text: str) -> Groups:
    """Returns what is listed explicitly: groups, or the (source, target) pairs of a permutation."""
    return [_numbers(inner) for inner in re.findall(r"\{([0-9, ]+)\}", text)]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _iota(text: str) -> np.ndarray:
    """Returns 0, 1, ... in the order of "[4,2]T(1,0)"."""
    dims, _, order = text.partition("T")
    sizes = _numbers(dims)
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    return devices.transpose(_numbers(order)) if order else devices


def _parse_mesh(text: str) -> Groups:
    """Reads mesh['a'=4,'b'=2], device_ids=(...) {'a':(1)2,'b'}: axes, or factors of axes, vary.

    'a':(1)2 is a factor of 2 of the axis, with 1 outside it.
    """
    match = re.match(
        r"mesh\[(?P<axes>[^\]]*)\](?:,? ?device_ids=\((?P<ids>[^{]*)\))? ?\{(?P<used>[^}]*)\}", text
    )
    if not match:
        raise ValueError(f"replica_groups={text[:100]} is in no known notation")
    sizes = {name: int(size) for name, size in re.findall(r"([^,=]+)=(\d+)", match["axes"])}
    if not match["ids"]:
        devices = np.arange(math.prod(sizes.values()))
    elif match["ids"].startswith("["):
        devices = _iota(match["ids"])
    else:
        devices = np.array(_numbers(match["ids"]))
    used = re.findall(r"([^,:]+)(?::\((\d+)\)(\d+))?", match["used"])
    shape, place = [], {}
    for name, size in sizes.items():
        cuts = {1, size}
        for other, before, factor in used:
            if other.strip() == name.strip() and before:
                cuts |= {int(before), int(before) * int(factor)}
        ends = sorted(cuts) if size > 1 else [1, 1]
        for low, high in zip(ends[:-1], ends[1:], strict=True):
            place[name.strip(), low, high] = len(shape)
            shape.append(high // low)
    varying = []
    for name, before, factor in used:
        low = int(before or 1)
        high = low * int(factor) if factor else sizes[name.strip()]
        for (other, start, end), axis in place.items():
            if other == name.strip() and low <= start and end <= high:
                varying.append(axis)
    fixed = [axis for axis in range(len(shape)) if axis not in varying]
    devices = devices.reshape(shape).transpose(fixed + varying)
    return devices.reshape(-1, math.prod(shape[axis] for axis in varying)).tolist()
