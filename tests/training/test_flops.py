"""Model FLOPs: hand-computed, published, and the same however the work is laid out."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest

from big_align.devices import rematerialization
from big_align.losses import blocks
from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.losses.blockwise_supervised_contrastive import (
    blockwise_supervised_contrastive_loss,
)
from big_align.losses.sampled_cluster_discrimination import sampled_cluster_loss
from big_align.losses.sigmoid import blockwise_sigmoid_loss
from big_align.models.bert import Bert
from big_align.models.efficientnet import EfficientNet
from big_align.models.parts.depthwise import depthwise_conv
from big_align.models.resnet import ResNet
from big_align.models.swin import Swin
from big_align.models.vit import ViT
from big_align.objectives.align import Align
from big_align.objectives.parts.class_texts import ClassTexts
from big_align.parallel.shards import map_rows
from big_align.training import flops
from big_align.training.optimizers import make_optimizer
from big_align.training.state import describe_state
from big_align.training.step import accumulated_gradients, full_gradients
from tests import tiny
from tests.kernels.test_pair_tiles import needs_mosaic
from tests.objectives.test_class_texts import make_ids, make_tower

pytestmark = pytest.mark.slow

KEY = jax.random.PRNGKey(0)


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def convolve(x, kernel, stride=1, groups=1):
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups,
    )  # fmt: skip


def gradient(function):
    """Of all arguments, of a loss whose own gradient needs no product."""
    return jax.grad(lambda *x: function(*x).sum(), argnums=(0, 1))


def test_a_dense_layer_costs_a_product_forward_and_two_backward():
    x, kernel = array(32, 10), array(10, 20)
    assert flops.count(jnp.dot, x, kernel) == 2 * 32 * 10 * 20
    # The product itself is not needed for its gradients, but jax traces it.
    assert flops.count(gradient(jnp.dot), x, kernel) == 3 * 2 * 32 * 10 * 20
    assert flops.count(lambda x: jnp.exp(x).sum(), x) == 0


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 4, 8])
def test_a_convolution_costs_the_same_forward_and_in_each_gradient(stride, groups):
    function = functools.partial(convolve, stride=stride, groups=groups)
    shapes = array(5, 12, 12, 8), array(3, 3, 8 // groups, 16)
    once = 2 * 5 * (12 // stride) ** 2 * 16 * 9 * 8 // groups
    assert flops.count(function, *shapes) == once
    assert flops.count(gradient(function), *shapes) == 3 * once


def test_a_depthwise_convolution_counts_alike_on_every_platform():
    function = functools.partial(depthwise_conv, stride=2)
    shapes = array(4, 8, 8, 6), array(5, 5, 1, 6)
    assert flops.count(function, *shapes) == 2 * 4 * 4 * 4 * 25 * 6


def test_a_loop_counts_as_often_as_it_runs():
    x, kernel = array(8, 8), array(8, 8)
    once = 2 * 8**3

    def repeat(x, kernel):
        return jax.lax.fori_loop(0, 7, lambda _, x: x @ kernel, x)

    def nest(x, kernel):
        return jax.lax.scan(lambda x, _: (jax.jit(repeat)(x, kernel), None), x, length=3)[0]

    assert flops.count(repeat, x, kernel) == 7 * once
    assert flops.count(nest, x, kernel) == 21 * once
    assert flops.count(gradient(nest), x, kernel) == 3 * 21 * once


def test_a_loop_of_unknown_length_has_no_cost():
    def double(body):
        return lambda x: jax.lax.while_loop(lambda x: x.sum() < 9, body, x)

    assert math.isnan(flops.count(double(lambda x: x @ x), array(4, 4)))
    assert flops.count(double(lambda x: x + x), array(4, 4)) == 0


def test_a_choice_costs_its_dearest_branch():
    def choose(x, kernel):
        branches = (lambda x, _: x, lambda x, k: x @ k @ k, lambda x, k: x @ k)
        return jax.lax.switch(x[0, 0].astype(int), branches, x, kernel)

    assert flops.count(choose, array(4, 4), array(4, 4)) == 2 * 2 * 4**3


def test_work_on_a_mesh_counts_on_all_devices():
    mesh = tiny.make_mesh(8, fsdp=2)

    def work(rows, whole):
        return map_rows(lambda whole, rows: rows @ whole, whole, rows, mesh)

    assert flops.count(work, array(16, 5), array(5, 7)) == 2 * 16 * 5 * 7


@pytest.mark.parametrize(
    ("tower", "multiply_adds"),
    [
        (ViT(variant="b/16"), 17.58e9),  # Touvron et al. 2021, DeiT, table 5: 17.6
        (ResNet(variant="50"), 4.09e9),  # torchvision's table of weights: 4.09
        (EfficientNet(variant="b0", head=True), 0.39e9),  # Tan and Le 2019, table 2
        (Swin(variant="tiny"), 4.5e9),  # Liu et al. 2021, table 1
    ],
    ids=lambda x: type(x).__name__,
)
def test_towers_cost_what_is_published(tower, multiply_adds):
    image = array(1, 224, 224, 3)
    variables = nn.meta.unbox(jax.eval_shape(lambda x: tower.init(KEY, x, False), image))
    counted = flops.count(lambda v, x: tower.apply(v, x, False), variables, image)
    assert counted / 2 == pytest.approx(multiply_adds, rel=0.015)


TOWERS = {
    "vit": ViT(width=16, depth=2, mlp_dim=32, heads=2, variant="b/4"),
    "resnet": ResNet(variant="18", width=8, depths=(1, 1), stem="small"),
    "bert": Bert(width=16, depth=2, heads=2, mlp_dim=32, vocab_size=16, max_length=6),
}


@pytest.mark.parametrize("name", TOWERS)
def test_recomputation_is_no_progress(name):
    tower = TOWERS[name].clone(remat="full")
    if name == "bert":
        inputs = jax.ShapeDtypeStruct((4, 6), int), jax.ShapeDtypeStruct((4, 6), bool)
    else:
        inputs = (array(4, 8, 8, 3),)
    init = lambda *x: tower.init(KEY, *x, False)  # noqa: E731
    variables = nn.meta.unbox(jax.eval_shape(init, *inputs))

    def differentiate(tower):
        def loss(params, rest, *inputs):
            return tower.apply({**rest, "params": params}, *inputs, False)[0].sum()

        rest = {k: v for k, v in variables.items() if k != "params"}
        return flops.count(jax.grad(loss), variables["params"], rest, *inputs)

    stored = differentiate(TOWERS[name])
    assert differentiate(tower) > 1.2 * stored
    with rematerialization.left_out():
        assert differentiate(tower) == stored
    assert differentiate(tower) > 1.2 * stored


def describe(objective, mesh, batch):
    optimizer = make_optimizer(name="adamw", learning_rate=optax.constant_schedule(1e-3))
    return describe_state(objective, optimizer, batch, mesh)[0]


def encode_width(objective, weights, batch):
    return jax.eval_shape(objective.encode, *weights, batch, KEY)[0]["zimg"].shape[1]


def tiny_flops(devices=1, model=None, **settings):
    mesh = tiny.make_mesh(devices)
    objective = Align(model or tiny.make_model(), mesh, temperature=0.2, **settings)
    batch = tiny.make_batch(16)
    return flops.model_flops(objective, describe(objective, mesh, batch), batch, mesh)


def test_a_frozen_tower_costs_its_forward_pass_alone():
    batch, mesh = tiny.make_batch(16), tiny.make_mesh()
    objective = tiny.make_objective(mesh)
    state = describe(objective, mesh, batch)
    weights = state.params, state.model_state

    def count(*frozen):
        return flops.model_flops(objective, state, batch, mesh, frozen)

    def encode(name, *fields):
        embed = getattr(objective, name)
        return flops.count(lambda *x: embed(*x), *weights, {k: batch[k] for k in fields})

    text = encode("embed_text", "text", "text_mask")
    image = encode("embed_image", "image")
    first = 2 * 16 * 8 * 8 * 9 * 3 * 8  # the stem needs no gradient of the image
    # The gradient of the temperature needs that of the image embeddings.
    logits = 2 * 16 * 16 * encode_width(objective, weights, batch)
    texts = ("model/text", "model/project_text")
    images = tuple(f"model/{name}" for name in state.params["model"] if "text" not in name)
    assert count() - count(*texts) == 2 * text + logits
    assert count() - count(*images) == pytest.approx(2 * image - first, rel=1e-4)  # batch norm
    assert 0 < count() - count("model/text/block_00") < 2 * text


def test_a_step_costs_three_times_its_forward_pass():
    batch, mesh = tiny.make_batch(16), tiny.make_mesh()
    objective = tiny.make_objective(mesh)
    state = describe(objective, mesh, batch)
    weights = state.params, state.model_state
    encode = flops.count(lambda *x: objective.encode(*x, KEY)[0], *weights, batch)
    logits = 2 * 16 * 16 * encode_width(objective, weights, batch)
    first = 2 * 16 * 8 * 8 * 9 * 3 * 8  # the stem needs no gradient of the image
    assert tiny_flops() == 3 * (encode + logits) - first


def test_a_step_costs_the_same_on_every_number_of_devices_and_in_every_layout():
    plain = tiny_flops()
    assert tiny_flops(8) == plain
    model = tiny.make_model()
    model = model.clone(image=model.image.clone(remat="full"), text=model.text.clone(remat="full"))
    assert tiny_flops(model=model) == plain
    assert tiny_flops(keep_logits_bytes=0) == plain


def test_micro_batches_run_what_they_need_and_one_forward_pass_more():
    batch, mesh = tiny.make_batch(16), tiny.make_mesh()
    objective = tiny.make_objective(mesh)
    state = describe(objective, mesh, batch)
    weights = state.params, state.model_state

    def executed(gradients, **settings):
        step = lambda *x: gradients(objective, *x, KEY, mesh, **settings)  # noqa: E731
        return flops.count(step, *weights, batch)

    encode = flops.count(lambda *x: objective.encode(*x, KEY)[0], *weights, batch)
    whole = executed(full_gradients)
    assert whole == tiny_flops()
    for parts in (2, 4):
        assert executed(accumulated_gradients, microbatches=parts) == whole + encode


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 4])
def test_class_texts_cost_what_they_cost_at_once(devices):
    params, encode = make_tower()
    text, mask = make_ids(24)
    texts = ClassTexts(text, mask, tiny.make_mesh(devices), chunk=2)
    at_once = jax.grad(lambda params: encode(params, text, mask, None).sum())
    in_chunks = jax.grad(lambda params: texts.encode(encode, params).sum())
    expected = flops.count(at_once, params)
    assert flops.count(in_chunks, params) > 1.2 * expected
    with rematerialization.left_out():
        assert flops.count(in_chunks, params) == expected


def test_losses_in_blocks_cost_three_times_their_products():
    rows, classes, width = 16, 40, 8
    shapes = array(rows, width), array(classes, width)
    image_label = jax.ShapeDtypeStruct((rows, 2), int)

    def sampled(zimg, centers, labels):
        real = jnp.ones(classes, bool)
        return sampled_cluster_loss("mlcd", zimg, centers, real, labels, block=8)[0]

    def supervised(z):
        return blockwise_supervised_contrastive_loss(z, jnp.arange(rows), jnp.float32(1), block=4)

    with rematerialization.left_out():
        counted = flops.count(jax.grad(sampled, (0, 1)), *shapes, image_label)
        assert counted == 3 * 2 * rows * classes * width
        counted = flops.count(jax.grad(supervised), shapes[0])
        assert counted == 3 * 2 * rows * rows * width


@needs_mosaic
def test_kernels_cost_the_products_that_they_state(monkeypatch):
    rows, width = 512, 64
    monkeypatch.setattr(blocks, "_choose_tiles", lambda *_: blocks.compare_in_registers)
    shape = jax.ShapeDtypeStruct((rows, width), jnp.bfloat16)

    def softmax(x, y):
        return sum(blockwise_contrastive_loss(x, y, jnp.float32(9)))

    def sigmoid(x, y):
        return blockwise_sigmoid_loss(x, y, jnp.float32(9), jnp.float32(-9))

    product = 2 * rows**2 * width
    assert flops.count(softmax, shape, shape) == product
    assert flops.count(jax.grad(softmax, (0, 1)), shape, shape) == 4 * product
    assert flops.count(jax.grad(sigmoid, (0, 1)), shape, shape) == 3 * product
    with rematerialization.left_out():
        assert flops.count(jax.grad(softmax, (0, 1)), shape, shape) == 3 * product
    assert flops.count(jax.grad(softmax, (0, 1)), shape, shape) == 4 * product


def test_what_is_left_out_of_a_count_is_not_left_out_of_a_step():
    """JAX keeps traces, of which those for counting return zeros in place of recomputed logits."""
    rows, width = 16, 8
    shape = array(rows, width)

    def loss(x, y):
        return sum(blockwise_contrastive_loss(x, y, jnp.float32(9), block=4, keep_logits_bytes=0))

    with rematerialization.left_out():
        assert flops.count(jax.grad(loss, (0, 1)), shape, shape) == 3 * 2 * rows**2 * width
    assert flops.count(jax.grad(loss, (0, 1)), shape, shape) == 4 * 2 * rows**2 * width
