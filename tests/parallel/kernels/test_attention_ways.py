"""Which way of attention is taken, and what is told about it."""

import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import assert_like_the_formula, draw, make_mask

from big_align.models.bert import Bert, Roberta
from big_align.models.clip_text import ClipText
from big_align.models.parts import attention
from big_align.models.swin import Swin
from big_align.models.vit import ViT
from big_align.parallel.devices import choices, rematerialization, traced
from big_align.parallel.kernels import attention_ways
from big_align.parallel.kernels.attention_dropout import Dropout
from big_align.parallel.kernels.attention_ways import Problem, choose_way
from big_align.parallel.meshes import batch_sharding, make_mesh
from big_align.training import flops
from tests.models.drawn_variables import draw_variables

CPU = types.SimpleNamespace(platform="cpu", device_kind="cpu")
TPU = types.SimpleNamespace(platform="tpu", device_kind="TPU v5 lite")
TPU_V3 = types.SimpleNamespace(platform="tpu", device_kind="TPU v3")
H100 = types.SimpleNamespace(
    platform="gpu", device_kind="NVIDIA H100 80GB HBM3", compute_capability="9.0"
)
V100 = types.SimpleNamespace(
    platform="gpu", device_kind="Tesla V100-SXM2-16GB", compute_capability="7.0"
)
T4 = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA T4", compute_capability="7.5")
MI300 = types.SimpleNamespace(
    platform="gpu", device_kind="AMD Instinct MI300X", compute_capability="gfx942"
)
EIGHT = types.SimpleNamespace(size=8)  # a mesh
IMAGES = Problem((16, 257, 16, 64), 257, "bfloat16", mesh=EIGHT)


@pytest.mark.parametrize(
    ("asked", "device", "changes", "way", "told"),
    [
        ("auto", CPU, {}, "plain", "plain for 257 tokens, 16 heads of 64, bfloat16$"),
        ("plain", TPU, {}, "plain", "plain for 257 tokens, 16 heads of 64, bfloat16$"),
        ("auto", TPU, {}, "pallas", "pallas for 257 tokens, 16 heads of 64, bfloat16$"),
        ("auto", TPU, {"dtype": "float32"}, "pallas", "float32$"),
        ("auto", TPU, {"dtype": "float16"}, "plain", "since the kernel is for bfloat16 and float"),
        ("auto", TPU, {"query": (16, 100, 16, 64)}, "pallas", "pallas for 100 to 257, 16 heads"),
        ("auto", TPU, {"dropped": True}, "pallas", "pallas for 257 tokens"),
        ("auto", TPU, {"biases": 2, "query": (32, 64, 4, 32), "keys": 64}, "pallas", "64 tokens"),
        ("auto", TPU, {"biases": 4}, "plain", "2 examples of a device are not whole turns of 4"),
        ("auto", TPU, {"biases": 1, "query": (8, 577, 12, 64), "keys": 577}, "plain", "not fit"),
        ("auto", TPU, {"query": (20, 257, 16, 64)}, "plain", "20 examples do not divide over 8"),
        ("auto", TPU, {"query": (16, 257, 16, 104)}, "plain", "does not fit into the vector mem"),
        ("auto", TPU, {"mesh": None}, "plain", "not known which devices share the batch"),
        ("auto", TPU_V3, {}, "plain", "since these chips have no products of bfloat16"),
        ("auto", H100, {"dtype": "float32"}, "plain", "since the kernel is for bfloat16 and fl"),
        ("auto", V100, {}, "plain", "since the kernel is for NVIDIA GPUs|compute"),
        ("auto", T4, {}, "plain", "since the kernel is for compute capability 8.0 on"),
        ("auto", MI300, {}, "plain", "since the kernel is for NVIDIA GPUs"),
        ("triton", CPU, {"query": (16, 50, 2, 64), "keys": 50}, "triton", "triton for 50 tokens"),
        ("triton", CPU, {}, "triton", "triton for 257 tokens, 16 heads of 64, bfloat16$"),
        ("triton", H100, {"query": (16, 257, 8, 136)}, "plain", "heads of 128 channels at most$"),
        ("cudnn", CPU, {}, "plain", "since the kernel is for NVIDIA GPUs"),
        ("pallas", CPU, {"mesh": None}, "pallas", "pallas for 257 tokens"),
        ("cudnn", H100, {"dropped": True}, "plain", "since cuDNN's kernel has no dropout of weig"),
        ("cudnn", H100, {"biases": 1}, "plain", "since cuDNN's kernel adds no bias$"),
        ("triton", H100, {"dropped": True}, "plain", "kernel for long sequences has no dropout"),
    ],
)  # fmt: skip
def test_the_way_follows_from_device_type_and_shape(asked, device, changes, way, told):
    taken, line = choose_way(asked, IMAGES._replace(**changes), device)
    assert taken == way and line.startswith(f"attention: {way} for")
    assert re.search(told, line), line


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel needs jax 0.11")
def test_short_sequences_have_a_kernel_of_their_own():
    short = IMAGES._replace(query=(16, 50, 16, 64), keys=50)
    assert choose_way("auto", short, H100)[0] == "triton"
    for changes in {"dropped": True}, {"biases": 2}:
        assert choose_way("auto", short._replace(**changes), H100)[0] == "triton", changes
    for changes in {"dtype": "float32"}, {"mesh": None}:
        assert choose_way("triton", short._replace(**changes), H100)[0] == "plain", changes
    assert choose_way("triton", IMAGES, H100)[0] == "triton"


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel needs jax 0.11")
@pytest.mark.parametrize(("tokens", "channels"), [(129, 64), (257, 64), (577, 64), (77, 80)])
def test_long_sequences_are_left_to_cudnn_until_told_otherwise(monkeypatch, tokens, channels):
    long = IMAGES._replace(query=(16, tokens, 16, channels), keys=tokens)
    assert choose_way("auto", long, H100)[0] != "triton"
    monkeypatch.setattr(attention_ways, "MOST_AUTO_TOKENS", 640)
    assert choose_way("auto", long, H100)[0] == "triton"
    assert choose_way("auto", long._replace(keys=641), H100)[0] != "triton"


def test_cudnn_is_taken_where_jax_lets_it(monkeypatch):
    def both_passes_of_the_formula(query, key, value, *, implementation, **settings):
        return jnp.zeros_like(query)

    monkeypatch.setattr(jax.nn, "dot_product_attention", both_passes_of_the_formula)
    assert choose_way("auto", IMAGES, H100) == (
        "cudnn",
        "attention: cudnn for 257 tokens, 16 heads of 64, bfloat16, padded to 258",
    )

    def refuse(*_, **__):
        raise NotImplementedError("The head dim must be <= 128")

    monkeypatch.setattr(jax.nn, "dot_product_attention", refuse)
    taken, line = choose_way("auto", IMAGES, H100)
    assert taken == "plain" and line.endswith("since JAX says: The head dim must be <= 128")


def test_a_batch_of_open_size_is_computed_plainly():
    """So that an exported program runs on every kind of device."""
    (rows,) = jax.export.symbolic_shape("b")
    problem = IMAGES._replace(query=(rows, 257, 16, 64), mesh=None)
    for device in (TPU, H100):
        taken, line = choose_way("auto", problem, device)
        assert taken == "plain" and line.endswith("since the size of the batch is left open")


def test_an_unknown_name_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match=r"attention='flash' is unknown; .*'auto'.*'pallas'"):
        attention.attend(*draw(4, 1, 8)[:3], None, way="flash")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("way", attention_ways.WAYS)
def test_every_name_gives_the_formula(way, causal):
    arrays, mask = draw(12, 2, 64), make_mask(3, 12)
    attend = lambda q, k, v: attention.attend(q, k, v, mask, causal=causal, way=way)  # noqa: E731
    assert_like_the_formula(attend, arrays, mask, causal)


def test_what_is_taken_is_noted_once_a_shape():
    def layers(x, y):
        for each in (x, x, y):
            attention.attend(each, each, each, None, way="pallas")

    shapes = [jax.ShapeDtypeStruct((2, n, 2, 64), jnp.float32) for n in (5, 6)]
    with choices.collect() as lines:
        jax.eval_shape(layers, *shapes)
    assert list(lines) == [
        f"attention: pallas for {n} tokens, 2 heads of 64, float32" for n in (5, 6)
    ]


def test_devices_that_share_a_batch_run_the_kernel_on_their_own_rows():
    mesh = make_mesh()
    x = jax.device_put(jnp.ones((16, 5, 2, 64)), batch_sharding(mesh))

    @jax.jit
    def run(x):
        with traced.weights_on(mesh):
            return attention.attend(x, x, x, None, way="pallas")

    text = run.lower(x).compile().as_text()
    assert not any(name in text for name in ("all-gather", "all-reduce", "all-to-all"))


@pytest.mark.parametrize("way", ["plain", "pallas"])
def test_model_flops_are_those_of_the_formula(way):
    x = jnp.ones((2, 10, 3, 16))

    def loss(x):
        return attention.attend(x, x, x, None, way=way).sum()

    with rematerialization.left_out():
        assert flops.count(loss, x) == 2 * 2 * 2 * 3 * 10 * 10 * 16
        assert flops.count(jax.grad(loss), x) == 3 * 2 * 2 * 2 * 3 * 10 * 10 * 16


def lines_of(tower, *inputs, train=False):
    """What a tower notes when it is traced."""

    def run():
        rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
        return tower.init_with_output(rngs, *inputs, train)

    with choices.collect() as lines:
        jax.eval_shape(run)
    return list(lines)


TEXT = jnp.ones((2, 6), jnp.int32), jnp.ones((2, 6), bool)
SMALL = {"width": 16, "depth": 2, "mlp_dim": 32, "heads": 2, "attention": "pallas"}
WORDS = SMALL | {"vocab_size": 20, "max_length": 8}


def test_swin_passes_the_way_on():
    tower = Swin(width=8, depths=(2,), heads=(2,), window=4, attention="pallas")
    told = "attention: pallas for 16 tokens, 2 heads of 4, float32"
    assert lines_of(tower, jnp.ones((2, 32, 32, 3)), train=True) == [told]


@pytest.mark.parametrize("way", ["pallas", pytest.param("triton", marks=pytest.mark.slow)])
def test_dropout_is_the_same_draw_in_every_way_and_only_in_training(way):
    tower = Bert(**WORDS | {"attention": way}, dropout=0.5)
    variables = draw_variables(tower, *TEXT)

    def run(train, key=0):
        return tower.apply(variables, *TEXT, train, rngs={"dropout": jax.random.key(key)})[0]

    again, other = run(True), run(True, 1)
    plain = tower.clone(attention="plain")
    same = plain.apply(variables, *TEXT, True, rngs={"dropout": jax.random.key(0)})[0]
    np.testing.assert_allclose(again, same, atol=1e-5)
    assert np.abs(again - other).max() > 0.1
    np.testing.assert_allclose(run(False), tower.clone(dropout=0.0).apply(variables, *TEXT)[0])


def test_dropped_weights_average_to_the_weights():
    q, k, v, _ = draw(6, 2, 8)
    exact = attention.attend(q, k, v, None)

    @jax.vmap
    def attend(key):
        return attention.attend(q, k, v, None, dropout=Dropout(0.3, key))

    draws = attend(jax.random.split(jax.random.key(0), 4000))
    error = draws.std(0) / 4000**0.5
    assert np.abs((draws.mean(0) - exact) / error).max() < 4.5


@pytest.mark.parametrize("tower", [ViT("ti/4", **SMALL), ViT("ti/4", **SMALL, positions="rotary")])
def test_image_towers_pass_the_way_on(tower):
    image = jnp.ones((2, 16, 16, 3))
    told = "attention: pallas for 17 tokens, 2 heads of 8, float32"
    assert lines_of(tower, image, train=True) == [told]
    with pytest.raises(ValueError, match="attention='flash' is unknown"):
        lines_of(tower.clone(attention="flash"), image)


@pytest.mark.parametrize("tower", [ClipText(**WORDS), Bert(**WORDS), Roberta(**WORDS)])
def test_text_towers_pass_the_way_on(tower):
    taken = "attention: pallas for 6 tokens, 2 heads of 8, float32"
    for train in (False, True):
        assert lines_of(tower, *TEXT, train=train) == [taken]
    with pytest.raises(ValueError, match="attention='flash' is unknown"):
        lines_of(tower.clone(attention="flash"), *TEXT)


def test_the_first_keys_are_those_of_a_slice():
    q, k, v, _ = draw(7, 2, 8)
    some = attention.attend(q, k, v, None, keys=5)
    np.testing.assert_allclose(some, attention.attend(q, k[:, :5], v[:, :5], None), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_token_that_a_kernel_wants_changes_nothing(monkeypatch, positions):
    """Towers add it before their first block, and drop it after the last."""
    image = jax.random.normal(jax.random.key(0), (2, 16, 16, 3))
    towers = (ViT("ti/4", **SMALL, positions=positions), (image,)), (ClipText(**WORDS), TEXT)
    seen = []

    def attend_plainly(q, k, v, mask, causal, mesh, real=None):
        seen.append(k.shape[1])
        return attention.attend(q, k, v, mask, causal=causal, way="plain", keys=real)

    for tower, inputs in towers:
        inputs = tuple(x[:, :5] if x.ndim == 2 else x for x in inputs)
        variables = draw_variables(tower, *inputs)
        expected = tower.apply(variables, *inputs)
        with monkeypatch.context() as patch:
            choose = attention_ways.choose_way

            def take_cudnn(asked, problem, device, choose=choose):
                return choose(asked, problem, device) if asked == "plain" else ("cudnn", "")

            patch.setattr(attention_ways, "choose_way", take_cudnn)
            patch.setattr(attention.cudnn_attention, "attend_by_cudnn", attend_plainly)
            made = tower.apply(variables, *inputs)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), made, expected)
    assert set(seen) == {18, 6}
