"""The largest products with groups of columns: what is stated, against tiles and a TPU's kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.parallel.kernels import group_maxima
from big_align.parallel.meshes import make_mesh
from big_align.planning.executed import count_executed_flops
from big_align.planning.gpu_topologies import describe_gpus, has_compiler
from big_align.planning.hlo import parse_program
from big_align.planning.topologies import topology_devices
from big_align.use.clusters import nearest_centers
from big_align.use.clusters.nearest_centers import CenterLayout


def draw(rows, columns, real, dim=128, seed=0):
    rng = np.random.default_rng(seed)
    x, y = (jnp.bfloat16(rng.normal(size=(count, dim))) for count in (rows, columns))
    return x, y, jnp.where(jnp.arange(columns) < real, 0.0, -jnp.inf)


@pytest.mark.parametrize("real", [4096, 2900, 1])
def test_tiles_find_what_is_stated(real):
    given = draw(300, 4096, real)
    stated, found = (
        find(*given)
        for find in (group_maxima.find_maxima_plainly, group_maxima.find_maxima_in_tiles)
    )
    np.testing.assert_array_equal(found[0], stated[0])
    there = np.isfinite(stated[0])
    np.testing.assert_array_equal(found[1][there], stated[1][there])


@pytest.mark.slow_repeats
@pytest.mark.parametrize(
    ("rows", "columns", "real", "unit"),
    [(40, 4096, 3000, 2048), (40, 4096, 4096, 2**16), (9, 1024, 5, 2**16)],
)
def test_every_lane_of_a_tpu_finds_the_largest_of_its_columns(
    rows, columns, real, unit, monkeypatch
):
    monkeypatch.setattr(group_maxima, "UNIT", unit)
    x, y, added = draw(rows, columns, real)
    peak, column = (np.asarray(z) for z in group_maxima.find_maxima_on_tpu(x, y, added, True))
    products = np.asarray(jnp.einsum("md,nd->mn", x, y, preferred_element_type=jnp.float32) + added)
    blocks = products.reshape(rows, -1, min(columns, unit) // 128, 128)
    np.testing.assert_array_equal(peak, blocks.max(axis=2).reshape(rows, -1).T)
    there = np.isfinite(peak)
    own = products[np.arange(rows), column]
    np.testing.assert_array_equal(own[there], peak[there])


def test_of_equal_products_the_first_column_counts():
    x = jnp.ones((16, 128), jnp.bfloat16)
    y, added = jnp.ones((1024, 128), jnp.bfloat16), jnp.zeros(1024)
    for find in (group_maxima.find_maxima_plainly, group_maxima.find_maxima_in_tiles):
        np.testing.assert_array_equal(find(x, y, added)[1][:, 0], [0, 512])
    _, column = group_maxima.find_maxima_on_tpu(x, y, added, interpret=True)
    np.testing.assert_array_equal(column[:, 3], np.arange(128))


def compile_comparison(devices, k=70_000, dim=200, chunk=512):
    """Compiles the search of the nearest of k centers, which every device has."""
    layout = CenterLayout(k, make_mesh(1, devices), candidates=4)
    centers = jax.ShapeDtypeStruct((layout.rows, dim), jnp.float32, sharding=layout.placement)
    rest = (
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout.placement)
        for x in jax.eval_shape(layout.round, centers)
    )
    split = nearest_centers.batch_sharding(layout.mesh)
    x = jax.ShapeDtypeStruct((chunk * len(devices), dim), jnp.float16, sharding=split)
    search = nearest_centers.compile_search(layout, 2)
    text = search.lower(nearest_centers.Centers(centers, *rest), x).compile().as_text()
    return layout, parse_program(text), text


def check(layout, program, chunk=512):
    """The kernel is all that multiplies in bfloat16, and no products are in memory."""
    assert layout.part % group_maxima.WIDE == 0 and layout.find_maxima is not None
    assert count_executed_flops(program)["bf16"] == 2 * chunk * layout.part * 256
    made = (each for part in program.computations.values() for each in part.instructions.values())
    assert max(array.size for each in made for array in each.outputs) < chunk * layout.part


@pytest.mark.libtpu
@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_a_tpu_writes_no_products(topology):
    layout, program, text = compile_comparison(topology_devices(topology))
    assert text.count('custom_call_target="tpu_custom_call"') == 1
    check(layout, program)


@pytest.mark.skipif(not has_compiler(), reason="JAX for CUDA: pip install '.[cuda]'")
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel needs jax 0.11")
def test_a_gpu_writes_no_products():
    layout, program, text = compile_comparison(describe_gpus("h100", 1, 2))
    assert text.count('custom_call_target="mosaic_gpu') == 1
    check(layout, program)
