"""A page for each part of the public names, which mkdocstrings fills from docstrings."""

import big_align

GROUPS = {
    "losses": ("Losses", "Functions of arrays; [the page about them](../losses.md) has a loop."),
    "models": ("Models and search", "A model or an index, loaded; [in use](../use.md)."),
    "runs": ("Runs and data", "A config, its batches and its training, from Python."),
    "training": ("Schedules and optimizers", "They are optax's, and work alone."),
    "meshes": ("Meshes", "How arrays lie on devices."),
    "protocols": ("Protocols and errors", "What an [extension](../extend.md) has to be."),
}
PACKAGES = {
    "losses": "losses",
    "use": "models",
    "weights": "models",
    "runs": "runs",
    "config": "runs",
    "training": "training",
    "parallel": "meshes",
    "evaluators": "protocols",
    "core": "protocols",
}
"""In which group the names of a package are."""


def make_pages() -> dict[str, str]:
    """Returns the pages of all public names."""
    names: dict[str, list[str]] = {group: [] for group in GROUPS}
    for name, module in big_align.FACE.items():
        names[PACKAGES[module.split(".")[1]]].append(name)
    pages = {}
    for group, (title, line) in GROUPS.items():
        entries = [
            f"::: {big_align.FACE[name]}.{name}\n    options:\n      heading: big_align.{name}\n"
            f"      toc_label: {name}\n"
            for name in names[group]
        ]
        pages[f"reference/{group}.md"] = f"# {title}\n\n{line}\n\n" + "\n".join(entries)
    return pages
