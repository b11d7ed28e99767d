"""A run of several stages: they go on from one another, in data, weights and moments."""

import json
import os

import jax
import numpy as np
import optax
import pytest
from flax import traverse_util

from big_align.config.defaults import complete_config
from big_align.config.help_text import format_fields
from big_align.config.overrides import load_config
from big_align.config.stages import (
    FIRST,
    count_batches_before,
    list_stages,
    naming_stage,
)
from big_align.core.errors import ConfigError, UserError
from big_align.runs import check, evaluate, stage_before, train
from big_align.runs.workdir import TrainedRun, read_pretrained
from big_align.training.moments import keep_moments
from big_align.weights.transfer.tables import fit_table
from tests.run_main import TINY, read_losses


def list_workdirs(config, workdir):
    """Returns the workdir of each stage of a run, in the order of `list_stages`."""
    before = range(len(list_stages(config)) - 1, -1, -1)
    return [os.path.join(workdir, *[FIRST] * count) for count in before]


def make_stage(first=None, size=8, steps=4, **fields):
    """One short stage with a vision transformer, whose rate is constant."""
    config = load_config(TINY, "--config.evaluators={}").copy_and_resolve_references().unlock()
    config.data.transform = f"resize({size + 2})|random_crop({size})"
    config.model.image = dict(name="vit", variant="s/4", width=16, depth=1, heads=2, mlp_dim=32)
    config.model.text.dropout = 0.0
    config.total_steps = steps
    config.schedule = dict(decay="constant", learning_rate=1e-2)
    config.optimizer.name = "adamw"
    if first is not None:
        config.first = first
    config.update_from_flattened_dict(fields)
    return complete_config(config)


def write_file(path, config):
    """Writes a config as one that a command line may name."""
    path.write_text(config.to_json_best_effort())
    return str(path)


def make_chain(*stages):
    """Makes each stage the one before the next."""
    for one, other in zip(stages, stages[1:], strict=False):
        other.first = one
    return stages[-1]


def test_stages_are_listed_from_the_earliest_with_their_folders():
    config = make_chain(make_stage(steps=1), make_stage(steps=2), make_stage(steps=3))
    assert [each.total_steps for each in list_stages(config)] == [1, 2, 3]
    assert list_workdirs(config, "w") == ["w/first/first", "w/first", "w"]
    assert list_workdirs(config.first.first, "w") == ["w"]


def test_a_stage_goes_on_where_the_examples_before_it_end():
    """In whole batches of its own, so that no two stages share one."""
    config = make_chain(
        make_stage(steps=5, batch_size=16),
        make_stage(steps=3, batch_size=32),
        make_stage(steps=1, batch_size=48),
    )
    counts = [count_batches_before(each) for each in list_stages(config)]
    assert counts == [0, 3, 4]  # of 0, 80 and 176 examples


def test_flags_reach_every_stage(tmp_path):
    chain = make_chain(make_stage(), make_stage(), make_stage())
    path = write_file(tmp_path / "config.json", chain)
    config = load_config(
        path,
        "--config.first.first.total_steps=2",
        "--config.first.first.objective.name=siglip",
        "--config.first.first.data.mixture.more.source.name=digits",
        "--config.first.first.data.mixture.more.weight=1",
        "--config.first.evaluators.more.name=retrieval",
        "--config.first.evaluators.more.source.name=digits",
        "--config.first.evaluators.more.transform=central_crop(8)",
    )
    assert [each.total_steps for each in list_stages(config)] == [2, 4, 4]
    earliest = config.first.first
    assert earliest.objective.name == "siglip" and "bias" in earliest.objective
    assert earliest.data.mixture.more.source.name == "digits"
    assert config.first.evaluators.more.transform == "central_crop(8)"
    assert "--config.first.first.FIELD\n" in format_fields(config)
    with pytest.raises(ConfigError, match="did you mean --config.first.first.total_steps=... "):
        load_config(path, "--config.first.first.steps=2")
    with pytest.raises(ConfigError, match="config.first.data.source is not used beside config.fi"):
        load_config(
            path,
            "--config.first.data.source={}",
            "--config.first.data.mixture.more.weight=1",
            "--config.first.data.source.split=test",
        )


def test_only_stages_before_one_that_is_given_are_cut(tmp_path):
    chain = make_chain(make_stage(steps=300), make_stage(steps=200), make_stage(steps=10))
    path = write_file(tmp_path / "config.json", chain)

    def list_totals(*flags):
        return [each.total_steps for each in list_stages(load_config(path, *flags))]

    assert list_totals("--config.first.first.total_steps=100") == [100, 200, 10]
    assert list_totals("--config.first.total_steps=100") == [100, 100, 10]
    assert list_totals("--config.total_steps=3") == [3, 3, 3]
    assert list_totals("--config.total_steps=3", "--config.first.total_steps=5") == [5, 5, 3]


def test_a_mistake_names_the_field_of_its_stage():
    for fields, message in (
        ({"first.first.total_steps": 0}, "^config.first.first.total_steps = 0 must be at least 1"),
        (
            {"first.first.optimizer.b1": 2.0},
            "^config.first.first.optimizer: b1.* --config.first.first.optimizer.b1=",
        ),
        ({"first.first.init.optimizer": "kept"}, "there is no config.first.first.first"),
        ({"init.optimizer": "all"}, "config.init.optimizer = 'all' is unknown.*known: kept"),
        ({"init.optimizer": "kept", "optimizer.name": "sgd"}, "other moments than config.opt"),
        ({"init.optimizer": "kept", "init.text": TINY}, "config.init.text = .* has other weights"),
    ):
        config = make_chain(make_stage(), make_stage(), make_stage())
        config.update_from_flattened_dict(fields)
        with pytest.raises(UserError, match=message):
            check.check_config(complete_config(config))
    with pytest.raises(UserError, match="^see workdirs/config.json and config.first.seed$"):
        with naming_stage():
            raise UserError("see workdirs/config.json and config.seed")


def fit(name, array, shape):
    made = fit_table(name, array, shape)
    return made and made[0]


def draw_moments(optimizer, params, seed=0):
    """Returns the state after three updates by random gradients."""
    state, rng = optimizer.init(params), np.random.default_rng(seed)
    for _ in range(3):
        grads = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params)
        _, state = optimizer.update(grads, state, params)
    return state


def place(tree):
    from big_align.parallel.meshes import make_mesh, replicated

    return jax.device_put(tree, replicated(make_mesh()))


def test_moments_follow_their_parameters_into_another_chain():
    from big_align.training.layer_rates import LayerRates
    from big_align.training.optimizers import make_optimizer

    params = {"a": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
    there = make_optimizer(1e-3, "adamw", frozen=("b",))
    schedule = optax.linear_schedule(1.0, 0.0, 10)
    rates = LayerRates(rates=("a=0.5",))
    here = make_optimizer(schedule, "lamb", weight_decay=0.1, clip_norm=1.0, layers=rates)
    former = place(draw_moments(there, params))
    state, left = keep_moments(place(here.init(params)), former, fit)
    adam, old = (
        next(x for x in jax.tree.leaves(each, is_leaf=is_adam) if is_adam(x))
        for each in (state, former)
    )
    for kind in ("mu", "nu"):
        np.testing.assert_array_equal(getattr(adam, kind)["a"], getattr(old, kind)["a"])
        np.testing.assert_array_equal(getattr(adam, kind)["b"], 0)
    assert int(adam.count) == 3 and left == ["b"]
    schedules = [
        x
        for x in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, optax.ScaleByScheduleState))
        if isinstance(x, optax.ScaleByScheduleState)
    ]
    assert schedules and all(int(each.count) == 0 for each in schedules)


def is_adam(node):
    return isinstance(node, optax.ScaleByAdamState)


def test_moments_of_tables_are_fitted_and_stay_in_their_range():
    from big_align.training.optimizers import make_optimizer

    def draw(grid, length):
        return {
            "image": {"position_embedding": np.zeros((grid, grid, 4), np.float32)},
            "text": {"position_embedding": np.zeros((length, 4), np.float32)},
        }

    optimizer = make_optimizer(1e-3, "adamw")
    former = place(draw_moments(optimizer, draw(2, 6)))
    for grid, length in ((5, 9), (1, 3)):
        state, left = keep_moments(place(optimizer.init(draw(grid, length))), former, fit)
        new, old = (next(x for x in each if is_adam(x)) for each in (state, former))
        assert left == []
        for kind in ("mu", "nu"):
            image, text = (getattr(new, kind)[x]["position_embedding"] for x in ("image", "text"))
            was = [getattr(old, kind)[x]["position_embedding"] for x in ("image", "text")]
            assert image.shape[:2] == (grid, grid)
            assert was[0].min() <= image.min() and image.max() <= was[0].max()
            shared = min(6, length)
            np.testing.assert_array_equal(text[:shared], was[1][:shared])
            np.testing.assert_array_equal(text[shared:], 0)
        assert new.nu["image"]["position_embedding"].min() >= 0


def test_layers_go_on_and_numbers_where_the_optimizer_does(monkeypatch):
    def place_in(name, size):
        head = {"kernel": np.full((size, 2), 1.0, np.float32)}
        return place({"model": {}, name: head, "temperature": np.float32(size)})

    monkeypatch.setattr(stage_before.dataset, "fingerprint_tags", lambda config: config["tags"])
    take, tags = stage_before._take_own, {"tags": "a"}
    there, here = place_in("recognizer", 3), place_in("recognizer", 3)
    assert take(tags, tags, there, here, False)[0].keys() == {"recognizer/kernel"}
    assert take(tags, tags, there, here, True)[0].keys() == {"recognizer/kernel", "temperature"}
    with pytest.raises(ConfigError, match="other tags than those of config.first"):
        take(tags, {"tags": "b"}, there, here, False)
    for other in (place_in("recognizer", 4), place_in("head", 3)):
        found, report = take(tags, tags, there, other, False)
        assert not found and "fresh: " in report[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_two_stages_with_a_kept_optimizer_are_one_run(tmp_path, name):
    """To the last digit: weights, moments, examples and random draws go on, and nothing else."""
    drawn = {"model.text.dropout": 0.1, "model.image.keep": 0.5}
    fields = {"optimizer.name": name, **drawn}
    train.run(make_stage(steps=6, **fields), str(tmp_path / "one"))
    kept = {"init.optimizer": "kept", "average_decay": 0.9, **fields}
    chain = make_chain(
        make_stage(steps=1, **fields, average_decay=0.9),
        make_stage(steps=3, **kept),
        make_stage(steps=2, **kept),
    )
    train.run(chain, str(tmp_path / "three"))
    losses = [
        loss
        for folder in list_workdirs(chain, str(tmp_path / "three"))
        for _, loss in read_losses(folder)
    ]
    assert losses == [loss for _, loss in read_losses(tmp_path / "one")]
    states = [
        TrainedRun(tmp_path / each).load_state(("params", "opt_state"), {"fsdp": 1})[1]
        for each in ("one", "three")
    ]
    for one, other in zip(*map(jax.tree.leaves, states), strict=True):
        if one.ndim:  # counts of schedules differ
            np.testing.assert_array_equal(one, other)
    fresh = make_chain(make_stage(steps=4, **fields), make_stage(steps=2, **fields))
    train.run(fresh, str(tmp_path / "fresh"))
    assert read_losses(tmp_path / "fresh")[1] != read_losses(tmp_path / "three")[1]


@pytest.mark.slow
def test_stages_of_other_images_texts_and_batches(tmp_path, capsys):
    """As in FLIP and CLIPA: positions of images are interpolated, those of texts continued."""
    chain = make_chain(
        make_stage(steps=2, **{"tokenizer.length": 4, "model.text.max_length": 4}),
        make_stage(steps=2, size=16, batch_size=32, **{"init.optimizer": "kept"}),
    )
    train.run(chain, str(tmp_path))
    said = capsys.readouterr().out
    assert "positions of 2 x 2 patches there, interpolated to 4 x 4: params/image/posi" in said
    assert "4 positions of texts there, all of them taken, and 8 more are fresh: params/t" in said
    assert said.index("stage 1 of 2") < said.index("stage 2 of 2") < said.index("chip-hours: stage")
    spent = [json.loads((tmp_path / x / "goodput.json").read_text()) for x in ("first", ".")]
    for each in spent:
        seconds = sum(each["seconds"].values()) - each["seconds"]["down"]
        assert each["chip_seconds"] == pytest.approx(seconds * jax.device_count())
    with pytest.raises(UserError, match="would stay as they are drawn"):
        chain.optimizer.frozen = ("model/text/position_embedding",)
        train.run(chain, str(tmp_path / "frozen"))


@pytest.mark.slow
def test_every_stage_goes_on_from_a_command_without_a_config(tmp_path, monkeypatch):
    """The workdir has the whole config from the start, also that of a command that came later."""

    def fail(*_):
        raise UserError("no")

    build = train._build
    monkeypatch.setattr(train, "_build", fail)
    for seed in (0, 1):
        chain = make_chain(make_stage(steps=1), make_stage(steps=1), make_stage(steps=1))
        chain.first.first.seed = seed
        with pytest.raises(UserError, match="no"):
            train.run(chain, str(tmp_path))
    monkeypatch.setattr(train, "_build", build)
    left = load_config(tmp_path / "config.json")
    assert left.first.first.seed == 1
    train.run(left, str(tmp_path))
    assert [len(read_losses(each)) for each in list_workdirs(chain, str(tmp_path))] == [1, 1, 1]
    evaluated = load_config(tmp_path / "first/config.json")
    assert evaluate.run(evaluated, str(tmp_path / "first")) == {}


@pytest.mark.slow
def test_a_stage_that_has_begun_stays_with_its_examples(tmp_path):
    def make(first, last):
        return make_chain(make_stage(steps=first), make_stage(steps=last))

    train.run(make(3, 4), str(tmp_path / "whole"))
    train.run(make(3, 2), str(tmp_path / "more"))
    train.run(make(9, 4), str(tmp_path / "more"))  # only a start reads `first`
    for name in ("", "first"):
        assert read_losses(tmp_path / "more" / name) == read_losses(tmp_path / "whole" / name)


@pytest.mark.slow
def test_layers_and_rows_of_the_objective_go_on(tmp_path, monkeypatch):
    """Those of a fresh optimizer as they are evaluated, and numbers begin anew."""
    chain = make_chain(
        make_stage(steps=2, average_decay=0.5, **{"objective.temperature": 0.3}),
        make_stage(steps=1, **{"objective.temperature": 0.2}),
    )
    taken = []

    def watch(config, program, state, given):
        made = stage_before.continue_stage(config, program, state, given)
        taken.append(jax.tree.map(np.asarray, made[0].params))  # which the step donates
        return made

    monkeypatch.setattr("big_align.runs.initial_weights.continue_stage", watch)
    for kept in (None, "kept"):
        chain.init.optimizer = kept
        train.run(chain, str(tmp_path / str(kept)))
    there = [read_pretrained(tmp_path / "None/first", averaged=x).flat for x in (True, False)]
    own = TrainedRun(tmp_path / "kept/first").load_state(("params",), {"fsdp": 1})[1]["params"]
    assert float(taken[0]["temperature"]) == pytest.approx(0.2)
    np.testing.assert_array_equal(taken[1]["temperature"], own["temperature"])
    for weights, params in zip(there, taken, strict=True):
        flat = traverse_util.flatten_dict({"params": params["model"]}, sep="/")
        for path, array in flat.items():
            np.testing.assert_array_equal(array, weights[path])
