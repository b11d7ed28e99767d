"""docs/metrics.md has every number that a run logs, where it belongs, and no other."""

import json
import re

import numpy as np
import pytest

from big_align.config.components import tables
from big_align.config.components.signatures import lookup
from big_align.config.defaults import complete_config
from big_align.config.overrides import load_config
from big_align.core.types import FOLDERS_OF_EVERY_RUN, OF_EVERY_RUN
from big_align.data.tags.tag_list import TagList, weigh
from big_align.evaluators.retrieval import DIRECTIONS, MEAN
from big_align.evaluators.zero_shot import ACCURACIES, SEEN
from big_align.runs import build, check, dataset, train
from big_align.suites import catalog
from big_align.suites.measuring.judged_tasks import list_judged_numbers
from big_align.suites.measuring.plans import JUDGED, TASKS_OF
from big_align.suites.measuring.tasks import TaskSettings, list_numbers
from tests import labeled_digits, tiny_config
from tests.manual import ROOT
from tests.run_main import TINY
from tests.runs.test_labeled_runs import EVALUATORS

PAGE = (ROOT / "docs" / "metrics.md").read_text()


def read_names(part: str) -> dict[str, set[str]]:
    """Returns the first columns of the tables of a part, by the names of their heading."""
    _, _, text = PAGE.partition(f"\n## {part}\n")
    found = {}
    for section in re.split(r"^### ", text.partition("\n## ")[0], flags=re.MULTILINE):
        heading = section.partition("\n")[0]
        cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        names = {name for cell in cells for name in re.findall(r"`(.+?)`", cell)}
        found |= dict.fromkeys(re.findall(r"`(\w+)`", heading) or [""], names)
    return found


def fits(name: str, pattern: str) -> bool:
    """Returns whether a name is one of the page's, where capitals stand for any part."""
    return bool(re.fullmatch(re.sub("[A-Z]+", r"[\\w./@-]+?", pattern), name))


def check_same(names: set[str], listed: set[str], where: str) -> None:
    missing = [name for name in names if not any(fits(name, x) for x in listed)]
    stale = [x for x in listed if not any(fits(name, x) for name in names)]
    assert not missing and not stale, f"{where}: not listed {missing}, not there {stale}"


@pytest.fixture
def log_shapes(tmp_path, monkeypatch):
    """A function from an objective's config to the names of its metrics, traced on shapes."""
    tags = ("one", "two", "three")
    ids, counts = np.ones((3, 2), np.int32), np.array([3, 2, 1])
    given = TagList("tags.json", tags, counts, weigh([3, 2, 1]), ids, ids == 1, tokenizer="")
    monkeypatch.setattr(dataset, "read_tag_list", lambda path: given)
    names = labeled_digits.write_names(tmp_path / "names.json")
    data = {"source": {"name": "tar", "path": str(tmp_path / "*.tar")}, "classes": names}
    logged = set()

    def run(name, **fields):
        target = lookup(name, tables.OBJECTIVES, "config.objective")
        loss = target.loss

        def note(self, *arguments):
            value, metrics = loss(self, *arguments)
            logged.update(metrics)
            return value, metrics

        logged.clear()
        with monkeypatch.context() as patch:
            patch.setattr(target, "loss", note)
            check.check_config(labeled_digits.get_config(name, data, **fields))
        return set(logged)

    return run


ROWS = {
    "align": [{}],
    "clip": [{}],
    "cross_entropy": [{}, {"objective.classifier": "cosine"}],
    "iclip": [{}],
    "idea": [
        {"data.tags": {"path": "tags.json", "truth": True}},
        {"data.tags": {"path": "tags.json"}, "objective.recognition": False},
        {"data.tags": {"path": "tags.json"}, "objective.contrast": False},
    ],
    "lit": [{"model.locked": ("image",)}],
    "mlcd": [
        {"optimizer.name": "adamw", "objective.num_clusters": 24, "objective.labels_per_image": 2}
    ],
    "multitask": [{}],
    "siglip": [{}],
    "supcon": [{"data.views_per_image": 2}],
    "unicl": [{}],
}
"""Fields with which an objective logs all that it can."""


@pytest.mark.parametrize("name", ROWS)
def test_the_metrics_of_an_objective_are_those_of_its_section(name, log_shapes):
    logged = set().union(*(log_shapes(name, **fields) for fields in ROWS[name]))
    check_same(logged, read_names("By objective")[name], name)


def test_every_component_has_a_section():
    assert read_names("By objective").keys() - {""} == tables.OBJECTIVES.keys() == ROWS.keys()
    assert read_names("By evaluator").keys() - {""} == tables.EVALUATORS.keys()


def list_evaluated() -> dict[str, set[str]]:
    """Returns the names of the numbers of each evaluator, as they say themselves."""
    config = tiny_config.get_config()
    with config.unlocked():
        each = {name: {"name": name, **fields} for name, fields in EVALUATORS.items()}
        config.evaluators = each | {"few_shot_text": each["few_shot"] | {"name": "few_shot_text"}}
    config, found = complete_config(config), {}
    tokenizer = build.build_tokenizer(config)
    for name in config.evaluators:
        found[name] = set(build.build_evaluator(config, name, tokenizer).numbers)
    for name in ("found_tags", "tag_recognition"):
        found[name] = set(lookup(name, tables.EVALUATORS, "evaluators").numbers)
    return found


def list_of_benchmarks() -> set[str]:
    """Returns the names of the numbers of every named data set with every task that fits it."""
    found = set()
    for benchmark in map(catalog.read_benchmark, catalog.names()):
        for task in TASKS_OF[benchmark.task]:
            given = task, benchmark.metric, 10, TaskSettings()
            found.update(list_judged_numbers(benchmark) if task in JUDGED else list_numbers(*given))
    return found


def test_the_numbers_of_an_evaluator_are_those_of_its_section():
    listed, told = read_names("By evaluator"), list_evaluated()
    told["benchmark"] = list_of_benchmarks()
    # Chance and candidates are told besides; these are of settings that need files.
    told["zero_shot"] |= set(SEEN) | {f"{name}_chance" for name in ACCURACIES}
    told["classification"] |= {f"{name}_chance" for name in ACCURACIES}
    told["retrieval"] |= {f"{x}_{end}" for x in DIRECTIONS for end in ("r1_chance", "candidates")}
    told["retrieval"] |= {MEAN, f"de_{MEAN}", *(f"de_{x}_r1" for x in DIRECTIONS)}
    for name, numbers in told.items():
        check_same(numbers, listed[name], name)


def test_the_names_that_no_objective_may_log_are_those_of_every_run():
    listed = read_names("Every run")[""]
    inside = {name for name in listed if "/" in name}
    assert listed - inside | {"step"} == set(OF_EVERY_RUN)
    assert {name.partition("/")[0] + "/" for name in inside} == set(FOLDERS_OF_EVERY_RUN)


@pytest.mark.slow
def test_what_a_run_logs_is_on_the_page(tmp_path):
    """In its metrics and evaluations, of a mixture and of an objective that contrasts."""
    part = {"source": {"name": "digits", "split": "train"}, "weight": 0.5}
    mixed = {"data.source": {}, "data.mixture": {"one": part, "other": part}}
    for name, fields in (("plain", {}), ("mixed", mixed)):
        config = load_config(TINY, "--config.total_steps=2")
        with config.unlocked():
            for field, value in fields.items():
                config.update_from_flattened_dict({field: value})
        config = complete_config(config)
        train.run(config, str(tmp_path / name))
    every, evaluated = read_names("Every run")[""], read_names("By evaluator")
    lines = (path.read_text().splitlines() for path in tmp_path.glob("*/metrics.jsonl"))
    logged = {name for found in lines for line in found for name in json.loads(line)} - {"step"}
    of_evaluators = {name for name in logged if name.split("/")[0] in config.evaluators}
    trained = logged - of_evaluators - read_names("By objective")["align"]
    check_same(trained, every - {"model_flop_utilization"}, "every run")  # CPUs have no peak
    for name, node in config.evaluators.items():
        own = {x.partition("/")[2] for x in of_evaluators if x.startswith(f"{name}/")}
        assert own and all(any(fits(x, y) for y in evaluated[node.name]) for x in own), own
