"""Where each file of the repository is on the site, and the links between pages that follow."""

import json
import os
import pathlib
import posixpath
import re
from collections.abc import Callable, Collection

from website.addresses import ROOT, read_urls

OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "LICENSES.md": "licenses.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages that do not lie in `docs`, and what they are called on the site."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def find_on_site(path: str) -> str | None:
    """Returns what a file of the repository is called on the site; None if it is not there."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if re.fullmatch(r"colabs/\w+\.ipynb", path):
        return f"notebooks/{pathlib.PurePath(path).stem}.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def find_in_repository(uri: str) -> str:
    """Returns the file of the repository that a page of the site is."""
    from_outside = {page: path for path, page in OUTSIDE.items()}
    if uri.startswith("notebooks/"):
        return f"colabs/{pathlib.PurePath(uri).stem}.ipynb"
    return from_outside.get(uri, f"docs/{uri}")


def name_page(words: str, path: str) -> str:
    """Returns the words of a link, or the title of its page where they are the page's path."""
    if words not in (path, path.removesuffix("/README.md")):
        return words
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".ipynb"):
        text = "".join(json.loads(text)["cells"][0]["source"])
    return text.partition("\n")[0].removeprefix("# ")


def link_files(markdown: str) -> str:
    """Makes links of the pages and notebooks that a notebook names as code."""

    def link(span: re.Match) -> str:
        path = span[1] if "/" in span[1] else f"colabs/{span[1]}"
        return f"[{name_page(path, path)}](../{path})"

    return outside_fences(
        lambda part: re.sub(r"`(docs/[\w/]+\.md|\w+\.ipynb)`", link, part), markdown
    )


def outside_fences(change: Callable[[str], str], markdown: str) -> str:
    """Changes what is not in a fenced block."""
    parts = FENCE.split(markdown)
    return "".join(part if n % 2 else change(part) for n, part in enumerate(parts))


def move_links(markdown: str, uri: str, made: Collection[str] = ()) -> str:
    """Makes the links of a page lead to pages of the site, else to files of the repository.

    Links to what is `made` for the site alone stay. Without an address of the repository the words
    of a link to its files remain.
    """
    folder = posixpath.dirname(find_in_repository(uri))
    repository = read_urls().get("Repository", "")

    def move(link: re.Match) -> str:
        picture, words, target = link.groups()
        path, hash_, anchor = target.partition("#")
        own = posixpath.normpath(posixpath.join(posixpath.dirname(uri), path))
        if not path or re.match(r"\w+:", path) or (uri.startswith("notebooks/") and own in made):
            return link[0]
        path = posixpath.normpath(posixpath.join(folder, path))
        if not os.path.exists(ROOT / path):
            raise ValueError(f"{find_in_repository(uri)}: {target} leads nowhere")
        place = find_on_site(path)
        if place is not None:
            there = posixpath.relpath(place, posixpath.dirname(uri) or ".")
            return f"{picture}[{name_page(words, path)}]({there}{hash_}{anchor})"
        return f"[{words}]({repository}/blob/main/{path}{hash_}{anchor})" if repository else words

    return outside_fences(lambda part: LINK.sub(move, part), markdown)
