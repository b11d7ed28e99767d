"""The bucket that stands for S3 in tests: it keeps what was written whole, and fails as planned."""

import contextlib
import math
import time

import aiohttp
import fsspec
import pytest

from tests import s3_server
from tests.two_processes import run_together

botocore = pytest.importorskip("botocore.exceptions", reason="s3fs has it")
ERRORS = OSError, aiohttp.ClientError, botocore.BotoCoreError

CONTENT = b"0123456789" * 1000


@pytest.fixture
def client(bucket, monkeypatch):
    """s3fs, which here tries once."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    filesystem = fsspec.filesystem("s3")
    monkeypatch.setattr(filesystem, "retries", 1)
    return filesystem


def test_what_was_written_is_read(bucket, client):
    client.pipe_file("pairs/folder/a", CONTENT)
    assert client.cat_file("pairs/folder/a") == bucket.read("folder/a") == CONTENT
    assert client.cat_file("pairs/folder/a", start=7, end=13) == CONTENT[7:13]
    assert client.ls("pairs/folder", detail=False) == ["pairs/folder/a"]


def test_exclusive_creation(bucket, client):
    client.pipe_file("pairs/lease", b"first", mode="create")
    with pytest.raises(FileExistsError):
        client.pipe_file("pairs/lease", b"second", mode="create")
    assert bucket.read("lease") == b"first"


def test_of_many_that_create_a_key_one_does(bucket, client, monkeypatch):
    """Moto alone lets several, if their threads change between its look and its write."""
    from moto.s3.models import S3Backend

    look = S3Backend.get_object
    monkeypatch.setattr(
        S3Backend, "get_object", lambda *a, **k: (look(*a, **k), time.sleep(0.02))[0]
    )

    def create(number):
        with contextlib.suppress(FileExistsError):
            client.pipe_file("pairs/lease", str(number).encode(), mode="create")
            return number

    made = [number for number in run_together(create, 4) if number is not None]
    assert [str(number).encode() for number in made] == [bucket.read("lease")]


@pytest.mark.parametrize("kind", [kind for kind in s3_server.KINDS if kind != "slow"])
def test_a_fault_fails_a_request(bucket, client, kind):
    bucket.fail("/pairs/a", kind, times=math.inf)  # aiohttp asks twice where a connection was kept
    with pytest.raises(ERRORS):
        client.pipe_file("pairs/a", CONTENT)
    assert bucket.read("a") == (CONTENT if kind == "lose" else None)
    bucket.heal()
    client.pipe_file("pairs/a", CONTENT)
    bucket.fail("GET /pairs/a", kind, times=math.inf)
    with pytest.raises(ERRORS):
        client.cat_file("pairs/a")
    bucket.heal()
    assert client.cat_file("pairs/a") == CONTENT
    assert {fault for fault, _ in bucket.taken} == {kind}


def test_a_plan_is_the_same_in_any_order():
    requests = [s3_server.Request("GET", f"/pairs/{n}", None) for n in range(50)] * 4
    faults = []
    for order in (requests, requests[::-1]):
        planned = s3_server.Bucket()
        planned.plan(seed=3, rate=0.5, kinds=("cut", "lose"), in_a_row=2)
        faults.append({request.path: [] for request in requests})
        for request in order:
            faults[-1][request.path].append(planned.take_fault(request))
    assert faults[0] == faults[1]
    assert {kind for kinds in faults[0].values() for kind in kinds} == {None, "cut", "lose"}
    assert not any(all(kinds[:3]) or all(kinds[1:]) for kinds in faults[0].values())
