"""Tag2Text: tags become token ids inside the compiled step (IDEA, Huang et al. 2022, §3.3)."""

import os
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32

from big_align.data.tags.tag_list import TagList
from big_align.data.text.tokenizers import Tokenizer


class TagTexts:
    """Writes texts of tags, the paper's "[tag_1 tag_2 ... tag_i]", with a fixed length.

    A text is the tokens of its tags in the order of their ids, most frequent first, between what
    the tokenizer puts at the start and at the end of every text. The order depends only on the set
    of tags: two images with the same tags have the same text, and a small change of a probability
    moves no word. A text that gets too long ends after the last tag that fits.

    Texts have the length of the tokenizer, that of the captions, whose vocabulary must be the
    tags'. A tag that does not fit into a text alone is a ValueError.
    """

    def __init__(self, tags: TagList, tokenizer: Tokenizer):
        tags.check_tokenizer(tokenizer)
        start, end = split_ends(tokenizer, tags.names[0])
        counts = tags.token_mask.sum(axis=1).astype(np.int32)
        self.length = tokenizer.length
        self.room = self.length - len(start) - len(end)
        longest = int(counts.argmax())
        if counts[longest] > self.room:
            raise ValueError(
                f"the tag {tags.names[longest]!r} has {counts[longest]} tokens, but a text of "
                f"config.tokenizer.length = {self.length} has room for {self.room}: raise it"
            )
        self._start, self._end = np.array(start, np.int32), np.array(end, np.int32)
        self._tokens, self._counts = tags.tokens, counts

    def __call__(
        self, chosen: Bool[Array, "b c"]
    ) -> tuple[Int32[Array, "b l"], Bool[Array, "b l"]]:
        """Returns the ids of a text of the tags of each row, and which of them are real.

        The text of a row without tags is the empty one: what the tokenizer puts at the ends.
        """
        ids, inside = self._lay_out(jnp.asarray(chosen))
        written = inside.sum(axis=1, keepdims=True, dtype=jnp.int32)
        place = jnp.arange(self.length, dtype=jnp.int32) - len(self._start)
        text = jnp.pad(ids, ((0, 0), (len(self._start), len(self._end))))
        for offset, token in enumerate(self._start):
            text = text.at[:, offset].set(token)
        for offset, token in enumerate(self._end):
            text = jnp.where(place == written + offset, token, text)
        real = place < written + len(self._end)
        return jnp.where(real, text, 0), real

    def keep_fitting(self, chosen: Bool[np.ndarray, "n c"]) -> Bool[np.ndarray, "n c"]:
        """Returns the tags of each row that its text contains: those up to the last that fits."""
        return chosen & (np.cumsum(np.where(chosen, self._counts, 0), axis=1) <= self.room)

    def _lay_out(
        self, chosen: Bool[Array, "b c"]
    ) -> tuple[Int32[Array, "b room"], Bool[Array, "b room"]]:
        """Returns the concatenated tokens of the chosen tags, and which positions are filled.

        The end of each tag's tokens is a sum over the tags up to it, and the tag at a position is
        the first one that ends after it. So apart from `chosen`, only these sums have its size.
        """
        counts, tokens = jnp.asarray(self._counts), jnp.asarray(self._tokens)
        ends = jnp.cumsum(jnp.where(chosen, counts, 0), axis=1, dtype=jnp.int32)
        place = jnp.arange(self.room, dtype=jnp.int32)
        first = jax.vmap(lambda row: jnp.searchsorted(row, place, side="right"))(ends)
        tag = jnp.minimum(first, len(counts) - 1)
        end = jnp.take_along_axis(ends, tag, axis=1)
        inside = (place < end) & (end <= self.room)
        # The first position of a tag has its first token; outside tags, any valid index will do.
        offset = jnp.clip(place - end + counts[tag], 0, tokens.shape[1] - 1)
        return tokens[tag, offset], inside


Marks = TypeVar("Marks", Bool[Array, "b c"], Bool[np.ndarray, "b c"])
"""Which tags an image has, on the device or on the host."""


def choose_written(given: Marks, found: Marks, retain: bool) -> Marks:
    """Returns the tags that each image's new text is made of: none where none is found (§3.3).

    They are the found tags, and with `retain` those of the given captions.
    """
    chosen = found | given if retain else found
    return chosen & found.any(axis=1, keepdims=True)


def split_ends(tokenizer: Tokenizer, name: str) -> tuple[list[int], list[int]]:
    """Returns the ids that a tokenizer puts at the start and at the end of every text.

    They are the ids of an empty text, split where another text, which is not empty, starts to
    differ.
    """
    text, mask = tokenizer(["", name])
    empty, other = (ids[real].tolist() for ids, real in zip(text, mask, strict=True))
    shared = len(os.path.commonprefix([empty, other]))  # of lists, too
    return empty[:shared], empty[shared:]
