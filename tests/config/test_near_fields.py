"""What a researcher types first leads to the field that is meant, and to a run that fits."""

import re

import pytest

from big_align.config.config_files import list_packaged
from big_align.config.overrides import load_config
from big_align.core import errors
from big_align.core.errors import ConfigError
from big_align.runs import build
from tests.run_main import TINY


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lr", ["schedule.learning_rate"]),
        ("learning_rate", ["schedule.learning_rate"]),
        ("learning_rte", ["schedule.learning_rate"]),
        ("optimizer.learning_rate", ["schedule.learning_rate"]),
        ("optimizer.lr", ["schedule.learning_rate"]),
        ("schedule.lr", ["schedule.learning_rate"]),
        ("objective.lr", ["schedule.learning_rate"]),
        ("train.lr", ["schedule.learning_rate"]),
        ("wd", ["optimizer.weight_decay"]),
        ("bs", ["batch_size"]),
        ("data.batch_size", ["batch_size"]),
        ("steps", ["total_steps"]),
        ("epochs", ["total_steps"]),
        ("optimizer.seed", ["seed"]),
        ("checkpoint.foldre", ["checkpoint.folder"]),
        ("chekpoint.keep_best", ["checkpoint.keep_best"]),
        ("hold_out", ["data.hold_out"]),
        ("names", ["evaluators.digits.names"]),
        ("qqqqqq", []),
    ],
)  # fmt: skip
def test_a_field_is_found_by_its_name_wherever_it_is(typed, meant):
    with pytest.raises(ConfigError) as error:
        load_config(TINY, f"--config.{typed}=7")
    found = re.findall(r"--config\.([\w.]+)=\.\.\.", str(error.value))
    assert found == meant and ("did you mean" in str(error.value)) == bool(meant)
    assert "\n" not in str(error.value)


@pytest.fixture
def said(monkeypatch):
    """The warnings; each test hears its own."""
    errors.warn_once.cache_clear()
    lines = []
    monkeypatch.setattr(errors.logging, "warning", lambda form, *words: lines.append(form % words))
    return lines


def test_ten_steps_fit_into_every_packaged_config(said):
    for name in list_packaged():
        errors.warn_once.cache_clear()
        said.clear()
        config = load_config(name, "--config.total_steps=10")
        for part in filter(None, [config, config.first]):
            assert part.total_steps == 10 and part.log_every <= 10
            build.build_optimizer(part)
        assert len(said) <= 1, name


def test_what_is_cut_is_said_once(said):
    flags = "--config.total_steps=3", "--config.log_every=1"
    for _ in range(2):
        config = load_config("quickstart", *flags)
        assert (config.schedule.warmup_steps, config.log_every) == (3, 1)
    assert said == [
        "to fit into config.total_steps = 3, config.schedule.warmup_steps is 3 instead of 20"
    ]


def test_nothing_that_fits_or_is_asked_for_is_cut(said):
    assert load_config("quickstart", "--config.total_steps=20").schedule.warmup_steps == 20
    asked = "--config.total_steps=10", "--config.schedule.warmup_steps=20", "--config.log_every=20"
    config = load_config("quickstart", *asked)
    assert (config.schedule.warmup_steps, config.log_every) == (20, 20)
    with pytest.raises(ConfigError, match="warmup_steps = 20 is not in .0, total_steps = 10."):
        build.build_schedule(config)
    assert load_config("quickstart", "--config.seed=1").log_every == 10 and said == []


def test_a_first_run_is_no_longer_than_the_run(said):
    name, field = "pretrained_flickr8k", "--config.first.total_steps"
    assert load_config(name, "--config.total_steps=10").first.schedule.warmup_steps == 10
    kept = load_config(name, "--config.total_steps=10", f"{field}=30").first
    assert (kept.total_steps, kept.schedule.warmup_steps) == (30, 30)
    alone = load_config(name, f"{field}=30")
    assert (alone.first.schedule.warmup_steps, alone.total_steps > 30) == (30, True)
