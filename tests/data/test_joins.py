"""Clusters and embeddings in batches: each row is that of its example, wherever it stands."""

import json

import numpy as np
import pytest
from loaders import assert_equal, make_loader, make_stream
from samples import make_members, write_tar

from big_align.core.errors import UserError
from big_align.data.loading.loader import TrainLoader
from big_align.data.precomputed import shard_files
from big_align.data.precomputed.joins import open_joins
from big_align.data.precomputed.shard_files import CLUSTERS, EMBEDDINGS
from big_align.data.sources.tar_source import TarSource
from big_align.data.text.tokenizers import NoTokenizer, WordTokenizer

COUNTS = (7, 12, 5)
NONE = 9
"""An example that could not be read when it was embedded."""


@pytest.fixture
def source(tmp_path):
    numbers = iter(range(sum(COUNTS)))
    for shard, count in enumerate(COUNTS):
        members = [member for _ in range(count) for member in make_members(next(numbers))]
        write_tar(tmp_path / f"pairs-{shard}.tar", members)
    return TarSource(str(tmp_path / "pairs-*.tar"), caption="")


def write_rows(folder, source, kind, rows, names=None):
    """Writes a folder as the tools do; row i belongs to the example whose number is i."""
    shards = shard_files.list_shards(source)
    keys = ["" if n == NONE else f"{n:06d}" for n in range(sum(COUNTS))]
    index = {"shards": [shard._asdict() for shard in shards], "made_by": {}}
    if kind == CLUSTERS:
        index |= {"k": 50, "dim": 4, "labels_per_image": rows.shape[1], "objective": []}
    else:
        index |= {"dim": rows.shape[1], "dtype": str(rows.dtype), "unit_length": False}
    shard_files.claim_folder(folder, index, write=True)
    if kind == CLUSTERS:
        np.save(folder / "centers.npy", np.zeros((50, 4), np.float32))
    first = 0
    for shard in shards:
        end = first + shard.count
        lines = shard_files.join_keys(keys[first:end])
        shard_files.write_shard(folder, shard, kind, rows[first:end], lines)
        first = end
    return str(folder)


@pytest.fixture
def clusters(tmp_path, source):
    rows = np.stack([np.arange(24), np.arange(24) + 20], 1).astype(np.int32)
    rows[NONE] = -1
    return write_rows(tmp_path / "clusters", source, CLUSTERS, rows)


@pytest.fixture
def embeddings(tmp_path, source):
    rows = np.arange(24, dtype=np.float16)[:, None] * np.ones(3, np.float16)
    rows[NONE] = 0
    return write_rows(tmp_path / "embeddings", source, EMBEDDINGS, rows)


def options(source, paths, **choice):
    """What makes a loader of images and extra fields."""
    joins = open_joins(paths, source)
    return {"tokenizer": NoTokenizer(), "captions_per_image": 0, "joins": joins} | choice


def numbers(batch):
    return batch["image"][:, 0, 0, 0].astype(int)


def test_every_row_is_that_of_its_example_on_any_split(source, clusters):
    with make_loader(source, **options(source, {"clusters": clusters})) as loader:
        whole = [loader.batch(step) for step in range(6)]
    for batch in whole:
        expected = np.stack([numbers(batch), numbers(batch) + 20], 1)
        expected[numbers(batch) == NONE] = -1
        np.testing.assert_array_equal(batch["clusters"], expected)
        assert batch["text"].shape == (8, 0, 1) and batch["clusters"].dtype == np.int32
    assert set(np.concatenate(list(map(numbers, whole[:3])))) == set(range(24))
    for rows in (np.arange(3), np.array([3, 4, 6])):
        with make_loader(source, rows=rows, **options(source, {"clusters": clusters})) as part:
            for step, batch in zip(range(6), part.iterate(0), strict=False):
                for name, array in batch.items():
                    np.testing.assert_array_equal(array, whole[step][name][rows])


def test_a_part_of_the_shards_finds_its_rows_by_their_names(source, clusters, tmp_path):
    some = TarSource(str(tmp_path / "pairs-[12].tar"), caption="")
    with make_loader(some, **options(some, {"clusters": clusters})) as loader:
        batch = loader.batch(0)
    np.testing.assert_array_equal(
        batch["clusters"][:, 0], np.where(numbers(batch) == NONE, -1, numbers(batch))
    )


def test_embeddings_come_in_place_of_images_and_a_broken_one_is_replaced(
    source, embeddings, monkeypatch
):
    words = WordTokenizer(("number", "n", *map(str, range(100))), length=4)
    pairs = TarSource(source_path(source), "json.captions")
    joins = open_joins({"image_embedding": embeddings}, pairs)
    monkeypatch.setattr(pairs, "read", lambda *place: pytest.fail("an image was read"))
    with make_loader(pairs, tokenizer=words, joins=joins, max_broken_fraction=0.1) as loader:
        seen = []
        for step in range(3):
            batch = loader.batch(step)
            assert "image" not in batch
            shown = batch["image_embedding"][:, 0].astype(int)
            np.testing.assert_array_equal(batch["text"][:, 2] - 5, shown)
            seen += shown.tolist()
        assert loader.broken == 1 and NONE not in seen


def test_processes_find_the_rows_that_threads_find(source, clusters, embeddings):
    for paths in ({"clusters": clusters}, {"image_embedding": embeddings}):
        given = options(source, paths, max_broken_fraction=0.1)
        with (
            make_loader(source, **given) as threads,
            make_loader(source, **given, num_processes=1) as processes,
        ):
            for step in range(4):
                assert_equal(processes.batch(step), threads.batch(step))
            assert processes.broken == threads.broken == len(paths.keys() - {"clusters"})


def source_path(source):
    return ",".join(source._paths)


def test_other_examples_than_those_embedded_are_an_error(source, clusters, tmp_path):
    members = [m for n in (0, 1, 2, 3, 44, 5, 6) for m in make_members(n)]
    write_tar(tmp_path / "pairs-0.tar", members)
    changed = TarSource(str(tmp_path / "pairs-*.tar"), caption="")
    message = "example 4 of pairs-0.tar was '000004' when it was embedded and is now '000044'"
    with (
        pytest.raises(UserError, match=message),
        make_loader(changed, **options(changed, {"clusters": clusters})) as loader,
    ):
        for step in range(3):
            loader.batch(step)


@pytest.mark.parametrize("change", ["longer", "another name", "cut short", "another width"])
def test_what_does_not_fit_the_source_is_an_error(source, clusters, tmp_path, change):
    folder, path = tmp_path / "clusters", str(tmp_path / "pairs-*.tar")
    if change == "longer":
        members = [member for n in range(8) for member in make_members(n)]
        write_tar(tmp_path / "pairs-0.tar", members)
        message = "has 7 examples of the shard pairs-0.tar, which now has 8"
    elif change == "another name":
        (tmp_path / "pairs-1.tar").rename(tmp_path / "pairs-9.tar")
        message = "has nothing for the shard pairs-9.tar; it has pairs-0.tar"
    elif change == "cut short":
        array = next(folder.glob(f"000001*{CLUSTERS}"))
        array.write_bytes(array.read_bytes()[:-9])
        message = f"{array.name} is missing, cut short or no array"
    else:
        index = json.loads((folder / "index.json").read_text()) | {"labels_per_image": 3}
        (folder / "index.json").write_text(json.dumps(index))
        message = r"is int32 \[7, 2\], but index.json says int32 \[7, 3\]"
    with pytest.raises(UserError, match=message):
        open_joins({"clusters": clusters}, TarSource(path, caption=""))
    with pytest.raises(UserError, match="'cluster' is no precomputed field; known: clusters"):
        open_joins({"cluster": clusters}, source)


def test_parts_of_a_mixture_are_joined_alike(source, clusters):
    parts = {
        "left": make_stream(source, 4, "", **options(source, {"clusters": clusters})),
        "right": make_stream(source, 4, "", **options(source, {"clusters": clusters}, seed=1)),
    }
    with TrainLoader(parts) as mixture:
        batch = mixture.batch(0)
        shown = np.where(numbers(batch) == NONE, -1, numbers(batch))
        np.testing.assert_array_equal(batch["clusters"][:, 0], shown)
    parts = {
        "left": make_stream(source, 4, "", **options(source, {"clusters": clusters})),
        "right": make_stream(source, 4, "", **options(source, {})),
    }
    with pytest.raises(UserError, match=r"clusters is \(2,\) in left and none at all in right"):
        TrainLoader(parts)
