"""Whatever stands in a file of weights: it is read, or a line says what is wrong with it."""

import json
import random
import re
import shutil

import numpy as np
import pytest

from big_align.weights.arrays.weight_files import write_safetensors
from tests.weights.bounded_loads import BoundedLoads
from tests.weights.hostile_configs import HostileConfig, write_intact
from tests.weights.hostile_weights import PLAIN, SIX
from tests.weights.torch_archives import tensor, write_archive, write_stream

TRIALS, TRIALS_OF_FOLDERS = 1000, 100
pytestmark = pytest.mark.slow

TREE = {"state_dict": PLAIN | {"b": tensor("1", "int16", (2, 2), (1, 2))}, "epoch": 3}
STORED = {"0": SIX, "1": np.arange(4, dtype=np.int16)}

FILES = {
    "weights.pt": lambda path: write_archive(path, TREE, STORED),
    "weights.pth": lambda path: write_stream(path, TREE, STORED),
    "weights.safetensors": lambda path: write_safetensors(path, {"a": SIX, "b": STORED["1"]}),
}
FOLDERS = (
    *(("clip", format) for format in ("transformers", "open_clip", "big_align")),
    *((tower, "timm") for tower in ("vit", "swin")),
    *((tower, "transformers") for tower in ("resnet", "bert")),
)
NUMBERS = (b"-1", b"0", b"3", b"1e6", b"1000000", b"9" * 30, b"9" * 4000, b"null", b'"x"', b"[]")
TOKENS = (
    *(b"\0" * 64, b"\xff" * 8, b"\x7f" * 8, b"[" * 10_000, b"{", b'"', b"]" * 1000, b"(", b"2\x86"),
    *(b"\x8f" * 1000, b"}" * 1000, b"r\xff\xff\xff\x7f", b"\x8d", b"\x96", b"h\x01R", b"."),
)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Overwrites, cuts, inserts, repeats or moves bytes, or changes a number that is text."""
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((0, 1, 2, 8, 64, len(data))))
    piece, before, after = data[start:end], data[:start], data[end:]
    numbers = list(re.finditer(rb"\d+", data))
    if numbers and rng.random() < 0.3:
        number = rng.choice(numbers)
        return data[: number.start()] + rng.choice(NUMBERS) + data[number.end() :]
    return rng.choice(
        (
            before + bytes([rng.randrange(256)]) + data[start + 1 :],
            before + bytes([rng.randrange(256)]) + data[start + 1 :],
            before,
            before + after,
            before + piece * rng.choice((2, 100)) + after,
            before + rng.choice(TOKENS) + after,
            before + rng.choice((b"\0", b"\xff")) * len(piece) + after,
            before + rng.randbytes(len(piece)) + after,
            after + piece + before,
        )
    )


@pytest.fixture(scope="module")
def load():
    with BoundedLoads() as loads:
        yield loads


def find_fault(load, path):
    """Returns what is wrong with how whatever lies at a path is met, or nothing."""
    outcome = load(path)
    if outcome.what not in ("read", "refused"):
        return outcome.what, outcome.message[-500:]
    if outcome.megabytes > 400 or outcome.seconds > 20:
        return outcome
    if outcome.what == "refused":
        named = str(path) in outcome.message and len(outcome.message) < 10_000
        return () if named else ("not named", outcome.message[:500])
    sizes = [np.prod(shape) * 8 for _, shape, _ in outcome.digests.values()]
    return () if sum(sizes) < 2**26 + 100 * 2**20 else ("large", sizes)


def try_files(load, folder, seeds):
    """Returns the seeds whose mutation of a file was met wrongly, and how."""
    found = {}
    for seed in seeds:
        rng = random.Random(seed)
        name, write = rng.choice(sorted(FILES.items()))
        path = folder / name
        write(path)
        for _ in range(rng.choice((1, 1, 3))):
            path.write_bytes(mutate(path.read_bytes(), rng))
        if fault := find_fault(load, path):
            found[seed] = name, fault
    return found


def test_mutated_files_are_met(load, tmp_path):
    for name, write in FILES.items():
        write(tmp_path / name)
        assert load(tmp_path / name).what == "read"
    assert try_files(load, tmp_path, range(TRIALS)) == {}


def test_mutated_folders_are_met(load, tmp_path):
    found = {}
    for tower, format in FOLDERS:
        write_intact(HostileConfig(tower, format, "", None, ""), tmp_path / f"{tower}-{format}")
        assert load(tmp_path / f"{tower}-{format}").what == "read"
    for seed in range(TRIALS_OF_FOLDERS):
        rng = random.Random(seed)
        folder, path = tmp_path / "-".join(rng.choice(FOLDERS)), tmp_path / f"{seed}"
        shutil.copytree(folder, path)
        files = sorted(path.iterdir())
        configs = [file for file in files if file.suffix == ".json"]
        target = rng.choice(configs if rng.random() < 0.7 else files)
        target.write_bytes(mutate(target.read_bytes(), rng))
        if fault := find_fault(load, path):
            found[seed] = folder.name, target.name, fault
        shutil.rmtree(path)
    assert found == {}, json.dumps(found, default=str, indent=1)
