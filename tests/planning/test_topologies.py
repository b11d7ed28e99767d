"""Described TPU devices: how many, on which host, in which slice."""

import collections
import importlib.util
import platform
import sys

import pytest

from big_align.core.errors import UserError
from big_align.parallel.devices.chips import CHIPS
from big_align.planning.topologies import GENERATIONS, count_chips, topology_devices

needs_libtpu = pytest.mark.libtpu


@needs_libtpu
@pytest.mark.parametrize(
    "name,chips_per_host",
    [("v2:4x4", 4), ("v3:16x32", 4), ("v4:4x4x4", 4), ("v5e:1x1", 1), ("v5e:2x4", 8)]
    + [("v5e:16x16", 4), ("v5p:8x8x8", 4), ("v6e:4x4", 4), ("tpu7x:2x2x2", 4)],
)
@pytest.mark.parametrize("slices", [1, 2])
def test_every_host_holds_its_chips_and_processes_are_numbered_slice_by_slice(
    name, chips_per_host, slices
):
    devices = topology_devices(name, slices)
    cores = CHIPS[name.partition(":")[0]].devices_per_chip
    assert len(devices) == count_chips(name) * cores * slices
    held = collections.Counter(device.process_index for device in devices)
    hosts = count_chips(name) // chips_per_host * slices
    assert held == {process: chips_per_host * cores for process in range(hosts)}
    if slices > 1:
        for device in devices:
            assert device.slice_index == device.process_index // (hosts // slices)


@needs_libtpu
def test_chips_have_coordinates_of_their_own():
    places = {tuple(device.coords) for device in topology_devices("v5e:4x4")}
    assert places == {(x, y, 0) for x in range(4) for y in range(4)}


def test_an_unknown_topology_lists_the_known_ones():
    with pytest.raises(UserError, match="'v9:4x4' is not known; generations.*v5e:16x16"):
        topology_devices("v9:4x4")
    with pytest.raises(UserError, match="'v5e:3x3' is not known; v5e has 1x1, 2x2"):
        topology_devices("v5e:3x3")
    with pytest.raises(UserError, match="0 slices"):
        topology_devices("v5e:4x4", slices=0)


def test_without_libtpu_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with pytest.raises(UserError, match=r"pip install '\.\[plan\]'"):
        topology_devices("v5e:4x4")


@pytest.mark.parametrize("system, machine", [("darwin", "arm64"), ("linux", "aarch64")])
def test_no_install_is_advised_where_libtpu_has_no_wheels(system, machine, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(UserError, match="v5e:4x4 needs libtpu, .* x86-64 only; .*h100") as error:
        topology_devices("v5e:4x4")
    assert "install" not in str(error.value)


def test_names_are_all_parsed():
    names = {f"{kind}:{shape}" for kind, each in GENERATIONS.items() for shape in each.shapes}
    assert {"v5p:8x8x8", "v3:16x32", "tpu7x:4x4x4"} <= names
    assert all(count_chips(name) >= 1 for name in names)
