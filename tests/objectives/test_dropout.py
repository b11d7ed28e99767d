"""Texts are trained in training mode: with dropout, another key gives other embeddings."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from big_align.data.labels.classes import ClassList
from big_align.data.tags.tag_list import make_tag_list
from big_align.data.text.tokenizers import WordTokenizer
from big_align.objectives.align import Align
from big_align.objectives.iclip import Iclip
from big_align.objectives.idea import Idea
from big_align.objectives.multitask import MultiTask
from tests import tiny

TOKENIZER = WordTokenizer(("a", "photo", "of", "cat", "dog"), tiny.LENGTH)
CLASSES = ClassList.from_names(("cat", "dog"))
TAGS = make_tag_list(("cat", "dog"), (9, 6), TOKENIZER)


def encode(objective, variables, batch, key):
    return objective.encode(*variables, batch, key)[0]["ztxt"]


def encode_classes(objective, variables, batch, key):
    return objective.prepare(variables[0], batch, key)[: len(CLASSES)]


@pytest.mark.parametrize(
    ("make", "embed"),
    [
        pytest.param(Align, encode, marks=pytest.mark.slow),
        (lambda *given: Iclip(*given, CLASSES, TOKENIZER, "a {}"), encode),
        (lambda *given: Iclip(*given, CLASSES, TOKENIZER, "a {}"), encode_classes),
        (lambda *given: MultiTask(*given, 2), encode),
        pytest.param(lambda *given: Idea(*given, TAGS, TOKENIZER), encode, marks=pytest.mark.slow),
    ],
    ids=["align", "iclip", "classes of iclip", "multitask", "idea"],
)
def test_texts_are_encoded_with_dropout(make, embed):
    objective = make(tiny.make_model(dropout=0.5), tiny.make_mesh())
    batch = jax.tree.map(jnp.asarray, tiny.make_batch(4))
    key, tags = jax.random.key(0), jnp.full((4, 2), -1)
    batch = objective.augment(batch | {"tags": tags}, key, jnp.int32(0))
    variables = nn.meta.unbox(jax.jit(objective.init)(key, batch))
    run = jax.jit(lambda key: embed(objective, variables, batch, key))
    one, again, other = (run(jax.random.key(n)) for n in (1, 1, 2))
    assert (one == again).all() and (one != other).any(axis=-1).all()
