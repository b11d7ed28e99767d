"""Where the repository and the site are, as pyproject.toml says, and the links that follow from it.

    python -m website.addresses    # writes them into the README, other pages and the notebooks

As long as pyproject.toml has no address, there are no badges, and texts say "this repository".
"""

import json
import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/install.md", "docs/use.md")
"""Which say "this repository" and mean this one."""
WORDS = re.compile(r"\[this repository\]\([^)]*\)|this repository")
BADGE = re.compile(r"\n\[!\[Open in Colab\].*\n")
COLAB = "https://colab.research.google.com"


def read_urls(root: pathlib.Path = ROOT) -> dict[str, str]:
    """Returns the addresses that pyproject.toml has, by their names there."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {name: url.rstrip("/") for name, url in project.get("urls", {}).items()}


def name_repository(text: str, repository: str) -> str:
    """Makes the words "this repository" a link, or mere words if there is no address."""
    return WORDS.sub(f"[this repository]({repository})" if repository else "this repository", text)


def add_badge(text: str, repository: str, path: str) -> str:
    """Puts the badge that opens a notebook in Colab after its title, or takes it away."""
    text = BADGE.sub("", text)
    if not (found := re.fullmatch(r"https://github\.com/([^/]+/[^/]+)", repository)):
        return text
    title, _, rest = text.partition("\n")
    link = f"{COLAB}/github/{found[1]}/blob/main/{path}"
    return f"{title}\n\n[![Open in Colab]({COLAB}/assets/colab-badge.svg)]({link})\n{rest}"


def write(root: pathlib.Path = ROOT) -> None:
    """Writes the address into all that shows it."""
    repository = read_urls(root).get("Repository", "")
    for name in PAGES:
        page = root / name
        page.write_text(name_repository(page.read_text(encoding="utf-8"), repository), "utf-8")
    for path in sorted((root / "colabs").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        head = notebook["cells"][0]
        text = add_badge("".join(head["source"]), repository, f"colabs/{path.name}")
        head["source"] = text.splitlines(keepends=True)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    write()
