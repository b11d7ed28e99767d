"""timm: published shapes, architectures told by shapes, round trips, and the library itself."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from big_align import weights
from big_align.core.errors import WeightFileError, WeightsMismatch
from big_align.weights.arrays.weight_files import write_safetensors
from big_align.weights.formats import architecture, timm_format, timm_models
from tests.models.drawn_variables import draw_variables

pytestmark = pytest.mark.slow

CLIP = {"patch_bias": False, "input_norm": True, "layer_norm_eps": 1e-5}
VIT = {"width": 64, "depth": 2, "mlp_dim": 100, "heads": 4}

PUBLISHED = {  # by timm's name
    "resnet50": {"name": "resnet", "variant": "50"},
    "swin_tiny_patch4_window7_224": {"name": "swin", "variant": "tiny"},
    "swin_base_patch4_window7_224": {"name": "swin", "variant": "base"},
    "vit_base_patch16_224": {"name": "vit", "variant": "b/16"},
    "vit_large_patch14_clip_224": {"name": "vit", "variant": "l/14"} | CLIP,
    "tf_efficientnet_b0": {"name": "efficientnet", "variant": "b0", "head": True},
    "tf_efficientnet_l2": {"name": "efficientnet", "variant": "l2", "head": True},
}
LARGEST = "tf_efficientnet_l2"

TINY = {  # a node and the size of its images
    "resnet of basic blocks": (
        {"name": "resnet", "variant": "18", "width": 16, "depths": (1, 2, 1, 1), "stem_width": 64},
        48,
    ),
    "resnet of bottlenecks": (
        {"name": "resnet", "variant": "50", "width": 8, "depths": (2, 1, 1, 1), "stem_width": 64},
        64,
    ),
    "swin": (
        {"name": "swin", "width": 16, "depths": (2, 2), "heads": (2, 4), "window": 4},
        48,
    ),
    "vit": ({"name": "vit", "variant": "b/8"} | VIT, 32),
    "vit without a class token": ({"name": "vit", "variant": "b/8", "pool": "mean"} | VIT, 32),
    "vit of CLIP": (
        {"name": "vit", "variant": "b/16", "activation": "quick_gelu"} | VIT | CLIP,
        32,
    ),
    "efficientnet": ({"name": "efficientnet", "variant": "b0", "head": True}, 64),
    "efficientnet lite": ({"name": "efficientnet", "variant": "lite2", "head": True}, 75),
}


def make_image(size):
    image = np.random.default_rng(0).normal(size=(2, size, size, 3))
    return jnp.asarray(image, jnp.float32)


def make_pretrained(node, size, **more):
    variables = draw_variables(architecture.make_model(node), make_image(size))
    return weights.Pretrained(node, variables, size, **more)


def make_empty(node, size):
    """Makes a model whose arrays take no memory: only their shapes are of interest."""
    shapes = architecture.expected_shapes(node, size)
    empty = {path: np.broadcast_to(np.float32(0), shape) for path, shape in shapes.items()}
    return weights.Pretrained(node, architecture.unflatten(empty), size)


def make_arrays(arrays):
    return {name: make() if callable(make) else make for name, make in arrays.items()}


def same(nodes):
    """Tells whether two nodes are the same model, however its sizes are given."""
    settings = [architecture.settings(architecture.make_model(node)) for node in nodes]
    for each in settings:
        each["stem_width"] = each.get("stem_width") or each["width"]
        del each["variant"]
    return settings[0] == settings[1]


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != LARGEST])
def test_names_and_shapes_are_the_published_ones(reference_dir, name):
    state = json.loads((reference_dir / "timm_shapes.json").read_text())[name]["state"]
    files = timm_format.write(make_empty(PUBLISHED[name], 224))
    arrays = files["model.safetensors"]
    shapes = {k: list((v() if callable(v) else v).shape) for k, v in arrays.items()}
    assert shapes == state
    assert files["config.json"]["architecture"] == name


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_shapes_tell_the_model(reference_dir, name):
    state = json.loads((reference_dir / "timm_shapes.json").read_text())[name]["state"]
    shapes = {k: tuple(v) for k, v in state.items()}
    told = timm_format.TimmConfig("", {}, None)
    family = timm_format._find_family(shapes, told, "a file")
    node, size = family.read(shapes, told)
    assert size == (800 if name == LARGEST else 224)
    node = {"name": family.tower} | node
    if node["name"] == "vit":  # its variant holds the patch
        assert node["variant"].split("/")[1] == PUBLISHED[name]["variant"].split("/")[1]
    assert same([node, PUBLISHED[name]])


@pytest.mark.parametrize("name", TINY)
def test_what_goes_out_comes_in_and_goes_out_bit_by_bit(tmp_path, name):
    node, size = TINY[name]
    colors = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    seen = weights.Preprocessing(size, size + 9, False, *colors, half_to_even=True)
    first = make_pretrained(node, size, preprocessing=seen)
    weights.save(tmp_path / "out", first, format="timm")
    again = weights.read(tmp_path / "out")
    assert same([again.node, node])
    assert again.image_size == size and again.preprocessing == seen
    assert again.flat.keys() == first.flat.keys()
    for path, array in first.flat.items():
        np.testing.assert_array_equal(again.flat[path], array, err_msg=path)

    weights.save(tmp_path / "twice", again, format="timm")
    assert_same_files(tmp_path / "out", tmp_path / "twice")


def test_the_crop_of_evaluation_goes_out_if_it_is_larger_than_that_of_training(tmp_path):
    name = next(name for name, (node, _) in TINY.items() if node["name"] == "resnet")
    node, size = TINY[name]
    seen = weights.Preprocessing(size + 32, size + 68, half_to_even=True)
    weights.save(tmp_path, make_pretrained(node, size, preprocessing=seen), format="timm")
    assert weights.read(tmp_path).preprocessing == seen


@pytest.mark.parametrize(
    "name, heads, activation",
    [
        ("vit_base_patch16_siglip_gap_224", 12, "gelu"),
        ("vit_base_patch32_siglip_gap_256", 12, "gelu_tanh"),
        ("vit_large_patch16_siglip_gap_384", 16, "gelu"),
        ("vit_large_patch16_siglip_gap_512", 16, "gelu_tanh"),
        ("vit_so400m_patch14_siglip_gap_896", 16, "gelu"),
        ("vit_so400m_patch16_siglip_gap_384", 16, "gelu_tanh"),
        ("vit_giantopt_patch16_siglip_gap_256", 16, "gelu_tanh"),
    ],
)
def test_heads_and_activation_follow_the_name_as_in_timm(name, heads, activation):
    width = {"base": 768, "large": 1024, "so400m": 1152, "giantopt": 1536}[name.split("_")[1]]
    patch = int(re.search(r"patch(\d+)", name)[1])
    side = int(name.rsplit("_")[-1]) // patch
    shapes = {
        "patch_embed.proj.weight": (width, 3, patch, patch),
        "patch_embed.proj.bias": (width,),
        "pos_embed": (1, side**2, width),
        "blocks.0.mlp.fc1.weight": (4 * width, width),
    }
    node, _ = timm_models._read_vit(shapes, timm_format.TimmConfig(name, {}, None))
    assert (node["heads"], node["activation"]) == (heads, activation)


def assert_same_files(first, second):
    assert (first / "config.json").read_text() == (second / "config.json").read_text()
    arrays = [load_file(folder / "model.safetensors") for folder in (first, second)]
    assert arrays[0].keys() == arrays[1].keys()
    for name, array in arrays[0].items():
        np.testing.assert_array_equal(arrays[1][name], array, err_msg=name)


def test_a_classifier_and_counters_are_kept(tmp_path):
    kept = {
        "fc.weight": np.ones((5, 128), np.float32),
        "fc.bias": np.arange(5, dtype=np.float32),
        "bn1.num_batches_tracked": np.array(7),
        "classifier.1.weight": np.zeros((5, 128), np.float32),  # of another format
    }
    node, size = TINY["resnet of basic blocks"]
    seen = weights.Preprocessing(size, size, half_to_even=True)
    first = make_pretrained(node, size, kept=kept, source="timm", preprocessing=seen)
    weights.save(tmp_path / "out", first, format="timm")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["num_classes"] == config["pretrained_cfg"]["num_classes"] == 5
    again = weights.read(tmp_path / "out")
    for name in ("fc.weight", "fc.bias", "bn1.num_batches_tracked"):
        np.testing.assert_array_equal(again.kept[name], kept[name])
    assert "classifier.1.weight" not in again.kept
    weights.save(tmp_path / "twice", again, format="timm")
    assert_same_files(tmp_path / "out", tmp_path / "twice")


@pytest.mark.parametrize("name", [name for name in TINY if "efficientnet" not in name])
def test_a_bare_state_dict_tells_the_model(tmp_path, name):
    """All but what shapes cannot tell: heads are 64 wide then, and the activation is GELU."""
    node, size = TINY[name]
    if node["name"] == "vit":
        node = node | {"heads": 1, "activation": "gelu"}
    first = make_pretrained(node, size)
    path = tmp_path / "weights.safetensors"
    write_safetensors(path, timm_format.write(first)["model.safetensors"])
    bare = weights.read(path)
    assert same([bare.node, node]) and bare.preprocessing is None
    for array_path, array in first.flat.items():
        np.testing.assert_array_equal(bare.flat[array_path], array, err_msg=array_path)


def test_the_original_files_of_swin_are_read(tmp_path):
    """There a stage ends with the merging that timm begins the next one with."""
    node, size = TINY["swin"]
    first = make_pretrained(node, size)
    arrays = make_arrays(timm_format.write(first)["model.safetensors"])
    arrays = {k.replace("layers.1.downsample", "layers.0.downsample"): v for k, v in arrays.items()}
    arrays["layers.0.blocks.1.attn_mask"] = np.zeros((4, 16, 16), np.float32)
    arrays["layers.0.blocks.0.attn.relative_position_index"] = np.zeros((16, 16), np.int64)
    arrays["head.weight"] = np.zeros((3, 32), np.float32)
    write_safetensors(tmp_path / "swin.safetensors", arrays)
    loaded = weights.read(tmp_path / "swin.safetensors")
    for path, array in first.flat.items():
        np.testing.assert_array_equal(loaded.flat[path], array, err_msg=path)


def change(folder, part=None, **values):
    config = json.loads((folder / "config.json").read_text())
    (config[part] if part else config).update(values)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        (
            None,
            {"architecture": "vit_base_resnet50_384"},
            "'vit_base_resnet50_384' has no counterp",
        ),
        ("model_args", {"qk_norm": True}, "model_args has qk_norm, which our vit does not have"),
        ("model_args", {"global_pool": "max"}, "must pool its class token"),
        ("model_args", {"num_heads": 5}, "not a multiple of heads=5"),
        ("pretrained_cfg", {"input_size": [3, 32, 64]}, "only square images"),
        ("pretrained_cfg", {"input_size": [1, 32, 32]}, "1 channels"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, part, values, message):
    weights.save(tmp_path / "in", make_pretrained(*TINY["vit"]), format="timm")
    change(tmp_path / "in", part, **values)
    with pytest.raises(ValueError, match=message):
        weights.read(tmp_path / "in")


def test_arrays_that_do_not_belong_are_listed(tmp_path):
    arrays = make_arrays(timm_format.write(make_pretrained(*TINY["vit"]))["model.safetensors"])
    path = tmp_path / "weights.safetensors"
    write_safetensors(path, arrays | {"blocks.0.ls1.gamma": np.zeros(64, np.float32)})
    with pytest.raises(WeightsMismatch, match=r"no place for: blocks\.0\.ls1\.gamma"):
        weights.read(path)
    del arrays["blocks.1.mlp.fc2.bias"], arrays["norm.weight"]
    write_safetensors(path, arrays)
    with pytest.raises(
        WeightsMismatch, match=r"(?s)blocks\.1\.mlp\.fc2\.bias is miss.*norm\.weight"
    ):
        weights.read(path)
    del arrays["pos_embed"]
    write_safetensors(path, arrays)
    with pytest.raises(WeightsMismatch, match="looks like a vit of timm, but pos_embed is missing"):
        weights.read(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(WeightFileError, match="truncated"):
        weights.read(path)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("vit", {"layer_norm_eps": 1e-12}, "layer_norm_eps=1e-06, or 1e-05 as in CLIP.*1e-12"),
        ("vit", {"patch_bias": False}, "either patch_bias or input_norm"),
        ("vit", {"positions": "rotary"}, "needs positions='learned', the model has 'rotary'"),
        ("resnet of basic blocks", {"stem": "small"}, "needs stem='imagenet'"),
        ("resnet of basic blocks", {"depths": (1, 1)}, "four stages, not 2"),
        ("resnet of basic blocks", {"stem_width": 32}, "64 channels in its first convolution"),
        ("swin", {"window": 8}, "needs images of 64 or more"),
        ("efficientnet", {"head": False}, "needs head=True"),
        ("efficientnet", {"depth": 0.5}, "no EfficientNet of width=1.0 and depth=0.5"),
        ("efficientnet lite", {"depth": 0.5}, "no EfficientNet-Lite of width=1.1 and depth=0.5"),
    ],
)
def test_a_model_that_timm_does_not_have_writes_nothing(tmp_path, name, values, message):
    node, size = TINY[name]
    with pytest.raises(WeightsMismatch, match=message):
        weights.save(tmp_path / "out", make_empty(node | values, size), format="timm")
    assert not list(tmp_path.iterdir())


def test_text_towers_and_dual_encoders_are_not_timms(tmp_path):
    bert = weights.Pretrained({"name": "bert"}, {})
    with pytest.raises(WeightsMismatch, match="of the kinds resnet, swin, vit, efficientnet"):
        weights.save(tmp_path / "out", bert, format="timm")


@pytest.mark.interop
@pytest.mark.parametrize("name", TINY)
def test_timm_opens_what_we_write(tmp_path, name):
    torch, timm = pytest.importorskip("torch"), pytest.importorskip("timm")
    node, size = TINY[name]
    seen = weights.Preprocessing(size, size + 9, True, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    pretrained = make_pretrained(node, size, preprocessing=seen)
    weights.save(tmp_path / "out", pretrained, format="timm")
    source = f"local-dir:{tmp_path / 'out'}"
    model = timm.create_model(source, pretrained=True, num_classes=0).eval()

    image = make_image(size)
    variables = jax.tree.map(jnp.asarray, pretrained.variables)
    pooled, tokens = pretrained.model.apply(variables, image)
    with torch.no_grad():
        theirs = torch.from_numpy(np.array(image.transpose(0, 3, 1, 2)))
        features = model.forward_features(theirs).numpy()
        theirs = model(theirs).numpy()
    np.testing.assert_allclose(pooled, theirs, atol=1e-4, rtol=1e-4)
    if node["name"] in ("resnet", "efficientnet"):
        features = features.transpose(0, 2, 3, 1)
    features = features.reshape(len(features), -1, features.shape[-1])
    np.testing.assert_allclose(tokens, features[:, -tokens.shape[1] :], atol=1e-4, rtol=1e-4)

    data = timm.data.resolve_model_data_config(model)
    assert tuple(data["input_size"]) == (3, size, size)
    assert (tuple(data["mean"]), tuple(data["std"])) == (seen.mean, seen.std)
    resize, crop, *_ = timm.data.create_transform(**data).transforms
    assert resize.size == size + 9 and tuple(crop.size) == (size, size)

    torch.save(model.state_dict(), tmp_path / "weights.pt")
    bare = weights.read(tmp_path / "weights.pt")
    for path, array in pretrained.flat.items():
        np.testing.assert_array_equal(bare.flat[path], array, err_msg=path)


@pytest.mark.interop
def test_timm_opens_a_folder_with_a_classifier(tmp_path):
    timm = pytest.importorskip("timm")
    node, size = TINY["swin"]
    kept = {"head.fc.weight": np.ones((5, 32), np.float32), "head.fc.bias": np.ones(5, np.float32)}
    pretrained = make_pretrained(node, size, kept=kept, source="timm")
    weights.save(tmp_path / "out", pretrained, format="timm")
    model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    np.testing.assert_array_equal(model.head.fc.weight.detach().numpy(), kept["head.fc.weight"])
