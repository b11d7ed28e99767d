"""What an extension does wrong is one line that names its class, the method and what is wanted."""

import functools
import re
import sys
import types

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.config.overrides import load_config
from big_align.core.errors import ConfigError, find_status
from big_align.data.examples import Example
from big_align.evaluators.embedder import Embedder
from big_align.objectives.clip import Clip
from big_align.runs import build, check
from big_align.runs.evaluate import evaluate_all
from examples.patches import Patches
from examples.squares import Squares
from tests.run_main import TINY

MODULE = "wrong_extensions"


@pytest.fixture
def name(monkeypatch):
    """A function that gives a class a name that a config can hold."""
    module = types.ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)

    def give(made):
        setattr(module, made.__name__, made)
        return f"{MODULE}:{made.__name__}"

    return give


def change(base, **methods):
    """Returns a class whose methods return something else; each gets what the right one returns."""

    def make(method, function):
        def changed(self, *arguments, **options):
            return function(getattr(base, method)(self, *arguments, **options))

        return changed

    return type("Wrong", (base,), {name: make(name, f) for name, f in methods.items()})


OBJECTIVES = {
    "loss returns float32[], not (loss, metrics), a scalar and": dict(loss=lambda x: x[0]),
    r"loss returns (float32[3], {": dict(loss=lambda x: (jnp.ones(3), x[1])),
    "loss returns (int32[], {": dict(loss=lambda x: (jnp.int32(x[0]), x[1])),
    "loss returns (float32[], {'cosine': float32[16]})": dict(
        loss=lambda x: (x[0], {"cosine": jnp.ones(16)})
    ),
    "loss returns (float32[], {'note': str})": dict(loss=lambda x: (x[0], {"note": "low"})),
    "loss returns (float32[], None)": dict(loss=lambda x: (x[0], None)),
    "loss asks for 'zimg', which is not there: params has log_scale, model; outputs has image; ": (
        dict(encode=lambda x: ({"image": x[0]["zimg"]}, x[1]))
    ),
    "encode returns {'zimg': float32[16 16], 'ztxt': float32[16 16]}, not outputs": dict(
        encode=lambda x: x[0]
    ),
    "encode returns ({'zimg': float32[3 16]}, {": dict(
        encode=lambda x: ({"zimg": x[0]["zimg"][:3]}, x[1])
    ),
    "encode returns ({'zimg': float32[16 16], 'ztxt': float32[16 16]}, None)": dict(
        encode=lambda x: (x[0], None)
    ),
    "augment returns None, not the batch": dict(augment=lambda x: None),
    "project returns None, not parameters like": dict(project=lambda x: None),
    "init returns {": dict(init=lambda x: x[0]),
    "embed_image returns float32[], not an array with a row": dict(embed_image=lambda x: x.sum()),
}


@pytest.mark.parametrize("message", OBJECTIVES)
def test_an_objective_breaks_its_contract(message, name):
    wrong = name(change(Clip, **OBJECTIVES[message]))
    config = load_config(TINY, f"--config.objective.name={wrong}")
    with pytest.raises(ConfigError, match=re.escape(f"config.objective: Wrong.{message}")) as error:
        check.check_config(config)
    assert "\n" not in str(error.value) and find_status(error.value) == 2


@pytest.mark.parametrize("metric", ["loss", "learning_rate", "time/saving"])
def test_a_metric_has_the_name_of_one_of_every_run(metric, name):
    wrong = name(change(Clip, loss=lambda x: (x[0], {metric: x[0]})))
    told = f"config.objective: Wrong.loss returns a metric '{metric}', a name under which every"
    with pytest.raises(ConfigError, match=told):
        check.check_config(load_config(TINY, f"--config.objective.name={wrong}"))


def test_what_is_right_passes_whatever_the_batch_is_split_into(name):
    same = change(Clip, loss=lambda x: (x[0], {"a": np.float32(1), "timed": 2}))
    for parts in 1, 2:
        flags = f"--config.objective.name={name(same)}", f"--config.microbatches={parts}"
        check.check_config(load_config(TINY, *flags, "--config.batch_size=32"))


class Bare:
    """Lacks everything."""


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("objective", "config.objective: Bare has no frozen, .*loss.*Objective in big_align.core"),
        ("model.image", "config.model.image: Bare has no output_dim, which TowerOfImages in"),
        ("model.text", "config.model.text: Bare has no output_dim, vocab_size, max_length, which"),
        ("data.source", "config.data.source: Bare has no shard_sizes, .*, read, .*Source in"),
        ("evaluators.pairs", "config.evaluators.pairs: Bare has no __call__, which Evaluator in"),
    ],
)
def test_a_class_lacks_members(field, message, name):
    config = load_config(TINY)
    with config.unlocked():
        node = config
        *above, last = field.split(".")
        for part in above:
            node = node[part]
        node[last] = {"name": name(Bare)}
    with pytest.raises(ConfigError, match=message):
        check.check_config(config)
        if field == "data.source":
            build.build_train_loader(config, build.build_tokenizer(config))
        build.build_evaluators(config, build.build_tokenizer(config))


def shadow(base, **members):
    """Returns a class whose instances have values in place of what the base has."""

    def initialize(self, *arguments, **given):
        base.__init__(self, *arguments, **given)
        vars(self).update(members)

    signed = functools.wraps(base.__init__)(initialize)
    return type("Wrong", (base,), {"__init__": signed})


def test_a_setting_hides_a_method(name):
    config = load_config(TINY, f"--config.objective.name={name(shadow(Clip, scale=0.5))}")
    told = "config.objective: Wrong.scale must be a method; it is of type float"
    with pytest.raises(ConfigError, match=told):
        check.check_config(config)
    wrong = name(shadow(Squares, shard_name="0"))
    told = "config.data.source: Wrong.shard_name must be a method; it is of type str"
    with pytest.raises(ConfigError, match=told):
        build.make_loader(load_config(TINY, f"--config.data.source.name={wrong}"))


def test_a_method_of_an_evaluator_is_hidden_by_a_value(name):
    config = load_config(TINY, "--config.evaluators={}")
    wrong = type("Wrong", (), {"__call__": 3})
    with config.unlocked():
        config.evaluators = {"own": {"name": name(wrong)}}
    told = "config.evaluators.own: Wrong.__call__ must be a method; it is of type int"
    with pytest.raises(ConfigError, match=told):
        build.build_evaluators(config, build.build_tokenizer(config))


def test_a_method_stands_where_a_value_is_wanted(name):
    wrong = type("Wrong", (Patches,), {"output_dim": lambda self: 32})
    told = "config.model.image: Wrong.output_dim must be a value; it is a method"
    with pytest.raises(ConfigError, match=re.escape(told)):
        check.check_config(load_config(TINY, f"--config.model.image.name={name(wrong)}"))


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (lambda x: x[0], "float32[1 32]"),
        (lambda x: (x[0][:, :5], x[1]), "(float32[1 5], float32[1 16 32])"),
        (lambda x: (x[0][0], x[1]), "(float32[32], float32[1 16 32])"),
        (lambda x: (x[1], x[0]), "(float32[1 16 32], float32[1 32])"),
        (lambda x: (x[0], None), "(float32[1 32], None)"),
    ],
)
def test_a_tower_returns_another_shape(made, found, name):
    class Wrong(nn.Module):
        output_dim: int = 32

        @nn.compact
        def __call__(self, image, train=False):
            return made(Patches(width=32)(image, train))

    config = load_config(TINY, f"--config.model.image.name={name(Wrong)}")
    told = f"config.model.image: Wrong.__call__ returns {found}, not (float[1 32], float[1 t c]): "
    with pytest.raises(ConfigError, match=re.escape(told)):
        check.check_config(config)


SOURCES = [
    (
        dict(read=lambda x: (x.image, x.captions)),
        "read returns (uint8[32 32 3], [str]), not an Exa",
    ),
    (dict(read=lambda x: None), "read returns None, not an Example with image"),
    (
        dict(read=lambda x: Example("a", None, ["a"], ())),
        "read returns an Example with {'image': N",
    ),
    (dict(read=lambda x: Example("a", x.image / 2, ["a"], ())), "with {'image': float64[32 32 3]"),
    (dict(read=lambda x: x.text), "read fails on its first example: AttributeError: 'Example' obj"),
    (dict(read_text=lambda x: x[0]), "read_text returns [str], not (captions, labels), a list"),
    (dict(read_text=lambda x: ("a cat", ())), "read_text returns (str, ()), not (captions"),
    (dict(read_text=lambda x: (["a cat"], 3)), "read_text returns ([str], int), not (captions"),
    (dict(read_text=lambda x: (["a cat"], ("cat",))), "read_text returns ([str], (str)), not"),
]


@pytest.mark.parametrize(("methods", "message"), SOURCES)
def test_a_source_lacks_what_an_example_has(methods, message, name):
    config = load_config(TINY, f"--config.data.source.name={name(change(Squares, **methods))}")
    with pytest.raises(ConfigError) as error:
        build.make_loader(config)
    assert str(error.value).startswith("config.data.source: Wrong.") and message in str(error.value)


def test_the_sizes_of_shards_are_an_array(name):
    class Sizes(Squares):
        def __init__(self):
            super().__init__()
            self.shard_sizes = [1000]

    config = load_config(TINY, f"--config.data.source.name={name(Sizes)}")
    with pytest.raises(ConfigError, match=r"Sizes.shard_sizes is \[int\], not int64 \[shards\]"):
        build.make_loader(config)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (np.ones(3), "returns float64[3], not a dictionary of numbers, as in {'accuracy': 0.5}"),
        (0.5, "returns float, not a dictionary"),
        ({"hits": np.ones(3), "whole": 1.0}, "returns {'hits': float64[3]}, not"),
        ({"note": "good"}, "returns {'note': str}, not"),
        ({"nothing": None}, "returns {'nothing': None}, not"),
    ],
)
def test_an_evaluator_returns_no_numbers(numbers, message):
    class Wrong:
        def __call__(self, embedder):
            return numbers

    embedder = Embedder.__new__(Embedder)
    with pytest.raises(ConfigError) as error:
        evaluate_all({"own": Wrong()}, embedder)
    assert str(error.value).startswith(f"config.evaluators.own: Wrong.__call__ {message}")
    right = {"a": 1, "b": np.float32(2), "c": jnp.float32(3), "d": np.array(4.0)}
    assert evaluate_all({"own": lambda embedder: right}, embedder) == {
        "own/a": 1, "own/b": 2, "own/c": 3, "own/d": 4
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (None, "No module named 'own_module'; it is neither in .* PYTHONPATH=FOLDER adds a folder"),
        ("import nowhere", "No module named 'nowhere'$"),
        ("def broken(", r"SyntaxError: .*\(own_module.py, line 1\)"),
        ("x = 1\ny = z", r"NameError: name 'z' is not defined \(.*own_module.py, line 2\)"),
        ("x = 1", "module 'own_module' has no attribute 'Own'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(code, message, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    if code:
        (tmp_path / "own_module.py").write_text(code)
    try:
        with pytest.raises(ConfigError, match=message) as error:
            load_config(TINY, "--config.objective.name=own_module:Own")
    finally:
        sys.modules.pop("own_module", None)
    told = "config.objective.name = 'own_module:Own' cannot be imported: "
    assert str(error.value).startswith(told) and "\n" not in str(error.value)
