"""Config nodes become objects; every mistake is named with its field."""

import ast
import re
import shlex

import pytest

from big_align.config.components.signatures import check_arguments, lookup, make
from big_align.config.components.tables import OBJECTIVES, SOURCES
from big_align.config.overrides import load_config
from big_align.core.errors import ConfigError
from tests.run_main import TINY


class Tower:
    def __init__(
        self, width: int, rate: float = 0.5, sizes: tuple[int, ...] = (), kind: str | None = None
    ):
        if width < 1:
            raise ValueError(f"width = {width} must be positive")
        self.width, self.rate, self.sizes, self.kind = width, rate, sizes, kind


def test_values_reach_the_constructor_with_their_types():
    tower = make(Tower, {"name": "x", "width": 3, "rate": 1, "sizes": [1, 2]}, "config.t")
    assert (tower.width, tower.rate, tower.sizes) == (3, 1.0, (1, 2))
    assert isinstance(tower.rate, float)


def test_none_means_the_default_where_it_can_mean_nothing_else():
    assert make(Tower, {"width": 3, "rate": None}, "config.t").rate == 0.5

    def leave_out(names: tuple[str, ...] | None = ("bias",), seed: int | None = None):
        return names, seed

    assert make(leave_out, {"names": None, "seed": None}, "config.t") == (None, None)
    assert make(leave_out, {}, "config.t") == (("bias",), None)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"widht": 3}, "config.t.widht is unknown .did you mean 'width'"),
        ({"width": "3"}, "config.t.width = '3' is not of type int"),
        ({"width": 2.5}, "config.t.width = 2.5 is not of type int"),
        ({"width": 3, "sizes": ["a"]}, "config.t.sizes = .* is not of type tuple"),
        ({"rate": 0.1}, "config.t.width is missing; Tower needs it"),
        ({"width": 0}, "config.t: width = 0 must be positive; --config.t.width=... sets it"),
    ],
)
def test_a_mistake_is_named(node, message):
    with pytest.raises(ConfigError, match=message):
        make(Tower, node, "config.t")


class Untyped:
    def __init__(self, factor=10.0, names=("a",), start=None, width: int = 3):
        self.factor = factor


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("factor", "factor: float = 10.0"),
        ("names", "names: tuple = ('a',)"),
        ("start", "start: float"),
    ],
)
def test_a_parameter_without_a_type_is_told_with_one(name, right, monkeypatch):
    told = re.escape(f"{name} has no type in Untyped.__init__; write {right}") + "$"
    with pytest.raises(ConfigError, match=f"^config.t.{name}: {told}"):
        make(Untyped, {name: 3}, "config.t")
    monkeypatch.setitem(OBJECTIVES, "untyped", f"{__name__}:Untyped")
    with pytest.raises(ConfigError, match=f"^--config.objective.{name}=3: {told}"):
        load_config(TINY, "--config.objective.name=untyped", f"--config.objective.{name}=3")
    exec(f"def typed({right}): return {name}", module := {})  # what it says is right
    value = {"names": ("b",)}.get(name, 3.0)
    assert make(module["typed"], {name: value}, "config.t") == value


def test_an_example_of_a_value_is_one():
    def name(names: tuple[str, ...] | str, texts: tuple[str, ...] | None = None):
        return names, texts

    for node in ({"names": 1}, {"names": "x", "texts": "x"}):
        with pytest.raises(ConfigError, match="write --config.x.") as told:
            make(name, node, "config.x")
        field, _, value = str(told.value).rpartition("--config.x.")[2].partition("=")
        value = shlex.split(value)[0]
        make(name, {"names": "x", field: ast.literal_eval(value) if "(" in value else value}, "x")


def test_a_given_argument_is_no_config_field():
    with pytest.raises(ConfigError, match="config.t.width is unknown"):
        check_arguments(Tower, {"width": 3}, "config.t", given=("width",))


def test_names_are_looked_up():
    assert lookup("path", {"path": "os:path.join"}, "config.t")("a", "b") == "a/b"
    for name, right in (("webdataset", "; write --config.t.name=tar"), ("smell", "")):
        with pytest.raises(ConfigError, match=f"'{name}' is unknown; known: .*, tfrecord{right}$"):
            lookup(name, SOURCES, "config.t")
    with pytest.raises(ConfigError, match="config.t.name = 'pth' is unknown .did you mean 'path'"):
        lookup("pth", {"path": "os:path.join"}, "config.t")
