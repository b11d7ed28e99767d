"""A run that keeps averages of its weights evaluates, loads and exports these."""

import jax
import numpy as np
import pytest

import big_align
from big_align.config.overrides import load_config
from big_align.runs import build, restore, train
from tests.run_main import TINY

FLAGS = ("--config.average_decay=0.9", "--config.total_steps=4", "--config.evaluators={}")


@pytest.mark.slow
def test_averages_are_evaluated_loaded_and_exported(tmp_path, monkeypatch):
    evaluated = []

    def record(evaluators, embedder, show):
        evaluated.append(jax.tree.map(np.array, embedder._variables))
        return {}

    monkeypatch.setattr(train, "evaluate_all", record)
    config = load_config(TINY, *FLAGS)
    train.run(config, str(tmp_path))
    ((params, model_state),) = evaluated

    tokenizer = build.build_tokenizer(config)
    loaded = restore.load_weights(config, str(tmp_path), tokenizer)[2]
    exported = big_align.load(tmp_path).variables
    given = {"params": params, "model_state": model_state}
    model = {"params": params["model"], **model_state}
    jax.tree.map(np.testing.assert_array_equal, (loaded, exported), (given, model))

    config.average_decay = None  # the weights of the last step, which the checkpoint has too
    last = restore.load_weights(config, str(tmp_path), tokenizer)[2]
    for average, other in ((params, last["params"]), (model_state, last["model_state"])):
        moved = jax.tree.map(lambda x, y: np.any(x != y), average, other)
        assert all(jax.tree.leaves(moved))
