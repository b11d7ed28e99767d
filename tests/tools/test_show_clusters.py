"""The tool draws what it is given, of the right examples, and names what does not fit."""

import re

import numpy as np
import pytest
from PIL import Image

from big_align import weights
from big_align.data.precomputed import shard_files
from big_align.data.sources.array_source import ArraySource, read_npz
from big_align.tools import show_clusters
from big_align.weights.formats.architecture import make_model

COUNT, K, LABELS = 30, 5, 2


@pytest.fixture
def source(tmp_path):
    """Flags of a source: images that tell their number by their color."""
    gray = 8 * np.arange(COUNT, dtype=np.uint8)
    image = np.broadcast_to(gray[:, None, None, None], (COUNT, 8, 8, 3))
    np.savez(tmp_path / "images.npz", image=image, label=np.zeros(COUNT, int))
    return [f"--source={tmp_path / 'images.npz'}", "--source_name=npz"]


def write(folder, source, ending, rows, keys=None, **index):
    """Writes a folder as the tools do."""
    (shard,) = shard_files.list_shards(read_npz(source[0].partition("=")[2]))
    shards = [shard._asdict()]
    shard_files.claim_folder(folder, index | {"shards": shards}, write=True)
    keys = shard_files.join_keys(keys or map(str, range(COUNT)))
    shard_files.write_shard(folder, shard, ending, rows, keys)
    return str(folder)


def write_embeddings(folder, source, seed=0, dim=4, **options):
    rows = np.random.default_rng(seed).normal(size=(COUNT, dim)).astype(np.float16)
    index = {"dim": dim, "dtype": "float16", "unit_length": False}
    return write(folder, source, ".npy", rows, **options, **index)


def write_clusters(folder, source, **options):
    clusters = np.stack([np.arange(COUNT) % K, np.arange(1, COUNT + 1) % K], 1)
    clusters[::3, 1] = -1
    clusters[7:10] = -1
    rows = np.random.default_rng(1).normal(size=(K, 4))
    folder.mkdir()
    centers = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.save(folder / "centers.npy", centers.astype(np.float32))
    index = {"k": K, "dim": 4, "labels_per_image": LABELS}
    return write(folder, source, ".clusters.npy", np.int32(clusters), **options, **index)


def run(capsys, output, *flags):
    """Returns the pictures by name, or the error."""
    status = show_clusters.main([f"--output={output}", *flags])
    printed = capsys.readouterr()
    if status:
        return printed.err
    paths = printed.out.split()
    return {path.rpartition("/")[2]: np.asarray(Image.open(path).convert("RGB")) for path in paths}


def test_labels_show_the_same_images_at_every_run(source, tmp_path, capsys):
    clusters = f"--clusters={write_clusters(tmp_path / 'c', source)}"
    flags = [*source, clusters, "--images=2", "--examples=3", "--labels=2"]
    first, again = (run(capsys, tmp_path / name, *flags) for name in "ab")
    other = run(capsys, tmp_path / "b", *flags, "--seed=1")
    assert list(first) == ["labels.png"]
    np.testing.assert_array_equal(first["labels.png"], again["labels.png"])
    assert first["labels.png"].tobytes() != other["labels.png"].tobytes()
    # A gray level is an image: two that are shown, and some of their clusters' images.
    levels, counts = np.unique(first["labels.png"], return_counts=True)
    numbers = set((levels[(counts > 6000) & (levels < 255)] // 8).tolist())
    assert 4 <= len(numbers) <= 14 and not numbers & {7, 8, 9}  # These have no label.


@pytest.mark.slow
def test_cosines_of_several_folders_and_tables(source, tmp_path, capsys):
    clusters = f"--clusters={write_clusters(tmp_path / 'c', source)}"
    folders = [write_embeddings(tmp_path / f"step_{n}", source, n) for n in range(3)]
    one = run(capsys, tmp_path / "one", clusters, "--embeddings", folders[0])
    both = run(capsys, tmp_path / "both", clusters, "--embeddings", *folders)
    assert list(one) == list(both) == ["cosines.png"]
    assert both["cosines.png"].shape[1] == 2 * one["cosines.png"].shape[1]
    np.save(tmp_path / "same.npy", np.load(tmp_path / "c" / "centers.npy") * 3)
    table = str(tmp_path / "same.npy")
    same = run(capsys, tmp_path / "x", clusters, "--embeddings", *folders, "--centers", table)
    np.testing.assert_array_equal(same["cosines.png"], both["cosines.png"])


@pytest.mark.slow
def test_patches_of_a_model(source, tmp_path, capsys):
    """With any model that big_align reads."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    node = {"name": "vit", "variant": "ti/2", "width": 16, "depth": 1, "heads": 2, "mlp_dim": 32}
    variables = make_model(node).init(jax.random.PRNGKey(0), jnp.zeros((1, 8, 8, 3)))
    variables = jax.tree.map(np.asarray, nn.meta.unbox(variables))
    seen = weights.Preprocessing(8, 8)
    weights.save(tmp_path / "m", weights.Pretrained(node, variables, 8, seen), "big_align")
    drawn = run(capsys, tmp_path / "out", *source, f"--model={tmp_path / 'm'}", "--images=3")
    assert list(drawn) == ["patches.png"]


def test_what_does_not_fit_is_one_line(source, tmp_path, capsys):
    clusters = write_clusters(tmp_path / "c", source)
    strange = write_clusters(tmp_path / "s", source, keys=[f"x{n}" for n in range(COUNT)])
    embeddings = write_embeddings(tmp_path / "e", source)
    wide = write_embeddings(tmp_path / "w", source, dim=6)
    np.savez(tmp_path / "few.npz", image=np.zeros((9, 8, 8, 3), np.uint8), label=np.zeros(9, int))
    few = [f"--source={tmp_path / 'few.npz'}", "--source_name=npz"]
    given = [f"--clusters={clusters}", "--embeddings", embeddings]
    (tmp_path / "short.npy").write_bytes(b"x" * 9)
    for flags, message in (
        ([], "there is nothing to draw"),
        ([*source, "--images=0", f"--clusters={clusters}"], "--images=0 must be at least 1"),
        ([*few, f"--clusters={clusters}"], "has other shards than the source"),
        ([*source, f"--clusters={strange}"], "the clusters are of other examples"),
        ([f"--clusters={strange}", "--embeddings", embeddings], "holds other examples than"),
        ([f"--clusters={clusters}", "--embeddings", wide], "have 6 numbers and centers 4"),
        ([f"--clusters={clusters}", "--embeddings", str(tmp_path)], "has no index.json"),
        ([*source, "--model=/nowhere"], "/nowhere: there is no such file or folder"),
        ([*given, wide, wide, "--centers", "a", "b"], "names 2 files for 3 --embeddings"),
        ([*given, "--centers", str(tmp_path / "short.npy")], "is missing, cut short or no array"),
    ):  # fmt: skip
        error = run(capsys, tmp_path / "out", *flags)
        assert isinstance(error, str) and error.startswith("error: ") and error.count("\n") == 1
        assert message in error
    assert not (tmp_path / "out").exists()


def test_an_image_that_cannot_be_read_is_named(source, tmp_path, capsys, monkeypatch):
    class Torn(ArraySource):
        def read(self, shard, index):
            raise KeyError("torn")

    whole = read_npz(source[0].partition("=")[2])
    clusters = write_clusters(tmp_path / "c", source)
    torn = Torn(np.zeros((COUNT, 8, 8, 3), np.uint8), [[]] * COUNT)
    torn.shard_name = whole.shard_name
    monkeypatch.setattr(show_clusters, "open_source", lambda *given: (torn, None))
    error = run(capsys, tmp_path / "out", *source, f"--clusters={clusters}")
    assert re.fullmatch(r"error: array: \d+: KeyError: 'torn'\n", error)
