"""Links of the repository's pages lead to the same places on the site."""

import pytest

from tests.manual import PAGES, ROOT, read_links
from website import places


def move(text, uri, monkeypatch, repository=""):
    monkeypatch.setattr(places, "read_urls", lambda: {"Repository": repository})
    return places.move_links(text, uri)


@pytest.mark.parametrize(
    ("uri", "before", "after"),
    [
        ("index.md", "[a](docs/use.md#images)", "[a](use.md#images)"),
        ("index.md", "![a\nb](docs/search.jpg)", "![a\nb](search.jpg)"),
        ("use.md", "[a](../CONTRIBUTING.md)", "[a](contributing.md)"),
        ("results/align.md", "[a](../../benchmarks/README.md#x)", "[a](../benchmarks.md#x)"),
        ("results/align.md", "[a](mlcd.md)", "[a](mlcd.md)"),
        ("benchmarks.md", "[a](../docs/scale/plan.md)", "[a](scale/plan.md)"),
        ("notebooks/search.md", "[a](losses.ipynb)", "[a](losses.md)"),
        ("use.md", "[a [n]](#b), [c](https://d.org)", "[a [n]](#b), [c](https://d.org)"),
        ("index.md", "[docs/use.md](docs/use.md)", "[Use a model](use.md)"),
        ("use.md", "```sh\n[a](../README.md)\n```", "```sh\n[a](../README.md)\n```"),
    ],
)
def test_a_link_leads_to_the_page_that_the_site_has(uri, before, after, monkeypatch):
    assert move(before, uri, monkeypatch) == after


def test_what_a_notebook_names_is_a_link():
    linked = places.link_files("see `docs/use.md`, `losses.ipynb`\n\n```python\n`docs/use.md`\n```")
    assert linked == (
        "see [Use a model](../docs/use.md), [Losses in your own JAX code](../colabs/losses.ipynb)"
        "\n\n```python\n`docs/use.md`\n```"
    )


def test_a_file_of_the_repository_is_a_link_once_there_is_an_address(monkeypatch):
    text = "see [`main`](../main.py#L3)."
    assert move(text, "use.md", monkeypatch) == "see `main`."
    url = "https://github.com/someone/big_align"
    assert move(text, "use.md", monkeypatch, url) == f"see [`main`]({url}/blob/main/main.py#L3)."


def test_a_link_to_nothing_is_named(monkeypatch):
    with pytest.raises(ValueError, match=r"^docs/use\.md: \.\./none\.py leads nowhere$"):
        move("[a](../none.py)", "use.md", monkeypatch)


def test_every_page_is_on_the_site_and_is_itself():
    for page in [*PAGES, *places.OUTSIDE]:
        assert (ROOT / page).exists()
        assert places.find_in_repository(places.find_on_site(page)) == page
    assert any(link.startswith("../") for page in PAGES for link in read_links(page))
