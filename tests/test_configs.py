"""Every config is checked and builds, the largest ones without their memory."""

import pathlib

import jax
import pytest

from big_align import build, config_check
from big_align.command_line import load_config
from big_align.errors import ConfigError
from big_align.state import describe_state

FILES = sorted(
    p.stem
    for p in pathlib.Path("configs").glob("*.py")
    if p.stem not in ("__init__", "common")
)
ARGUMENTS = [
    "align_b7.py:cc3m",
    "align_b5_ablation.py:dim=80",
    "align_b5_ablation.py:negatives=0.25,temperature=64",
    "align_flickr8k.py:twemoji",
]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_change_a_config_that_checks(name):
    config, base = load_config(f"configs/{name}"), load_config(f"configs/{name.split(':')[0]}")
    assert config.to_dict() != base.to_dict()
    config_check.check_config(config)


def test_an_unknown_argument_is_named():
    with pytest.raises(ValueError, match="dim=81 is not one of dim=640|320|160|80"):
        load_config("configs/align_b5_ablation.py:dim=81")


@pytest.mark.parametrize("name", FILES)
def test_builds_under_eval_shape(name):
    config = load_config(f"configs/{name}.py")
    config_check.check_config(config)
    mesh = build.build_mesh(config)
    tokenizer = config_check.BlankTokenizer(config.tokenizer)
    objective = build.build_objective(config, mesh, tokenizer)
    optimizer, schedule = build.build_optimizer(config)
    batch = build.example_batch(config, tokenizer)
    described, _ = describe_state(objective, optimizer, batch, mesh)
    zimg = jax.eval_shape(objective.embed_image, described.params, described.model_state, batch)
    ztxt = jax.eval_shape(objective.embed_text, described.params, described.model_state, batch)
    dim = {"align_b7": 640, "align_l2": 1376, "align_b5_ablation": 640}  # §6.1
    assert zimg.shape == ztxt.shape == (1, dim.get(name, zimg.shape[1]))
    assert float(schedule(config.total_steps)) <= float(config.schedule.learning_rate)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 12}, "config.batch_size = 12 is not a multiple of 8 devices"),
        ({"total_steps": 0}, "config.total_steps = 0 must be at least 1"),
        ({"average_decay": 1.5}, "config.average_decay = 1.5 is not in"),
        ({"mesh": {"fsdp": 3}}, "mesh.fsdp = 3 does not divide the number of devices, 8"),
        ({"nonsense": 1}, "config.nonsense is unknown"),
        ({"tokenizer": {"name": "words", "words": ("a",)}}, "config.tokenizer.length is missing"),
        ({"schedule": {"learning_rate": 1.0, "warmup_steps": -1}}, "config.schedule: warmup"),
        ({"checkpoint": {"every": 10, "keep_lats": 2}}, "did you mean 'keep_last'"),
    ],
)
def test_an_impossible_value_is_named(change, message):
    config = load_config("configs/quickstart.py").to_dict()
    with pytest.raises(ConfigError, match=message):
        config_check.check_config(config | change)


def test_a_tokenizer_larger_than_the_text_tower_is_refused():
    config = load_config("configs/quickstart.py")
    config.model.text.vocab_size = 5
    with pytest.raises(ConfigError, match="config.model.text.vocab_size = 5 is less than"):
        build.build_tokenizer(config)


def test_what_a_config_leaves_at_its_default_can_be_changed_too():
    config = load_config(
        "configs/quickstart.py",
        "--config.objective.min_temperature=0.02",
        "--config.optimizer.b2=0.95",
        "--config.model.image.layer_norm_eps=1e-5",
        "--config.data.num_threads=1",
        "--config.evaluators.digits.max_broken_share=0.5",
    )
    config_check.check_config(config)
    objective = build.build_objective(config, build.build_mesh(config), None)
    assert objective.min_temperature == 0.02
    assert objective.model.image.layer_norm_eps == 1e-5
