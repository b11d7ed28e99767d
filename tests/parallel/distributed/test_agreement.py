"""Processes that differ are told apart by the first thing that differs; one process never is."""

import itertools
import types

import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict

from big_align.config.overrides import load_config
from big_align.core.errors import UserError
from big_align.parallel.distributed import agreement, processes
from big_align.runs import build, train
from big_align.training.state import TrainState
from big_align.training.step import compile_step
from tests import tiny
from tests.run_main import TINY

SHARDS = {f"shard {n}": f"train-{n:05}.tar (100 examples)" for n in range(2500)}


class Store:
    """A key-value store in one process, which counts what is asked of it."""

    def __init__(self):
        self.values, self.reads = {}, []

    def key_value_set(self, key, value):
        assert key not in self.values
        self.values[key] = value

    def blocking_key_value_get(self, key, _):
        self.reads.append(key)
        return self.values[key]

    def key_value_dir_get(self, prefix):
        self.reads.append(prefix)
        return [(k, v) for k, v in sorted(self.values.items()) if k.startswith(prefix)]


@pytest.fixture
def become(monkeypatch):
    """Makes this process one of two that share a store."""
    store = Store()

    def become(process):
        state = types.SimpleNamespace(process_id=process, num_processes=2, client=store)
        monkeypatch.setattr(processes, "coordination", lambda: state)
        monkeypatch.setattr(agreement, "_NUMBERS", itertools.count())  # each process counts its own
        return store

    return become


def test_equal_processes_read_one_digest_each(become):
    become(0)
    agreement.check_data(SHARDS)
    store = become(1)
    agreement.check_data(dict(SHARDS))
    assert len(store.reads) == 1
    assert max(map(len, store.values.values())) < 2**17


def test_the_first_shard_that_differs_is_named(become):
    become(0)
    agreement.check_data(SHARDS)
    become(1)
    names = [name for name in SHARDS.values() if "01700" not in name]
    missing = {f"shard {number}": name for number, name in enumerate(names)}
    with pytest.raises(UserError) as raised:
        agreement.check_data(missing)
    assert str(raised.value) == (
        "process 1 has shard 1700 = train-01701.tar (100 examples), "
        "process 0 has train-01700.tar (100 examples)"
    )
    become(1)
    with pytest.raises(UserError, match="has shard 2499 = nothing, process 0 has train-02499"):
        agreement.check_data({k: v for k, v in SHARDS.items() if k != "shard 2499"})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 1}, "process 1 has config.seed = 1, process 0 has 0"),
        ({"seed": None}, "process 1 has config.seed = null, process 0 has 0"),
        ({"model": {"name": "vit"}}, 'has config.model.name = "vit", process 0 has "resnet"'),
        ({"model": {}}, 'has config.model.name = nothing, process 0 has "resnet"'),
        ({"more": ()}, r"has config.more = \[\], process 0 has nothing"),
    ],
)
def test_a_field_of_the_config_that_differs_is_named(become, other, message):
    config = {"seed": 0, "model": {"name": "resnet"}}
    become(0)
    agreement.check_start(ConfigDict(config))
    become(1)
    agreement.check_start(ConfigDict(config))
    become(1)
    with pytest.raises(UserError, match=message):
        agreement.check_start(ConfigDict(config | other))


def test_a_file_or_library_that_differs_is_named(become, monkeypatch):
    become(0)
    agreement.check_start(ConfigDict())
    become(1)
    monkeypatch.setattr(agreement.importlib.metadata, "version", lambda name: f"0 of {name}")
    with pytest.raises(UserError, match="process 1 has version of jax = 0 of jax, process 0 has "):
        agreement.check_start(ConfigDict())


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("XLA_FLAGS", "--xla_a=1 --xla_b=2", "XLA_FLAGS --xla_b = 2, process 0 has nothing"),
        ("XLA_FLAGS", "--xla_a=false", "XLA_FLAGS --xla_a = false, process 0 has 1"),
        ("LIBTPU_INIT_ARGS", "--xla_c", "LIBTPU_INIT_ARGS --xla_c = true, process 0 has nothing"),
        ("NCCL_PROTO", "LL", "NCCL_PROTO = LL, process 0 has nothing"),
        ("XLA_FLAGS", "--xla_a=1 --xla_dump_to=/tmp/1 --xla_gpu_cuda_data_dir=/cuda", None),
        ("NCCL_SOCKET_IFNAME", "eth1", None),
        ("NCCL_DEBUG", "INFO", None),
    ],
)
def test_a_flag_that_differs_is_named_unless_it_may(become, monkeypatch, variable, value, message):
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1 --xla_force_host_platform_device_count=8")
    become(0)
    agreement.check_start(ConfigDict())
    become(1)
    monkeypatch.setenv(variable, value)
    if message is None:
        return agreement.check_start(ConfigDict())
    with pytest.raises(UserError, match=f"process 1 has {message}"):
        agreement.check_start(ConfigDict())


def test_a_number_of_devices_that_differs_is_named(become, monkeypatch):
    become(0)
    agreement.check_start(ConfigDict())
    become(1)
    monkeypatch.setattr(agreement.jax, "local_device_count", lambda: 3)
    with pytest.raises(UserError, match="has number of devices = 3, process 0 has 8"):
        agreement.check_start(ConfigDict())


def test_a_run_compares_the_shards_of_its_data_before_it_writes_anything(tmp_path, monkeypatch):
    config = load_config(TINY, "--config.evaluators={}")
    with build.build_train_loader(config, build.build_tokenizer(config)) as loader:
        expected = loader.shards

    def refuse(shards):
        assert shards == expected
        raise UserError("process 1 has other shards")

    monkeypatch.setattr(agreement, "check_data", refuse)
    with pytest.raises(UserError, match="process 1 has other shards"):
        train.run(config, str(tmp_path))
    assert not list(tmp_path.rglob("*.json*"))


def test_a_train_step_that_differs_is_not_compiled(become):
    def compile_for(factor):
        def step(state, batch):
            return state.replace(params=factor * batch["x"]), {}

        state = TrainState(*map(jnp.float32, range(5)))
        compile_step(step, state, {"x": jnp.float32(1)}, tiny.make_mesh())

    become(0)
    compile_for(2)
    become(1)
    compile_for(2)
    become(1)
    with pytest.raises(UserError, match="process 1 has StableHLO of the train step = "):
        compile_for(3)


def test_one_process_compares_nothing():
    agreement.check_start(ConfigDict())  # there is no store that could be asked


def test_all_have_the_numbers_of_the_first(become):
    become(0)
    assert agreement.share("evaluation/5", {"a/b": 0.1 + 0.2}) == {"a/b": 0.1 + 0.2}
    assert agreement.share("evaluation/5", {"a/b": 0.7}) == {"a/b": 0.7}  # of a second run
    store = become(1)
    assert agreement.share("evaluation/5", {"a/b": 0.3}) == {"a/b": 0.1 + 0.2}
    assert agreement.share("evaluation/5", {"a/b": 0.3}) == {"a/b": 0.7}
    assert len(store.values) == 2


def test_one_process_has_its_own_numbers():
    numbers = {"a/b": float("nan")}
    assert agreement.share("evaluation/5", numbers) is numbers
