"""The plan of the package: its floors, what imports what, and the picture of both.

python -m tests.house    # draws the picture of CONTRIBUTING.md again
"""

import ast
import collections
import functools
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "big_align"
PAGE = ROOT / "CONTRIBUTING.md"
FLOORS = {
    "commands, and what they do": ("tools", "suites", "planning", "use", "prepare"),
    "a run and its config": ("runs", "pages", "weights", "config"),
    "training and evaluation": ("evaluators", "objectives", "training"),
    "mathematics, towers, data": ("models", "losses", "data"),
    "the ground": ("parallel", "core"),
}
"""Packages from the top down: each imports only what comes after it."""
ORDER = [room for floor in FLOORS.values() for room in floor]
BEGIN, END = "```mermaid\n", "```\n"


def name_of(path: pathlib.Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Returns the syntax of every module, by its name."""
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imports(tree: ast.AST) -> set[str]:
    """Returns what a module imports of the package, inside of functions too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in MODULES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & MODULES.keys()


def package_of(name: str) -> str:
    """Returns the package at the top of `big_align` that a module is in; "" for what is in none."""
    path = MODULES[name].relative_to(PACKAGE)
    return path.parts[0] if len(path.parts) > 1 else ""


@functools.cache
def arrows() -> dict[tuple[str, str], list[str]]:
    """Returns which modules import from one package into another: {(from, to): [lines]}."""
    found = collections.defaultdict(list)
    for name, tree in trees().items():
        for other in imports(tree):
            ends = package_of(name), package_of(other)
            if all(ends) and ends[0] != ends[1] and "configs" not in ends:
                found[ends].append(f"{name} imports {other}")
    return dict(found)


def draw() -> str:
    """Returns the picture as Mermaid: an arrow is left out where a path of others says as much."""
    below = collections.defaultdict(set)
    for room in reversed(ORDER):
        for here, there in arrows():
            if here == room:
                below[room] |= {there} | below[there]
    lines = ["flowchart TD"]
    for number, (title, rooms) in enumerate(FLOORS.items()):
        lines += [f'  subgraph floor{number}["{title}"]', *(f"    {room}" for room in rooms)]
        lines.append("  end")
    for here, there in sorted(arrows(), key=lambda ends: [ORDER.index(end) for end in ends]):
        others = [other for start, other in arrows() if start == here and other != there]
        if not any(there in below[other] for other in others):
            lines.append(f"  {here} --> {there}")
    return "\n".join(lines) + "\n"


def read_drawn(text: str) -> str:
    """Returns the picture that a page holds."""
    return text.partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + begin + draw() + END + rest.partition(END)[2])
