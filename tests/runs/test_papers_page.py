"""docs/papers/README.md: every table has a line; what it names is there and builds in a test."""

import re

import pytest

from big_align.config.overrides import load_config
from big_align.suites import catalog
from big_align.suites.measuring.plans import TASKS
from tests.manual import ROOT
from tests.paper_rows import ROWS, TABLES, expand, name_run
from tests.runs.test_configs import ARGUMENTS, FILES

PAGE = (ROOT / "docs" / "papers" / "README.md").read_text()
NUMBER_OF_TABLES = {"ALIGN": 12, "UniCL": 11, "iCLIP": 5, "IDEA": 6, "MLCD": 13}
NUMBER_OF_FIGURES = {"ALIGN": 5, "UniCL": 10, "iCLIP": 4, "IDEA": 10, "MLCD": 7}
"""Counted in the papers, appendices too."""
SECTIONS = {
    part.partition("\n")[0]: part.partition("\n")[2] for part in PAGE.split("\n## ")[1:]
}  # fmt: skip
BUILT = {row for rows in ROWS.values() for row in rows} | {f"{name}.py" for name in FILES}
BUILT |= {name_run(argument) for argument in ARGUMENTS}


def read_lines(paper):
    """Returns the lines of a paper's table, as lists of four cells."""
    lines = [line for line in SECTIONS[paper].splitlines() if line.startswith("| ")]
    assert lines[0] == "| table or figure | what it asks | config | here |"
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[1:]]


def read_names(text):
    """Returns the tables and figures that a text names: "Tables 5a and 6" are two."""
    found = set()
    for kind, numbers in re.findall(r"(Table|Figure|Equation)s? ((?:\d+\w?(?:, | and )?)+)", text):
        found |= {f"{kind} {number}" for number in re.findall(r"\d+\w?", numbers)}
    return found


def read_runs(cell):
    """Returns the runs of a cell; an argument alone belongs to the file before it."""
    runs, name = set(), None
    for span in re.findall(r"`([^`]+)`", cell):
        if match := re.fullmatch(r"(\w+\.py)(:\S+)?", span):
            name = match[1]
            runs |= {name_run(row) for row in expand(span)}
        elif re.fullmatch(r"\w+=\S+", span):
            runs |= {name_run(row) for row in expand(f"{name}:{span}")}
    return runs


@pytest.mark.parametrize("paper", TABLES)
def test_every_table_and_figure_has_a_line(paper):
    lines = set().union(*(read_names(first) for first, *_ in read_lines(paper)))
    below = SECTIONS[paper].rpartition("|\n")[2]
    drawings = read_names(below.replace("and Figure", "Figure"))
    assert not lines & drawings
    for kind, count in (("Table", NUMBER_OF_TABLES), ("Figure", NUMBER_OF_FIGURES)):
        named = lines if kind == "Table" else lines | drawings
        numbers = {int(n) for name in named for n in re.findall(rf"{kind} (\d+)", name)}
        assert numbers == set(range(1, count[paper] + 1)), kind


@pytest.mark.parametrize("paper", TABLES)
def test_a_line_has_all_runs_of_its_table(paper):
    found = {}
    for first, _, config, here in read_lines(paper):
        assert "`" in config or config.startswith("no config"), first
        assert here, first
        for name in read_names(first):
            found.setdefault(name, set()).update(read_runs(config))
    found = {name: runs for name, runs in found.items() if runs}
    assert found == {name: set(runs) for name, runs in TABLES[paper].items()}


def test_every_config_of_the_page_loads_and_builds_in_a_test():
    runs = set().union(*(read_runs(line) for line in PAGE.splitlines() if line.startswith("| ")))
    assert len(runs) > 150 and runs <= BUILT
    for run in runs - {row for rows in ROWS.values() for row in rows}:  # those load beside
        load_config(f"configs/{run}")


def test_tools_data_sets_and_tasks_are_there():
    commands = re.findall(r"`tools\.(\w+)([^`]*)`", PAGE)
    assert len(commands) > 30
    for tool, options in commands:
        assert (ROOT / "big_align" / "tools" / f"{tool}.py").exists(), tool
        for option, values in re.findall(r"--(\w+)=(\S+)", options):
            assert option in ("benchmarks", "tasks")
            if option == "benchmarks":
                assert catalog.expand(values.split(","))
            else:
                assert set(values.split(",")) <= set(TASKS)


def test_a_suite_measures_the_table_that_its_line_is_about():
    """As `tools.benchmark --list` and docs/evaluation.md have it."""
    for paper in TABLES:
        for first, what, config, _ in read_lines(paper):
            if what == "size of the test data":  # which no suite measures
                continue
            tables = {f"{paper} {name}" for name in read_names(first)}
            for values in re.findall(r"--benchmarks=(\S+?)[` ]", config):
                for name in catalog.expand(values.split(",")):
                    assert tables <= set(catalog.read_benchmark(name).tables), (first, name)


@pytest.mark.parametrize("table", ["Table 8", "Table 9", "Table 10", "Figure 3"])
def test_the_columns_of_aligns_studies_are_data_sets_of_these_tables(table):
    evaluators = load_config(f"configs/{TABLES['ALIGN'][table][0]}").evaluators.values()
    assert {(node.benchmark, node.task) for node in evaluators} == {
        ("coco", "retrieval"),
        ("imagenet", "knn"),
    }
    for node in evaluators:
        assert f"ALIGN {table}" in catalog.read_benchmark(node.benchmark).tables


def test_the_page_is_no_longer_than_its_lines_need():
    assert len(PAGE.splitlines()) <= 150
