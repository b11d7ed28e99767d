"""The state and the step that a config trains."""

import jax
import numpy as np
import pytest

from big_align.config.overrides import load_config
from big_align.objectives.align import Align
from big_align.parallel.batches import place_batch
from big_align.parallel.devices import compilation, rematerialization, traced
from big_align.parallel.distributed import agreement
from big_align.runs import build
from big_align.runs.program import Program, build_program
from tests import tiny
from tests.run_main import TINY


class Watched(Align):
    """Remembers in which types its layers sum the gradients of their weights."""

    def encode(self, *arguments):
        self.sum_dtype = traced.weight_place().sum_dtype
        return super().encode(*arguments)


def make_program(*flags):
    config, mesh = load_config(TINY, *flags), tiny.make_mesh()
    example = build.example_batch(config, build.build_tokenizer(config))
    return build_program(config, mesh, Watched(build.build_model(config), mesh), example), example


@pytest.mark.slow
def test_another_seed_is_another_start():
    one, two = (make_program(f"--config.seed={seed}")[0].create() for seed in (0, 1))
    rows, others = (x.params["model"]["text"]["token_embedding"]["embedding"] for x in (one, two))
    assert (rows != others).any() and (one.rng != two.rng).any()


@pytest.mark.slow_repeats
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_step_sums_gradients_in_the_type_of_the_config(dtype):
    program, example = make_program(f"--config.gradient_dtype={dtype}")
    jax.eval_shape(program.step, program.state, example)
    assert program.objective.sum_dtype == dtype


AUTO = [f"--config.model.{tower}.remat=auto" for tower in ("image", "text")]


@pytest.mark.slow
def test_auto_recomputes_the_least_that_fits(monkeypatch, capsys):
    """A device that has room for a level is given it, as estimated before compiling and after."""
    program, example = make_program(*AUTO)
    rows = {name: np.repeat(x, 64, axis=0) for name, x in example.items()}
    batch = place_batch(rows, program.mesh)
    needed = {step: program.count_stored(batch, step) for step in rematerialization.AUTO_LEVELS}
    assert sorted(needed.values(), reverse=True) == list(needed.values())
    assert needed["none"] > needed["dots"] > needed["full:1/2"] > needed["full"]
    for limit, level in ((None, "none"), (0, "full")):
        monkeypatch.setattr(compilation, "memory_limit", lambda device, limit=limit: limit)
        program.compile(batch)
        assert f"remat: auto is {level}, the least that fits" in capsys.readouterr().out


class Fake:
    """A device with so much memory, and programs that use what they store and more."""

    def __init__(self, monkeypatch, limit, more, says=True):
        steps = rematerialization.AUTO_LEVELS
        self.compiled, self.says = [], says
        self.used = {step: 1000 - 30 * i + more for i, step in enumerate(steps)}
        self.limit, self.made = limit, jax.jit(lambda x: x).lower(1.0).compile()
        monkeypatch.setattr(compilation, "memory_limit", lambda device: limit)
        monkeypatch.setattr(Program, "count_stored", lambda _, batch, step: self.used[step] - more)
        monkeypatch.setattr(Program, "_compile", lambda _, batch, asked, __: self.compile(asked))
        monkeypatch.setattr(compilation, "count_memory", lambda _: self.used[self.compiled[-1]])

    def compile(self, asked):
        self.compiled += rematerialization.find_levels("auto", 1) and [asked[0]]
        return self.made if self.says or self.used[asked[0]] <= self.limit else None


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize(("limit", "more"), [(900, 0), (900, 100), (700, 250), (2000, 0)])
def test_what_a_step_took_tells_what_to_try_next(monkeypatch, capsys, limit, more, says):
    """If the compiler says that, the second try is the last; else a few are, and one is safe."""
    program, example = make_program()
    fake = Fake(monkeypatch, limit, more, says)
    assert program.compile(example) is fake.made
    *tried, made = fake.compiled
    assert fake.used[made] <= limit and all(fake.used[step] > limit for step in tried)
    told = capsys.readouterr().out
    assert f"remat: auto is {made}, the least that fits" in told
    assert all(f"remat: {step} takes " in told for step in tried)
    least = next(step for step, used in fake.used.items() if used <= limit)
    assert len(tried) <= 1 if says else len(tried) <= 4
    assert made == least or not says


@pytest.mark.parametrize("limit", [None, 0])
def test_what_no_level_fits_ends_with_the_message_of_the_compiler(monkeypatch, limit):
    """So does what does not fit a device that does not tell its memory."""
    program, example = make_program("--config.model.text.remat=auto")
    tried = []

    def refuse(*_):
        tried.append(rematerialization.find_levels("auto", 1))
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 1.5G of 1.0G")

    monkeypatch.setattr("big_align.runs.program.compile_step", refuse)
    monkeypatch.setattr(Program, "count_stored", lambda _, batch, level: 1)
    monkeypatch.setattr(compilation, "memory_limit", lambda device: limit)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"1\.5G of 1\.0G"):
        program.compile(example)
    assert tried == ([["none"]] if limit is None else [["full"]])


def test_what_does_not_fit_in_another_process_is_not_taken(monkeypatch):
    program, example = make_program()
    fake = Fake(monkeypatch, 900, 0)
    monkeypatch.setattr(agreement, "gather", lambda topic, value: [value, len(fake.compiled) > 2])
    program.compile(example)
    first, *rest = (rematerialization.AUTO_LEVELS.index(step) for step in fake.compiled)
    assert rest == [first + 1, first + 2]


@pytest.mark.slow
def test_without_auto_a_step_is_compiled_whatever_it_takes(monkeypatch, capsys):
    program, example = make_program("--config.model.text.remat=dots")
    rows = {name: np.repeat(x, 2, axis=0) for name, x in example.items()}
    monkeypatch.setattr(compilation, "memory_limit", lambda device: 1)
    assert program.compile(place_batch(rows, program.mesh)) is not None
    assert "auto" not in capsys.readouterr().out


def test_processes_begin_together_whoever_found_the_step_in_the_cache(monkeypatch, capsys):
    """Otherwise one that did would count the compiling of the others as its first step."""
    program, example = make_program()
    order = []
    made = jax.jit(lambda x: x).lower(1.0).compile()
    monkeypatch.setattr(Program, "_compile", lambda *_: order.append("compiled") or made)
    monkeypatch.setattr(Program, "count_flops", lambda *_: order.append("counted") or 1.0)

    def gather(topic, value):
        order.append(topic)
        return [[True], [False, False]] if topic == "compiled" else [value]

    monkeypatch.setattr(agreement, "gather", gather)
    program.compile_and_count(place_batch(example, program.mesh))
    assert order[-3:] == ["compiled", "counted", "compiled"]
    assert "found in the compilation cache by 1 of 2 processes" in capsys.readouterr().out
