"""EfficientNet against published sizes and golden numbers."""

import collections
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mapped_weights import load_mapped

from big_align.interop.tables.efficientnet import EFFICIENTNET
from big_align.models import efficientnet
from big_align.models.efficientnet import EfficientNet

IMAGE = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)


def make_shapes(model):
    """Returns the variables' shapes without computing anything."""
    return nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), IMAGE))


def count_shapes(shapes):
    """Counts shapes without their axes of length 1, whatever the order of the axes."""
    return collections.Counter(tuple(sorted(n for n in shape if n > 1)) for shape in shapes)


@pytest.mark.slow
@pytest.mark.parametrize("variant", efficientnet.VARIANTS)
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
@pytest.mark.parametrize("variant, size", [("b5", 512), ("b7", 640), ("l2", 1376)])
def test_pooled_features_have_the_size_of_the_papers_embeddings(variant, size):
    model = EfficientNet(variant)
    shapes = jax.eval_shape(model.init_with_output, jax.random.key(0), IMAGE)[0]
    assert model.output_dim == shapes[0].shape[-1] == size


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
    rates = [s["drop_path"] for s in EfficientNet("b0", drop_path=0.3)._block_settings()]
    np.testing.assert_allclose(rates, np.linspace(0, 0.3, 16))


def test_published_dropout_is_taken_when_asked():
    assert EfficientNet("b7", dropout=None).coefficients == (2.0, 3.1, 0.5)
    assert EfficientNet("b7").coefficients == (2.0, 3.1, 0.0)


def test_large_kernels_carry_logical_axes():
    boxed = jax.eval_shape(EfficientNet("b0").init, jax.random.key(0), IMAGE)["params"]
    block = boxed["block_01"]
    assert boxed["stem_conv"]["kernel"].names == (None, None, "channels_in", "channels_out")
    assert block["expand_conv"]["kernel"].names == ("channels_in", "channels_out")
    assert block["depthwise_kernel"].names == (None, None, None, "channels_out")


def test_unknown_variant_is_an_error():
    with pytest.raises(ValueError, match="variant='b9' is unknown; choose one of 'b0'"):
        make_shapes(EfficientNet("b9"))
