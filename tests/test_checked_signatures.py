"""That tests check signatures: of arrays and others, of functions and dataclasses."""

import dataclasses
import inspect

import jax.numpy as jnp
import jaxtyping
import pytest
from beartype.roar import BeartypeCallHintViolation

from big_align.core.words import split_words
from big_align.data.tags.tag_list import TagList
from big_align.losses.contrastive import contrastive_loss


def test_a_call_that_is_not_as_declared_is_refused():
    ones = jnp.ones
    with pytest.raises(BeartypeCallHintViolation):  # one letter, two sizes
        inspect.unwrap(contrastive_loss, stop=lambda f: f.__name__ == "call")(
            ones((3, 4)), ones((3, 5)), 1.0
        )
    with pytest.raises(BeartypeCallHintViolation):
        split_words(b"bytes")
    given = {field.name: 1.5 for field in dataclasses.fields(TagList)}
    with pytest.raises(jaxtyping.TypeCheckError):
        TagList(**given)
