"""A page for each part of the public names, which mkdocstrings fills from docstrings."""

import posixpath
import re

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
TYPES = {
    "losses": ("losses.blocks.Block",),
    "models": (
        "use.inference.ranking.Ranking",
        "use.inference.ranking.Classes",
        "use.search.search_index.Hit",
        "weights.formats.pretrained.Classifier",
        "weights.formats.preprocessing.Preprocessing",
        "weights.formats.architecture.Node",
        "weights.formats.architecture.Size",
    ),
    "runs": ("core.types.TrainingData",),
    "protocols": (
        "objectives.parts.composed.ComposedObjective",
        "objectives.parts.encoders.TwoTowers",
        "objectives.parts.temperature.Divisor",
        "models.dual_encoder.DualEncoder",
        "evaluators.evaluator.ImageEvaluator",
        "data.examples.Source",
        "data.examples.Example",
        "data.text.tokenizers.Tokenizer",
        "core.types.Batch",
        "core.types.Params",
        "core.types.ModelState",
        "core.types.Outputs",
        "core.types.MeasuredLoss",
        "core.types.Metrics",
        "core.types.Embeddings",
        "core.types.Features",
    ),
}
"""What signatures and extensions name besides: it is shown after the public names."""

LENIENT = """    options:
      docstring_options: { warn_unknown_params: false, warn_missing_types: false }
"""
"""Bases describe parameters of the classes that derive from them, as flax's modules do fields."""


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
        entries += [f"::: big_align.{path}\n{LENIENT}" for path in TYPES.get(group, ())]
        pages[f"reference/{group}.md"] = f"# {title}\n\n{line}\n\n" + "\n".join(entries)
    return pages


def link_names(html: str, uri: str) -> str:
    """Makes each `big_align.NAME` in the text of a page of the reference a link to its entry."""

    def link(found: re.Match) -> str:
        module = big_align.FACE.get(found[1])
        if module is None:
            return found[0]
        group = PACKAGES[module.split(".")[1]]
        there = posixpath.relpath(f"reference/{group}", posixpath.splitext(uri)[0])
        return f'<a href="{there}/#{module}.{found[1]}">{found[0]}</a>'

    return re.sub(r"<code>big_align\.(\w+)</code>", link, html)
