"""Embedding on the command line: every row is its image's, and it continues where it stopped."""

import json
import re
import threading
import time

import flax.linen as nn
import jax
import numpy as np
import pytest

import big_align
from big_align import weights
from big_align.core.errors import UserError
from big_align.data.precomputed import shared_shards
from big_align.data.precomputed.embedding_files import EmbeddingFolder
from big_align.data.shared import storage
from big_align.parallel.distributed import processes
from big_align.tools import embed
from big_align.weights.formats.preprocessing import Preprocessing
from big_align.weights.formats.pretrained import Pretrained
from tests.data.samples import encode_image, make_pixels, write_tar
from tests.two_processes import run_both, run_together

pytestmark = pytest.mark.slow

COUNTS = (5, 2, 9)
NODE = {"name": "resnet", "variant": "18", "width": 8, "depths": (1, 1), "stem": "small"}


def save_model(path, seed=0, node=NODE, preprocessing=True, mean=(0.4, 0.5, 0.6)):
    made = Pretrained(node, {})
    image = np.zeros((1, 8, 8, 3), np.float32)
    variables = jax.jit(made.model.init)(jax.random.PRNGKey(seed), image)
    seen = Preprocessing(8, 8, keep_aspect=False, mean=mean) if preprocessing else None
    tower = Pretrained(node, jax.tree.map(np.asarray, nn.meta.unbox(variables)), 8, seen)
    weights.save(path, tower, "big_align")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture
def source(tmp_path):
    number = 0
    for shard, count in enumerate(COUNTS):
        members = [
            (f"{i:04d}.png", encode_image(make_pixels(15 * i)))
            for i in range(number, number + count)
        ]
        write_tar(tmp_path / f"pairs-{shard}.tar", members)
        number += count
    return str(tmp_path / "pairs-*.tar")


def run(model, source, output, **more):
    options = {"model": model, "source": source, "output": output, "batch_size": 8} | more
    return embed.main([f"--{name}={value}" for name, value in options.items()])


def read_bytes(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def expected_features(model):
    tower = big_align.load(model)
    image = np.stack([make_pixels(15 * i) for i in range(16)])
    standard = (image / 255 - np.array([0.4, 0.5, 0.6])) / np.array(tower.preprocessing.std)
    features, _ = jax.jit(tower.model.apply)(tower.variables, np.float32(standard))
    return np.asarray(features)


@pytest.mark.parametrize(("what", "dtype"), [("embedding", "float16"), ("features", "float32")])
def test_every_row_is_that_of_its_image(model, source, tmp_path, capsys, what, dtype):
    assert run(model, source, tmp_path / "out", what=what, dtype=dtype) == 0
    assert "16 of 16 images embedded now" in capsys.readouterr().out
    rows = EmbeddingFolder(tmp_path / "out")
    assert [(s.name, s.count) for s in rows.shards] == [
        (f"pairs-{i}.tar", count) for i, count in enumerate(COUNTS)
    ]
    assert sum((rows.keys(shard) for shard in rows.shards), []) == [f"{i:04d}" for i in range(16)]
    expected = expected_features(model)
    if what == "embedding":
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    found = rows.read(0, 16)
    assert found.dtype == dtype and rows.index["unit_length"] == (what == "embedding")
    np.testing.assert_allclose(found, expected, atol=1e-3, rtol=1e-3)


def test_the_same_command_continues_and_keeps_whole_shards(model, source, tmp_path, capsys):
    output = tmp_path / "out"
    assert run(model, source, output) == 0
    whole = read_bytes(output)
    (gone,) = output.glob("*pairs-1.tar.npy")
    gone.unlink()
    others = [path for path in output.iterdir() if "pairs-1" not in path.name]
    kept = {path: path.stat().st_mtime_ns for path in others}
    assert run(model, source, output) == 0
    assert "2 of 16 images embedded now" in capsys.readouterr().out
    assert read_bytes(output) == whole
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    assert run(model, source, output) == 0
    assert "0 of 16 images embedded now" in capsys.readouterr().out


def test_commands_share_the_shards(model, source, tmp_path, monkeypatch, capsys):
    assert run(model, source, tmp_path / "one") == 0
    capsys.readouterr()
    monkeypatch.setattr(shared_shards, "LEAST", 1)
    assert run_together(lambda _: run(model, source, tmp_path / "two"), 3) == [0, 0, 0]
    printed = capsys.readouterr().out
    counts = map(int, re.findall(r": (\d+) of 16 images embedded now", printed))
    assert sum(counts) == 16
    assert read_bytes(tmp_path / "two") == read_bytes(tmp_path / "one")


def test_a_process_with_less_to_do_waits_for_the_others(tmp_path, monkeypatch):
    """The end of one ends the others, after some minutes."""
    done = []

    def embed_images(*_):
        time.sleep(0.5 * processes.coordination().process_id)
        done.append(0)

    def count(process):
        options = ("--model=m", "--source=s", f"--output={tmp_path / 'out'}", "--distributed")
        assert embed.main(list(options)) == 0
        return len(done)

    monkeypatch.setattr(embed, "_embed_images", embed_images)
    monkeypatch.setattr(processes, "join_processes", lambda: None)
    assert run_both(monkeypatch, count) == [2, 2]


def test_a_bucket_gets_what_a_folder_gets(model, source, tmp_path, monkeypatch, capsys, bucket):
    monkeypatch.setattr(shared_shards, "LEAST", 1)
    assert run(model, source, tmp_path / "out") == 0
    address = "s3://pairs/embeddings"
    bucket.plan(seed=0, rate=0.1, kinds=("slow_down", "close"))
    assert run_together(lambda _: run(model, source, address), 2) == [0, 0]
    bucket.heal()
    there = bucket.objects()
    assert {name.removeprefix("embeddings/"): x for name, x in there.items()} == read_bytes(
        tmp_path / "out"
    )
    capsys.readouterr()
    assert run(model, source, address) == 0
    assert "0 of 16 images embedded now" in capsys.readouterr().out
    with pytest.raises(UserError, match="copy the folder to a disk"):
        EmbeddingFolder(address)
    assert run(model, source, f"{address}.npy") == 1
    assert "is an address, and files are written here" in capsys.readouterr().err


def test_of_two_models_at_once_one_is_told(model, source, tmp_path, monkeypatch, capsys):
    """A workdir's newest checkpoint may be another a second later: rows of both were mixed."""
    models = [model, save_model(tmp_path / "other", seed=1)]
    both, create = threading.Barrier(2), storage.create_whole

    def create_at_once(path, content):
        if path.endswith("index.json"):
            both.wait()
        return create(path, content)

    monkeypatch.setattr(storage, "create_whole", create_at_once)
    statuses = run_together(lambda n: run(models[n], source, tmp_path / "out"), 2)
    assert sorted(statuses) == [0, 1]
    assert "was made with other settings: made_by.weights is" in capsys.readouterr().err
    monkeypatch.undo()
    assert run(models[statuses.index(0)], source, tmp_path / "alone") == 0
    assert read_bytes(tmp_path / "out") == read_bytes(tmp_path / "alone")


def test_a_broken_image_keeps_its_row_and_moves_no_other(model, source, tmp_path, capsys):
    assert run(model, source, tmp_path / "whole") == 0
    members = [(f"{i:04d}.png", encode_image(make_pixels(15 * i))) for i in range(5)]
    members[3] = ("0003.png", b"no image")
    write_tar(tmp_path / "pairs-0.tar", members)
    assert run(model, source, tmp_path / "out", max_broken_fraction=0.1) == 0
    whole, rows = EmbeddingFolder(tmp_path / "whole"), EmbeddingFolder(tmp_path / "out")
    assert rows.absent == 1
    assert rows.keys(rows.shards[0]) == ["0000", "0001", "0002", "", "0004"]
    others = np.arange(16) != 3
    np.testing.assert_array_equal(rows.read(0, 16)[others], whole.read(0, 16)[others])
    assert not rows.read(3, 4).any()
    assert run(model, source, tmp_path / "strict", max_broken_fraction=0) == 1
    assert "pairs-0.tar: 0003" in capsys.readouterr().err


def test_a_fraction_out_of_range_is_told_before_there_is_a_folder(model, source, tmp_path, capsys):
    assert run(model, source, tmp_path / "out", max_broken_fraction=1.5) == 1
    assert "max_broken_fraction = 1.5 is not a fraction from 0 to 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_another_model_or_source_into_the_folder_is_named(model, source, tmp_path, capsys):
    output = tmp_path / "out"
    assert run(model, source, output) == 0
    before = read_bytes(output)
    other = save_model(tmp_path / "other", seed=1)
    colors = save_model(tmp_path / "colors", mean=(0.5, 0.5, 0.5))
    for changed, message in (
        ({"model": other}, "made_by.weights is"),
        ({"model": colors}, "made_by.architecture is"),
        ({"source": source.replace("*", "[01]")}, "shards are 3 there and 2 now"),
        ({"what": "features"}, "made_by.what is 'embedding' there and 'features' now"),
        ({"transform": "resize(9)"}, "made_by.transform is"),
        ({"transform": "resize(9)|random_crop(8)"}, "--transform = 'resize(9)|random_crop(8)' ch"),
        ({"dtype": "float32"}, "dtype is 'float16' there and 'float32' now"),
    ):
        given = {"model": model, "source": source} | changed
        assert run(output=output, **given) == 1
        assert message in capsys.readouterr().err.splitlines()[-1]
    assert read_bytes(output) == before
    moved = save_model(tmp_path / "moved")  # the same weights
    assert run(moved, source, output) == 0


def test_a_dual_encoder_and_a_folder_of_classes(reference_dir, tmp_path, capsys):
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(9):
            path = tmp_path / "images" / name / f"{i}.png"
            path.write_bytes(encode_image(make_pixels(i, 40)))
    given = {"source_name": "folder", "transform": "resize(32)", "dtype": "float32"}
    assert run(reference_dir / "hf-clip", tmp_path / "images", tmp_path / "out", **given) == 0
    rows = EmbeddingFolder(tmp_path / "out")
    assert [shard.count for shard in rows.shards] == [16, 2]
    found = rows.read(0, 18)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(found[:9], found[9:], atol=1e-6)
    assert run(reference_dir / "hf-clip", tmp_path / "images", tmp_path / "none", **(
        given | {"transform": "resize(40)"}
    )) == 1  # fmt: skip
    assert "cannot take images [40, 40, 3]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "nowhere"}, "nowhere: there is no such file or folder"),
        ({"source": "none-*.tar"}, "no file matches 'none-*.tar'"),
        ({"source_name": "tars"}, "--source_name = 'tars' is unknown (did you mean 'tar'?)"),
        ({"source_argument": "split"}, "does not read as NAME=VALUE"),
        ({"source_argument": "spilt=3"}, "--source.spilt is unknown"),
        ({"transform": "resize"}, "--transform: "),
        ({"batch_size": -4}, "--batch_size=-4 must be at least 1"),
        ({"batch_size": 12}, "--batch_size = 12 is not a multiple of 8 devices; 8 and 16 are"),
    ],
)
def test_bad_input_is_one_line(model, source, tmp_path, capsys, changed, message):
    given = {"model": model, "source": source, "output": tmp_path / "out"} | changed
    assert run(**given) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ") and message in line
    assert not (tmp_path / "out").exists()


def test_a_model_that_gives_no_numbers_names_the_image(model, source, tmp_path, capsys):
    tower = big_align.load(model)
    broken = jax.tree.map(lambda x: np.full_like(x, np.nan), tower.variables)
    made = Pretrained(NODE, broken, 8, tower.preprocessing)
    weights.save(tmp_path / "nan", made, "big_align")
    assert run(tmp_path / "nan", source, tmp_path / "out") == 1
    assert "pairs-0.tar: 0000: its embedding is not finite" in capsys.readouterr().err


def test_a_model_without_preprocessing_wants_a_transform(source, tmp_path, capsys):
    path = save_model(tmp_path / "bare", preprocessing=False)
    assert run(path, source, tmp_path / "out") == 1
    assert "give --transform" in capsys.readouterr().err
    assert run(path, source, tmp_path / "out", transform="resize(8)") == 0
    made_by = json.loads((tmp_path / "out" / "index.json").read_text())["made_by"]
    assert made_by["transform"] == "resize(8)"
