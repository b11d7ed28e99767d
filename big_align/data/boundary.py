"""Where whatever one example raises ends: it is a broken example, and says why in one line.

What stands in a file can make any library raise anything: a JSON member nested a hundred thousand
deep, a path with a zero byte, a text that UTF-8 cannot hold. A run skips such an example; it ends
when there are too many, and then names the last of them. So an operation, a tokenizer or a source
that fails on everything is still an error, with its reason. Errors of the user pass through: they
are about what is asked for and not about one example.
"""

import contextlib
from collections.abc import Iterator

from big_align.data.examples import BrokenExample, Example, Source, has_keys
from big_align.errors import UserError, put_in_a_line, tell_in_a_line


class _OneExample:
    """Makes a BrokenExample of any exception but errors of the user; it holds nothing."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, BrokenExample | UserError):
            raise BrokenExample(tell_in_a_line(error)) from error


ONE_EXAMPLE = _OneExample()
"""`with ONE_EXAMPLE:` around all that is done for one example."""


def read_example(source: Source, shard: int, index: int) -> Example:
    """Reads an example; raises BrokenExample whatever is wrong with it, or UserError."""
    with ONE_EXAMPLE:
        return source.read(shard, index)


def read_without_image(source: Source, shard: int, index: int) -> Example:
    """Reads an example as `read_example` does, but for its image, where the source has keys.

    Where shards lie in a bucket, images are nearly all that would travel.
    """
    if not has_keys(source):
        return read_example(source, shard, index)
    with ONE_EXAMPLE:
        captions, labels = source.read_text(shard, index)
        return Example(source.key(shard, index), None, captions, labels)


def read_texts(source: Source, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
    """Reads captions and labels; raises BrokenExample whatever is wrong, or UserError."""
    with ONE_EXAMPLE:
        return source.read_text(shard, index)


@contextlib.contextmanager
def name_example(source: Source, shard: int, index: int) -> Iterator[None]:
    """Around all that is done for an example that no other can replace; raises UserError."""
    try:
        with ONE_EXAMPLE:
            yield
    except BrokenExample as error:
        name = put_in_a_line(source.name(shard, index))
        raise UserError(f"{name}: {put_in_a_line(str(error))}") from error
