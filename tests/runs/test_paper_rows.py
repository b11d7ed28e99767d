"""Every row of the papers' tables is a config that says what the table says, and builds."""

import pathlib
import re

import flax.linen as nn
import jax
import pytest

from big_align.config.overrides import load_config
from big_align.core.errors import ConfigError
from big_align.data.labels.classes import read_classes
from big_align.runs import build, check
from big_align.training.optimizers import decay_mask
from tests.paper_rows import DEFAULTS, ROWS
from tests.runs.test_configs import (
    make_shallow,
    stand_in_class_lists,  # noqa: F401 - this and the next two are fixtures of every test here
    stand_in_packages,  # noqa: F401
    stand_in_tag_lists,  # noqa: F401
)

SHORT = {
    "text=medium",  # between the ends of the grid that a table of the config names
    *("evaluate=idea9", "direction=both", "direction=all"),  # of no row, but of a column
}
NUMBERS = (
    *("temperature", "learn_temperature", "negative_fraction", "threshold", "change_step"),
    "min_similarity",
)
"""Of an objective; no shape and no branch of what is traced hangs on them."""


def list_parts(config):
    """What a trace of a config is made of, each part as text."""
    model = config.model.to_dict()
    towers = {name: model.pop(name) for name in ("image", "text")}
    objective = {k: v for k, v in config.objective.items() if k not in NUMBERS}
    evaluators = [(name, node.name) for name, node in config.evaluators.items()]
    data = config.data
    mixture = {"": data} if not data.mixture else data.mixture
    rest = {
        "model": model,
        "objective": objective,
        "evaluators": evaluators,
        "classes": sorted((name, str(node.get("classes"))) for name, node in mixture.items()),
        "images": (data.transform, data.views_per_image, data.captions_per_image),
        "tokenizer": config.tokenizer.to_dict(),
        "start": sorted(name for name, path in config.init.items() if path),
        "training": (config.batch_size, config.optimizer.to_dict(), config.mixing.to_dict()),
    }
    return {f"{name}: {part}" for name, part in (towers | rest).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_every_row_of_the_papers_tables_builds(name):
    """Under eval_shape at its own width, of its depth a layer a stage; each part of a row once."""
    traced = set()
    for row in ROWS[name]:
        config = make_shallow(load_config(f"configs/{row}"))
        if not (parts := list_parts(config)) <= traced:
            try:
                check.check_config(config)
            except ConfigError as error:
                raise AssertionError(row) from error
            traced |= parts


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_different_and_a_table_tells_their_arguments(name):
    """What stands in backticks in the table of a config's docstring is an argument of it."""
    rows = {name, *ROWS[name]}
    configs = {load_config(f"configs/{row}").to_json(sort_keys=True) for row in rows}
    assert len(configs) == len(rows)
    text = pathlib.Path(f"configs/{name}").read_text().split('"""')[1]
    table = [line for line in text.splitlines() if line.startswith("| ")]
    told = {cell for line in table for cell in re.findall(r"`(\w+=[\w.,=]+)`", line)}
    for argument in told:
        load_config(f"configs/{name}:{argument}")
    arguments = [row.partition(":")[2] for row in ROWS[name]]
    parts = {part for argument in arguments for part in argument.split(",") if part}
    assert not table or parts <= {part for cell in told for part in cell.split(",")} | SHORT


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_a_name_leaves_out_changes_nothing(name):
    bare = load_config(f"configs/{name}").to_json(sort_keys=True)
    for argument in DEFAULTS[name].split():
        assert load_config(f"configs/{name}:{argument}").to_json(sort_keys=True) == bare, argument


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
    imagenet = read_classes("imagenet").templates
    for data in ("cifar10", "cifar100"):  # §4: "all 80 templates for validation"
        small = load_config(f"configs/unicl_imagenet.py:data={data},image=resnet50")
        assert small.data.templates == small.evaluators[data].templates == imagenet
        assert len(imagenet) == 80
    both = load_config("configs/unicl_imagenet.py:image=resnet50")
    assert (both.optimizer.name, both.schedule.learning_rate) == ("adamw", 0.002)  # B.1


def test_rows_of_unicl_have_the_regularization_of_swin_and_one_layer_of_classes():
    smoothed = "", ":method=cross_entropy", ":image=resnet50", ":method=unicl_table"
    for row in (
        *(f"unicl_imagenet.py{row}" for row in smoothed),
        "unicl_captions.py:labels=imagenet",
    ):
        assert load_config(f"configs/{row}").objective.label_smoothing == 0.1, row  # B.1, §4.2.1
    for row in ("", ":labels=none", ":method=multitask"):  # B.2: CLIP's protocol
        assert load_config(f"configs/unicl_captions.py{row}").objective.label_smoothing == 0
    table = load_config("configs/unicl_imagenet.py:method=unicl_table")  # Table 3
    config = make_shallow(table)
    tokenizer = check.BlankTokenizer(config.tokenizer)
    objective = build.build_objective(config, build.build_mesh(config), tokenizer)
    batch = build.example_batch(config, tokenizer)
    params = jax.eval_shape(objective.init, jax.random.key(0), batch)[0]["model"]
    assert [x.shape for x in jax.tree.leaves(nn.meta.unbox(params["text"]))] == [(1000, 512)]
    assert "project_text" not in params and "project_image" in params


def test_the_curves_of_mlcd_have_checkpoints_and_numbers():
    """A checkpoint is kept only at a step that is saved."""
    plain, kept, measured = (
        load_config(f"configs/mlcd.py{figure}") for figure in ("", ":figure=3", ":figure=5")
    )
    assert plain.checkpoint.keep_every is None and plain.evaluate_every == plain.total_steps
    assert kept.checkpoint.keep_every % kept.checkpoint.every == 0
    assert 10 < kept.total_steps // kept.checkpoint.keep_every < 100
    assert 10 < measured.total_steps // measured.evaluate_every < 100


def test_rows_of_idea_on_coco_that_recognize_tags_have_what_draws_them():
    """`tools.show_tags` needs a `found_tags`, by the tag list that is trained with."""
    for row in ROWS["idea_coco.py"]:
        config = load_config(f"configs/{row}")
        recognizes = config.objective.recognition and "evaluate=idea9" not in row
        assert ("found" in config.evaluators) == recognizes
        if recognizes:
            found = config.evaluators.found
            assert found.name == "found_tags" and found.tags == config.data.tags.path
            assert found.given == config.data.captions_used == 1


def test_rows_of_idea_measure_what_their_tables_have():
    """Tables 1 and 3: OpenImages by the head; Tables 1, 2 and 4: the mean over nine data sets."""
    for row in (*ROWS["idea_coco.py"], *ROWS["idea_cc3m.py"]):
        config = load_config(f"configs/{row}")
        listed = config.evaluators
        recognizes = config.objective.recognition and "probe" not in row and "figure" not in row
        assert ("openimages" in listed) == recognizes, row
        if recognizes:
            node = listed.openimages
            assert (node.name, node.truth, node.tags) == (
                "tag_recognition",
                "idea",
                config.data.tags.path,
            )
        assert ("idea9" in listed) == ("evaluate" in row)
        if "idea9" in listed:
            assert (listed.idea9.name, listed.idea9.suite) == ("suite", "idea9")


def test_iclip_is_evaluated_by_the_texts_that_it_trains():
    """Template, descriptions and, where ImageNet-1K itself is trained, the class list."""
    for row in ROWS["iclip.py"]:
        config = load_config(f"configs/{row}")
        if config.objective.name != "iclip":
            continue
        data = config.data.mixture.labels if config.data.mixture else config.data
        for evaluator in (config.evaluators.imagenet, config.evaluators.sketch):
            assert evaluator.templates == (config.objective.template,)
            of_words = "data/imagenet_wordnet.json"  # named as the lists of 21K and 22K are
            assert evaluator.names == (of_words if "imagenet2" in row else data.classes)


def test_rows_of_iclip_are_trained_in_the_direction_of_its_equations():
    """Eq. 2 and 6 ask texts for an image, and in one table all rows ask the same."""
    for row in ("method=vl_only", "method=multitask", "names=only", "method=iclip"):
        config = load_config(f"configs/iclip.py:{row}")
        assert config.objective.direction == "image_to_text"
        both = load_config(f"configs/iclip.py:{row},direction=both")
        assert both.objective.direction == "both"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("iclip.py:method=vl_only,direction=all", "direction=all is of method=iclip"),
        ("iclip.py:method=sup_only,direction=both", "direction is of methods with captions"),
        ("mlcd.py:stage=text,figure=3", "figure=3 is of stage=image"),
        ("mlcd.py:stage=text,loss=mlc", "loss=mlc is of stage=image"),
        ("mlcd.py:ratio=half", "ratio=half is no number"),
        (
            "unicl_imagenet.py:optimizer=sgd",
            "optimizer=sgd is for method=unicl with image=resnet50",
        ),
        ("unicl_imagenet.py:rate=scaled", "rate=scaled is for batch=1024 or batch=2048"),
        (
            "unicl_imagenet.py:method=supcon,direction=text_to_image",
            "direction is for method=unicl or method=unicl_table",
        ),
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
    assert ("project_text" in decaying) != tokens_decay  # nothing is behind class vectors
    assert not {"position_embedding", "relative_position_bias", "scale", "bias"} & decaying
