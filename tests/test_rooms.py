"""The structure of the package: what imports what, how large things are, names that are unique."""

import ast
import collections
import functools
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "big_align"
MOST_LINES, MOST_PARAMETERS, MOST_MODULES = 350, 12, 15
COMMANDS = PACKAGE / "tools"  # a list of like things, one a command, which grows with them


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def trees():
    """The syntax of every module, by its name."""
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imports(tree):
    """What a module imports of the package, inside of functions too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in MODULES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & MODULES.keys()


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


BELOW_TRAINING = (
    "losses", "models", "devices", "disk", "distributed", "parallel", "row_tables", "tf_records",
    "types", "whole_files",
)  # fmt: skip


def test_what_trains_names_no_objective_and_no_config():
    """Below the rooms where objects are built there are arguments, and no knowledge of names."""
    for name, tree in trees().items():
        room = name.partition(".")[2].partition(".")[0]
        if room not in ("training", *BELOW_TRAINING):
            continue
        rooms = {each.split(".")[1] for each in imports(tree)} - {room}
        named = {"objectives", "evaluators", "runs", "configuration", "components", "configs"}
        assert not rooms & named, name
        if room == "training":
            assert not rooms & {"data", "models"}, name


OWN_FILES = {
    "benchmarks.catalog", "benchmarks.measuring.published", "configuration.config_files",
    "data.loading.parallel", "distributed.agreement", "huge_pages", "planning.compilation",
    "planning.tracing", "prepare.examination", "search.results", "search.server",
    "tools.benchmark", "distributed.failures", "data.record_encoding",
}  # fmt: skip
"""Modules that read files of the package, of the system, or that they have just written."""
CHECKED = {
    "clusters.cluster_embeddings", "data.files", "data.tables.table_rows", "prepare.sketch",
    "search.index_folder", "search.pending_rows", "training.saving.ownership",
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
        if (
            here
            and module not in OWN_FILES | CHECKED
            and not module.startswith(("disk.", "configs."))
        ):
            found[module] = here
    assert found == {}


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def test_nothing_is_too_large():
    sizes = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: size for name, size in sizes.items() if size > MOST_LINES} == {}
    found = {}
    for name, tree in trees().items():
        for each in functions(tree):
            every = (*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs)
            if len({x.arg for x in every} - {"self", "cls"}) > MOST_PARAMETERS:
                found[name] = each.name
    assert found == {}


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
