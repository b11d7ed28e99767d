import os
import pickle
import zipfile

import ml_dtypes
import numpy as np
import pytest

from big_align.core.errors import WeightFileError
from big_align.weights.arrays.weight_files import open_weights, write_safetensors
from tests.weights.torch_archives import (
    ORDERED,
    STORAGES,
    Call,
    Named,
    Stored,
    encode,
    tensor,
    write_archive,
)
from tests.weights.weight_checks import assert_same, read_all, refuse

SIX = np.arange(6, dtype=np.float32)
PLAIN = {"a": tensor("0", "float32", (2, 3))}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights.pt"


def test_every_dtype_is_read_bit_for_bit(path):
    arrays = {name: np.arange(-3, 3).astype(name).reshape(2, 3) for name in STORAGES}
    arrays["float32"][0, 0] = np.nan
    tree = {name: tensor(name, name, (2, 3)) for name in arrays}
    write_archive(path, tree, arrays)
    assert_same(read_all(path), arrays)
    with open_weights(path) as weights:
        assert weights.arrays["bfloat16"].dtype == ml_dtypes.bfloat16
        assert weights.arrays["bfloat16"].shape == (2, 3)


def test_tensors_of_types_without_a_storage_of_their_own(path):
    array = np.array([1, 65535], np.uint16)
    arguments = (Stored("storage.UntypedStorage", "0", 4), 0, (2,), (1,), False, Call(ORDERED))
    rebuild = Named("torch._utils", "_rebuild_tensor_v3")
    write_archive(path, {"a": Call(rebuild, (*arguments, Named("torch", "uint16")))}, {"0": array})
    assert_same(read_all(path), {"a": array})


def test_views_of_one_storage(path):
    tree = {
        "whole": tensor("0", "float32", (2, 3)),
        "transposed": tensor("0", "float32", (3, 2), (1, 3)),
        "column": tensor("0", "float32", (2, 1), (3, 1), offset=2),
        "end": tensor("0", "float32", (2,), (1,), offset=4),
        "repeated": tensor("0", "float32", (4, 2), (0, 1), offset=1),
        "scalar": tensor("0", "float32", (), (), offset=5),
        "empty": tensor("0", "float32", (0, 3), (3, 1)),
    }
    write_archive(path, tree, {"0": SIX})
    whole = SIX.reshape(2, 3)
    expected = {
        "whole": whole,
        "transposed": whole.T.copy(),
        "column": whole[:, 2:].copy(),
        "end": SIX[4:],
        "repeated": np.stack([SIX[1:3]] * 4),
        "scalar": SIX[5],
        "empty": whole[:0],
    }
    assert_same(read_all(path), expected)


def test_arrays_are_independent_of_each_other_and_of_the_file(path):
    write_archive(path, {"a": tensor("0", "float32", (6,)), "b": PLAIN["a"]}, {"0": SIX})
    arrays = read_all(path)
    arrays["a"][:] = 7
    np.testing.assert_array_equal(arrays["b"].ravel(), SIX)
    np.testing.assert_array_equal(read_all(path)["a"], SIX)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_files_of_big_endian_machines(path, dtype):
    array = np.arange(6).astype(dtype)
    raw = array.view(f"u{array.itemsize}").byteswap()
    write_archive(path, {"a": tensor("0", dtype, (6,))}, {"0": raw}, byte_order="big")
    assert_same(read_all(path), {"a": array})


@pytest.mark.parametrize(
    "wrap",
    [
        lambda weights: {"state_dict": weights, "epoch": 3},
        lambda weights: {"model": weights, "optimizer": {"lr": 0.1, "betas": (0.9, 0.99)}},
        lambda weights: {"model": {"state_dict": weights}, "device": None},
        lambda weights: {"module." + name: value for name, value in weights.items()},
        lambda weights: {"state_dict": {"module.a": weights["a"]}, "name": "run"},
        lambda weights: Call(ORDERED, ((("a", weights["a"]),),), {"_metadata": {"": {"v": 1}}}),
        lambda weights: weights | {"steps": 10, "size": Call(Named("torch", "Size"), ((2, 3),))},
        lambda weights: {"a": Call(Named("torch._utils", "_rebuild_parameter"), (weights["a"], 1))},
        lambda weights: weights | {"dtype": Named("torch", "float32")},
    ],
)
def test_a_state_dict_is_found_in_a_training_checkpoint(path, wrap):
    write_archive(path, wrap(PLAIN), {"0": SIX})
    assert_same(read_all(path), {"a": SIX.reshape(2, 3)})


@pytest.mark.parametrize("name", ["system", "eval", "getattr", "import"])
def test_pickled_code_does_not_run(path, tmp_path, name):
    trace = tmp_path / "it_ran"
    calls = {
        "system": (os.system, (f"touch {trace}",)),
        "eval": (eval, (f"open({str(trace)!r}, 'w')",)),
        "getattr": (getattr, (os, "system")),
        "import": (__import__, ("antigravity",)),
    }

    class Malicious:
        def __reduce__(self):
            return calls["eval" if name == "getattr" else name]

    program = pickle.dumps({"a": Malicious()}, protocol=2)
    if name == "getattr":
        program = b"\x80\x02" + encode(Call(Named("builtins", "getattr"), ("os", "sys"))) + b"."
    write_archive(path, program, {})
    refuse(path, r"asks for \w+\.(system|eval|getattr|__import__), which .* was not run")
    assert not trace.exists()


@pytest.mark.parametrize(
    "state", [{"start": 0, "strides": (10**9,)}, (None, {"start": 0}), (None, {"call": 1})]
)
@pytest.mark.parametrize("target", [PLAIN["a"], Named("torch._utils", "_rebuild_tensor_v2")])
def test_a_pickle_cannot_change_the_stand_ins(path, state, target):
    program = b"\x80\x02}" + encode("a") + encode(target) + encode(state) + b"bs."
    write_archive(path, program, {"0": SIX})
    refuse(path, "is damaged, in its data.pkl")


@pytest.mark.parametrize(
    "broken",
    [
        tensor("0", "float32", (7,)),
        tensor("0", "float32", (2,), offset=5),
        tensor("0", "float32", (2, 2), (5, 1)),
        tensor("0", "float32", (2,), (-1,), offset=3),
        tensor("0", "float32", (2,), offset=-1),
        tensor("0", "float32", (2, 3), (1,)),
        tensor("0", "float64", (6,)),
        tensor("0", "float32", (6,), more=({"conj": True},)),
        Call(Named("torch", "FloatStorage"), (6,)),
    ],
)
def test_tensors_that_do_not_fit_their_storage(path, broken):
    write_archive(path, {"a": broken}, {"0": SIX})
    refuse(path, "is damaged, in its data.pkl")


def test_every_truncated_file_is_refused(path):
    write_archive(path, PLAIN, {"0": SIX})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        refuse(path, "truncated|damaged|empty|unknown kind")


def test_no_damaged_byte_gives_another_kind_of_error(path):
    write_archive(path, {"state_dict": PLAIN, "epoch": 3}, {"0": SIX})
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        try:
            read_all(path)
        except WeightFileError as error:
            assert str(path) in str(error)


def test_archives_that_torch_save_did_not_write(path):
    def write(members, **options):
        with zipfile.ZipFile(path, "w", **options) as archive:
            for name, data in members.items():
                archive.writestr(name, data)

    write({"readme": b"hello"})
    refuse(path, "not one of torch.save")
    write({"a/data.pkl": b"\x80\x02}.", "a/constants.pkl": b""})
    refuse(path, r"TorchScript .*torch.jit.load\(.*state_dict")
    write({"a/data.pkl": b"\x80\x02}."}, compression=zipfile.ZIP_DEFLATED)
    refuse(path, "compressed .*zip -0 -r")
    write_archive(path, PLAIN, {})
    refuse(path, "lacks its file data/0")
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("weights/data.pkl", b"")
    refuse(path, "several files of one name")


def test_files_without_tensors(path):
    write_archive(path, {"epoch": 3, "image": {"a": PLAIN["a"]}}, {"0": SIX})
    refuse(path, "no tensors by name.*state_dict or model.*'epoch', 'image'")
    write_archive(path, PLAIN["a"], {"0": SIX})
    refuse(path, "no dict")


@pytest.mark.parametrize(
    "content, message",
    [
        (b"data".ljust(257, b"\0") + b"ustar".ljust(1000, b"\0"), "before version 0.2"),
        (pickle.dumps({"a": 1}), "it is a pickle"),
        (b"<!doctype html><title>404</title>", "it is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid 1", "git lfs pull"),
        (b"", "it is empty"),
    ],
)
def test_files_of_other_kinds(path, content, message):
    path.write_bytes(content)
    refuse(path, message)


def test_a_safetensors_file_by_the_name_of_a_torch_file(path):
    write_safetensors(path, {"a": SIX})
    refuse(path, "it is a safetensors file")


@pytest.mark.interop
def test_what_torch_saves_is_read_equal(path):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    base = torch.randn(4, 6)
    dtypes = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool uint16 uint32"
    state = {name: base.abs().to(getattr(torch, name)) for name in dtypes.split()}
    state |= {
        "transposed": base.t(),
        "view": base[1:3, ::2],
        "shared": base,
        "expanded": base[:1].expand(5, 6),
        "channels_last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(base.bfloat16()),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
    }
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    checkpoints = {
        "plain": (state, state),
        "module": (module.state_dict(), module.state_dict()),
        "training": (
            {"epoch": 3, "state_dict": module.state_dict(), "optimizer": optimizer.state_dict()},
            module.state_dict(),
        ),
        "parallel": (
            {"model": torch.nn.DataParallel(module).state_dict()},
            module.state_dict(),
        ),
    }
    for checkpoint, expected in checkpoints.values():
        torch.save(checkpoint, path)
        arrays = read_all(path)
        assert arrays.keys() == expected.keys()
        for name, value in expected.items():
            value = value.detach().contiguous()
            assert arrays[name].shape == tuple(value.shape), name
            assert str(value.dtype) == f"torch.{arrays[name].dtype}"
            assert arrays[name].tobytes() == value.reshape(-1).view(torch.uint8).numpy().tobytes()
    torch.save(module, path)
    refuse(path, "asks for torch.nn.modules.container.Sequential")
