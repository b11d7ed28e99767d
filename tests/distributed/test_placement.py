"""What two processes load becomes one batch, whatever devices of the mesh are whose."""

import os
import subprocess
import sys

from tests.run_main import ROOT, environment, find_port

PROGRAM = """
import sys
import jax, numpy as np
from big_align.parallel.batches import place_batch, process_rows
from big_align.parallel.meshes import make_mesh

number, address = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(address, 2, number)
devices = jax.devices()
assert len(devices) == 4 and len(jax.local_devices()) == 2
for order, fsdp in ((0, 1, 2, 3), 1), ((0, 2, 1, 3), 2), ((3, 0, 1, 2), 1), ((1, 2, 3, 0), 4):
    grid = np.array([devices[n] for n in order]).reshape(-1, fsdp)
    mesh = jax.sharding.Mesh(grid, make_mesh(1, jax.local_devices()).axis_names)
    whole = {"x": np.arange(48).reshape(12, 4), "y": np.arange(12) % 5}
    rows = process_rows(mesh, 12)
    assert len(rows) == 6
    placed = place_batch({k: x[rows] for k, x in whole.items()}, mesh)
    for name, array in placed.items():
        assert array.shape == whole[name].shape
        assert len({shard.index[0].start for shard in array.addressable_shards}) == 2
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(shard.data, whole[name][shard.index])
print("placed")
"""


def test_every_device_of_two_processes_holds_its_own_rows():
    variables = environment(devices=2) | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-c", PROGRAM]
    address = f"127.0.0.1:{find_port()}"
    started = [
        subprocess.Popen(
            [*command, str(number), address],
            cwd=ROOT,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=200)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    for process, output in zip(started, outputs, strict=True):
        assert process.returncode == 0 and "placed" in output, output
