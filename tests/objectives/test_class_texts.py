"""Class texts in chunks over devices: the numbers of encoding them at once, in bounded memory."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.data.labels.classes import ClassList
from big_align.data.text.tokenizers import WordTokenizer
from big_align.objectives.parts.class_texts import ClassTexts, tokenize_classes
from tests import tiny
from tests.device_counts import DEVICES

WORDS = ("a", "photo", "of", *(f"w{i}" for i in range(10)))


def make_ids(count, length=tiny.LENGTH):
    rng = np.random.default_rng(count)
    text = rng.integers(1, tiny.VOCAB, (count, length)).astype(np.int32)
    return text, np.arange(length) < rng.integers(2, length + 1, count)[:, None]


@functools.cache
def make_tower(dropout=0.0):
    """A text tower's parameters, and the function that `ClassTexts` calls."""
    model = tiny.make_model(dropout=dropout)
    batch = tiny.make_batch(1)
    params = model.init(
        jax.random.key(0), *(jnp.asarray(batch[k]) for k in ("image", "text", "text_mask"))
    )["params"]

    def encode(params, text, text_mask, key):
        rngs = {} if key is None else {"dropout": key}
        texts = jnp.asarray(text), jnp.asarray(text_mask)
        train = key is not None
        return model.apply({"params": params}, *texts, train, rngs=rngs, method="encode_text")

    return nn.meta.unbox(params), encode


def weigh(ztxt):
    """A sum that tells rows apart."""
    return (ztxt * jnp.sin(jnp.arange(ztxt.size).reshape(ztxt.shape))).sum()


@pytest.mark.parametrize(
    "devices, count, chunk",
    [(1, 13, 4), (1, 5, 100), (8, 1, 1), (8, 5, 1), (8, 8, 1), (8, 13, 1), (8, 33, 3)],
)
@pytest.mark.slow
def test_equals_encoding_at_once_in_value_and_gradient(devices, count, chunk):
    text, mask = make_ids(count)
    params, encode = make_tower()
    texts = ClassTexts(text, mask, tiny.make_mesh(devices), chunk)
    assert len(texts.mask) % devices == 0 and texts.mask.sum() == count
    assert len(texts.mask) < count + devices * min(chunk, count)

    def in_chunks(params):
        ztxt = texts.encode(encode, params)[texts.mask]
        return weigh(ztxt), ztxt

    def at_once(params):
        ztxt = encode(params, text, mask, None)
        return weigh(ztxt), ztxt

    ours, plain = (jax.jit(jax.grad(f, has_aux=True))(params) for f in (in_chunks, at_once))
    for a, d in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, d, rtol=0, atol=2e-5 * max(np.abs(d).max(), 1e-2))


@pytest.mark.slow
def test_every_chunk_has_its_own_dropout_which_the_key_decides():
    text, mask = (np.tile(x[:1], (16, 1)) for x in make_ids(1))
    params, encode = make_tower(dropout=0.5)
    texts = ClassTexts(text, mask, tiny.make_mesh(4), chunk=2)
    assert texts.chunks == 2
    draw = jax.jit(lambda seed: texts.encode(encode, params, jax.random.PRNGKey(seed)))
    first = np.asarray(draw(0))
    np.testing.assert_array_equal(first, draw(0))
    assert np.abs(first - draw(1)).max() > 1e-3
    gap = np.abs(first[:, None] - first).max(-1)
    assert (gap[~np.eye(16, dtype=bool)] > 1e-4).all()
    # The backward pass computes a chunk again, with the same draws.
    grad = jax.jit(jax.grad(lambda p: weigh(texts.encode(encode, p, jax.random.PRNGKey(0)))))
    plain = jax.jit(jax.grad(lambda p: _sum_of_chunks(encode, p, text, mask)))
    for a, d in zip(jax.tree.leaves(grad(params)), jax.tree.leaves(plain(params)), strict=True):
        np.testing.assert_allclose(a, d, rtol=0, atol=2e-5 * max(np.abs(d).max(), 1e-2))


def _sum_of_chunks(encode, params, text, mask):
    keys = jax.random.split(jax.random.PRNGKey(0), 8)
    parts = [encode(params, text[:2], mask[:2], key) for key in keys]
    return weigh(jnp.concatenate(parts))


@pytest.mark.slow
@pytest.mark.parametrize("devices", DEVICES)
def test_memory_does_not_grow_with_the_classes_beyond_their_embeddings(devices):
    params, encode = make_tower()
    chunk = 8
    width = params["project_text"]["kernel"].shape[1]

    def count_bytes(chunks, in_chunks=True):
        text, mask = make_ids(chunks * chunk * devices)
        texts = ClassTexts(text, mask, tiny.make_mesh(devices), chunk if in_chunks else len(text))
        grad = jax.jit(jax.grad(lambda p: jnp.sum(texts.encode(encode, p) ** 3)))
        return grad.lower(params).compile().memory_analysis().temp_size_in_bytes

    rows = 14 * chunk  # more on a device
    ids = 2 * (4 + 1) * tiny.LENGTH  # and a mask of them, laid out in chunks
    growth = count_bytes(16) - count_bytes(2)
    assert growth <= rows * (3 * 4 * width + ids)
    assert growth < (count_bytes(16, in_chunks=False) - count_bytes(2, in_chunks=False)) / 5


def test_class_texts_are_as_long_as_the_longest():
    tokenizer = WordTokenizer(WORDS, length=12)
    names, means = ("w1", "w2 w3", "w1"), ("w5.", "w4", "w2")  # classes of one name
    classes = ClassList(names, means, ("",) * 3, synonyms=((), ("w3",), ()))  # which are not read
    text, mask = tokenize_classes(classes, "a photo of a {}, {description}", tokenizer)
    longer = tokenizer(["a photo of a w1, w5", "a photo of a w2 w3, w4", "a photo of a w1, w2"])
    assert text.shape == (3, 8)
    for ours, whole in zip((text, mask), longer, strict=True):
        np.testing.assert_array_equal(ours, whole[:, :8])
        assert not whole[:, 8:].any()


@pytest.mark.parametrize(
    "wrong, message", [({"chunk": 0}, "chunk = 0 must be at least 1"), ({"count": 0}, "no class")]
)
def test_nothing_to_encode_is_named(wrong, message):
    options = {"chunk": 1, "count": 3} | wrong
    with pytest.raises(ValueError, match=message):
        ClassTexts(*make_ids(options["count"]), tiny.make_mesh(), options["chunk"])
