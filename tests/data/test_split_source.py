"""What is held out depends on keys alone: parts are complements, and stay when data change."""

import numpy as np
import pytest
from PIL import Image

from big_align.core.errors import UserError
from big_align.data.derived.split_source import SplitSource
from big_align.data.sources.array_source import ArraySource
from big_align.data.sources.csv_source import CsvSource
from big_align.data.sources.folder_source import FolderSource
from big_align.data.sources.tar_source import TarSource
from tests.data.samples import encode_image, make_array, make_members, make_pixels, write_tar

PINNED = ["2", "6", "17", "18", "23", "29", "34"]


def list_places(source):
    return [(s, i) for s, size in enumerate(source.shard_sizes.tolist()) for i in range(size)]


def list_keys(source):
    return [source.key(*place) for place in list_places(source)]


def split(source, fraction, **options):
    return [SplitSource(source, fraction, held_out, **options) for held_out in (False, True)]


def write_shards(folder, numbers, size):
    folder.mkdir()
    for start in range(0, len(numbers), size):
        members = [m for number in numbers[start : start + size] for m in make_members(number)]
        write_tar(folder / f"{start:06d}.tar", members)
    return TarSource(f"{folder}/*.tar")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("tars") / "a", list(range(200)), 23)


@pytest.mark.parametrize("fraction", [0.02, 0.3, 0.9])
def test_parts_are_disjoint_complete_and_in_the_order_of_the_source(shards, fraction):
    rest, held = split(shards, fraction)
    assert rest.shard_sizes.tolist() == (shards.shard_sizes - held.shard_sizes).tolist()
    everything = list_keys(shards)
    assert sorted(list_keys(rest) + list_keys(held)) == sorted(everything)
    for part in (rest, held):
        keys = list_keys(part)
        assert keys == [key for key in everything if key in set(keys)]


def test_every_method_tells_of_the_same_example(shards):
    for part in split(shards, 0.3):
        for place in list_places(part):
            example, number = part.read(*place), int(part.key(*place))
            assert example.key == part.key(*place) and example.captions == [f"number {number}"]
            assert part.read_text(*place) == (example.captions, example.labels)
            assert part.name(*place) == f"{part.shard_name(place[0])}: {number:06d}"


def test_about_the_fraction_is_held_out():
    held = SplitSource(make_array(20_000), 0.1, held_out=True)
    assert abs(held.shard_sizes.sum() - 2000) < 4 * np.sqrt(20_000 * 0.1 * 0.9)


def test_a_larger_fraction_holds_out_the_same_and_more(shards):
    small, large = (set(list_keys(SplitSource(shards, f, held_out=True))) for f in (0.1, 0.4))
    assert small < large


def test_what_is_held_out_is_pinned():
    """Data that a published run has held out stay held out."""
    assert list_keys(SplitSource(make_array(40), 0.25, held_out=True)) == PINNED


def test_shards_laid_anew_and_new_examples_change_no_part(shards, tmp_path):
    before = set(list_keys(SplitSource(shards, 0.3, held_out=True)))
    numbers = np.random.default_rng(0).permutation(300).tolist()
    other = SplitSource(write_shards(tmp_path / "b", numbers, 50), 0.3, held_out=True)
    assert {key for key in list_keys(other) if int(key) < 200} == before


def test_layouts_with_the_same_names_of_files_hold_out_the_same(tmp_path):
    numbers = list(range(60))
    tars = write_shards(tmp_path / "tars", numbers, 20)
    lines = ["image"]
    (tmp_path / "images" / "part").mkdir(parents=True)
    for number in numbers:
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / "part" / f"{number:06d}.jpg")
        lines.append(f"images/part/{number:06d}.jpg")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    found = [
        {key.rpartition("/")[2].partition(".")[0] for key in list_keys(SplitSource(s, 0.3, True))}
        for s in (tars, CsvSource(str(tmp_path / "table.csv")), FolderSource(f"{tmp_path}/images"))
    ]
    assert found[0] == found[1] == found[2] and 5 < len(found[0]) < 35


def test_files_of_the_same_name_in_many_folders_are_told_apart(tmp_path):
    for folder in range(80):
        (tmp_path / "images" / f"{folder}").mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / f"{folder}" / "view.png")
    held = SplitSource(FolderSource(str(tmp_path / "images")), 0.5, held_out=True)
    assert 20 < held.shard_sizes.sum() < 60


class Rows(ArraySource):
    """The rows of a table, whose keys are no names of files."""

    def key(self, shard, index):
        return f"00007.parquet: row {index}"


def test_keys_that_are_no_names_of_files_count_as_a_whole():
    rows = Rows(np.zeros((300, 8, 8, 3), np.uint8), [["a"]] * 300)
    assert 30 < SplitSource(rows, 0.2, held_out=True).shard_sizes.sum() < 90


def test_the_most_examples_are_those_of_the_smallest_fraction(shards):
    few = SplitSource(shards, 0.5, held_out=True, max_examples=10)
    keys = set(list_keys(few))
    assert len(keys) == 10 and keys < set(list_keys(SplitSource(shards, 0.5, held_out=True)))
    smaller = (SplitSource(shards, f, held_out=True) for f in np.linspace(0.02, 0.2, 60))
    assert any(set(list_keys(each)) == keys for each in smaller)


def test_lost_examples_are_counted_in_one_part(tmp_path):
    image = encode_image(make_pixels(1))
    members = [(f"{n}.png", image) for n in range(50)]
    members += [(f"{n}.txt", b"a") for n in range(30)]
    source = TarSource(write_tar(tmp_path / "a.tar", members))
    rest, held = split(source, 0.4)
    assert source.broken.sum() == 20
    assert (rest.broken + held.broken).tolist() == source.broken.tolist()


@pytest.mark.parametrize(
    ("fraction", "held_out", "message"),
    [
        (1e-9, True, "holds out none of 200 examples, .* 200 different keys; raise .*.hold_out$"),
        (1 - 1e-9, False, "hold_out = 1 leaves none of 200 examples, .*lower --config.data.hold"),
        (0.0, True, "hold_out = 0 holds out none of 200 examples, .*raise --config.data.hold_out"),
        (1.0, False, "hold_out = 1.0 is not a fraction from 0 to below 1"),
    ],
)
def test_a_part_without_examples_is_an_error(shards, fraction, held_out, message):
    with pytest.raises(UserError, match=message):
        SplitSource(shards, fraction, held_out)


class Captions(ArraySource):
    """Rows of three images."""

    def key(self, shard, index):
        return "abc"[index % 3]


def test_few_keys_are_told_and_what_would_give_more():
    rows = Captions(np.zeros((80, 8, 8, 3), np.uint8), [["a"]] * 80)
    with pytest.raises(UserError, match="of 80 examples, which have 3 different keys; raise --con.*"
                       ", or set data.source.key"):  # fmt: skip
        SplitSource(rows, 0.001, held_out=True)
