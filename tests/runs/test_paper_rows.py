"""Every row of MLCD's and UniCL's tables is a config that says what the table says, and builds."""

import itertools

import flax.linen as nn
import jax
import pytest

from big_align.runs import build, check
from big_align.runs.command_line import load_config
from big_align.training.optimizers import decay_mask
from tests.runs.test_configs import (
    make_shallow,
    stand_in_class_lists,  # noqa: F401 - a fixture of every test here
)

METHODS = ("cross_entropy", "supcon", "supcon_classifier", "unicl")
RESNETS = ("resnet50", "resnet101")
K_12 = (500, 1000, 2000, 4000, 8000, 20000, 40000, 80000, 160000, 320000, 500000)
CAPTIONS = ("gcc3m", "yfcc14m", "gcc15m")
HALF = "labels=imagenet21k,half=yes"
ROWS = {
    "MLCD 1 to 4": [f"mlcd.py:image=l14,stage={stage}" for stage in ("image", "text")],
    "MLCD 5a": [f"mlcd.py:epochs=5,clusters={k}00000" for k in (1, 2, 5, 10, 20, 50)],
    "MLCD 5b": [f"mlcd.py:epochs=5,ratio={r}" for r in (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)],
    "MLCD 5c": [f"mlcd.py:epochs=5,labels={n}" for n in (1, 2, 4, 8, 16, 32)],
    "MLCD 5d": [
        f"mlcd.py:epochs=5,min_similarity={c}" for c in (0.95, 0.93, 0.91, 0.89, 0.87, 0.85)
    ],
    "MLCD 6": ["mlcd.py:loss=mlc", "mlcd.py", "mlcd.py:stage=text"],
    "MLCD 7": [
        f"mlcd.py:image=l14,loss={loss},data={data}"
        for loss, data in itertools.product(("unicom", "mlcd"), ("laion400m", "coyo700m"))
    ],
    "MLCD 12": [
        f"mlcd_imagenet.py:loss={loss},clusters={k}" for loss in ("unicom", "mlcd") for k in K_12
    ],
    "MLCD 5 and 6, in small": [
        "mlcd_photographs.py",
        *("mlcd_photographs.py:scale=64,loss=mlc", "mlcd_photographs.py:negatives=drawn"),
        *("mlcd_photographs.py:ratio=0.01,labels=1", "mlcd_photographs.py:min_similarity=0.8"),
    ],
    "UniCL 2, CIFAR": [
        f"unicl_imagenet.py:data={data},image={image},method={method}"
        for data, image, method in itertools.product(("cifar10", "cifar100"), RESNETS, METHODS)
    ],
    "UniCL 2, ImageNet": [
        *(
            f"unicl_imagenet.py:image={image},method={method}"
            for image, method in itertools.product((*RESNETS, "swin_tiny"), METHODS)
        ),
        *(f"unicl_imagenet.py:mixing=yes,method={name}" for name in ("cross_entropy", "unicl")),
        "unicl_imagenet.py:image=resnet50,optimizer=sgd",
    ],
    "UniCL 3": [
        "unicl_imagenet.py",
        *(f"unicl_imagenet.py:method=unicl_table{rest}" for rest in ("", "_one_direction")),
    ],
    "UniCL 4": [
        f"unicl_imagenet.py:batch={size},method={method}"
        for size, method in itertools.product((1024, 2048, 4096), ("unicl", "unicl_table"))
    ],
    "UniCL 5": [
        *(f"unicl_imagenet.py:method={method}" for method in METHODS),
        *(f"unicl_captions.py:labels=imagenet,captions={n}" for n in CAPTIONS),
    ],
    "UniCL 6": [
        "unicl_captions.py:labels=none",
        "unicl_captions.py:labels=imagenet21k,captions=none",
        *(f"unicl_captions.py:{HALF},method={method}" for method in ("multitask", "unicl")),
        "unicl_captions.py:labels=imagenet21k",
        "unicl_captions.py:captions=none",
        *("unicl_captions.py:method=multitask", "unicl_captions.py"),
        *(f"unicl_captions.py:captions=gcc15m,method={name}" for name in ("multitask", "unicl")),
    ],
    "UniCL 8": [
        f"unicl_captions.py:image=swin_base,{row}"
        for row in ("labels=none", "labels=imagenet21k,captions=none", HALF, "labels=imagenet21k")
    ],
}
SHAPES = (
    *(ROWS["MLCD 1 to 4"][1], ROWS["MLCD 5a"][-1], ROWS["MLCD 5b"][0], ROWS["MLCD 5b"][-1]),
    *(ROWS["MLCD 5c"][0], ROWS["MLCD 5d"][2], ROWS["MLCD 6"][0], ROWS["MLCD 7"][0]),
    *(ROWS["MLCD 12"][0], ROWS["MLCD 12"][-1]),
    *ROWS["MLCD 5 and 6, in small"][1:3],
    *ROWS["UniCL 2, CIFAR"][:4],
    *("unicl_imagenet.py:method=supcon_classifier", ROWS["UniCL 2, ImageNet"][-1]),
    *("unicl_imagenet.py:data=cifar100,image=resnet101,method=unicl_table", ROWS["UniCL 4"][1]),
    *(ROWS["UniCL 5"][-1], ROWS["UniCL 6"][0], ROWS["UniCL 6"][1], ROWS["UniCL 6"][2]),
    *ROWS["UniCL 8"][2:3],
)
"""Others have the shapes of one of these or of one in test_configs.py: they differ in numbers."""


@pytest.mark.slow
def test_no_two_rows_of_a_table_are_the_same_run():
    for table, rows in ROWS.items():
        configs = {load_config(f"configs/{row}").to_json() for row in rows}
        assert len(configs) == len(rows), table


@pytest.mark.slow
@pytest.mark.parametrize("row", SHAPES)
def test_a_row_builds(row):
    check.check_config(make_shallow(load_config(f"configs/{row}")))


def test_rows_say_what_the_papers_say():
    config = load_config("configs/mlcd.py:epochs=5,min_similarity=0.91,ratio=0.05")
    assert config.objective.min_similarity == 0.91 and config.objective.sampling_ratio == 0.05
    assert config.objective.negatives == "sampled"  # §3.2
    assert config.total_steps == round(5 * 389_737_314 / 32_768)
    config = load_config("configs/unicl_captions.py:labels=imagenet21k,half=yes")
    assert config.total_steps == round(32 * (14e6 + 14.2e6 - 1.28e6) / 2 / 4096)
    assert config.data.mixture.labels.source.path == "data/imagenet21k-*[02468].tar"
    assert config.optimizer.clip_norm == 5 and config.schedule.learning_rate == 1e-3
    alone = load_config("configs/unicl_captions.py:labels=none")
    assert dict(alone.data.mixture).keys() == {"captions"} and alone.optimizer.weight_decay == 0.1
    sgd = load_config("configs/unicl_imagenet.py:image=resnet50,method=cross_entropy")
    assert (sgd.optimizer.name, sgd.schedule.learning_rate) == ("sgd", 0.4)  # B.1
    both = load_config("configs/unicl_imagenet.py:image=resnet50")
    assert (both.optimizer.name, both.schedule.learning_rate) == ("adamw", 0.002)  # B.1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("mlcd.py:ratio=half", "ratio=half is no number"),
        ("unicl_captions.py:labels=none,method=multitask", "labels=none needs captions and method"),
        ("unicl_captions.py:labels=imagenet,half=yes", "half=yes is for labels=imagenet21k"),
        ("unicl_imagenet.py:data=cifar10", "data=cifar10 needs image=resnet50 or resnet101"),
    ],
)
def test_what_is_no_row_is_named(row, message):
    with pytest.raises(ValueError, match=message):
        load_config(f"configs/{row}")


@pytest.mark.parametrize(
    ("row", "tokens_decay"),
    [("unicl_imagenet.py", False), ("unicl_imagenet.py:method=unicl_table", True)],
)
def test_positions_and_tokens_of_unicl_do_not_decay_and_class_vectors_do(row, tokens_decay):
    """Its released code names `positional_embedding`, `token_embedding` and Swin's tables."""
    config = make_shallow(load_config(f"configs/{row}"))
    tokenizer = check.BlankTokenizer(config.tokenizer)
    objective = build.build_objective(config, build.build_mesh(config), tokenizer)
    batch = build.example_batch(config, tokenizer)
    params = nn.meta.unbox(jax.eval_shape(objective.init, jax.random.key(0), batch))[0]
    mask = decay_mask(params, tuple(config.optimizer.exclude))
    decaying = {
        part.key
        for path, decays in jax.tree_util.tree_leaves_with_path(mask)
        for part in path
        if decays
    }
    assert {"kernel", "project_image"} <= decaying
    assert ("token_embedding" in decaying) == tokens_decay
    assert not {"position_embedding", "relative_position_bias", "scale", "bias"} & decaying
