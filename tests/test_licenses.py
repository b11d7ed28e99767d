"""Whatever is shipped and may be others' is listed with its terms."""

import json

from tests.manual import ROOT

LISTED = (ROOT / "LICENSES.md").read_text()
PICTURES = {".jpg", ".jpeg", ".png", ".svg", ".gif", ".webp"}


def test_every_picture_is_listed():
    there = [f"docs/{path.name}" for path in (ROOT / "docs").iterdir() if path.suffix in PICTURES]
    assert len(there) > 10
    assert [path for path in there if f"`{path}`" not in LISTED] == []


def test_every_class_list_says_whose_it_is():
    """Those of projects with a license that asks for it are in its text; others are listed."""
    folder = ROOT / "big_align/data/labels/class_names"
    unlisted, terms = [], (folder / "LICENSE").read_text()
    for path in folder.glob("*.json"):
        source = json.loads(path.read_text())["source"]
        project = source.partition(" ")[0]
        if project == "LAION-AI/CLIP_benchmark":
            known = f"`{path.stem}`" in LISTED and path.stem in terms
        else:
            known = project == "openai/CLIP" or f"`{path.stem}`" in LISTED
        if not known:
            unlisted.append(path.name)
    assert unlisted == []
