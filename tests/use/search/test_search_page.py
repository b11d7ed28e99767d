"""The Python of docs/search.md runs as it stands."""

import json
import shutil

import pytest
from indexes import TEXTS, encode_photo

from big_align.use.search.stores.index_folder import write_info
from tests.manual import read_blocks


@pytest.mark.slow
def test_the_python_of_the_page_runs(table_index, weights, tmp_path, monkeypatch, capsys):
    shutil.copytree(table_index, tmp_path / "workdirs/index")
    info = tmp_path / "workdirs/index/index.json"
    write_info(info.parent, json.loads(info.read_text()) | {"model": str(weights)})
    (tmp_path / "photo.jpg").write_bytes(encode_photo(3))
    monkeypatch.chdir(tmp_path)
    (block,) = (b for b in read_blocks("docs/search.md") if b.language == "python")
    names = {}
    exec(block.text, names)
    lines = capsys.readouterr().out.splitlines()
    found = names["index"].search(["a dog", "-water"], "photo.jpg", weights=[2, 1, 1], k=5)
    assert len(lines) == 5
    for hit, line in zip(found, lines, strict=True):
        assert line.startswith(f"{hit.score:.3f} {hit.name} ['{TEXTS[hit.row % 5]}'] {{'year': ")
    assert names["jpeg"].startswith(b"\xff\xd8")
