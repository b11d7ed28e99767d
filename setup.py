"""Which files the package has, and the README for its page on an index; else see pyproject.toml."""

import pathlib
import re
import tomllib

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+://)([^)\s]*)\)")
"""A link or a picture of Markdown that leads to a file of the repository."""


def describe() -> str:
    """Returns the README; without the repository's address its links are words, and no pictures."""
    about = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = about.get("urls", {}).get("Repository", "")

    def lead(link: re.Match) -> str:
        picture, words, path = link.groups()
        if not repository:
            return "" if picture else words
        return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/main/{path})"

    page = HERE / "README.md"  # where only packages are installed, as in a container, it may lack
    return LINK.sub(lead, page.read_text(encoding="utf-8")) if page.exists() else ""


FILES = {
    "big_align": ["py.typed", "__init__.pyi"],
    "big_align.data.labels.class_names": ["*.json", "LICENSE"],
    "big_align.pages.templates": ["*"],
    "big_align.suites": ["suites.json"],
    "big_align.suites.data_sets": ["*.json"],
    "big_align.suites.measuring": ["published.json"],
}
"""What is no Python, by package; a folder that has nothing else is one too."""
CONFIGS = ["big_align.configs", "big_align.configs.parts"]
"""They lie in `configs`, beside the package."""

setup(
    long_description=describe(),
    long_description_content_type="text/markdown",
    packages=sorted({*find_packages(include=["big_align", "big_align.*"]), *CONFIGS, *FILES}),
    package_dir={"big_align.configs": "configs"},
    package_data=FILES,
)
