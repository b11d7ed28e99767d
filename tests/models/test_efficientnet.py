"""EfficientNet against published sizes and golden numbers."""

import collections
import functools
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_variables import draw_variables
from mapped_weights import load_mapped

from big_align.models import efficientnet
from big_align.models.efficientnet import EfficientNet
from big_align.models.parts.batch_norm import BatchNorm
from big_align.weights.tables.efficientnet import EFFICIENTNET

IMAGE = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)


def make_shapes(model):
    """Returns the variables' shapes without computing anything."""
    return nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), IMAGE))


def count_shapes(shapes):
    """Counts shapes without their axes of length 1, whatever the order of the axes."""
    return collections.Counter(tuple(sorted(n for n in shape if n > 1)) for shape in shapes)


WITH_CLASSIFIER = {  # parameters of the published Lite models, with 1000 classes
    "lite0": 4_652_008,
    "lite1": 5_416_680,
    "lite2": 6_092_072,
    "lite3": 8_197_096,
    "lite4": 13_006_568,
}
LARGE = [variant for variant in efficientnet.VARIANTS if variant not in WITH_CLASSIFIER]


@pytest.mark.slow
@pytest.mark.parametrize("variant", LARGE)
def test_parameters_are_the_published_ones(variant, reference_dir):
    published = json.loads((reference_dir / "timm_shapes.json").read_text())
    published = published[f"tf_efficientnet_{variant}"]
    variables = make_shapes(EfficientNet(variant, head=True))

    assert sum(x.size for x in jax.tree.leaves(variables["params"])) == published["params"]
    counters = "num_batches_tracked"
    expected = [s for name, s in published["state"].items() if not name.endswith(counters)]
    ours = [x.shape for x in jax.tree.leaves(variables)]
    assert count_shapes(ours) == count_shapes(expected)


@pytest.mark.slow
@pytest.mark.parametrize("variant", WITH_CLASSIFIER)
def test_parameters_of_lite_are_the_published_ones(variant):
    model = EfficientNet(variant, head=True)
    params = jax.tree.leaves(make_shapes(model)["params"])
    classifier = (model.output_dim + 1) * 1000
    assert sum(x.size for x in params) + classifier == WITH_CLASSIFIER[variant]


@pytest.mark.slow
@pytest.mark.parametrize("variant, size", [("b5", 512), ("b7", 640), ("l2", 1376)])
def test_pooled_features_have_the_size_of_the_papers_embeddings(variant, size):
    model = EfficientNet(variant)
    shapes = jax.eval_shape(model.init_with_output, jax.random.key(0), IMAGE)[0]
    assert model.output_dim == shapes[0].shape[-1] == size


@pytest.mark.slow
def test_golden_numbers(reference_dir):
    folder = reference_dir / "hf-efficientnet"
    config, io = json.loads((folder / "config.json").read_text()), np.load(folder / "io.npz")
    width, depth = config["width_coefficient"], config["depth_coefficient"]
    model = EfficientNet("b0", width=width, depth=depth, head=True)
    image = jnp.asarray(io["pixel_values"].transpose(0, 2, 3, 1))
    variables = load_mapped(folder, EFFICIENTNET, model, image)

    pooled, tokens = jax.jit(model.apply)(variables, image)
    np.testing.assert_allclose(pooled, io["pooler_output"], atol=1e-4)
    expected = io["last_hidden_state"].transpose(0, 2, 3, 1).reshape(tokens.shape)
    np.testing.assert_allclose(tokens, expected, atol=1e-4)


def test_depth_grows_the_drop_rate_linearly():
    """By i / n, as the authors have it: B0's last of 16 blocks drops 15/16 of the rate."""
    rates = [s["drop_path"] for s in EfficientNet("b0", drop_path=0.32)._block_settings()]
    np.testing.assert_allclose(rates, 0.02 * np.arange(16))


def test_published_dropout_is_taken_when_asked():
    sizes = {"width": 2.0, "depth": 3.1, "lite": False}
    assert EfficientNet("b7", dropout=None).resolved == sizes | {"dropout": 0.5}
    assert EfficientNet("b7").resolved == sizes | {"dropout": 0.0}


def test_large_kernels_carry_logical_axes():
    boxed = jax.eval_shape(EfficientNet("b0").init, jax.random.key(0), IMAGE)["params"]
    block = boxed["block_01"]
    assert boxed["stem_conv"]["kernel"].names == (None, None, "channels_in", "channels_out")
    assert block["expand_conv"]["kernel"].names == ("channels_in", "channels_out")
    assert block["depthwise_kernel"].names == (None, None, None, "channels_out")


@pytest.mark.slow_repeats
@pytest.mark.parametrize(("stride", "expansion"), [(1, 6), (2, 6), (1, 1)])
def test_a_block_of_lite_is_its_convolutions_cut_off_at_0_and_6(stride, expansion):
    """At an odd edge, where the padding of a stride of 2 is the same on both sides."""
    image = jax.random.normal(jax.random.key(0), (2, 7, 7, 4))
    norm = functools.partial(BatchNorm, 0.99, group_size=None)
    sizes = {"channels": 4, "kernel": 3, "stride": stride, "expansion": expansion}
    block = efficientnet.InvertedBlock(
        **sizes, drop_path=0.0, lite=True, norm=norm, dtype="float32"
    )
    variables = draw_variables(block, image, False)
    params, statistics = variables["params"], variables["batch_stats"]
    assert not {"squeeze_conv", "excite_conv"} & params.keys()

    def normalize(x, name):
        own, seen = params[name], statistics[name]
        return (x - seen["mean"]) / np.sqrt(seen["var"] + 1e-3) * own["scale"] + own["bias"]

    x = np.asarray(image)
    if expansion > 1:
        x = np.clip(normalize(x @ params["expand_conv"]["kernel"], "expand_norm"), 0, 6)
    kernel = np.asarray(params["depthwise_kernel"])[:, :, 0]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    places = [(i, j) for i in range(3) for j in range(3)]
    windows = [padded[:, i : i + 7, j : j + 7] * kernel[i, j] for i, j in places]
    x = sum(windows)[:, ::stride, ::stride]
    x = np.clip(normalize(x, "depthwise_norm"), 0, 6)
    x = normalize(x @ params["project_conv"]["kernel"], "project_norm")
    expected = x + image if stride == 1 else x
    np.testing.assert_allclose(block.apply(variables, image, False), expected, atol=1e-5)


@pytest.mark.slow
def test_lite_is_set_apart_from_its_sizes():
    """A variant of the same sizes made Lite by hand is the Lite one."""
    by_hand, lite = EfficientNet("b3", lite=True), EfficientNet("lite3")
    assert by_hand.resolved == lite.resolved
    assert make_shapes(by_hand) == make_shapes(lite)
    assert EfficientNet("lite3", lite=False).stage_depths == EfficientNet("b3").stage_depths


@pytest.mark.parametrize("variant", efficientnet.VARIANTS)
def test_sizes_tell_variants_apart(variant):
    tower = EfficientNet(variant)
    sizes = sum(tower.stage_depths), tower.stem_channels, tower.output_dim, tower.resolved["lite"]
    assert efficientnet.find_variant(*sizes) == variant
    assert efficientnet.find_variant(sizes[0], 33, *sizes[2:]) is None


def test_unknown_variant_is_an_error():
    with pytest.raises(ValueError, match="variant = 'b9' is unknown; known: b0"):
        make_shapes(EfficientNet("b9"))
