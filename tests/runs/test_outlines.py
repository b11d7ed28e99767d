"""A config alone tells what its run will export."""

import flax.linen as nn
import jax
import pytest

from big_align.config.overrides import load_config
from big_align.runs import build, train
from big_align.runs.workdir import outline_model, read_pretrained
from big_align.weights import list_formats
from tests.run_main import TINY
from tests.weights.test_list_formats import FAST, check_told


def outline(config):
    tokenizer = build.build_tokenizer(config)
    objective = build.build_objective(config, build.build_mesh(config), tokenizer)
    one = build.example_batch(config, tokenizer)
    params, state = nn.meta.unbox(jax.eval_shape(objective.init, jax.random.key(0), one))
    return outline_model(config, tokenizer, params, state, "a workdir")


@pytest.mark.slow
def test_an_outline_is_the_model_that_the_run_exports(tmp_path):
    config = load_config(TINY, "--config.evaluators={}", "--config.total_steps=3")
    train.run(config, str(tmp_path / "run"))
    trained, told = read_pretrained(tmp_path / "run"), outline(config)
    for name in ("node", "image_size", "preprocessing", "tokenizer"):
        assert getattr(told, name) == getattr(trained, name)
    shapes = [{k: (x.shape, x.dtype) for k, x in each.flat.items()} for each in (told, trained)]
    assert shapes[0] == shapes[1]
    assert list_formats(told) == list_formats(trained)
    check_told(trained, FAST, tmp_path / "exported")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "held"),
    [
        ("configs/quickstart.py", {"big_align"}),
        ("configs/finetune_cifar10.py", {"big_align", "timm"}),
        ("configs/mlcd.py:image=b32", {"big_align", "transformers", "timm"}),
    ],
)
def test_configs_say_where_their_models_open(config, held):
    told = list_formats(outline(load_config(config)))
    assert {name for name in FAST if not told[name]} == held
