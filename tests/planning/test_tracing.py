"""A plan is of the batches that a run has, features in place of images among them."""

import numpy as np
import pytest

from big_align.config.overrides import load_config
from big_align.planning import gpu_topologies
from big_align.planning.machines import find_machine
from big_align.planning.tracing import trace
from big_align.runs import build, check
from big_align.runs.cached_features import describe_example


def test_a_plan_has_features_where_a_run_caches_them():
    config = load_config("tests/tiny_config.py")
    config.model.locked = config.cached_features.towers = ("image", "text")
    config.data.captions_per_image = 3
    tokenizer = check.BlankTokenizer(config.tokenizer)
    objective = build.build_objective(config, build.build_mesh(config), tokenizer)
    example = describe_example(config, tokenizer, objective)
    assert "image" not in example and example["text"].shape == (1, 3, 12)
    shapes = {name: x.shape for name, x in example.items() if x.dtype == np.float32}
    assert shapes == {"image_embedding": (1, 16), "text_embedding": (1, 3, 16)}
    config.cached_features.towers = ()
    config.data.precomputed.image_embedding = "features"
    names = describe_example(config, tokenizer, objective).keys()
    assert "image_embedding" in names and not names & {"image", "text_embedding"}


@pytest.mark.slow
def test_a_step_on_features_is_planned_without_its_towers(
    without_type_checks, monkeypatch, tmp_path
):
    monkeypatch.setattr(gpu_topologies, "has_compiler", lambda: False)

    def plan(*towers):
        config = load_config("tests/tiny_config.py")
        config.model.locked = config.cached_features.towers = towers
        return trace(config, find_machine("h100:1x2"), tmp_path, "none", 2**36)[0]

    trained, image, both = plan(), plan("image"), plan("image", "text")
    assert trained["images_per_example"] == 1 and both["images_per_example"] == 0
    assert trained["useful_flops"] > image["useful_flops"] > both["useful_flops"] > 0
    assert trained["parameters"] == image["parameters"] == both["parameters"]
