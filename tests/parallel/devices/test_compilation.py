"""Options that the compilers accept, and programs that a second process need not compile."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from big_align.core.errors import ConfigError
from big_align.parallel.devices.compilation import (
    check_cache,
    check_options,
    compile_lowered,
    tell_found,
    use_cache,
    watch_cache,
)
from big_align.parallel.devices.compiler_flags import (
    GPU_FLAGS,
    SEVERAL_GPUS_FLAGS,
    SLICE_FLAGS,
    TPU_FLAGS,
    choose_effort,
    choose_options,
)
from big_align.planning.collectives import list_collectives
from big_align.planning.hlo import parse_program
from big_align.planning.topologies import topology_devices
from tests.parallel.devices.test_chips import TOPOLOGIES


def make_mesh(topology, slices=1):
    return Mesh(np.array(topology_devices(topology, slices)), "data")


def lower(mesh=None):
    """A gradient whose parameters are collected, and which is summed over devices."""
    whole = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    split = None if mesh is None else NamedSharding(mesh, PartitionSpec("data"))

    def loss(kernel, x):
        return jnp.tanh(x @ jax.lax.with_sharding_constraint(kernel, whole)).sum()

    gradient = jax.grad(loss if mesh else lambda kernel, x: jnp.tanh(x @ kernel).sum())
    shapes = [jax.ShapeDtypeStruct((128, 128), jnp.float32, sharding=split) for _ in range(2)]
    return jax.jit(gradient, out_shardings=split).lower(*shapes)


@pytest.mark.libtpu
@pytest.mark.slow
@pytest.mark.parametrize("name", TPU_FLAGS)
def test_the_compiler_for_every_generation_accepts_its_flags(name):
    mesh = make_mesh(TOPOLOGIES[name])
    options = choose_options(mesh, {})
    assert options == TPU_FLAGS[name]
    assert compile_lowered(lower(mesh), options)


def lower_layers(mesh, num_layers=4):
    """A stack of layers whose weights are collected from all devices, one after the other."""
    split = NamedSharding(mesh, PartitionSpec("data"))
    whole = NamedSharding(mesh, PartitionSpec())

    def apply(kernels, x):
        for kernel in kernels:
            x = jnp.tanh(x @ jax.lax.with_sharding_constraint(kernel, whole))
        return x

    kernel = jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16, sharding=split)
    x = jax.ShapeDtypeStruct((32768, 2048), jnp.bfloat16, sharding=split)
    return jax.jit(apply, out_shardings=split).lower([kernel] * num_layers, x)


@pytest.mark.libtpu
@pytest.mark.slow
def test_the_weights_of_a_layer_are_collected_while_the_one_below_computes():
    mesh = make_mesh("v5e:2x4")
    compiled = compile_lowered(lower_layers(mesh), choose_options(mesh, {}))
    (gathers,) = list_collectives(parse_program(compiled.as_text()), [0] * mesh.size)
    assert gathers.kind == "all-gather" and gathers.count == 4
    assert gathers.overlapped >= 3  # Nothing computes before the first.


@pytest.mark.libtpu
def test_the_compiler_for_several_slices_accepts_their_flags():
    mesh = make_mesh("v5e:4x4", slices=2)
    options = choose_options(mesh, {})
    assert options == TPU_FLAGS["v5e"] | SLICE_FLAGS
    assert compile_lowered(lower(mesh), options)


def test_xla_knows_the_flags_for_gpus():
    assert compile_lowered(
        lower(), GPU_FLAGS | SEVERAL_GPUS_FLAGS
    )  # Its CPU compiler parses those of all platforms.


@pytest.mark.libtpu
@pytest.mark.slow
def test_less_effort_makes_a_simpler_program():
    mesh = make_mesh("v5e:2x4")
    sizes = {
        effort: len(compile_lowered(lower_layers(mesh), choose_effort(effort)).as_text())
        for effort in (-1.0, 0.0)
    }
    assert sizes[-1.0] < 0.7 * sizes[0.0]


def test_a_cpu_has_no_options_but_those_given():
    mesh = Mesh(np.array(jax.devices("cpu")), "data")
    assert choose_options(mesh, {}) == {}
    assert choose_options(mesh, {"xla_cpu_enable_fast_math": True, "other": None}) == {
        "xla_cpu_enable_fast_math": True
    }


@pytest.mark.libtpu
def test_given_options_replace_join_and_take_away():
    scheduler, gather = "xla_tpu_enable_latency_hiding_scheduler", "xla_enable_async_all_gather"
    given = {scheduler: False, gather: None, "xla_tpu_scoped_vmem_limit_kib": "65536"}
    options = choose_options(make_mesh("v5e:4x4"), given)
    assert options[scheduler] is False and gather not in options
    assert options.keys() - TPU_FLAGS["v5e"].keys() == {"xla_tpu_scoped_vmem_limit_kib"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"xla_cpu_enable_fast_meth": True}, "config.compiler_options: .*xla_cpu_enable_fast_meth"),
        ({"xla_cpu_enable_fast_math": "perhaps"}, "config.compiler_options: .*perhaps"),
    ],
)
def test_an_option_that_the_compiler_does_not_know_is_named(options, message):
    with pytest.raises(ConfigError, match=message):
        compile_lowered(lower(), options)


def test_unknown_compiler_options_are_an_error_before_compiling():
    check_options({"a": True, "b": 1, "c": 0.5, "d": "ENABLED", "e": None})
    with pytest.raises(ConfigError, match=r"config.compiler_options.a = \[1\] is not True"):
        check_options({"a": [1]})


@pytest.fixture
def counted_hits(monkeypatch):
    """Counts programs found in the cache; afterwards JAX is as it was."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    former, hits = {name: getattr(jax.config, name) for name in names}, []
    jax.config.update(names[1], 0.0)
    listen = lambda event, **_: hits.append(event) if "cache_hits" in event else None  # noqa: E731
    jax.monitoring.register_event_listener(listen)
    yield hits
    jax.monitoring.unregister_event_listener(listen)
    for name, value in former.items():
        jax.config.update(name, value)
    jax.experimental.compilation_cache.compilation_cache.reset_cache()


@pytest.mark.slow
def test_what_was_compiled_once_is_found_again(counted_hits, tmp_path):
    jax.jit(lambda x: x + 1)(1)  # JAX has decided about its cache.
    counted_hits.clear()  # It may know that program of an earlier run of the tests.
    use_cache(str(tmp_path / "cache"))
    with watch_cache() as found:
        lower().compile()
        assert not counted_hits and any((tmp_path / "cache").iterdir())
        jax.clear_caches()
        lower().compile()
    assert counted_hits and found == [False, True]
    with watch_cache() as found:
        pass
    lower().compile()
    assert found == []


def test_without_a_cache_nothing_was_looked_for():
    folder = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        with watch_cache() as found:
            jax.jit(lambda x: x + 2).lower(1.0).compile()
    finally:
        jax.config.update("jax_compilation_cache_dir", folder)
    assert found == []


def test_who_found_the_step_in_the_cache_is_told():
    assert tell_found([True, True]) == "the train step was found in the compilation cache"
    assert tell_found([False]) == "the train step was not found in the compilation cache"
    told = tell_found([True] + [False] * 9)
    assert told.endswith("1 of 10 processes, and compiled by process 1, 2, 3, 4, 5, 6, 7, 8, ...")


def test_a_cache_needs_a_folder(tmp_path):
    check_cache(None)
    check_cache("gs://bucket/cache")
    check_cache(str(tmp_path / "new" / "folder"))
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="config.compilation_cache = .*file is no folder"):
        check_cache(str(tmp_path / "file" / "cache"))
