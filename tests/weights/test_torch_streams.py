"""Files that torch wrote before version 1.6 read as those of later versions do."""

import os
import pickle

import numpy as np
import pytest

from big_align.core.errors import WeightFileError
from big_align.weights.arrays.weight_files import open_weights
from tests.weights.torch_archives import (
    ORDERED,
    REBUILD,
    STORAGES,
    Call,
    Stored,
    tensor,
    write_archive,
    write_stream,
)
from tests.weights.weight_checks import assert_same, read_all, refuse

SIX = np.arange(6, dtype=np.float32)
PLAIN = {"a": tensor("0", "float32", (2, 3))}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights.pth"


def part_of(offset, count, shape):
    """Describes a tensor in a storage that is a part of the storage "0"."""
    storage = Stored("FloatStorage", "0", 6, (("1", offset, count),))
    return Call(REBUILD, (storage, 0, shape, (1,), False, Call(ORDERED)))


def test_a_stream_reads_as_the_archive_of_the_same_tensors(path, tmp_path):
    arrays = {name: np.arange(-3, 3).astype(name).reshape(2, 3) for name in STORAGES}
    tree = {name: tensor(name, name, (2, 3)) for name in arrays}
    tree |= {
        "transposed": tensor("float32", "float32", (3, 2), (1, 3)),
        "end": tensor("int16", "int16", (2,), (1,), offset=4),
    }
    write_archive(tmp_path / "archive.pt", {"state_dict": tree, "epoch": 3}, arrays)
    write_stream(path, {"state_dict": tree, "epoch": 3}, arrays)
    assert_same(read_all(path), read_all(tmp_path / "archive.pt"))
    assert_same({name: read_all(path)[name] for name in arrays}, arrays)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_streams_of_big_endian_machines(path, dtype):
    array = np.arange(6).astype(dtype)
    raw = array.view(f"u{array.itemsize}").byteswap()
    write_stream(path, {"a": tensor("0", dtype, (6,))}, {"0": raw}, byte_order="big")
    assert_same(read_all(path), {"a": array})


def test_storages_within_storages(path):
    write_stream(path, {"a": part_of(2, 3, (3,)), "b": PLAIN["a"]}, {"0": SIX})
    assert_same(read_all(path), {"a": SIX[2:5], "b": SIX.reshape(2, 3)})
    write_stream(path, {"a": part_of(2, 3, (4,))}, {"0": SIX})
    refuse(path, "goes beyond its storage")
    write_stream(path, {"a": part_of(2, 5, (4,))}, {"0": SIX})
    refuse(path, "beyond the one that it is part of")


def test_a_stream_is_read_where_its_arrays_are(path):
    """Only what is asked for is read: the elements of the others may be missing from memory."""
    large = np.zeros(1 << 20, np.float32)
    write_stream(path, PLAIN | {"b": tensor("1", "float32", large.shape)}, {"0": SIX, "1": large})
    with open_weights(path) as weights:
        assert weights.arrays["b"].end == path.stat().st_size
        np.testing.assert_array_equal(weights["a"].ravel(), SIX)


@pytest.mark.parametrize("place", ["header", "tree"])
def test_pickled_code_in_a_stream_does_not_run(path, tmp_path, place):
    trace = tmp_path / "it_ran"

    class Malicious:
        def __reduce__(self):
            return os.system, (f"touch {trace}",)

    program = pickle.dumps({"a": Malicious()}, protocol=2)
    if place == "tree":
        write_stream(path, program, {})
        refuse(path, r"asks for posix\.system, which .* was not run")
    else:
        write_stream(path, PLAIN, {"0": SIX})
        path.write_bytes(path.read_bytes()[:15] + program)
        refuse(path, r"posix\.system stands where only numbers are expected")
    assert not trace.exists()


def test_every_truncated_stream_is_refused(path):
    write_stream(path, PLAIN, {"0": SIX})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        refuse(path, "truncated|damaged|empty|unknown kind|a pickle")


def test_no_damaged_byte_of_a_stream_gives_another_kind_of_error(path):
    write_stream(path, {"state_dict": PLAIN, "epoch": 3}, {"0": SIX})
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        try:
            read_all(path)
        except WeightFileError as error:
            assert str(path) in str(error)


def test_streams_that_do_not_fit_are_refused(path):
    write_stream(path, PLAIN, {"0": SIX}, version=1000)
    refuse(path, "version 1000, not 1001")
    write_stream(path, PLAIN, {"1": SIX})
    refuse(path, "is damaged, or truncated: KeyError")
    write_stream(path, PLAIN, {"0": SIX[:5]})
    refuse(path, "goes beyond its storage")
    write_stream(path, PLAIN | {"b": tensor("0", "int32", (6,))}, {"0": SIX})
    refuse(path, "the storage '0' has two types")


@pytest.mark.interop
def test_what_torch_writes_in_the_old_way_is_read_equal(path):
    torch = pytest.importorskip("torch")
    base = torch.randn(4, 6)
    state = {"transposed": base.t(), "view": base[1:3, ::2], "shared": base}
    state |= {"half": base.half(), "long": base.long(), "bfloat16": base.bfloat16()}
    state |= {"parameter": torch.nn.Parameter(base.double()), "scalar": torch.tensor(2.5)}
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    for expected in (state, module.state_dict()):
        torch.save({"model": expected}, path, _use_new_zipfile_serialization=False)
        arrays = read_all(path)
        assert arrays.keys() == expected.keys()
        for name, value in expected.items():
            value = value.detach().contiguous()
            assert arrays[name].shape == tuple(value.shape), name
            assert arrays[name].tobytes() == value.reshape(-1).view(torch.uint8).numpy().tobytes()
