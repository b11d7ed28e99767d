"""An index in a bucket is that in a folder, and what the bucket refuses is told."""

import pytest
from test_stores import ENTRIES, fill, read

from big_align.core.errors import UserError
from big_align.use.search.stores.store import open_store
from tests import s3_server

pytestmark = pytest.mark.slow


@pytest.fixture
def bucket(monkeypatch):
    s3_server.skip_without()
    with s3_server.serve() as served:
        s3_server.use(served, monkeypatch)
        yield served


def test_an_index_in_a_bucket_is_that_of_a_folder(bucket, tmp_path):
    place = f"lancedb:s3://{s3_server.BUCKET}/index"
    fill(place, ENTRIES[:40])
    gone = [entry.name for entry in ENTRIES[:10]]
    assert fill(place, ENTRIES[10:60], gone=gone) == ENTRIES[40:60]
    fill(f"lancedb:{tmp_path}/index", ENTRIES[10:60])
    assert read(place) == read(f"lancedb:{tmp_path}/index")


def test_a_bucket_that_fails_for_a_while_is_asked_again(bucket):
    bucket.plan(0, 0.05, ("slow_down", "internal_error", "close"))
    assert len(fill(f"lancedb:s3://{s3_server.BUCKET}/index", ENTRIES[:60])) == 60


def test_a_bucket_that_refuses_is_told_and_the_command_continues(bucket):
    place = f"lancedb:s3://{s3_server.BUCKET}/index"

    def refuse(first):
        bucket.fail(r"^PUT ", "forbidden", float("inf"))

    with pytest.raises(UserError, match="^lancedb:s3://.*; once this is mended, the same command"):
        fill(place, ENTRIES[:60], block=20, stop=refuse)
    bucket.heal()
    assert len(fill(place, ENTRIES[:60], block=20)) == 40
    assert len(read(place)[0]) == 60
    bucket.fail(".", "forbidden", float("inf"))
    with pytest.raises(UserError, match="^lancedb:s3://"):
        open_store(place)
