"""The mesh and the rows of a batch on the machines that there are: TPU slices and GPU clusters.

TPU devices are those that libtpu describes, with the coordinates and processes of the real ones;
GPU clusters are made up, since their devices have nothing but a node and a process.
"""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from big_align.data.loading.image_pipeline import ImagePipeline
from big_align.data.loading.loader import TrainLoader
from big_align.data.loading.rows import RowStream
from big_align.data.loading.stream import ExampleStream
from big_align.data.loading.text_samplers import CaptionSampler
from big_align.data.sources.digits import DIGIT_WORDS, digits_source
from big_align.data.text.tokenizers import WordTokenizer
from big_align.parallel.batches import explain_division, place_batch, process_rows
from big_align.parallel.meshes import BATCH_AXES, batch_sharding, make_mesh
from big_align.planning.topologies import GENERATIONS, topology_devices

needs_libtpu = pytest.mark.libtpu

SLICES = [
    *(("v2:2x2", 1), ("v2:4x4", 1), ("v2:16x16", 1), ("v3:4x4", 1), ("v3:16x32", 1)),
    *(("v4:2x2x1", 1), ("v4:2x2x4", 1), ("v4:4x4x4", 1), ("v4:4x4x8", 2)),
    *(("v5e:2x2", 1), ("v5e:2x4", 1), ("v5e:4x4", 1), ("v5e:4x8", 1), ("v5e:16x16", 1)),
    *(("v5e:4x4", 4), ("v5e:16x16", 2), ("v5p:2x2x2", 1), ("v5p:4x4x4", 1), ("v5p:8x8x8", 1)),
    *(("v5p:4x4x4", 2), ("v6e:4x4", 1), ("v6e:8x8", 1), ("v6e:16x16", 1), ("v6e:16x16", 4)),
    *(("tpu7x:2x2x1", 1), ("tpu7x:2x2x2", 1), ("tpu7x:4x4x4", 1), ("tpu7x:4x4x8", 2)),
]


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What a mesh needs to know of a GPU; each has a process of its own, or a node has one."""

    id: int
    process_index: int
    slice_index: int | None = None
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100 80GB HBM3"


def make_cluster(nodes: int, processes_a_node: int) -> list[Gpu]:
    return [
        Gpu(id=i, process_index=i * processes_a_node // 8, slice_index=i // 8)
        for i in range(8 * nodes)
    ]


def network(device) -> int:
    """The slice or node of a device: what lies within has the fast network."""
    return getattr(device, "slice_index", None) or 0


def check_mesh(devices, fsdp: int) -> None:
    """Every device once; `fsdp` within a slice or node; slices and nodes one after another."""
    mesh = make_mesh(fsdp, devices=devices)
    assert mesh.devices.shape == (len(devices) // fsdp, fsdp)
    assert sorted(d.id for d in mesh.devices.flat) == sorted(d.id for d in devices)
    networks = np.vectorize(network)(mesh.devices)
    assert (networks == networks[:, :1]).all()
    assert (np.diff(networks[:, 0]) >= 0).all()
    check_rows(mesh)


def check_rows(mesh) -> None:
    """Rows of processes are a partition of the batch, and those that their devices hold."""
    size = 3 * mesh.size
    held: dict[int, list[int]] = {}
    # What XLA places where: of a placement over the same mesh, not from `process_rows`.
    for device, (index, *_) in batch_sharding(mesh).devices_indices_map((size,)).items():
        held.setdefault(device.process_index, []).extend(range(size)[index])
    everything = []
    for process, rows in held.items():
        mine = process_rows(mesh, size, process)
        np.testing.assert_array_equal(mine, np.sort(rows))
        everything += mine.tolist()
    assert sorted(everything) == list(range(size))


@pytest.mark.slow_repeats
@needs_libtpu
@pytest.mark.parametrize("fsdp", [1, 4, 8])
def test_a_tpu_slice_has_a_mesh_whose_rows_are_a_partition(fsdp):
    for name, slices in SLICES:
        devices = topology_devices(name, slices)
        if len(devices) // slices < fsdp:
            with pytest.raises(ValueError, match=f"mesh.fsdp = {fsdp} does not divide"):
                make_mesh(fsdp, devices=devices)
        else:
            check_mesh(devices, fsdp)


@needs_libtpu
def test_every_generation_is_among_the_slices():
    assert {name.partition(":")[0] for name, _ in SLICES} == set(GENERATIONS)


@needs_libtpu
@pytest.mark.parametrize("name", ["v4:4x4x4", "v5e:4x4", "v5p:4x4x4", "v6e:16x16", "tpu7x:4x4x4"])
def test_an_fsdp_group_of_four_is_a_line_or_square_of_the_torus(name):
    mesh = make_mesh(4, devices=topology_devices(name))
    for group in mesh.devices:
        corners = np.array([device.coords for device in group])
        # Four neighbors lie within 3 hops of each other, by any shape that they may have.
        assert (corners.max(axis=0) - corners.min(axis=0)).sum() <= 3


@needs_libtpu
@pytest.mark.parametrize("name", ["v3:4x4", "v4:4x4x4", "v5e:4x8", "v5p:4x4x4", "tpu7x:2x2x2"])
def test_the_devices_of_one_host_have_a_mesh_of_their_own(name):
    host = [d for d in topology_devices(name) if d.process_index == 1]
    for fsdp in (1, 2, 4):
        check_rows(make_mesh(fsdp, devices=host))


@pytest.mark.parametrize("fsdp", [1, 4, 8])
def test_a_gpu_cluster_has_a_mesh_whose_rows_are_a_partition(fsdp):
    for nodes, processes_a_node in itertools.product((1, 2, 16), (1, 8)):
        check_mesh(make_cluster(nodes, processes_a_node), fsdp)
        shuffled = np.random.default_rng(0).permutation(make_cluster(nodes, processes_a_node))
        check_mesh(list(shuffled), fsdp)


@pytest.mark.parametrize(
    ("nodes", "fsdp", "expected"),
    [(4, 16, [{0, 1}, {2, 3}]), (3, 12, [{0, 1, 2}] * 2), (3, 24, [{0, 1, 2}])],
)
def test_fsdp_larger_than_a_node_goes_over_as_few_as_it_can(nodes, fsdp, expected):
    mesh = make_mesh(fsdp, devices=make_cluster(nodes, 8))
    assert [{network(d) for d in group} for group in mesh.devices] == expected
    check_rows(mesh)


@needs_libtpu
def test_parameters_are_split_over_neighbors_of_a_slice_if_nothing_is_said():
    for name, slices in SLICES:
        devices = topology_devices(name, slices)
        expected = min(8, len(devices) // slices)  # all have a power of two
        assert make_mesh(devices=devices).shape["fsdp"] == expected


@pytest.mark.parametrize(
    ("nodes", "gpus", "expected"),
    [(1, 1, 1), (1, 8, 8), (3, 4, 4), (2, 6, 2), (5, 1, 1), (2, 16, 8)],
)
def test_parameters_are_split_over_neighbors_of_a_node_if_nothing_is_said(nodes, gpus, expected):
    devices = [Gpu(i, i, i // gpus) for i in range(nodes * gpus)]
    mesh = make_mesh(devices=devices)
    assert mesh.shape["fsdp"] == expected
    assert all(len({network(d) for d in group}) == 1 for group in mesh.devices)


def test_a_shape_takes_the_place_of_fsdp():
    devices = make_cluster(2, 1)
    assert make_mesh(shape=(4, 4), devices=devices).devices.shape == (4, 4)
    assert make_mesh(shape=(16, 1), devices=devices).shape["fsdp"] == 1
    with pytest.raises(ValueError, match=r"mesh.shape = \(4, 8\) .* number of devices, 16"):
        make_mesh(shape=(4, 8), devices=devices)
    with pytest.raises(ValueError, match=r"mesh.fsdp = 1 is not that of mesh.shape = \(4, 4\)"):
        make_mesh(1, shape=(4, 4), devices=devices)


@pytest.mark.parametrize("fsdp", [1, 4])
def test_nodes_of_different_sizes_still_have_a_mesh(fsdp):
    devices = make_cluster(2, 1)[:-4]
    mesh = make_mesh(fsdp, devices=devices)
    assert sorted(d.id for d in mesh.devices.flat) == list(range(12))


def load_batch(size, rows):
    """The batch of step 30, in the second epoch."""
    source, words = digits_source("train"), WordTokenizer(DIGIT_WORDS, 12)
    transform = "resize(10)|random_crop(8)"
    stream = ExampleStream(source, size)
    streams = RowStream(stream, CaptionSampler(words), ImagePipeline(transform))
    with TrainLoader(streams, rows, num_threads=1) as loader:
        return loader.batch(30)


@needs_libtpu
@pytest.mark.parametrize(("name", "slices"), [("v5e:4x4", 2), ("v4:2x2x4", 1), ("tpu7x:2x2x2", 1)])
def test_the_batch_of_a_step_is_the_same_on_every_topology(name, slices):
    """What all hosts load is the batch that one process makes."""
    mesh = make_mesh(4, devices=topology_devices(name, slices))
    size = 2 * mesh.size
    expected = load_batch(size, None)
    for process in {d.process_index for d in mesh.devices.flat}:
        rows = process_rows(mesh, size, process)
        for name, part in load_batch(size, rows).items():
            np.testing.assert_array_equal(part, expected[name][rows])


def test_a_batch_lies_as_it_was_loaded_whatever_the_order_of_devices():
    order = np.random.default_rng(0).permutation(8)
    mesh = make_mesh(2, devices=[jax.devices()[i] for i in order])
    batch = {"x": np.arange(48).reshape(24, 2)}
    placed = place_batch(batch, mesh)["x"]
    np.testing.assert_array_equal(placed, batch["x"])
    assert placed.sharding == batch_sharding(mesh)


def test_what_every_process_has_loaded_lies_where_it_belongs(monkeypatch, without_type_checks):
    """JAX asks each of four processes for the rows of its devices, which are no neighbors."""
    devices = np.random.default_rng(0).permutation(make_cluster(2, 2)).reshape(4, 4)
    mesh, batch = Mesh(devices, BATCH_AXES), np.arange(96).reshape(48, 2)
    placed = {}

    def ask(shape, placement, read):
        for device, index in placement.devices_indices_map(shape).items():
            if device.process_index == jax.process_index():
                placed[device.id] = read(index), batch[index]
        return np.zeros(shape)

    monkeypatch.setattr(jax, "make_array_from_callback", ask)
    for process in range(4):
        own = [device for device in devices.flat if device.process_index == process]
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        monkeypatch.setattr(jax, "local_devices", lambda own=own: own)
        place_batch({"x": batch[process_rows(mesh, len(batch))]}, mesh)
    assert len(placed) == 16
    for found, expected in placed.values():
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("size", "devices", "microbatches", "message"),
    [
        (32_800, 256, 1, "of 256 devices; 32768 and 33024 are the nearest that are"),
        (100, 8, 4, "of 8 devices times microbatches = 4; 96 and 128 are the nearest that are"),
        (12, 16, 1, "of 16 devices; 16 is the least"),
    ],
)
def test_a_batch_that_does_not_divide_names_the_nearest_that_do(
    size, devices, microbatches, message
):
    assert explain_division(size, devices, microbatches) == f"is not a multiple {message}"
