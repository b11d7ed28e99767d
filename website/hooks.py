"""What mkdocs calls while it builds the site."""

import os
import pathlib
import sys

from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # mkdocs imports this file by its path
    sys.path.insert(0, str(ROOT))

from website import addresses, places  # noqa: E402
from website.made import (  # noqa: E402
    commands,
    config_fields,
    formulas,
    house,
    notebooks,
    public_names,
)

MADE = (notebooks, public_names, config_fields, commands)
FENCES = [
    {"name": "mermaid", "class": "house", "format": house.draw_fence},
    {"name": "math", "class": "formula", "format": formulas.write_fence},
]


def on_startup(command: str, dirty: bool) -> None:
    """Does without the outputs of notebooks where somebody waits to look at a page."""
    if command == "serve":
        os.environ[notebooks.VARIABLE] = notebooks.UNEXECUTED


def on_config(config):
    """Sets the addresses, and what formulas and the picture of the package become."""
    urls = addresses.read_urls()
    if "Documentation" in urls:
        config.site_url = urls["Documentation"]
    if "Repository" in urls:
        # `repo_url` would make readers' browsers ask GitHub for its stars.
        config.extra["social"] = [
            {"icon": "material/source-repository", "link": urls["Repository"]}
        ]
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": FENCES}
    return config


def on_files(files: Files, config) -> Files:
    """Adds the pages that lie elsewhere, and those that are made of the code."""
    for path, uri in places.OUTSIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    style = ROOT / "website" / "site.css"
    files.append(File.generated(config, "site.css", abs_src_path=str(style)))
    for module in MADE:
        for uri, content in module.make_pages().items():
            files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Makes links of the repository those of the site."""
    if page.file.src_uri.startswith("reference/"):
        return markdown
    if page.file.src_uri.startswith("notebooks/"):
        markdown = places.link_files(markdown)
    if page.file.src_uri == "index.md":
        page.meta["title"] = config.site_description
    return places.move_links(markdown, page.file.src_uri, files.src_uris)


def on_page_content(html: str, page, config, files) -> str:
    """Links public names in docstrings."""
    uri = page.file.src_uri
    return public_names.link_names(html, uri) if uri.startswith("reference/") else html
