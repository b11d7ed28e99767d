"""`config.init`: what is taken, resized and fresh, and that a run starts from it."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import big_align
from big_align import weights
from big_align.config.overrides import load_config
from big_align.core.errors import ConfigError, WeightsMismatch
from big_align.models.parts import resize
from big_align.runs import train
from big_align.runs.initial_weights import read_initial_parameters, read_initial_weights
from big_align.weights.formats import architecture
from tests.models.applied import apply_model
from tests.models.drawn_variables import draw_variables
from tests.run_main import Run

VIT = dict(name="vit", variant="b/8", width=16, depth=1, mlp_dim=32, heads=2)
SWIN = dict(name="swin", width=8, depths=(1, 1), heads=(1, 2), window=4)
BERT = dict(name="bert", variant="mini", width=16, depth=1, mlp_dim=32, heads=2)
BERT |= dict(vocab_size=20, max_length=8)


def make_dual(image=VIT, text=BERT, **more):
    return dict(image=image, text=text, embedding_dim=12, image_projection=True) | more


def save(path, node, size=32, **more):
    """Draws weights for a model and leaves them in a folder."""
    text = jnp.ones((1, 4), jnp.int32), jnp.ones((1, 4), bool)
    image = jnp.zeros((1, *architecture.find_edges(size), 3))
    inputs = {"dual": (image, *text), "image": (image,), "text": text}[architecture.kind_of(node)]
    variables = draw_variables(architecture.make_model(node), *inputs)
    pretrained = weights.Pretrained(node, variables, size, **more)
    weights.save(path, pretrained, format="big_align")
    return pretrained.flat


def take(node, size, **sources):
    shapes = architecture.expected_shapes(node, size)
    arrays, report = read_initial_weights(shapes, {k: str(v) for k, v in sources.items()})
    for name, array in arrays.items():
        assert array.shape == shapes[name] or name.endswith("text/position_embedding")
    return arrays, "\n".join(report)


def test_towers_come_from_towers_and_from_dual_encoders(tmp_path):
    vit = save(tmp_path / "vit", VIT)
    tokenizer = {"name": "words", "words": ("a", "b"), "length": 8}
    seen = weights.Preprocessing(32, 40, mean=(0.1, 0.2, 0.3))
    more = dict(temperature=0.07, tokenizer=tokenizer, preprocessing=seen)
    dual = save(tmp_path / "dual", make_dual(SWIN), **more)
    arrays, report = take(make_dual(), 32, image=tmp_path / "vit", text=tmp_path / "dual")
    for name, array in arrays.items():
        kind, _, rest = name.partition("/")[2].partition("/")
        source = vit[f"params/{rest}"] if kind == "image" else dual[name]
        np.testing.assert_array_equal(array, source, err_msg=name)
    assert {name.split("/")[1] for name in arrays} == {"image", "text"}
    assert f"init.image = {tmp_path / 'vit'}: {len(vit)} of {len(vit)} arrays taken" in report
    assert "tokenizer: {'name': 'words'" in report and "temperature: 0.07" in report
    assert "images: resize_small(40)|central_crop(32), mean (0.1, 0.2, 0.3)" in report


def test_modules_without_weights_are_reported_and_the_narrower_source_wins(tmp_path):
    narrow = save(tmp_path / "vit", VIT | dict(depth=2))
    wide = save(tmp_path / "dual", make_dual(image_projection=False, embedding_dim=16))
    node = make_dual(embedding_dim=16)
    arrays, report = take(node, 32, all=tmp_path / "dual", image=tmp_path / "vit")
    assert "fresh: params/project_image/bias, params/project_image/kernel" in report
    assert "not used: params/image/block_01/attention/key/bias" in report
    assert not any("project_image" in name for name in arrays)
    name = "params/image/block_00/mlp/up/kernel"
    np.testing.assert_array_equal(arrays[name], narrow["params/block_00/mlp/up/kernel"])
    name = "params/text/block_00/mlp/up/kernel"
    np.testing.assert_array_equal(arrays[name], wide[name])


@pytest.mark.parametrize("name, leading", [("bert", 0), ("roberta", 2)])
def test_positions_of_texts_are_cut_to_a_shorter_length_and_continued_to_a_longer(
    tmp_path, name, leading
):
    text = BERT | dict(name=name)
    source = save(tmp_path / "text", text)["params/position_embedding"]
    path = "params/text/position_embedding"
    arrays, report = take(make_dual(text=text | dict(max_length=6)), 32, text=tmp_path / "text")
    np.testing.assert_array_equal(arrays[path], source[: 6 + leading])
    assert f"8 positions of texts there, the first 6 taken: {path}" in report
    arrays, report = take(make_dual(text=text | dict(max_length=20)), 32, text=tmp_path / "text")
    np.testing.assert_array_equal(arrays[path], source)  # the other rows stay fresh
    assert "8 positions of texts there, all of them taken, and 12 more are fresh" in report


@pytest.mark.slow_repeats
@pytest.mark.parametrize("name", ["bert", "roberta", "clip_text"])
def test_a_shorter_window_changes_no_text_that_fits(tmp_path, name):
    text = BERT | dict(name=name, variant="b" if name == "clip_text" else "mini", max_length=12)
    save(tmp_path / "text", text)
    node = make_dual(text=text | dict(max_length=6))
    flat = {
        k.replace("/text/", "/"): x for k, x in take(node, 32, text=tmp_path / "text")[0].items()
    }
    whole = big_align.load(tmp_path / "text")
    tokens = jnp.array([[5, 3, 9, 2, 0, 0]])
    mask = tokens > 0
    expected, _ = apply_model(whole.model, whole.variables, tokens, mask)
    short = architecture.make_model(node["text"])
    actual, _ = apply_model(short, architecture.unflatten(flat), tokens, mask)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow_repeats
@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("size, grid", [(48, (6, 6)), ((16, 64), (2, 8)), ((16, 72), (2, 9))])
def test_positions_of_a_vit_follow_the_grid_of_the_images(tmp_path, pool, size, grid):
    """2 x 8 patches are as many as the 4 x 4 of the source, which is no reason to take them."""
    image = VIT | dict(pool=pool)
    source = save(tmp_path / "dual", make_dual(image))
    arrays, report = take(make_dual(image), size, all=tmp_path / "dual")
    path = "params/image/position_embedding"
    np.testing.assert_array_equal(arrays[path], resize.resize_grid(source[path], grid))
    if pool == "cls":
        first = "params/image/class_position"
        np.testing.assert_array_equal(arrays[first], source[first])
    told = "positions of 4 x 4 patches there, interpolated to {} x {}".format(*grid)
    assert f"{told}: {path}" in report and "fresh" not in report


def test_rotary_positions_are_those_of_any_grid(tmp_path):
    image = VIT | dict(positions="rotary", activation="gelu")
    source = save(tmp_path / "dual", make_dual(image))
    arrays, report = take(make_dual(image), 64, all=tmp_path / "dual")
    assert arrays.keys() == source.keys() and "fresh" not in report and "interp" not in report
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, source[name])


def test_a_model_of_oblong_images_is_read_with_its_grid(tmp_path):
    """A grid is compared, not the number of its patches: 4 x 4 images are not taken for 2 x 8."""
    size = 16, 64
    flat = save(tmp_path / "vit", VIT, size)
    model = big_align.load(tmp_path / "vit")
    assert model.image_size == size and flat["params/position_embedding"].shape == (2, 8, 16)
    for edges in ((32, 32), (64, 16)):
        with pytest.raises(ValueError, match="is for 2 x 8 patches, an image of"):
            model.model.apply(model.variables, jnp.zeros((1, *edges, 3)))
    for format in ("timm", "transformers"):
        with pytest.raises(WeightsMismatch, match="square images, the model's are 16 x 64"):
            big_align.save(tmp_path / "out", model, format=format)
    config = tmp_path / "vit" / "config.json"
    config.write_text(re.sub(r"\[\s*16,\s*64\s*\]", "32", config.read_text()))
    with pytest.raises(WeightsMismatch, match=r"shape \[2, 8, 16\], .* the model has \[4, 4, 16\]"):
        big_align.load(tmp_path / "vit")


def test_biases_of_swin_follow_the_window(tmp_path):
    source = save(tmp_path / "swin", SWIN)
    arrays, report = take(make_dual(SWIN | dict(window=2)), 32, image=tmp_path / "swin")
    for block in ("block_00", "block_01"):
        path = f"{block}/attention/relative_position_bias"
        expected = resize.resize_relative_bias(source[f"params/{path}"], 2)
        np.testing.assert_array_equal(arrays[f"params/image/{path}"], expected)
        told = "windows of 4 there, interpolated to 2: "
        assert f"params/image/{path}" in report.split(told)[1].splitlines()[0]


def test_all_shapes_that_do_not_fit_are_listed_at_once(tmp_path):
    save(tmp_path / "dual", make_dual())
    node = make_dual(VIT | dict(mlp_dim=24), BERT | dict(vocab_size=30), embedding_dim=10)
    with pytest.raises(WeightsMismatch, match="config.init: 8 arrays do not fit") as caught:
        take(node, 32, all=tmp_path / "dual")
    message = str(caught.value)
    assert "image/block_00/mlp/up/kernel: [16, 32] in" in message
    assert "[16, 24] in the model" in message and "text/token_embedding" in message


def test_a_source_of_another_kind_is_an_error(tmp_path):
    save(tmp_path / "vit", VIT)
    with pytest.raises(WeightsMismatch, match="config.init.text: .*vit is a tower for images"):
        take(make_dual(), 32, text=tmp_path / "vit")
    save(tmp_path / "swin", SWIN)
    resnet = dict(name="resnet", variant="18", width=8, depths=(1, 1), stem="patch4")
    with pytest.raises(WeightsMismatch, match="nothing in .*swin has a place in the model"):
        take(make_dual(resnet), 32, image=tmp_path / "swin")


@pytest.mark.slow
def test_a_run_starts_from_weights_and_continues_from_its_own(tmp_path):
    """With hardly any learning rate what a run saves is what it started from."""
    first = Run(tmp_path / "first", devices=1)
    assert first.wait() == 0, first.err
    source = big_align.load(tmp_path / "first").flat
    flags = ["--config.schedule.learning_rate=1e-30", "--config.schedule.warmup_steps=0"]
    workdir = tmp_path / "second"
    flags.append(f"--config.init.all={tmp_path / 'first'}")
    inherited = "--config.init.temperature=all"
    second = Run(workdir, *flags, inherited, "--config.total_steps=1", devices=1)
    assert second.wait() == 0, second.err
    learned = big_align.load(tmp_path / "first").temperature
    assert big_align.load(workdir).temperature == pytest.approx(learned, rel=1e-6)
    assert f"init.all = {tmp_path / 'first'}: {len(source)} of {len(source)} arrays" in second.out
    check_parameters(workdir, source)

    save(tmp_path / "other", VIT)  # would not fit, but the checkpoint counts
    flags[-1] = f"--config.init.image={tmp_path / 'other'}"
    third = Run(workdir, *flags, "--config.total_steps=2", devices=1)
    assert third.wait() == 0, third.err
    assert "arrays taken" not in third.out and third.steps == [1, 2]
    check_parameters(workdir, source)


@pytest.mark.slow
def test_a_run_on_oblong_images_is_loaded_exported_and_evaluated_with_its_grid(tmp_path):
    flags = ["total_steps=1", "schedule.warmup_steps=0", "checkpoint.every=1"]
    flags += ["data.transform=resize(8, 32)", "model.image.name=vit", "model.image.variant=ti/4"]
    flags += ["model.image.width=16", "model.image.depth=1", "model.image.heads=2"]
    evaluated = "evaluators.{}.transform=resize({})"
    fitting = [evaluated.format(name, "8, 32") for name in ("digits", "pairs")]
    square = [evaluated.format(name, "16") for name in ("digits", "pairs")]

    def make(*flags):
        return load_config("tests/tiny_config.py", *(f"--config.{flag}" for flag in flags))

    with pytest.raises(ConfigError, match="is for 2 x 8 patches, an image of 16 x 16 has 4 x 4"):
        train.run(make(*flags, *square), str(tmp_path / "wrong"))
    train.run(make(*flags, *fitting), str(tmp_path / "run"))
    model = big_align.load(tmp_path / "run")
    assert model.image_size == (8, 32)
    big_align.save(tmp_path / "exported", model, format="big_align")
    again = big_align.load(tmp_path / "exported")
    assert again.image_size == (8, 32)
    image = jnp.arange(8 * 32 * 3, dtype=jnp.uint8).reshape(1, 8, 32, 3)
    zimg = [x.model.apply(x.variables, image, method="encode_image") for x in (model, again)]
    np.testing.assert_array_equal(*zimg)


def check_parameters(workdir, source):
    for name, array in big_align.load(workdir).flat.items():
        if name.startswith("params/"):
            np.testing.assert_allclose(array, source[name], rtol=0, atol=1e-25, err_msg=name)


@pytest.mark.parametrize(
    "name, stored",
    [("temperature", 0.02), pytest.param("log_scale", 3.912023, marks=pytest.mark.slow)],
)
def test_a_run_may_start_from_the_temperature_of_a_model(tmp_path, name, stored):
    save(tmp_path / "dual", make_dual(), temperature=0.02)
    save(tmp_path / "pairwise", make_dual(), temperature=0.02, bias=-9.5)
    save(tmp_path / "vit", VIT)
    path, params = str(tmp_path / "dual"), {"model": {}, name: jnp.float32(1)}
    for init in ({"all": path, "temperature": "all"}, {"temperature": path}):
        found, report = read_initial_parameters({"init": init}, params)
        assert found[name] == pytest.approx(stored, rel=1e-6) and report[0].endswith(": 0.02")
    assert read_initial_parameters({"init": {"all": path}}, params) == ({}, [])
    # The bias comes along where both have one.
    for source, given, bias in (
        ("pairwise", params | {"bias": jnp.float32(-10)}, -9.5),
        ("pairwise", params, None),
        ("dual", params | {"bias": jnp.float32(-10)}, None),
    ):
        found, _ = read_initial_parameters({"init": {"temperature": str(tmp_path / source)}}, given)
        assert found.get("bias") == bias and found[name] == pytest.approx(stored, rel=1e-6)
    for init, given, message in (
        ({"temperature": "all"}, params, "config.init.all, which names none"),
        ({"temperature": path}, {"model": {}}, "the objective learns no temperature"),
        ({"temperature": str(tmp_path / "vit")}, params, "vit has no temperature"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_initial_parameters({"init": init}, given)
