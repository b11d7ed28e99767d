"""The named benchmarks, one file each in `data_sets/`, and the suites that papers measure."""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from big_align.core.errors import UserError, WrongValue, suggest
from big_align.data.labels.classes import read_classes
from big_align.suites import label_orders
from big_align.suites.benchmark import Benchmark, Layout

FOLDER = os.path.join(os.path.dirname(__file__), "data_sets")
SUITES_FILE = os.path.join(os.path.dirname(__file__), "suites.json")
FEW = "_1k"
"""Suffix of the name of a data set with 1000 training examples (VTAB-1k)."""


@dataclasses.dataclass(frozen=True)
class Suite:
    """Data sets that a paper measures together.

    It averages a number of each, its "score" by its own metric, or the "accuracy" of all that have
    classes. Without templates it has those that each data set is published with.
    """

    names: tuple[str, ...]
    measure: str = "score"
    templates: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


def read_benchmark(name: str) -> Benchmark:
    """Returns a benchmark of the package; an error suggests the nearest name."""
    if name not in _files_of_names():
        raise WrongValue(f"there is no benchmark {name!r}{suggest(name, names())}")
    return _make_benchmark(name)


def names() -> list[str]:
    """Lists all benchmarks, with a separate one for each language of a multilingual data set."""
    return list(_files_of_names())


def suites() -> dict[str, str]:
    """Returns a one-line description of each suite, by name."""
    return {name: suite["about"] for name, suite in _read_suites().items()}


@functools.cache
def read_suite(name: str) -> Suite:
    """Returns a suite; an error suggests the nearest name."""
    if name not in _read_suites():
        raise WrongValue(f"there is no suite {name!r}{suggest(name, list(_read_suites()))}")
    content = _read_suites()[name]
    names, given = tuple(expand([name])), content.get("templates", {})
    templates = {one: given.get(one, given[""]) for one in names} if given else {}
    return Suite(
        names,
        content.get("measure", "score"),
        {
            one: read_classes(texts).templates if isinstance(texts, str) else tuple(texts)
            for one, texts in templates.items()
        },
    )


def choose_texts(wanted: Iterable[str]) -> dict[str, tuple[str, ...] | None]:
    """Returns the benchmarks that names stand for, with the templates that their suites have.

    None stands for the templates that a data set is published with.
    """
    chosen: dict[str, tuple[str, ...] | None] = {}
    for name in wanted:
        suite = read_suite(name) if name in _read_suites() else Suite(())
        for one in _expand_one(name):
            texts = suite.templates.get(one)
            if chosen.setdefault(one, texts) != texts:
                raise UserError(
                    f"{one} has other templates in {name} than in what is named before it: "
                    "measure each by a command of its own, or give --template"
                )
    return chosen


def expand(wanted: Iterable[str]) -> list[str]:
    """Lists the benchmarks in the given suites, data sets and benchmarks, each once.

    The name of a multilingual data set means all of its languages.
    """
    found: dict[str, None] = {}
    for name in wanted:
        found |= dict.fromkeys(_expand_one(name))
    return list(found)


def _expand_one(name: str) -> list[str]:
    if name in _read_suites():
        return [one for part in _read_suites()[name]["benchmarks"] for one in _expand_one(part)]
    if name in _files_of_names():
        return [name]
    languages = _read_file(name).get("languages", []) if name in _stems() else []
    if not languages:
        known = [*_read_suites(), *names(), *_stems()]
        listed = "python -m big_align.tools.benchmark --list shows all"
        raise WrongValue(f"there is no benchmark or suite {name!r}{suggest(name, known)}; {listed}")
    return [f"{name}_{language}" for language in languages]


@functools.cache
def _stems() -> tuple[str, ...]:
    return tuple(sorted(name[:-5] for name in os.listdir(FOLDER) if name.endswith(".json")))


@functools.cache
def _files_of_names() -> dict[str, tuple[str, str]]:
    """Returns the file and the language, "" for none, of each benchmark."""
    found = {}
    for stem in _stems():
        content = _read_file(stem)
        for language in content.get("languages", [""]):
            found["_".join(filter(None, (stem, language)))] = (stem, language)
        if any("splits_1k" in layout for layout in content["layouts"]):
            found[stem + FEW] = (stem, "")
    return found


@functools.cache
def _read_file(stem: str) -> dict[str, Any]:
    with open(os.path.join(FOLDER, f"{stem}.json"), encoding="utf-8") as file:
        return json.load(file)


@functools.cache
def _read_suites() -> dict[str, dict[str, Any]]:
    with open(SUITES_FILE, encoding="utf-8") as file:
        return json.load(file)


@functools.cache
def _tables_of_names() -> dict[str, list[str]]:
    tables: dict[str, list[str]] = {}
    for suite in _read_suites().values():
        for name in expand(suite["benchmarks"]) if suite["tables"] else []:
            tables.setdefault(name, []).extend(suite["tables"])
    return tables


@functools.cache
def _make_benchmark(name: str) -> Benchmark:
    stem, language = _files_of_names()[name]
    content = dict(_read_file(stem))
    few = name != stem and not language
    layouts = content.pop("layouts")
    content.pop("languages", None)
    subset = content.pop("subset", None)
    class_list = content.pop("classes", None)
    tables = [] if few else content.pop("tables", [])
    if few:
        layouts = [layout | {"splits": layout["splits_1k"]} for layout in layouts
                   if "splits_1k" in layout]  # fmt: skip
        content["title"] += ", 1000 training images"
        content["metric"] = "accuracy"  # these are VTAB's sets (Zhai et al. 2019), and its score
        content["sizes"] = content.get("sizes", {}) | {"train": 800, "validation": 200}
    content["title"] += f" ({language})" if language else ""
    positions = label_orders.find_subset(class_list, subset) if subset else None
    return Benchmark(
        name=name,
        class_list=class_list,
        subset=positions,
        language=language or content.pop("language", ""),
        layouts=tuple(
            _make_layout(_put_language(layout, language), class_list, positions)
            for layout in layouts
        ),
        tables=tuple(dict.fromkeys([*tables, *_tables_of_names().get(name, [])])),
        get=content.pop("get", "") or _tell_how(layouts, content["page"]),
        **content,
    )


def _put_language(value: Any, language: str) -> Any:
    """Replaces {language} in the texts of a layout."""
    if isinstance(value, dict):
        return {key: _put_language(one, language) for key, one in value.items()}
    return value.replace("{language}", language) if isinstance(value, str) else value


def _make_layout(
    content: dict[str, Any], class_list: str | None, subset: tuple[int, ...] | None
) -> Layout:
    content = {key: value for key, value in content.items() if key != "splits_1k"}
    labels = content.pop("labels", None)
    if labels is None:
        return Layout(**content)
    own_names, order = label_orders.read_order(labels, class_list, subset)
    return Layout(**content, own_names=own_names, order=order)


def _tell_how(layouts: list[dict[str, Any]], page: str) -> str:
    """Returns one line on how to get the layouts."""
    ways = []
    for layout in layouts:
        name = layout["name"]
        if layout["kind"] == "tfds":
            ways.append(f"tfds build {name} --data_dir=FOLDER")
        elif layout["kind"] == "clip_benchmark":
            stem = f"wds_{name}"
            ways.append(
                f"hf download clip-benchmark/{stem} --repo-type=dataset --local-dir=FOLDER/{stem}"
            )
        elif layout["kind"] in ("class_folders", "label_lists"):
            ways.append(f"unpack what {page} has into FOLDER/{name}")
    return re.sub(r"\s+", " ", ", or ".join(dict.fromkeys(ways))) or f"see {page}"
