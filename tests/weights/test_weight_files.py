import json
import subprocess
import sys
import tracemalloc

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from big_align.core.errors import WeightFileError
from big_align.weights.arrays.stored_arrays import DTYPES, BinaryFile
from big_align.weights.arrays.weight_files import open_weights, write_folder, write_safetensors
from tests.weights.hostile_weights import PLAIN, SIX
from tests.weights.torch_archives import write_archive
from tests.weights.weight_checks import PEAK, assert_same, read_all, refuse

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1, -2], np.int16)}


def every_dtype():
    arrays = {name: np.arange(-3, 3).astype(dtype).reshape(2, 3) for name, dtype in DTYPES.items()}
    arrays["float32"][0] = np.nan, np.inf, -0.0
    return arrays | {"scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 3), np.float16)}


def write_by_hand(path, header, data=b""):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def test_what_is_written_is_read_bit_for_bit(path):
    arrays = every_dtype()
    write_safetensors(path, arrays)
    assert_same(read_all(path), arrays)


def test_any_layout_of_memory_and_any_library_writes_the_same_file(path):
    plain = np.arange(24, dtype=np.float32).reshape(4, 6)
    write_safetensors(path, {"a": plain, "b": plain.astype(ml_dtypes.bfloat16)})
    expected = path.read_bytes()
    for array in (plain.T.copy().T, plain.astype(">f4"), np.repeat(plain, 2, 1)[:, ::2]):
        arrays = {"b": lambda: jnp.asarray(plain, jnp.bfloat16), "a": lambda a=array: a}
        write_safetensors(path, arrays)
        assert path.read_bytes() == expected


def test_the_library_of_the_format_reads_what_is_written(path):
    library = pytest.importorskip("safetensors")
    arrays = every_dtype()
    write_safetensors(path, arrays)
    with library.safe_open(path, "np") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(arrays)
        assert_same({name: file.get_tensor(name) for name in arrays}, arrays)


def test_what_the_library_of_the_format_writes_is_read(path):
    library = pytest.importorskip("safetensors.numpy")
    arrays = every_dtype()
    library.save_file(arrays, path)
    assert_same(read_all(path), arrays)


@pytest.mark.interop
def test_torch_and_big_align_read_each_other(path):
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("safetensors.torch")
    arrays = every_dtype()
    write_safetensors(path, arrays)
    tensors = library.load_file(path)
    for name, array in arrays.items():
        assert str(tensors[name].dtype) == f"torch.{array.dtype}"
        raw = tensors[name].reshape(-1).view(torch.uint8) if array.size else torch.empty(0)
        assert raw.numpy().tobytes() == array.tobytes(), name
    library.save_file(tensors, path)
    assert_same(read_all(path), arrays)


def test_names_are_sorted_and_arrays_begin_at_multiples_of_their_elements(path):
    write_safetensors(path, {"z": np.ones(3), "b": np.ones(3, np.int8), "a": np.ones(3, "f4")})
    length = int.from_bytes(path.read_bytes()[:8], "little")
    assert list(json.loads(path.read_bytes()[8 : 8 + length])) == ["__metadata__", "a", "b", "z"]
    with open_weights(path) as weights:
        assert list(weights) == ["a", "b", "z"]
        for array in weights.arrays.values():
            assert array.start % array.dtype.itemsize == 0


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_prefixes_of_wrappers_are_no_part_of_names(tmp_path, ending):
    """Parallel training and torch.compile add them to all names; elsewhere they are names."""
    wrapped = ("module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.module.")
    for prefix in wrapped:
        path = tmp_path / f"{prefix}{ending}"
        names = {f"{prefix}a.b", f"{prefix}module.c"}
        if ending == "pt":
            write_archive(path, dict.fromkeys(names, PLAIN["a"]), {"0": SIX})
        else:
            write_safetensors(path, dict.fromkeys(names, SIX))
        with open_weights(path) as weights:
            assert set(weights) == {"a.b", "module.c"}
    write_safetensors(tmp_path / "x.safetensors", {"module.a": SIX, "b": SIX})
    with open_weights(tmp_path / "x.safetensors") as weights:
        assert set(weights) == {"module.a", "b"}


def test_only_what_is_asked_for_is_read(path, monkeypatch):
    write_safetensors(path, ARRAYS)
    read, sizes = BinaryFile.read_into, []

    def record(self, start, buffer):
        sizes.append(len(buffer))
        read(self, start, buffer)

    with open_weights(path) as weights:
        monkeypatch.setattr(BinaryFile, "read_into", record)
        assert "a" in weights and "c" not in weights and len(weights) == 2
        assert weights.arrays["a"].shape == (2, 3) and weights.arrays["a"].dtype == np.float32
        assert not sizes
        np.testing.assert_array_equal(weights["b"], [1, -2])
        assert sizes == [4]
        with pytest.raises(KeyError):
            weights["c"]


def test_arrays_outlive_the_file_and_do_not_change_it(path):
    write_safetensors(path, ARRAYS)
    array = read_all(path)["a"]
    array[:] = 7
    assert_same(read_all(path), ARRAYS)


def test_every_truncated_file_is_refused(path):
    write_safetensors(path, ARRAYS)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        refuse(path, "truncated|empty|unknown kind")
    path.write_bytes(whole + b"\0")
    refuse(path, "something follows the arrays")


def test_a_file_that_shrinks_while_it_is_open(path):
    write_safetensors(path, ARRAYS)
    with open_weights(path) as weights:
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(WeightFileError, match="truncated"):
            weights["b"]


@pytest.mark.parametrize(
    "entry, message",
    [
        ({"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}, "type F8_E4M3; known are F64"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "as far apart"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "must have a dtype"),
        ({"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}, "must have a dtype"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}, "must have a dtype"),
        ({"dtype": "F32", "shape": [1]}, "must have a dtype"),
        ([0, 4], "must have a dtype"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}, "neither overlap nor leave gaps"),
        ({"dtype": "F32", "shape": [0], "data_offsets": [9, 9]}, "neither overlap nor leave gaps"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "truncated"),
    ],
)
def test_headers_that_contradict_themselves(path, entry, message):
    write_by_hand(path, {"__metadata__": {}, "a": entry}, bytes(4))
    refuse(path, message)


def test_arrays_that_overlap(path):
    entry = {"dtype": "F32", "shape": [1]}
    both = {"a": entry | {"data_offsets": [0, 4]}, "b": entry | {"data_offsets": [2, 6]}}
    write_by_hand(path, both, bytes(6))
    refuse(path, "'b' at byte .* neither overlap nor leave gaps")


@pytest.mark.parametrize(
    "header, message",
    [
        (b'{"a": ', "is not JSON"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b'{"a": ' * 100_000, "is not JSON"),
        (b'{"a": 1, "a": 2}', "'a' twice"),
        (b"[1, 2, 3]", "not a safetensors file"),
    ],
)
def test_headers_that_are_not_json(path, header, message):
    write_by_hand(path, header)
    refuse(path, message)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"\x80\x04\x95\x10\x00\x00\x00", "it is a pickle"),
        (b"PK\x03\x04 and so on", "it is a zip archive, as torch.save writes it"),
        (b"\n<!DOCTYPE html><html>", "it is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        (b'{"error": "not found"}', "it is JSON"),
        (b"\x93NUMPY\x01\x00", "unknown kind"),
        (b"\xff" * 7 + b"\x7f{", "unknown kind"),
        (b"", "it is empty"),
    ],
)
def test_files_of_other_kinds(path, content, message):
    path.write_bytes(content)
    refuse(path, message)


def test_files_that_cannot_be_opened(tmp_path):
    refuse(tmp_path / "missing.safetensors", "does not exist")
    refuse(tmp_path / "missing.safetensors.index.json", "does not exist")
    (tmp_path / "weights.npz").touch()
    refuse(tmp_path / "weights.npz", r"must be a folder or end in \.safetensors, \.pt")
    (tmp_path / "folder").mkdir()
    refuse(tmp_path / "folder", "no weights; looked for model.safetensors, .*pytorch_model.bin")


@pytest.fixture
def sharded(tmp_path):
    """A folder with two shards and their index, and a function that rewrites the index."""
    for number, (name, array) in enumerate(ARRAYS.items()):
        write_safetensors(tmp_path / f"model-{number}.safetensors", {name: array})

    def write_index(weight_map):
        text = json.dumps({"metadata": {}, "weight_map": weight_map})
        (tmp_path / "model.safetensors.index.json").write_text(text)
        return tmp_path / "model.safetensors.index.json"

    write_index({"a": "model-0.safetensors", "b": "model-1.safetensors"})
    return tmp_path, write_index


def test_shards_are_read_as_one_file(sharded):
    folder, _ = sharded
    assert_same(read_all(folder), ARRAYS)
    assert_same(read_all(folder / "model.safetensors.index.json"), ARRAYS)
    write_safetensors(folder / "model.safetensors", {"c": ARRAYS["a"]})
    assert set(read_all(folder)) == {"c"}  # the whole file counts before the shards


def test_indices_that_are_wrong(sharded):
    folder, write_index = sharded
    refuse(write_index({"a": "model-2.safetensors"}), "the shard model-2.safetensors, which is not")
    refuse(write_index({"c": "model-0.safetensors"}), "'c' is in model-0.safetensors, but it is no")
    refuse(write_index({"a": f"../{folder.name}/model-0.safetensors"}), "no name of a file")
    refuse(write_index({"a": 0}), "no name of a file")
    refuse(write_index({}), "no `weight_map`")
    (folder / "model-0.safetensors").write_bytes(b"<html>")
    with pytest.raises(WeightFileError, match="model-0.safetensors is not .* a web page"):
        open_weights(write_index({"a": "model-0.safetensors"}))
    index = folder / "model.safetensors.index.json"
    index.write_text("not JSON")
    refuse(index, "is not JSON")
    index.write_text('{"weight_map": {"a": "x", "a": "y"}}')
    refuse(index, "'a' twice")


def test_a_failed_write_leaves_the_folder_as_it_was(path):
    write_safetensors(path, ARRAYS)
    before = path.read_bytes()

    def made(results):
        return lambda: next(results)

    def fail():
        raise RuntimeError("no more")

    late = {"a": made(iter([np.ones(3), np.ones(4)])), "b": np.ones(3)}
    with pytest.raises(WeightFileError, match=r"'a' is float64\[4\] when made again"):
        write_safetensors(path, late)
    with pytest.raises(RuntimeError, match="no more"):
        write_safetensors(path, {"a": np.ones(3), "b": fail})
    with pytest.raises(WeightFileError, match="'c' is of type complex64; known are float64"):
        write_safetensors(path, {"c": np.ones(3, np.complex64)})
    with pytest.raises(WeightFileError, match="no folder"):
        write_safetensors(path.parent / "nowhere" / "model.safetensors", ARRAYS)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_one_array_at_a_time_is_in_memory(path):
    size = 1 << 20
    arrays = {f"{n}": (lambda n=n: np.full(size, n, np.uint8)) for n in range(16)}
    tracemalloc.start()
    try:
        write_safetensors(path, arrays)
        with open_weights(path) as weights:
            for name, array in weights.items():
                assert array[0] == int(name)
        assert tracemalloc.get_traced_memory()[1] < 3 * size
    finally:
        tracemalloc.stop()


def test_a_folder_is_written_whole_or_not_at_all(tmp_path):
    folder = tmp_path / "new" / "model"
    files = {"config.json": {"a": [1]}, "merges.txt": "é x\n", "model.safetensors": ARRAYS}
    write_folder(folder, files)
    assert sorted(p.name for p in folder.iterdir()) == sorted(files)
    assert json.loads((folder / "config.json").read_text()) == {"a": [1]}
    assert (folder / "merges.txt").read_text(encoding="utf-8") == "é x\n"
    assert_same(read_all(folder), ARRAYS)
    for path in (folder, folder / "config.json"):
        with pytest.raises(WeightFileError, match=f"{path} exists; give a folder that is empty"):
            write_folder(path, files)
    broken = files | {"model.safetensors": {"a": np.ones(3, np.complex64)}}
    empty = tmp_path / "empty"
    empty.mkdir()
    for path in (empty, tmp_path / "absent"):
        with pytest.raises(WeightFileError, match="complex64"):
            write_folder(path, broken)
    assert {p.name for p in tmp_path.iterdir()} == {"new", "empty"} and not any(empty.iterdir())
    write_folder(empty, files)
    assert_same(read_all(empty), ARRAYS)


READ_AND_CONVERT = f"""
import sys
import numpy as np
from big_align.weights.arrays.weight_files import open_weights
with open_weights(sys.argv[1]) as weights:
    ours = {{name: np.ascontiguousarray(array.T) for name, array in weights.items()}}
assert sum(array.nbytes for array in ours.values()) == 2_000_000_000
{PEAK}"""


@pytest.mark.slow
def test_reading_two_gigabytes_takes_at_most_two_and_a_half(path):
    made = np.ones((4000, 6250), np.float32)  # 100 MB
    write_safetensors(path, {f"{n}": made for n in range(20)})
    try:
        command = [sys.executable, "-c", READ_AND_CONVERT, str(path)]
        peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert peak < 2.5e9, f"{peak / 1e9:.2f} GB"
    finally:
        path.unlink()
