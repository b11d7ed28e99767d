"""Every config is checked and builds, the largest ones without their memory."""

import pathlib

import flax.linen as nn
import jax
import numpy as np
import pytest

from big_align.config.components import tables
from big_align.config.components.models import RATES, SIZES
from big_align.config.components.signatures import list_kinds, list_settable, lookup
from big_align.config.overrides import load_config
from big_align.core.errors import ConfigError, UserError
from big_align.data.labels.classes import ClassList, read_classes
from big_align.data.tags.tag_list import TagList, weigh
from big_align.evaluators import tag_truth
from big_align.runs import build, check, dataset, initial_weights
from big_align.training.layer_rates import LayerRates
from big_align.training.state import describe_state

FILES = sorted(
    p.stem for p in pathlib.Path("configs").glob("*.py") if "def get_config(" in p.read_text()
)
"""The others are bases."""
ARGUMENTS = [
    *("align_flickr8k.py:twemoji", "align_flickr8k.py:locked"),
    *(f"clip_vit.py:size={size},reduced=yes" for size in ("b32", "l14", "h14")),
    "clip_vit.py:objective=siglip",
    *(f"align_flickr8k_multilingual.py:{each}" for each in ("de", "without=de", "locked,de")),
    "idea_cc3m.py:method=tag2text,loss=splc_focal",
    *(f"idea_flickr8k.py:{row}" for row in ("itc", "mlr", "mlr_bce", "tag2text", "rm_top_freq")),
    *(f"idea_flickr8k.py:{row}" for row in ("recognition", "recognition_bce", "recognition_cls")),
    "idea_flickr8k.py:recognition,init=pretrained",
    *(f"{name}.py:recipe=paper" for name in ("quickstart", "align_flickr8k")),
    "align_flickr8k.py:twemoji,recipe=paper",
    *(f"iclip_tiny_imagenet.py:{method}" for method in ("iclip", "unicl")),
    "mlcd_imagenet.py:loss=mlc",
    *(f"mlcd_photographs.py:{row}" for row in ("scale=64,loss=mlc", "negatives=drawn")),
    *(f"mlcd_photographs.py:{row}" for row in ("ratio=0.01,labels=1", "min_similarity=0.8")),
    *(f"own_pairs.py:start=scratch,size={size}" for size in ("cores", "gpu", "pod")),
    "own_pairs.py:start=scratch,classes=cifar10",
    "unicl_captions.py:captions=gcc3m",
    *(f"unicl_flickr8k.py:{method}" for method in ("captions", "labels", "multitask")),
    *(f"unicl_grocery.py:unicl_table{way}" for way in ("", "_image_to_text", "_text_to_image")),
    *(f"unicl_grocery.py:{method}" for method in ("cross_entropy", "supcon", "supcon_classifier")),
    *(f"unicl_cifar10.py:{method}" for method in ("unicl_table", "supcon", "supcon_classifier")),
    *(f"unicl_imagenet.py:mixing=yes,batch={size}" for size in ("1024", "2048")),
    "unicl_imagenet.py:method=cross_entropy,image=resnet50,mixing=yes",
    *(f"align_finetune.py:{image},layer_decay=0.9" for image in ("image=b7", "data=pets,image=b7")),
    *(f"finetune_cifar10.py:{method}" for method in ("head", "texts")),
    *(f"pretrained_flickr8k.py:{names}" for names in ("frozen", "dev", "frozen,dev")),
    *(
        f"{name}.py:init=pretrained"
        for name in ("iclip_tiny_imagenet", "idea_twemoji", "mlcd_photographs", "unicl_flickr8k")
    ),
    "idea_flickr8k.py:mlr,init=pretrained",
    *(f"idea_flickr8k.py:{row},locked" for row in ("retain", "recognition_bce")),
]
"""Rows of the papers' own tables are in tests/paper_rows.py."""
EMBEDDING_DIM = {
    **{"align_b7": 640, "align_l2": 1376, "align_b5_ablation": 640},  # ALIGN §6.1
    **{"align_finetune": 1376, "align_multilingual": 640},
    **{"unicl_imagenet": 512, "unicl_captions": 512, "iclip": 512},  # UniCL appendix B.1
    **{"idea_cc3m": 256, "idea_coco": 256},  # IDEA §3.3
    "mlcd": 512,  # MLCD Table 9
}
TOWERS_OF_OTHERS = ("align_finetune", "align_multilingual")
"""The largest towers are built whole once, by the config that they are of."""
CLASSES = {"imagenet21k": 21841, "imagenet22k": 21841, "grocery": 81, "tiny_imagenet": 202}
"""Class lists that a user makes or fetches; other missing ones have ImageNet-1K's length."""


@pytest.fixture(autouse=True)
def stand_in_class_lists(monkeypatch):
    """Class lists whose files are not there have the right length."""

    def read(name_or_path):
        if "/" not in name_or_path or pathlib.Path(name_or_path).exists():
            return read_classes(name_or_path)
        known = [count for name, count in CLASSES.items() if name in name_or_path]
        count = known[0] if known else 1000
        names = tuple(f"class {number}" for number in range(count))
        return ClassList(names, names, ("",) * count)

    monkeypatch.setattr(dataset, "read_classes", read)


@pytest.fixture(autouse=True)
def stand_in_tag_lists(monkeypatch):
    """Tag lists that a user makes have tags of two tokens each."""

    def read(path):
        count = 2500 if "cc3m" in path else 1000
        ids = np.ones((count, 2), np.int32)
        counts = np.arange(count, 0, -1)
        names = tuple(f"tag {number}" for number in range(count))
        return TagList(path, names, counts, weigh(counts.tolist()), ids, ids == 1, tokenizer="")

    for module in (dataset, tag_truth):
        monkeypatch.setattr(module, "read_tag_list", read)


@pytest.fixture(autouse=True)
def stand_in_packages(monkeypatch):
    """Packages of weights need not be installed."""
    monkeypatch.setattr(initial_weights, "check_installed", lambda paths: None)
    idea, iclip = ("data/vit-base", "data/bert-base-uncased"), ("data/moby_", "data/roberta-base")
    there = ("package:", *idea, *iclip)
    located = lambda path: "." if path.startswith(there) else path  # noqa: E731
    monkeypatch.setattr(initial_weights, "locate", located)


@pytest.mark.slow
def test_towers_of_idea_start_from_weights_that_must_be_there(monkeypatch):
    """§4.1: from ImageNet's; without them a message says what to do."""
    monkeypatch.setattr(initial_weights, "locate", lambda path: path)
    shallow = "--config.model.image.depth=1", "--config.model.text.depth=1"
    config = load_config("configs/idea_coco.py", *shallow)
    told = "init.image: there is no file, folder or workdir data/vit-base: put .*image=''"
    with pytest.raises(ConfigError, match=told):
        check.check_config(config)
    fresh = "--config.init.image=", "--config.init.text="
    config = load_config("configs/idea_coco.py", *shallow, *fresh)
    assert not any(config.init.values())
    check.check_config(config)
    scratch = load_config("configs/idea_coco.py:init=none", *shallow).init  # §4.4: the image tower
    assert not scratch.image and scratch.text == "data/bert-base-uncased"


@pytest.mark.slow
def test_towers_of_iclip_start_from_weights_where_the_papers_do():
    """§4.1: MoBY and RoBERTa, except with YFCC."""
    for argument, image, text in (
        ("", "data/moby_swin_tiny.pth", "data/roberta-base"),
        ("scale=imagenet22k_laion400m", "data/moby_swin_base.pth", "data/roberta-base"),
        ("method=sup_only", "data/moby_swin_tiny.pth", None),
        ("scale=imagenet21k_yfcc14m", None, None),
        ("init=none", None, None),
    ):
        init = load_config(f"configs/iclip.py:{argument}").init
        assert (init.image, init.text) == (image, text), argument


def make_shallow(config):
    """Leaves a layer of each stage of the towers: what arguments change is elsewhere."""
    image, text = config.model.image, config.model.text
    frozen = config.optimizer.get("frozen") or ()
    if image.get("name") == "efficientnet":
        image.depth = 0.01  # of each stage's blocks, rounded up
    elif "depth" in image and not any("model/image/block" in path for path in frozen):
        image.depth = 1
    if image.get("name") in ("resnet", "swin"):
        image.depths = (1,) * len(image.get("depths") or (1, 1, 1, 1))
    if "depth" in text and not any("model/text/block" in path for path in frozen):
        text.depth = 1
    if config.get("first"):
        make_shallow(config.first)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_change_a_config_that_checks(name):
    config, base = map(load_config, (f"configs/{name}", f"configs/{name.split(':')[0]}"))
    assert config.to_dict() != base.to_dict()
    check.check_config(make_shallow(config))


def test_an_unknown_argument_is_named():
    with pytest.raises(ValueError, match="dim=81 is not one of dim=640|320|160|80"):
        load_config("configs/align_b5_ablation.py:dim=81")
    with pytest.raises(ValueError, match="default_steps is of data=cc3m"):
        load_config("configs/align_b5_ablation.py:default_steps=1.2m")


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_builds_under_eval_shape(name):
    config = load_config(f"configs/{name}.py")
    if name in TOWERS_OF_OTHERS:
        make_shallow(config)
    check.check_config(config)
    mesh = build.build_mesh(config)
    tokenizer = check.BlankTokenizer(config.tokenizer)
    objective = build.build_objective(config, mesh, tokenizer)
    optimizer, schedule = build.build_optimizer(config)
    batch = build.example_batch(config, tokenizer)
    described, _ = describe_state(objective, optimizer, batch, mesh)
    weights = described.params, described.model_state
    zimg = jax.eval_shape(objective.embed_image, *weights, batch)
    assert zimg.shape == (1, EMBEDDING_DIM.get(name, zimg.shape[1]))
    if config.model.text:
        assert jax.eval_shape(objective.embed_text, *weights, batch).shape == zimg.shape
    assert float(schedule(config.total_steps)) <= float(config.schedule.learning_rate)


@pytest.mark.slow
def test_image_towers_take_rates_by_layer_whatever_the_objective():
    configs = [load_config(f"configs/{name}.py") for name in FILES]
    for config in {config.objective.name: config for config in configs}.values():
        check_rates_by_layer(make_shallow(config))


def check_rates_by_layer(config):
    config.optimizer.rates = ("model/image=0.5",)
    config.optimizer.layer_decay = ("model/image=0.9",)
    config.optimizer.unfreeze_layers = ("model/image=10",)
    check.check_config(config)
    objective = build.build_objective(
        config, build.build_mesh(config), check.BlankTokenizer(config.tokenizer)
    )
    optimizer, _ = build.build_optimizer(config)
    batch = build.example_batch(config, check.BlankTokenizer(config.tokenizer))
    params = nn.meta.unbox(jax.eval_shape(objective.init, jax.random.key(0), batch))[0]
    jax.eval_shape(optimizer.init, params)

    rates = LayerRates(config.optimizer.rates, config.optimizer.layer_decay)
    factors = rates.factors(params)
    image = factors["model"].pop("image")
    blocks = [set(jax.tree.leaves(image[key])) for key in sorted(image) if "block_" in key]
    assert all(len(each) == 1 for each in blocks)
    values = [each.pop() for each in blocks]
    np.testing.assert_allclose(values, 0.5 * 0.9 ** np.arange(len(values), 0, -1))
    np.testing.assert_allclose(min(jax.tree.leaves(image)), min(values) * 0.9)
    assert set(jax.tree.leaves(factors)) <= {1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": {"name": "lamb", "rates": ("model=x",)}}, "config.optimizer: rates has 'mo"),
        ({"optimizer": {"name": "lamb", "unfreeze": ("a=1",)}}, "unfreeze has 'a=1': no parameter"),
        ({"batch_size": 12}, "config.batch_size = 12 is not a multiple of 8 devices; 8 and 16 are"),
        ({"total_steps": 0}, "config.total_steps = 0 must be at least 1"),
        ({"evaluate_batch_size": 0}, "config.evaluate_batch_size = 0 must be at least 1"),
        ({"checkpoint": {"every": 0}}, "config.checkpoint.every = 0 must be at least 1"),
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
    with pytest.raises(UserError, match=message):
        check.check_config(config | change)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model.image.width", 0, "config.model.image.width = 0 must be above 0"),
        ("model.image.width", -8, "config.model.image.width = -8 must be above 0"),
        ("model.image.variant", "ti/0", "variant='ti/0' is not of the form 'b/16': size/patch"),
        ("model.text.vocab_size", 0, "config.model.text.vocab_size = 0 must be above 0"),
        ("model.embedding_dim", -1, "config.model.embedding_dim = -1 must be above 0"),
        (
            "model.image.keep",
            0,
            "keep=0 must be a fraction above 0, at most 1, or a whole number of",
        ),
        ("model.text.dropout", 2, "dropout = 2.0 is no rate .*; write --config.model.text.dropout"),
        ("model.image_dropout", -0.5, "config.model.image_dropout = -0.5 is no rate in "),
        ("data.captions_per_image", 0, "config.data.captions_per_image = 0 reads no texts, which"),
        ("data.captions_per_image", -1, "captions_per_image = -1 must be at least 0"),
        ("data.views_per_image", 0, "--config.data.views_per_image=... sets it"),
        ("tokenizer.length", 0, "config.tokenizer.length = 0 must be at least 1"),
        ("seed", 2**63, r"seed = 9223372036854775808 must be a whole number in \[0, 2\*\*63"),
        ("total_steps", None, "config.total_steps = None must be a whole number of at least 1"),
        ("checkpoint.keep_last", 0, "keep_last = 0 must be at least 1; --config.checkpoint"),
        ("checkpoint.keep_every", 0, "keep_every = 0 must be at least 1"),
        ("checkpoint.deadline", 0, "deadline = 0 must be from 1 to 1000000 seconds"),
        ("checkpoint.keep_best", "loss", "keep_best = 'loss' is no number: write EVALUATOR/NAME"),
    ],
)
def test_a_value_out_of_range_is_named_before_anything_is_read(field, value, message):
    config = load_config("configs/quickstart.py", f"--config.{field}={value}")
    with pytest.raises(ConfigError, match=message):
        check.check_config(config)


def test_every_number_of_a_tower_has_a_range():
    for part, towers in tables.TOWERS.items():
        for name in towers:
            target = lookup(name, towers, part)
            for field, parameter in list_settable(target).items():
                numbers = {int, float, tuple} & {*list_kinds(parameter.hint)}
                own = ("momentum", "epsilon", "layer_norm_eps", "keep")  # which their layers check
                known = field in (*SIZES, *RATES, *own)
                assert known or not numbers, (part, name, field)


def test_the_largest_seed_is_one():
    config = load_config("configs/quickstart.py", f"--config.seed={2**63 - 1}")
    check.check_config(config)
    jax.random.key(config.seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["image", "text"])
def test_float16_is_for_towers_that_are_not_trained(part):
    config = load_config("configs/quickstart.py")
    config.model[part].dtype = "float16"
    message = f"config.model.{part}.dtype = 'float16' .* --config.model.{part}.dtype=bfloat16"
    with pytest.raises(ConfigError, match=message):
        check.check_config(config)
    check.check_config(config, training=False)
    for node, field, value in (("optimizer", "frozen", f"model/{part}"), ("model", "locked", part)):
        kept = config.copy_and_resolve_references()
        kept[node][field] = (value,)
        check.check_config(kept)


@pytest.mark.slow
def test_a_text_tower_that_an_objective_leaves_out_may_be_of_any_type():
    config = load_config("configs/finetune_cifar10.py")
    with config.unlocked():
        text = load_config("configs/quickstart.py").model.text.to_dict()
        config.model.update(text=text | {"dtype": "float16"}, embedding_dim=32)
        config.model.image_projection = True
    check.check_config(config)


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
        "--config.evaluators.digits.max_broken_fraction=0.5",
    )
    check.check_config(config)
    objective = build.build_objective(config, build.build_mesh(config), None)
    assert objective.project({"temperature": 0.001})["temperature"] == np.float32(0.02)
    assert objective.model.image.layer_norm_eps == 1e-5
