"""The structure of the package: what imports what, how large things are, names that are unique."""

import ast
import collections
import re

import pytest

from tests import house
from tests.house import MODULES, ORDER, PACKAGE, ROOT, arrows, imports, trees

FLOORS = list(house.FLOORS.values())

MOST_LINES, MOST_PARAMETERS, MOST_MODULES = 500, 12, 15
COMMANDS = PACKAGE / "tools"  # a list of like things, one a command, which grows with them


def room_of(name):
    """A module is in the room of its folder; one at the top is a room of its own."""
    return name if MODULES[name].parent == PACKAGE else name.rpartition(".")[0]


def find_circle(graph):
    """Returns a list of nodes each of which leads to the next, and the last to the first."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node) :]
        if node in done:
            return None
        path.append(node)
        circle = next(filter(None, map(visit, sorted(graph.get(node, ())))), None)
        path.pop()
        done.add(node)
        return circle

    return next(filter(None, map(visit, sorted(graph))), None)


def test_a_circle_is_found():
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert find_circle({"a": {"b", "c"}, "b": {"c"}}) is None


def test_modules_import_no_circle():
    assert find_circle({name: imports(tree) for name, tree in trees().items()}) is None


def test_rooms_import_no_circle():
    rooms = collections.defaultdict(set)
    for name, tree in trees().items():
        for other in imports(tree):
            # A face hands on the names of its own room.
            if MODULES[other].name != "__init__.py" and MODULES[name].name != "__init__.py":
                rooms[room_of(name)].add(room_of(other))
    assert find_circle({room: others - {room} for room, others in rooms.items()}) is None


def test_every_package_is_on_a_floor():
    folders = {path.parent.name for path in PACKAGE.glob("*/*.py")}
    assert folders - {"configs"} == set(ORDER)


def test_a_package_imports_only_what_lies_below_it():
    """So what trains knows no config, and what an objective is made of knows no trainer."""
    up = {
        f"{here} -> {there}": found
        for (here, there), found in arrows().items()
        if ORDER.index(here) > ORDER.index(there)
    }
    assert up == {}


def test_what_a_run_puts_together_knows_nothing_of_each_other():
    """Objectives know of training only the tables of rows that they fill."""
    inside = {ends for floor in (2, 3) for ends in arrows() if set(ends) <= set(FLOORS[floor])}
    assert inside == {("objectives", "training")}
    assert all("training.row_tables" in line for line in arrows()["objectives", "training"])
    assert not {("training", "data"), ("training", "models")} & set(arrows())


def test_the_picture_shows_what_is_imported():
    drawn = house.read_drawn(house.PAGE.read_text())
    assert drawn == house.draw(), "python -m tests.house draws it again"


def test_html_is_written_by_templates_alone():
    """What a template is given is escaped; what Python joins is not."""
    for name, path in MODULES.items():
        found = re.findall(r"html\.escape|</?(?:div|svg|table|tr|td|span|h\d)\b", path.read_text())
        assert not found, name


OWN_FILES = {
    "", "tools.__main__",
    "suites.catalog", "suites.measuring.published", "config.config_files",
    "data.loading.parallel", "parallel.distributed.agreement", "parallel.distributed.failures",
    "core.huge_pages", "planning.compilation",
    "planning.jobs.tracing", "planning.tracing", "prepare.examination",
    "tools.benchmark", "data.record_encoding",
}  # fmt: skip
"""Modules that read files of the package, of the system, or that they have just written."""
CHECKED = {
    "use.clusters.cluster_embeddings", "data.files", "data.tables.table_rows", "prepare.sketch",
    "use.search.stores.index_folder", "use.search.stores.pending_rows", "training.saving.ownership",
    "core.regular_files",
}  # fmt: skip
"""Modules that know what they open, or ask before a library opens it."""


def reads_by_name(call):
    """Returns whether a call opens a file by its name for reading, and waits if it is a pipe."""
    function = call.func
    name = getattr(function, "attr", getattr(function, "id", ""))
    if name in ("read_text", "read_bytes"):  # those of paths; ours take the path
        return isinstance(function, ast.Attribute) and not call.args
    modes = [x.value for x in call.args if isinstance(x, ast.Constant) and type(x.value) is str]
    if isinstance(function, ast.Name) and name == "open":
        return not any(set(mode) & set("wxa") for mode in modes[-1:])
    if name == "open":
        return modes[-1:] in (["r"], ["rb"], ["r+"])
    return name in ("memmap", "read_table") or name == "load" and "np" in ast.unparse(function)


def test_what_was_given_is_opened_only_if_it_is_a_file():
    """A pipe or a device under the name of a file makes a program wait for ever."""
    found = {}
    for name, tree in trees().items():
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        here = [f"{x.lineno}: {ast.unparse(x)}" for x in calls if reads_by_name(x)]
        module = name.partition(".")[2]
        if here and module not in OWN_FILES | CHECKED and not module.startswith("configs."):
            found[module] = here
    assert found == {}


def outer_calls(node):
    """Yields the calls that an import makes: those outside of functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from [child] if isinstance(child, ast.Call) else []
            yield from outer_calls(child)


def test_only_commands_define_flags_when_they_are_imported():
    """A program that imports anything else may have flags of the same names."""
    found = {
        name
        for name, tree in trees().items()
        if any("DEFINE_" in ast.unparse(call.func) for call in outer_calls(tree))
    }
    tools = {f"big_align.tools.{name}" for name in ("show_retrieval", "show_tags")}
    assert found == {"big_align.__main__", *tools}


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def count_parameters(function):
    arguments = function.args
    names = [x.arg for x in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(set(names) - {"self", "cls"})


def test_nothing_is_too_large():
    """A sign that something has two concerns, or wants a dataclass."""
    lines = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}
    taken = {
        f"{name}.{function.name}": count_parameters(function)
        for name, tree in trees().items()
        for function in functions(tree)
    }
    assert {name: count for name, count in taken.items() if count > MOST_PARAMETERS} == {}


def test_a_room_holds_about_a_dozen_modules():
    paths = [path.parent for path in MODULES.values() if path.parent != COMMANDS]
    rooms = collections.Counter(paths)
    large = {str(room.relative_to(ROOT)): count - 1 for room, count in rooms.items()}
    assert {room: count for room, count in large.items() if count > MOST_MODULES} == {}


def test_a_public_class_has_a_name_of_its_own():
    where = collections.defaultdict(list)
    for name, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(name)
    assert {name: places for name, places in where.items() if len(places) > 1} == {}


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/design.md"])
def test_a_page_about_the_code_names_paths_that_are_there(page):
    named = set(re.findall(r"`([\w/.]+(?:\.py|\.md|/))`", (ROOT / page).read_text()))
    for path in {re.split("NAME|PAPER", path)[0] for path in named}:
        inside = [folder for folder in (PACKAGE, ROOT) if (folder / path).exists()]
        assert inside or list(PACKAGE.rglob(path)), path
