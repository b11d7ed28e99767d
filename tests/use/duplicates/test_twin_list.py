"""Which files are a test set, which pairs are shown, and which rows of many files are read."""

import dataclasses

import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.prepare.inputs import Inputs
from big_align.use.duplicates.embedded_files import EmbeddedFiles
from big_align.use.duplicates.twin_list import TwinPair, TwinSettings, name_apart, part_sets, spread


def test_shards_of_one_name_are_a_test_set():
    stems = "coco-00000-of-00002", "coco-00001-of-00002", "flickr8k_test-00000", "cifar10", "00017"
    inputs = Inputs("tar", tuple(f"{stem}.tar" for stem in stems), (), stems, tuple("abcde"))
    found = part_sets(inputs)
    names = ["coco", "flickr8k_test", "cifar10", "00017"]
    assert [name for name, _ in found] == names
    assert [each.stems for _, each in found] == [stems[:2], *((stem,) for stem in stems[2:])]
    assert found[1][1] == dataclasses.replace(
        inputs, paths=("flickr8k_test-00000.tar",), stems=(stems[2],), stamps=("c",)
    )


def test_numbered_shards_are_named_by_their_folder_and_names_are_told_apart():
    parts = []
    for folder in ("wds_cifar10/test", "wds_pets/test"):
        paths = f"{folder}/0.tar", f"{folder}/1.tar"
        parts += part_sets(Inputs("tar", paths, (), ("0", "1"), ("a", "b")))
    assert [name for name, _ in name_apart(parts)] == ["wds_cifar10/test", "wds_pets/test"]
    same = [
        ("test", Inputs("tar", (f"{x}/test-000.tar",), (), ("test-000",), ("",))) for x in "aba"
    ]
    assert [name for name, _ in name_apart(same)] == ["a/test", "b/test", "a/test+"]


def test_pairs_that_are_shown_cover_the_range_of_cosines():
    draw = np.random.default_rng(0)
    cosines = np.concatenate([draw.uniform(0.99, 1, 500), draw.uniform(0.85, 0.99, 60)])
    twins = [TwinPair(float(cosine), n, 0, n) for n, cosine in enumerate(draw.permutation(cosines))]
    shown = spread(twins, 20)
    assert len(set(shown)) == 20 and shown == sorted(shown, reverse=True)
    assert (shown[0], shown[-1]) == (max(twins), min(twins))
    steps = -np.diff([twin.cosine for twin in shown])
    assert steps.max() < 2 * (cosines.max() - cosines.min()) / 19
    assert spread(twins[:7], 20) == sorted(twins[:7], reverse=True)
    same = [TwinPair(0.9, n, 0, n) for n in range(30)]
    assert len(set(spread(same, 20))) == 20 and spread([], 20) == []


@pytest.mark.parametrize("threshold", [0.0, 1.0, -0.5, 1.5, float("nan")])
def test_a_threshold_is_a_cosine(threshold):
    with pytest.raises(UserError, match="--threshold"):
        TwinSettings(threshold)


class StoredRows:
    """The rows of a file in memory, as a folder gives them."""

    def __init__(self, values):
        self.values, self.count = values, len(values)

    def read(self, first, end):
        return self.values[first:end]

    def take(self, numbers):
        return self.values[numbers]


def test_rows_of_many_files_are_read_as_if_they_were_one_array():
    values = np.random.default_rng(1).normal(size=(11, 3)).astype(np.float16)
    sizes = np.array([4, 0, 1, 6])
    inputs = Inputs("tar", ("a", "b", "c", "d"), (), ("a", "b", "c", "d"), ("",) * 4)
    files = EmbeddedFiles.__new__(EmbeddedFiles)
    files.inputs, files.dim = inputs, 3
    parts = np.split(values, np.cumsum(sizes)[:-1])
    files.open = lambda file: StoredRows(parts[file])
    files._arrange(sizes)
    for first in range(12):
        for end in range(first, 12):
            np.testing.assert_array_equal(files.read(first, end), values[first:end])
    numbers = np.array([10, 0, 4, 4, 3, 5])
    np.testing.assert_array_equal(files.take(numbers), values[numbers])
    assert [files.key(n) for n in (0, 3, 4, 5)] == [
        "a-000000000", "a-000000003", "c-000000000", "d-000000000"
    ]  # fmt: skip


def test_years_and_sizes_are_no_numbers_of_shards():
    alone = ("voc2007", "voc2012", "voc2000", "cifar10", "cifar100", "imagenet1000", "coco_2014")
    stems = (*alone, "coco_2017", "x0001", "x0002")
    inputs = Inputs("tar", tuple(f"{stem}.tar" for stem in stems), (), stems, tuple("abcdefghij"))
    assert [name for name, _ in part_sets(inputs)] == [*stems[:-2], "x"]


def test_shards_of_a_folder_are_one_set_beside_those_of_others():
    paths = "wds_a/test/0.tar", "wds_a/test/1.tar", "wds_b/test/0.tar", "b/test-000.tar"
    stems = "wds_a_test_0", "wds_a_test_1", "wds_b_test_0", "b_test-000"
    found = part_sets(Inputs("tar", paths, (), stems, tuple("abcd")))
    assert [each.paths for _, each in found] == [paths[:2], paths[2:3], paths[3:]]
    assert [name for name, _ in found] == ["wds_a_test", "wds_b_test", "b_test"]
