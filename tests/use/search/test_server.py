"""The page answers what a search finds, and refuses what could harm."""

import dataclasses
import io
import json
import re
import struct
import zlib

import numpy as np
import pytest
from indexes import build, encode_photo, load, write_photos
from PIL import Image

pytest.importorskip("httpx", reason="the server needs .[serve]")
testclient = pytest.importorskip("starlette.testclient", reason="the server needs .[serve]")

from big_align.use.search import server  # noqa: E402
from big_align.use.search.metadata import MetadataTable  # noqa: E402

TOKEN = "a-token-of-many-letters"


@pytest.fixture(scope="module")
def index(table_index, model):
    return load(table_index, model)


@pytest.fixture(scope="module")
def app(index):
    return server.make_app(index, max_bytes=20_000, max_pixels=10_000)


@pytest.fixture
def client(app):
    return testclient.TestClient(app, base_url="http://127.0.0.1:8000")


def ask(client, **query):
    return client.post("/search", json=query)


def upload(client, data, kind="image/jpeg"):
    return client.post("/upload", content=data, headers={"content-type": kind})


def as_json(hits):
    return json.loads(json.dumps([dataclasses.asdict(hit) for hit in hits], default=str))


def test_a_query_finds_what_the_index_finds(client, index, table_index):
    photo = (table_index.parent / "photos/04.jpg").read_bytes()
    name = upload(client, photo).json()["upload"]
    parts = [{"text": "a dog"}, {"text": "-a cat", "weight": 1}, {"upload": name}, {"row": 3}]
    found = ask(client, parts=parts, k=5, filters=["year>2001"]).json()["hits"]
    expected = index.search(
        ["a dog", "-a cat"], [photo], like=[3], weights=[2, 1, 1, 1], k=5, filters=["year>2001"]
    )
    assert found == as_json(expected) and len(found) == 5
    found = ask(client, parts=[{"text": "a dog"}], of="captions").json()["hits"]
    assert found == as_json(index.search("a dog", of="captions", k=30))
    alone = ask(client, parts=[{"upload": name}], k=1).json()["hits"]
    assert alone[0]["row"] == 4


def test_a_line_of_conditions_is_the_list_of_them(client, index):
    parts, conditions = [{"text": "a dog"}], ["year>=2001", "place=Bern"]
    found = ask(client, parts=parts, filters=", ".join(conditions)).json()["hits"]
    assert found == as_json(index.search("a dog", k=30, filters=conditions)) and found


def test_integers_arrive_as_the_index_has_them(model, tmp_path):
    numbers = [2**53 - 1, 2**53 + 1, -(2**62) - 1]
    source = write_photos(tmp_path, {f"{n}.jpg": n for n in range(3)})
    rows = [f"{n}.jpg,{number}" for n, number in enumerate(numbers)]
    (tmp_path / "ids.csv").write_text("\n".join(["file,id", *rows]))
    build(model, source, tmp_path / "i", metadata=MetadataTable(str(tmp_path / "ids.csv")))
    app = server.make_app(load(tmp_path / "i", model))
    client = testclient.TestClient(app, base_url="http://127.0.0.1:8000")
    answer = ask(client, parts=[{"row": 0}]).text
    hits = json.loads(answer, parse_int=float)["hits"]  # as a browser reads numbers
    assert {int(hit["row"]): int(hit["metadata"]["id"]) for hit in hits} == dict(enumerate(numbers))


def test_thumbnails_are_those_of_the_index_and_nothing_else_is_served(client, index):
    for row in (0, 19):
        found = client.get(f"/thumbnail/{row}")
        assert found.content == index.read_thumbnail(row)
        assert found.headers["content-type"] == "image/jpeg"
    for path in (
        "/thumbnail/20", "/thumbnail/-1", "/thumbnail/../index.json", "/thumbnail/%2e%2e/x",
        "/thumbnail/..%2f..%2fetc%2fpasswd", "/index.json", "//etc/passwd", "/thumbnail//etc/x",
        "/static/../server.py", f"/thumbnail/{10**30}", f"/thumbnail/{'9' * 5000}",
    ):  # fmt: skip
        assert client.get(path).status_code == 404, path


def test_the_page_has_an_icon_which_its_policy_allows(client):
    page = client.get("/")
    (address,) = re.findall(r'<link rel="icon" href="(/[^"]+)">', page.text)
    assert re.search(r"img-src 'self'", page.headers["content-security-policy"])
    icon = client.get(address)
    assert icon.headers["content-type"] == "image/svg+xml" and icon.text.startswith("<svg")


def test_the_page_runs_nothing_but_its_own_script(client):
    first, second = client.get("/"), client.get("/")
    policy = first.headers["content-security-policy"]
    nonce = policy.partition("script-src 'nonce-")[2].partition("'")[0]
    assert f'<script nonce="{nonce}">' in first.text and "default-src 'none'" in policy
    assert nonce not in second.text
    assert '"columns": ["year", "place"]' in first.text and "{{" not in first.text


def make_bomb(side):
    """A PNG of a few hundred bytes that says it has side x side pixels."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks)


def encode_noise(side):
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    "data, kind, status, message",
    [
        (make_bomb(12_000), "image/png", 422, "12000 x 12000 pixels, which is more than"),
        (encode_noise(101)[:19_000], "image/png", 422, "101 x 101 pixels"),
        (encode_noise(99), "image/png", 413, "there are more than 0.0191 MiB"),
        (b"no image", "image/jpeg", 422, "the image cannot be opened"),
        (encode_photo(0)[:-200], "image/jpeg", 422, "truncated"),
        (encode_photo(0), "text/html", 415, "the type 'text/html' is none of image/jpeg"),
        (encode_photo(0), "application/x-www-form-urlencoded", 415, "is none of image/jpeg"),
        (b"", "image/jpeg", 400, "the request is empty"),
    ],
    ids=["bomb", "pixels", "bytes", "text", "cut off", "html", "form", "empty"],
)
def test_uploads_are_bounded(client, data, kind, status, message):
    answer = upload(client, data, kind)
    assert answer.status_code == status and message in answer.json()["error"]


def test_an_upload_is_not_read_beyond_its_bound(client):
    read = 0

    def stream():
        nonlocal read
        for _ in range(1000):
            read += 10_000
            yield b"x" * 10_000

    # without Content-Length
    headers = {"content-type": "image/jpeg"}
    assert client.post("/upload", content=stream(), headers=headers).status_code == 413


def test_only_the_last_uploads_are_kept(app, client, monkeypatch):
    monkeypatch.setattr(server, "MOST_UPLOADS", 2)
    names = [upload(client, encode_photo(seed)).json()["upload"] for seed in range(3)]
    statuses = [ask(client, parts=[{"upload": name}]).status_code for name in names]
    assert statuses == [400, 200, 200]
    assert "upload it again" in ask(client, parts=[{"upload": names[0]}]).json()["error"]


TEXT = {"text": "a dog"}


@pytest.mark.parametrize(
    "query, message",
    [
        ({}, "the query is empty: write a text, or choose an image"),
        ({"parts": []}, "the query is empty"),
        ({"parts": [{"text": " "}]}, "empty text"),
        ({"parts": [{"text": "a" * 1001}]}, "up to 16 parts, each a text"),
        ({"parts": [TEXT] * 17}, "up to 16 parts"),
        ({"parts": [{"text": 3}]}, "up to 16 parts"),
        ({"parts": [{"path": "/etc/passwd"}]}, "up to 16 parts"),
        ({"parts": [{"row": "../x"}]}, "up to 16 parts"),
        ({"parts": [{"row": 20}]}, "there is no image 20"),
        ({"parts": [{"row": -1}]}, "there is no image -1"),
        ({"parts": [TEXT | {"weight": "1"}]}, "up to 16 parts"),
        ({"parts": [TEXT | {"weight": True}]}, "up to 16 parts"),
        ({"parts": [TEXT | {"weight": 1e9}]}, "up to 16 parts"),
        ({"parts": [TEXT | {"weight": 0}]}, "cancel each other"),
        ({"parts": [TEXT], "k": 0}, "k is from 1 to 500"),
        ({"parts": [TEXT], "k": 10**9}, "k is from 1 to 500"),
        ({"parts": [TEXT], "of": "files"}, "is neither 'images' nor 'captions'"),
        ({"parts": [TEXT], "filters": ["day=3"]}, "no column 'day'"),
        ({"parts": [TEXT], "filters": 3}, "filters are up to 16 texts"),
        ({"parts": [TEXT], "filters": "year=3, day=3"}, "no column 'day'"),
        ({"parts": [TEXT], "filters": "," * 60_000}, "1000 characters in all"),
        ({"parts": [TEXT], "filters": ",a=3" * 17}, "filters are up to 16 texts"),
    ],
)
def test_what_is_no_query_is_told(client, query, message):
    answer = ask(client, **query)
    assert answer.status_code == 400 and message in answer.json()["error"]


def test_other_bodies_and_types_are_refused(client):
    def post(data, kind="application/json"):
        return client.post("/search", content=data, headers={"content-type": kind})

    assert post(b"[" * 50_000).status_code == 400
    assert post(b"{").status_code == 400 and "not JSON" in post(b"{").json()["error"]
    assert post(b'"text"').status_code == 400
    assert post(b" " * 70_000).status_code == 413
    assert post(b"{}", "text/plain").status_code == 415  # which other sites may send
    assert client.get("/search").status_code == 405


def test_a_site_that_names_this_machine_otherwise_is_refused(app):
    for name in ("localhost", "[::1]"):
        own = testclient.TestClient(app, base_url=f"http://{name}:8000")
        assert own.get("/").status_code == 200
    other = testclient.TestClient(app, base_url="http://evil.example:8000")
    assert other.get("/").status_code == 400 and other.get("/thumbnail/0").status_code == 400


@pytest.fixture(scope="module")
def guarded(index):
    return server.make_app(index, TOKEN)


def test_with_a_token_nothing_is_answered_without_it(guarded):
    client = testclient.TestClient(guarded, base_url="http://host:8000", follow_redirects=False)
    for path in (
        "/",
        "/icon.svg",
        "/thumbnail/0",
        "/?token=wrong",
        "/?token=",
        "/thumbnail/0?token=" + TOKEN,
    ):
        assert client.get(path).status_code == 401, path
    assert ask(client, parts=[TEXT]).status_code == 401
    assert upload(client, encode_photo(0)).status_code == 401
    strange = {"cookie": "token=wro\u0142ng".encode()}
    assert client.get("/", headers=strange).status_code == 401


def test_the_address_with_the_token_opens_the_page(guarded):
    client = testclient.TestClient(guarded, base_url="http://host:8000", follow_redirects=False)
    opened = client.get(f"/?token={TOKEN}")
    assert opened.status_code == 303 and opened.headers["location"] == "/"
    cookie = opened.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert client.get("/").status_code == 200
    assert ask(client, parts=[TEXT]).status_code == 200
    program = testclient.TestClient(guarded, base_url="http://host:8000")
    program.headers["authorization"] = f"Bearer {TOKEN}"
    assert program.get("/thumbnail/0").status_code == 200
