"""The boundary at which any error about one example becomes a BrokenExample, in one line.

The content of a file can make a library raise almost anything. A run skips such an example; if
there are too many, it ends and names the last of them. So an operation, a tokenizer or a source
that fails on everything is still an error, with its reason. User errors pass through: they are
about the request and not about one example.
"""

import concurrent.futures
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from big_align.core.errors import (
    ConfigError,
    UserError,
    make_fault,
    pass_unreachable,
    put_in_a_line,
    show_value,
    tell_in_a_line,
)
from big_align.data.examples import BrokenExample, Example, Source, has_keys

THREADS, CHUNK = 32, 64  # that read texts, and how many of these each takes at a time


class _OneExample:
    """Turns any exception except a user error into a BrokenExample; it has no state.

    A server or bucket that fails is a user error, also as the cause of a BrokenExample.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            pass_unreachable(error)  # whatever a source has made of it
        if isinstance(error, Exception) and not isinstance(error, BrokenExample | UserError):
            raise BrokenExample(tell_in_a_line(error)) from error


ONE_EXAMPLE = _OneExample()
"""`with ONE_EXAMPLE:` goes around all that is done for one example."""


def read_example(source: Source, shard: int, index: int) -> Example:
    """Reads an example; raises BrokenExample for anything wrong with it, or UserError."""
    with ONE_EXAMPLE:
        return source.read(shard, index)


def check_first(source: Source, where: str) -> None:
    """Reads the first example of a source from elsewhere, and checks that it is one.

    Raises:
      ConfigError: a method fails on it, or returns something else than `Source` says.
    """
    for name in ("shard_sizes", "broken"):
        sizes = getattr(source, name)
        if not (isinstance(sizes, np.ndarray) and sizes.ndim == 1 and sizes.dtype.kind in "iu"):
            raise make_fault(where, source, name, show_value(sizes), "int64 [shards]", "is")
    for shard in np.flatnonzero(source.shard_sizes)[:1].tolist():
        for method, wanted in FIRST.items():
            try:
                found = getattr(source, method)(shard, 0)
            except BrokenExample:
                continue
            except Exception as error:
                told = f"fails on its first example: {tell_in_a_line(error)}"
                raise ConfigError(f"{where}: {type(source).__name__}.{method} {told}") from error
            if isinstance(found, Example) != (method == "read") or not _is_whole(found):
                raise make_fault(where, source, method, _show(found), wanted)


FIRST = {
    "read_text": "(captions, labels), a list of texts and a tuple of whole numbers",
    "read": "an Example with image, bytes of a file or uint8[h w 3], captions, a list of texts, "
    "and labels, a tuple of whole numbers",
}
"""What the methods that read an example return."""


def _is_whole(found: Any) -> bool:
    """Returns whether something is an example, or the captions and labels of one."""
    if isinstance(found, Example):
        image, found = found.image, (found.captions, found.labels)
        wrong_type = isinstance(image, np.ndarray) and image.dtype != np.uint8
        if image is None or isinstance(image, str) or wrong_type:
            return False
    if not (isinstance(found, tuple) and len(found) == 2):
        return False
    captions, labels = found
    texts = isinstance(captions, list) and all(isinstance(text, str) for text in captions)
    whole = isinstance(labels, tuple) and all(isinstance(x, int | np.integer) for x in labels)
    return texts and whole


def _show(found: Any) -> str:
    """Describes what was read."""
    if not isinstance(found, Example):
        return show_value(found)
    fields = {name: getattr(found, name) for name in ("image", "captions", "labels")}
    return f"an Example with {show_value(fields)}"


def read_without_image(source: Source, shard: int, index: int) -> Example:
    """Reads an example without its image, most of what is transferred, if the source has keys."""
    if not has_keys(source):
        return read_example(source, shard, index)
    with ONE_EXAMPLE:
        captions, labels = source.read_text(shard, index)
        return Example(source.key(shard, index), None, captions, labels)


def read_texts(source: Source, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
    """Reads captions and labels; raises BrokenExample for anything wrong, or UserError."""
    with ONE_EXAMPLE:
        return source.read_text(shard, index)


def read_many_texts(
    source: Source, places: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], tuple[list[str], tuple[int, ...]] | BrokenExample]]:
    """Yields places, each with the captions and labels there or what is wrong, read in threads."""

    def read(some: Sequence[tuple[int, int]]) -> list[Any]:
        found: list[Any] = []
        for place in some:
            try:
                found.append(read_texts(source, *place))
            except BrokenExample as error:
                found.append(error)
        return found

    chunks = [places[first : first + CHUNK] for first in range(0, len(places), CHUNK)]
    pool = concurrent.futures.ThreadPoolExecutor(THREADS)
    try:
        for some, found in zip(chunks, pool.map(read, chunks), strict=True):
            yield from zip(some, found, strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def name_example(source: Source, shard: int, index: int) -> Iterator[None]:
    """Wraps all that is done for an example that no other can replace; raises UserError."""
    try:
        with ONE_EXAMPLE:
            yield
    except BrokenExample as error:
        name = put_in_a_line(source.name(shard, index))
        raise UserError(f"{name}: {put_in_a_line(str(error))}") from error
