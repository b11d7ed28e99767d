"""The repository's address: what is written is what pyproject.toml says, and links are right."""

import json
import re
import shutil

import pytest

from website import addresses

URL = "https://github.com/someone/big_align"


@pytest.fixture
def copy(tmp_path):
    """A copy of all that has addresses."""
    for name in ("pyproject.toml", *addresses.PAGES):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(addresses.ROOT / name, tmp_path / name)
    shutil.copytree(addresses.ROOT / "colabs", tmp_path / "colabs")
    return tmp_path


def read_all(root):
    return {path.relative_to(root): path.read_text() for path in root.rglob("*") if path.is_file()}


def set_address(root, url):
    page = root / "pyproject.toml"
    plain = re.sub(r"(?m)^Repository = .*\n", "", page.read_text())
    line = f'[project.urls]\nRepository = "{url}/"\n' if url else "[project.urls]\n"
    page.write_text(plain.replace("[project.urls]\n", line))


def test_what_stands_is_what_would_be_written(copy):
    before = read_all(copy)
    addresses.write(copy)
    assert read_all(copy) == before


@pytest.mark.parametrize("url", [URL, "https://git.example.org/big_align", ""])
def test_an_address_is_in_all_places_or_in_none(copy, url):
    for other in ("https://github.com/x/y", url, url):  # from another one, and twice
        set_address(copy, other)
        addresses.write(copy)
    texts = {str(path): text for path, text in read_all(copy).items()}
    assert "github.com/x/y" not in "".join(texts.values())
    for page in addresses.PAGES:
        linked = f"[this repository]({url})"
        assert "this repository" in texts[page]
        assert texts[page].count("this repository") == texts[page].count(linked) or not url
        assert "[this repository]" not in texts[page] or url
    for path in (copy / "colabs").glob("*.ipynb"):
        head = "".join(json.loads(path.read_text())["cells"][0]["source"])
        link = f"{addresses.COLAB}/github/someone/big_align/blob/main/colabs/{path.name}"
        assert (link in head) == (url == URL) == (addresses.COLAB in head)


def test_nothing_else_names_a_place_that_is_none():
    for path in [*addresses.ROOT.glob("*.*"), *addresses.ROOT.glob("docs/**/*.md")]:
        if path.suffix in (".md", ".toml", ".yml", ".py"):
            lines = path.read_text().splitlines()
            named = [line for line in lines if "github.com/OWNER" in line]
            assert all(line.startswith("# ") for line in named), path
