"""NVIDIA GPUs that are not there: how they are described, and that steps compile for them."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.models.resnet import ResNet
from big_align.models.vit import ViT
from big_align.parallel import logical_axes, meshes
from big_align.parallel.devices import chips, compiler_flags, traced
from big_align.planning import gpu_topologies
from big_align.planning.executed import count_executed_flops
from big_align.planning.hlo import parse_program
from tests.parallel.kernels.test_pair_tiles import needs_mosaic

needs_compiler = pytest.mark.skipif(
    not gpu_topologies.has_compiler(), reason="JAX for CUDA: pip install '.[cuda]'"
)


def make_mesh(name, gpus):
    return Mesh(np.array(gpu_topologies.describe_gpus(name, 1, gpus)), ("data",))


def compile_on(mesh, function, *shapes, options=compiler_flags.GPU_FLAGS):
    """Compiles a function of float32 arrays, of which each GPU holds some rows."""
    rows = NamedSharding(mesh, PartitionSpec("data"))
    given = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=rows) for shape in shapes]
    return jax.jit(function).lower(*given).compile(compiler_options=dict(options) or None)


def test_every_gpu_with_published_peaks_is_described():
    gpus = {name for name, chip in chips.CHIPS.items() if chip.kinds[0].startswith("NVIDIA")}
    assert gpu_topologies.TARGETS.keys() == gpus


@needs_compiler
@pytest.mark.parametrize("name", gpu_topologies.TARGETS)
def test_devices_are_numbered_node_by_node(name):
    devices = gpu_topologies.describe_gpus(name, 2, 4)
    assert [device.id for device in devices] == list(range(8))
    assert collections.Counter(d.process_index for d in devices) == {0: 4, 1: 4}
    assert chips.find_chip(devices[0].device_kind).kinds == chips.CHIPS[name].kinds


@needs_compiler
@pytest.mark.parametrize("name", gpu_topologies.TARGETS)
def test_programs_compile_and_execute_the_products_that_they_have(name):
    made = compile_on(
        make_mesh(name, 1), lambda x, y: jnp.tanh(x @ y.T).sum(), (256, 64), (512, 64)
    )
    assert count_executed_flops(parse_program(made.as_text())) == {"f32": 2 * 256 * 512 * 64}


@needs_compiler
def test_the_options_of_a_run_are_known_to_the_compiler():
    """It refuses names that it does not know."""
    options = compiler_flags.GPU_FLAGS | compiler_flags.SEVERAL_GPUS_FLAGS
    made = compile_on(make_mesh("h100", 4), lambda x: x.sum(), (8, 16), options=options)
    assert "all-reduce" in made.as_text()


@needs_compiler
@pytest.mark.slow
def test_a_resnet_compiles():
    """Without its barrier (test_convolution.py) the compiler would end this process."""
    model = ResNet("18", width=32, depths=(1, 1, 1), stem="patch4")
    images = jnp.zeros((16, 64, 64, 3))
    variables = nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), images))
    leaves, structure = jax.tree.flatten(variables["params"])

    def total(images, *leaves):
        params = jax.tree.unflatten(structure, leaves)
        start = {"batch_stats": jax.tree.map(jnp.zeros_like, variables["batch_stats"])}
        pooled, _ = model.apply(
            {"params": params, **start}, images, train=True, mutable=["batch_stats"]
        )[0]
        return jnp.square(pooled).sum()

    differentiate = jax.grad(total, argnums=tuple(range(1, 1 + len(leaves))))
    compile_on(make_mesh("h100", 1), differentiate, images.shape, *(leaf.shape for leaf in leaves))


@needs_compiler
@pytest.mark.slow
def test_eight_gpus_share_a_loss_and_hold_no_matrix_of_all_logits():
    mesh = make_mesh("h100", 8)

    def loss(x, y):
        return sum(blockwise_contrastive_loss(x, y, 20.0, mesh=mesh, block=64))

    size, width = 4096, 64
    made = compile_on(mesh, jax.grad(loss, argnums=(0, 1)), (size, width), (size, width))
    executed = count_executed_flops(parse_program(made.as_text()))
    assert executed["f32"] == pytest.approx(3 * 2 * size**2 * width / 8, rel=0.01)
    # Its own eighth of them is kept for the backward pass, and cuBLAS has 4 MiB to work in.
    workspace = 2**25  # of cuBLAS, whatever the size
    limit = 1.5 * 4 * size**2 / 8 + 2**22 + workspace
    assert made.memory_analysis().temp_size_in_bytes < limit < 4 * size**2


@needs_compiler
@needs_mosaic
@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 8])
def test_a_loss_in_bfloat16_holds_no_logits(gpus):
    """It holds slopes of 2 bytes a pair, of one stripe, and executes four products."""
    mesh, size, width = make_mesh("h100", gpus), 32768, 64
    rows = NamedSharding(mesh, PartitionSpec("data"))
    given = jax.ShapeDtypeStruct((size, width), jnp.bfloat16, sharding=rows)

    def loss(x, y):
        return sum(blockwise_contrastive_loss(x, y, 20.0, mesh=mesh))

    made = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(given, given).compile()
    executed = count_executed_flops(parse_program(made.as_text()))
    assert executed["bf16"] == pytest.approx(4 * 2 * size**2 * width / gpus, rel=0.01)
    stripe = 2 * min(2**28, size**2 // gpus)
    assert stripe <= made.memory_analysis().temp_size_in_bytes < 1.25 * stripe


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fsdp", "loop", "unrolled"), [(1, (1.0, 1.2), (1.2, 1.5)), (8, (0.9, 1.1), (1.0, 1.1))]
)
def test_the_scheduler_of_several_gpus_puts_gradients_off_for_biases_alone(fsdp, loop, unrolled):
    """Else it keeps what they read. In a loop it cannot, so blocks that store least are one.

    Sums that devices scatter are hardly put off.
    """
    tower = ViT("b/16", width=256, depth=6, heads=4, mlp_dim=1024, dtype="bfloat16")
    shape = 64, 224, 224, 3

    def count_temporaries(remat, scan, scheduled):
        devices = gpu_topologies.describe_gpus("h100", 1, 8)
        mesh, model = meshes.make_mesh(fsdp, devices), tower.clone(remat=remat, scan=scan)
        boxed = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, *shape[1:]))))
        params = nn.meta.unbox(boxed)["params"]
        places = logical_axes.state_shardings(boxed["params"], params, mesh)
        params = jax.tree.map(
            lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), params, places
        )
        rows = meshes.batch_sharding(mesh)
        images = jax.ShapeDtypeStruct((8 * shape[0], *shape[1:]), jnp.bfloat16, sharding=rows)

        def loss(params, images):
            with traced.weights_on(mesh):
                return model.apply({"params": params}, images)[0].astype(jnp.float32).sum()

        options = compiler_flags.GPU_FLAGS | compiler_flags.SEVERAL_GPUS_FLAGS
        options |= {"xla_gpu_enable_latency_hiding_scheduler": scheduled}
        made = jax.jit(jax.grad(loss)).lower(params, images).compile(compiler_options=options)
        return made.memory_analysis().temp_size_in_bytes

    for remat, scan, least, most in (
        ("full", None, *loop),
        ("full", False, *unrolled),
        ("dots", False, 1.0, 1.1),
        ("none", False, 1.0, 1.05),
    ):
        more = count_temporaries(remat, scan, True) / count_temporaries(remat, scan, False)
        assert least <= more < most, (remat, scan, more)
