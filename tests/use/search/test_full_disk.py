"""A disk that is full ends the building of an index with the name of what cannot be written."""

import numpy as np
import pytest

from big_align.use.search.metadata import empty_metadata
from big_align.use.search.stores import generations
from big_align.use.search.stores.index_folder import add_up_generation, read_generation
from big_align.use.search.stores.pending_rows import PendingRows
from big_align.use.search.stores.store import CAPTIONS, IMAGES, IndexEntry
from tests.full_disk import limit_files

VALUES = np.random.default_rng(0).normal(size=(60, 64)).astype(np.float16)
ENTRIES = [IndexEntry(str(n), str(n), "", n, "", [], None) for n in range(len(VALUES))]


@pytest.mark.parametrize(("size", "ending"), [(1000, "vectors"), (len(VALUES) * 128, "rows")])
def test_rows_that_do_not_fit_are_told_and_are_appended_later(tmp_path, size, ending):
    records = [[entry.name * 100, ""] for entry in ENTRIES]
    rows = PendingRows(tmp_path, IMAGES, 64, "float16")
    with limit_files(size), pytest.raises(OSError, match=f"pending-images.{ending}"):
        rows.append(records, VALUES)
    rows = PendingRows(tmp_path, IMAGES, 64, "float16")
    assert len(rows.records) < len(records)
    rows.append(records[len(rows.records) :], VALUES[len(rows.records) :])
    np.testing.assert_array_equal(rows.read_vectors(), VALUES)


@pytest.mark.parametrize("size", [1000, 9000])  # in embeddings, and in thumbnails
def test_a_generation_that_does_not_fit_is_told_and_is_written_later(tmp_path, size):
    pending = {kind: PendingRows(tmp_path, kind, 64, "float16") for kind in (IMAGES, CAPTIONS)}
    blobs = [b"x" * 200 for _ in ENTRIES]
    pending[IMAGES].append([[entry.name, ""] for entry in ENTRIES], VALUES, blobs)
    places = {IMAGES: np.arange(len(ENTRIES))[::-1], CAPTIONS: np.arange(0)}
    drafted = generations.draft(ENTRIES, [], empty_metadata(len(ENTRIES)))
    path = tmp_path / "000001"
    with limit_files(size), pytest.raises(OSError, match=str(path)):
        generations.write(path, drafted, None, pending, places)
    generations.write(path, drafted, None, pending, places)
    found = read_generation(path, add_up_generation(path))
    np.testing.assert_array_equal(found.vectors[IMAGES], VALUES[::-1])
    assert found.vectors[CAPTIONS].shape == (0, 64)
    assert found.read_thumbnail(59) == blobs[0]
