"""Settings that no array shows: they are told where they differ, and a config can take them."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import big_align
from big_align import weights
from big_align.config.components.models import build_model
from big_align.config.overrides import load_config
from big_align.core.errors import ConfigError
from big_align.data.text.tokenizers import WordTokenizer
from big_align.models.bert import Bert
from big_align.models.efficientnet import EfficientNet
from big_align.models.resnet import ResNet
from big_align.models.swin import Swin
from big_align.models.vit import ViT
from big_align.runs.initial_weights import read_initial_weights, take_settings
from big_align.weights.formats import architecture
from big_align.weights.transfer.settings import compare_towers, describe_differences
from tests.models.applied import apply_model
from tests.models.drawn_variables import draw_variables
from tests.weights import tiny_pairs
from tests.weights.test_initialize import BERT, SWIN, VIT, make_dual, save

WORDS = dict(name="words", words=("a", "b"), length=8)
SEEN = weights.Preprocessing(32, 40, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
COLORS = dict(image_mean=SEEN.mean, image_std=SEEN.std)
FLAGS = [f"--config.{place}.name=from_init" for place in ("model.image", "model.text", "tokenizer")]


def differ(node, path, towers=("image", "text"), tokenizer=None):
    """The lines about a model that takes weights from a path."""
    model, source = architecture.make_model(node), big_align.load(path)
    return describe_differences(model, source, towers, tokenizer)


@pytest.mark.parametrize(
    "part, change, flag",
    [
        ("image", dict(heads=4), "heads=4"),
        ("text", dict(pool="mean"), "pool=mean"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("image", dict(activation="quick_gelu"), "activation=quick_gelu"),
                ("image", dict(layer_norm_eps=1e-3), "layer_norm_eps=0.001"),
                ("text", dict(heads=4), "heads=4"),
                ("text", dict(activation="gelu_tanh"), "activation=gelu_tanh"),
            )
        ),
    ],
)
def test_what_no_array_shows_is_a_warning_and_changes_features(tmp_path, part, change, flag):
    theirs = dict(image=VIT, text=BERT)
    ours = dict(theirs)
    theirs[part] = theirs[part] | change
    save(tmp_path / "dual", make_dual(**theirs))
    (told, remedy) = differ(make_dual(**ours), tmp_path / "dual")
    assert told.startswith(f"  warning: model.{part}.{next(iter(change))} = ")
    assert told.endswith(f"no array shows; write --config.model.{part}.{flag}")
    assert f"--config.model.{part}.name=from_init" in remedy
    assert differ(make_dual(**theirs), tmp_path / "dual") == []

    source = big_align.load(tmp_path / "dual")
    image, text = jnp.ones((1, 32, 32, 3)), jnp.array([[5, 3, 9, 0]])
    image = image * jnp.linspace(-1, 1, 32)[:, None]
    inputs = dict(image=(image,), text=(text, text > 0))[part]
    verb = f"{part}_features"
    expected, other = (
        apply_model(architecture.make_model(node), source.variables, *inputs, method=verb)
        for node in (make_dual(**theirs), make_dual(**ours))
    )
    assert np.abs(expected - other).max() > 1e-6


def test_what_arrays_show_is_told_without_a_warning(tmp_path):
    save(tmp_path / "dual", make_dual(**COLORS), preprocessing=SEEN, tokenizer=WORDS)
    node = make_dual(VIT | dict(depth=2), BERT | dict(max_length=6), **COLORS)
    assert sorted(differ(node, tmp_path / "dual")) == [
        "  model.image.depth = 2, there 1",
        "  model.text.max_length = 6, there 8",
    ]
    # How a tower is computed and trained is its own affair.
    training = dict(dropout=0.3, dtype="bfloat16", remat="full")
    node = make_dual(VIT | training | dict(drop_path=0.1), BERT | training, **COLORS)
    assert differ(node, tmp_path / "dual") == []


def test_colors_and_tokenizers_are_compared(tmp_path):
    save(tmp_path / "dual", make_dual(**COLORS), preprocessing=SEEN, tokenizer=WORDS)
    save(tmp_path / "vit", VIT, preprocessing=SEEN)
    told = "\n".join(differ(make_dual(), tmp_path / "dual", ("image",)))
    assert told == "\n".join(differ(make_dual(), tmp_path / "vit", ("image",)))
    assert "warning: model.image_mean = (0.485, 0.456, 0.406), there (0.1, 0.2, 0.3)" in told
    assert "--config.model.image_std='(0.4, 0.5, 0.6)'" in told
    for words, length, same in ((("a", "b"), 5, True), (("b", "a"), 8, False)):
        tokenizer = WordTokenizer(words, length)
        lines = differ(make_dual(**COLORS), tmp_path / "dual", ("text",), tokenizer)
        assert (lines == []) == same
    assert "other ids of a text" in lines[0] and "--config.tokenizer.name=from_init" in lines[1]


FORMATS = ["big_align", "timm", "open_clip", "transformers"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "pair", ["clip", *(pytest.param(x, marks=pytest.mark.slow) for x in ("vit", "swin", "resnet"))]
)
def test_the_settings_of_every_format_are_those_of_its_own_weights(tmp_path, format, pair):
    """A config with what was exported is told nothing, and one of other heads is, if any exist."""
    image, text = tiny_pairs.PAIRS[pair]
    dual = format == "open_clip"
    if dual and pair != "clip" or format == "timm" and pair == "resnet":
        pytest.skip("this library has no such tower")
    node = make_dual(image, text, projection_bias=False) if dual else image
    variables = drawn(node)
    weights.save(tmp_path / "out", weights.Pretrained(node, variables, 32), format=format)
    whole = node if dual else make_dual(image, text)
    source = big_align.load(tmp_path / "out")
    if dual:
        whole |= {name: source.node[name] for name in COLORS}
    assert differ(whole, tmp_path / "out", ("image",)) == []
    if pair in ("clip", "vit"):
        (told, _) = differ(whole | dict(image=image | dict(heads=4)), tmp_path / "out", ("image",))
        assert "warning: model.image.heads = 4, there 2" in told


def drawn(node):
    text = jnp.ones((1, 4), jnp.int32), jnp.ones((1, 4), bool)
    inputs = (jnp.zeros((1, 32, 32, 3)), *(text if "image" in node else ()))
    return draw_variables(architecture.make_model(node), *inputs)


@pytest.mark.parametrize(
    "theirs, ours",
    [
        (ViT("ti/4", depth=1), ViT("s/4", width=192, depth=1, mlp_dim=768, heads=3)),
        (Swin("tiny", depths=(1, 1), heads=(3, 6)), Swin("small", depths=(1, 1), heads=(3, 6))),
        (ResNet("18", depths=(1, 1)), ResNet("34", depths=(1, 1), stem_width=64)),
        (EfficientNet("b0"), EfficientNet("b3", width=1.0, depth=1.0, dropout=0.5)),
        (Bert("mini", heads=4), Bert("base", width=256, depth=4, mlp_dim=1024, heads=4)),
    ],
)
def test_variants_that_mean_the_same_are_the_same(theirs, ours):
    size = None if isinstance(ours, Bert) else 32
    assert list(compare_towers(ours, theirs, size)) == []


def make_config(*flags):
    return load_config("tests/tiny_config.py", *flags)


def test_a_config_takes_the_settings_of_its_weights(tmp_path):
    """The model computes what the source does, to the last digit, and nothing had to be written."""
    text = BERT | dict(heads=4, activation="quick_gelu", pool="mean", dropout=0.25)
    node = make_dual(VIT | dict(heads=4, activation="gelu_tanh"), text, **COLORS)
    node |= dict(projection_bias=False)
    save(tmp_path / "dual", node, preprocessing=SEEN, tokenizer=WORDS)
    flags = [*FLAGS, f"--config.init.all={tmp_path / 'dual'}", "--config.model.text.dtype=bfloat16"]
    config = take_settings(make_config(*flags))
    assert config.tokenizer.to_dict() == WORDS | {"shorten": "truncate"}
    assert (config.model.text.dtype, config.model.text.dropout) == ("bfloat16", 0.25)
    assert (config.model.image_mean, config.model.image_std) == (SEEN.mean, SEEN.std)
    config.model.text.dtype = "float32"
    model, source = build_model(config), big_align.load(tmp_path / "dual")
    assert describe_differences(model, source, ("image", "text")) == []
    shapes = architecture.expected_shapes(config.model.to_dict(), 32)
    arrays, _ = read_initial_weights(shapes, config.init, model)
    image = jax.random.randint(jax.random.key(0), (2, 32, 32, 3), 0, 256).astype(jnp.uint8)
    tokens = jnp.array([[5, 3, 9, 0]])
    for verb, inputs in (("encode_image", (image,)), ("encode_text", (tokens, tokens > 0))):
        expected = apply_model(source.model, source.variables, *inputs, method=verb)
        actual = apply_model(model, architecture.unflatten(arrays), *inputs, method=verb)
        np.testing.assert_array_equal(actual, expected)


def test_one_tower_is_taken_and_the_rest_stays(tmp_path):
    save(tmp_path / "swin", SWIN)
    save(tmp_path / "text", BERT | dict(max_length=40), tokenizer=WORDS | dict(length=40))
    image, text = f"--config.init.image={tmp_path / 'swin'}", f"--config.init.text={tmp_path}/text"
    before = make_config()
    config = take_settings(make_config(FLAGS[0], image))
    assert {k: config.model.image[k] for k in SWIN} == SWIN
    assert config.model.text == before.model.text and config.tokenizer == before.tokenizer
    assert config.model.image_mean == before.model.image_mean  # the weights do not say theirs
    # What is read of a text stays that of the config, if there are positions for it.
    config = take_settings(make_config(FLAGS[1], FLAGS[2], text))
    assert (config.model.text.max_length, config.tokenizer.length) == (12, 12)
    config = take_settings(make_config(*FLAGS[1:], text, "--config.model.text.max_length=99"))
    assert (config.model.text.max_length, config.tokenizer.length) == (40, 12)


def test_a_config_takes_the_image_operations_of_its_weights(tmp_path):
    """Of training and of each evaluator that asks for them; a run that continues has its own."""
    save(tmp_path / "dual", make_dual(**COLORS), preprocessing=SEEN, tokenizer=WORDS)
    flags = [f"--config.init.all={tmp_path / 'dual'}", "--config.data.transform=from_init"]
    config = take_settings(make_config(*flags))
    assert config.data.transform == SEEN.transform
    evaluated = [node.transform for node in config.evaluators.values()]
    assert evaluated == [node.transform for node in make_config().evaluators.values()]
    name = next(iter(config.evaluators))
    flags.append(f"--config.evaluators.{name}.transform=from_init")
    first = take_settings(make_config(*flags), str(tmp_path / "run"))
    assert first.evaluators[name].transform == SEEN.transform
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(first.to_json())
    shutil.rmtree(tmp_path / "dual")
    again = take_settings(make_config(*flags), str(tmp_path / "run"))
    assert again.to_dict() == first.to_dict()
    save(tmp_path / "silent", make_dual(), tokenizer=WORDS)
    with pytest.raises(ConfigError, match="config.data.transform = 'from_init', but config.init"):
        take_settings(make_config(f"--config.init.all={tmp_path / 'silent'}", flags[1]))


def test_a_run_that_continues_needs_no_source(tmp_path):
    node = make_dual(VIT | dict(heads=4), BERT | dict(heads=4), projection_bias=False)
    save(tmp_path / "dual", node, preprocessing=SEEN, tokenizer=WORDS)
    flags = [*FLAGS, f"--config.init.all={tmp_path / 'dual'}"]
    first = take_settings(make_config(*flags), str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(first.to_json_best_effort())
    (tmp_path / "dual").rename(tmp_path / "elsewhere")
    again = take_settings(make_config(*flags), str(tmp_path / "run"))
    assert again.to_dict() == first.to_dict()
    later = make_config(*flags, "--config.model.text.dropout=0.5")
    assert take_settings(later, str(tmp_path / "run")).model.text.dropout == 0.5


def test_what_cannot_be_taken_is_told(tmp_path):
    save(tmp_path / "vit", VIT)
    source = f"--config.init.all={tmp_path / 'vit'}"
    for flags, message in (
        (FLAGS[:1], "config.init.image names nothing.*write --config.init.image=PATH"),
        ([FLAGS[1], source], "config.model.text.name = 'from_init', but config.init has no text"),
        ([FLAGS[2], source], "config.init has no files of a tokenizer"),
        (
            [FLAGS[0], source, "--config.model.image.fixed_statistics=True"],
            "config.model.image.fixed_statistics: 'vit' has no such field",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            take_settings(make_config(*flags))
