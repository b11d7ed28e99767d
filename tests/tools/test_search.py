"""On the command line: index, search it, and read what was written."""

import json
import re
import socket

import pytest

import big_align
from big_align.tools import index, search, serve
from tests.use.inference.test_loaded_model import folder  # noqa: F401  (a fixture)
from tests.use.search.indexes import TEXTS, encode_photo, write_photos, write_table


@pytest.fixture(scope="module")
def built(folder, tmp_path_factory):  # noqa: F811
    path = tmp_path_factory.mktemp("search")
    write_table(path / "photos", 8)
    flags = [f"--model={folder}", f"--source={path}/photos/photos.csv", f"--output={path}/index"]
    assert index.main(flags) == 0
    return path


def test_the_same_command_continues_and_says_what_it_did(folder, tmp_path, capsys):  # noqa: F811
    source = write_photos(tmp_path / "photos", {"a.jpg": 1, "more/b.jpg": 2})
    flags = [f"--model={folder}", f"--source={source}", f"--output={tmp_path}/index"]
    assert index.main(flags) == 0
    assert "2 images, 2 embedded now, 0 removed, 0 broken; 0 captions" in capsys.readouterr().out
    (tmp_path / "photos/c.jpg").write_bytes(encode_photo(3))
    assert index.main(flags) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("3 images, 1 embedded now, 0 removed, 0 broken; 0 captions")
    assert lines[-1] == "images: compared with all 3"


def test_lines_are_what_the_index_finds(built, capsys):
    given = [f"--index={built}/index", "a dog", "-a red cat", f"--image={built}/photos/02.jpg"]
    assert search.main([*given, "--weights=1,0.5,2", "--k=3", "--filter", "year<2006"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = big_align.load_index(built / "index").search(
        ["a dog", "-a red cat"], f"{built}/photos/02.jpg",
        weights=[1, 0.5, 2], k=3, filters=["year<2006"],
    )  # fmt: skip
    for place, (hit, line) in enumerate(zip(found, lines, strict=True), start=1):
        assert line == f"{place}\t{hit.score:.3f}\t{hit.name}\t{hit.captions[0]}"
    assert search.main([f"--index={built}/index", "a dog", "--filter=year=1900"]) == 0
    assert capsys.readouterr().out == "nothing meets the conditions\n"


def test_another_store_is_an_address(built, folder, tmp_path, capsys):  # noqa: F811
    pytest.importorskip("lancedb", reason="needs pip install -e '.[lancedb]'")
    flags = [f"--model={folder}", f"--source={built}/photos/photos.csv"]
    assert index.main([*flags, f"--store=lancedb:{tmp_path}/index"]) == 0
    assert "8 images, 8 embedded now" in capsys.readouterr().out
    found = []
    for address in (f"{built}/index", f"lancedb:{tmp_path}/index"):
        assert search.main([f"--index={address}", "a dog", "--like", f"{built}/photos/02.jpg"]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] and found[0].count("\n") == 8
    assert index.main([*flags, f"--store=lancedb:{tmp_path}/index", "--search=scann"]) == 2
    assert "--search=scann is none of auto, exact, ivf_rq" in capsys.readouterr().err


@pytest.mark.parametrize("weights", [("--weights", "-1,2"), ("--weights=-1,2",)])
def test_numbers_below_0_are_weights_or_texts(built, capsys, weights):
    given = [f"--index={built}/index", "-90s", "a dog", *weights, "--k=3"]
    assert search.main(given) == 0
    lines = capsys.readouterr().out.splitlines()
    index = big_align.load_index(built / "index")
    found = index.search(["-90s", "a dog"], weights=[-1, 2], k=3)
    assert [line.split("\t")[2] for line in lines] == [hit.name for hit in found]


def test_json_has_the_query_and_the_hits(built, tmp_path):
    name = f"{built}/photos/03.jpg"
    given = [f"--index={built}/index", "-a dog", f"--like={name}", "--of=captions", "--k=2"]
    assert search.main([*given, f"--output={tmp_path}/found.json"]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["query"] == [{"text": "a dog", "weight": -2}, {"like": name, "weight": 1}]
    assert len(found["hits"]) == 2 and {hit["captions"][0] for hit in found["hits"]} <= {*TEXTS}
    assert found["hits"][0]["metadata"].keys() == {"year", "place"}


def test_the_page_needs_no_other_file_and_says_names_as_they_are(folder, tmp_path):  # noqa: F811
    evil = "<img src=x onerror=alert(1)>.jpg"
    source = write_photos(tmp_path / "photos", {evil: 1, "b.jpg": 2})
    flags = [f"--model={folder}", f"--source={source}", f"--output={tmp_path}/index"]
    assert index.main(flags) == 0
    given = [f"--index={tmp_path}/index", "a <b>dog</b>", f"--image={tmp_path}/photos/b.jpg"]
    assert search.main([*given, f"--output={tmp_path}/found.html"]) == 0
    page = (tmp_path / "found.html").read_text()
    assert "onerror=alert(1)&gt;" in page and "<img src=x" not in page and "<b>dog" not in page
    sources = re.findall(r'src="([^"]*)"', page)
    assert len(sources) == 3 and all(s.startswith("data:image/jpeg;base64,") for s in sources)
    assert not re.search(r"https?://", page)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["a dog", "--k=0"], "k is 0"),
        ([], "the query is empty: give a text or an image"),
        (["a dog", "--weights=1,2"], "2 weights for 1 texts and 0 images"),
        (["a dog", "--weights=x"], "--weights=x are not numbers separated by commas"),
        (["a dog", "--output=found.txt"], "must end in .json or .html"),
        (["a dog", "--output=/dev/null/found.json"], "the folder /dev/null cannot be made"),
        (["a dog", "--filter=day=3"], "no column 'day'"),
        (["--like=x"], "the index has no image 'x'"),
        (["--image=none.jpg"], "none.jpg: there is no such file"),
        (["--image=none.jpg", "--image=x.jpg"], "such file (and 1 more are broken)"),
    ],
)
def test_a_wrong_search_is_one_line(built, capsys, flags, message):
    assert search.main([f"--index={built}/index", *flags]) in (1, 2)
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ") and message in line
    assert "embed_images" not in line  # what a program would call


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--recall=0"], "--recall=0 must be above 0, and at most 1"),
        (["--thumbnail=-1"], "--thumbnail=-1 must be from 0 to 2048"),
        (["--metadata=x.xls"], "--metadata=x.xls: it must end in"),
        (["--metadata_key=x"], "give --metadata=FILE"),
        (["--source=none/*.jpg"], "no file matches 'none/*.jpg'"),
    ],
)
def test_a_wrong_index_is_one_line(folder, tmp_path, capsys, flags, message):  # noqa: F811
    source = write_photos(tmp_path / "photos", {"a.jpg": 1})
    given = [f"--model={folder}", f"--source={source}", f"--output={tmp_path}/index", *flags]
    assert index.main(given) in (1, 2)
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ") and message in line
    assert not (tmp_path / "index").exists()


def test_a_server_is_not_opened_to_others_without_a_token(built, capsys):
    pytest.importorskip("uvicorn", reason="the server needs .[serve]")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for flags, message in (
            (["--host=0.0.0.0"], "--host=0.0.0.0 lets others in: give --token="),
            (["--host=0.0.0.0", "--token=short"], "at least 16 characters"),
            (["--max_upload=0"], "must be above 0"),
            ([f"--port={port}"], "in use"),
            (["--index=none", "--port=0"], "none is no index"),
        ):
            assert serve.main([f"--index={built}/index", *flags]) in (1, 2)
            (line,) = capsys.readouterr().err.strip().splitlines()
            assert line.startswith("error: ") and message in line
