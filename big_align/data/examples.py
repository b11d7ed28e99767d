"""What a source of examples is, and how captions and labels are read from bytes."""

import ast
import dataclasses
import re
from typing import Any, Protocol, runtime_checkable

import numpy as np

from big_align.core.words import is_space
from big_align.data.files import NotText, decode, split_lines
from big_align.data.json_texts import NotJson, find_half, parse_json

NO_LABEL = -1
DIGITS = re.compile(r"\s*[+-]?[0-9]{1,20}\s*")  # `int` also takes "1_0" and other scripts
QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
ARRAY = re.compile(rf"\[\s*{QUOTED}(?:\s+{QUOTED})+\s*\]", re.DOTALL)  # as NumPy prints texts
BLANK = "".join(filter(is_space, map(chr, range(0x3001)))) + "\ufeff"
"""White space of any kind, and the byte-order mark."""
IMAGE_EXTENSIONS = ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff")
UNREAD_EXTENSIONS = (
    "avif", "heic", "heif", "jxl", "jp2", "svg", "psd",
    "dng", "cr2", "cr3", "nef", "arw", "orf", "raf", "rw2",
)  # fmt: skip
"""Endings of images that are not read, which a source of files tells rather than skip silently."""


class BrokenExample(ValueError):
    """An example that cannot be used: an undecodable image, or a missing or unreadable text."""


class WrongLabel(BrokenExample):
    """A label that is not a class number, or several where one is wanted.

    It is a user error if labels are trained on.
    """


class Caption(str):
    """A caption that knows its language, a tag such as "de"; it can be used wherever a text can."""

    __slots__ = ("language",)

    def __new__(cls, text: str, language: str = ""):
        made = super().__new__(cls, text)
        made.language = language
        return made


def language_of(text: str) -> str:
    """Returns the language of a caption, or "" if it does not carry one."""
    return getattr(text, "language", "")


@dataclasses.dataclass(slots=True)
class Example:
    """One image with its captions and its classes."""

    key: str  # its name in its shard
    image: Any  # the encoded file, or pixels uint8 [h w 3]
    captions: list[str]  # `Caption`s if languages are known; empty if the source has none
    labels: tuple[int, ...]  # each once

    @property
    def label(self) -> int:
        """The class, or -1; raises WrongLabel if there are several."""
        return single_label(self.labels)


@runtime_checkable
class Source(Protocol):
    """Examples in shards, read at random and from several threads.

    The docstrings of its methods hold for all sources.

    A source whose examples have keys also offers `key(shard, index)`, which returns the key of the
    example that `read` returns, such as the path of its file, without reading it. Data are held out
    by key (`derived/split_source.py`). A source that wraps another says in `has_keys` whether that
    one has keys. If processes fill batches, each has a pickled copy (`data/workers/parcel.py`).

    A source in which texts can be missing or unusable beside a good image also offers
    `read_image(shard, index)`, which returns the image alone or raises BrokenExample.

    Attributes:
      shard_sizes: int64 [shards], the number of examples of each shard.
      broken: int64 [shards], examples of each shard that were found broken during indexing and
        are not part of it.
      class_names: the name of each label, or None if the source does not know them.
    """

    shard_sizes: np.ndarray
    broken: np.ndarray
    class_names: tuple[str, ...] | None

    def read(self, shard: int, index: int) -> Example:
        """Reads an example; raises BrokenExample if a part is missing or unreadable."""

    def read_text(self, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
        """Reads captions and labels without the image; raises BrokenExample."""

    def name(self, shard: int, index: int) -> str:
        """Names an example for messages, as in `train-00003.tar: 00000042`."""

    def shard_name(self, shard: int) -> str:
        """Names a shard for messages."""


def read_in_parts(source: Any, shard: int, index: int) -> Example:
    """Is `read` of a source that reads an example's texts and its image apart."""
    captions, labels = source.read_text(shard, index)
    return Example(source.key(shard, index), source.read_image(shard, index), captions, labels)


def describe_shards(source: Source) -> list[str]:
    """Returns the name and the size of each shard, for messages."""
    sizes = source.shard_sizes.tolist()
    return [f"{source.shard_name(n)} ({size} examples)" for n, size in enumerate(sizes)]


def has_keys(source: Source) -> bool:
    """Returns whether a source can give the keys of its examples without reading them."""
    return getattr(source, "has_keys", hasattr(source, "key"))


def split_member(name: str) -> tuple[str, tuple[str, ...]]:
    """Splits `json.info.title` into the member `json` and the path of fields inside it."""
    parts = name.split(".")
    if "json" not in parts:
        return name, ()
    end = parts.index("json") + 1
    return ".".join(parts[:end]), tuple(parts[end:])


def decode_text(data: bytes) -> str:
    """Decodes a text as files have it; raises BrokenExample with the place of a bad byte."""
    try:
        return decode(data)
    except NotText as error:
        raise BrokenExample(f"the text {error}") from error


def strip(text: str) -> str:
    """Removes white space and byte-order marks at both ends of a text.

    Marks stay in what was joined from files that had them, and in cells of tables.
    """
    return text.strip() if text.isascii() else text.strip(BLANK)


def read_field(data: bytes, member: str, fields: tuple[str, ...]) -> Any:
    """Returns the text of a member, or the value of a field inside a JSON member."""
    return find_field(read_member(data, member), member, fields)


def read_member(data: bytes, member: str) -> Any:
    """Returns the text of a member, or the value of a JSON member; raises BrokenExample."""
    text = decode_text(data)
    if member.rpartition(".")[2] != "json":
        return text
    try:
        return parse_json(text)
    except NotJson as error:
        raise BrokenExample(f"member {member!r} {error}") from error


def find_field(value: Any, member: str, fields: tuple[str, ...]) -> Any:
    """Returns the value of a field inside a member, by its path; raises BrokenExample."""
    for field in fields:
        value = _unwrap(value)
        if not isinstance(value, dict) or field not in value:
            found = ", ".join(sorted(value)) if isinstance(value, dict) else type(value).__name__
            raise BrokenExample(f"no field {field!r} in member {member!r} (it has {found})")
        value = value[field]
    return value


def clean_captions(value: Any, lines: bool = False) -> list[str]:
    """Makes a list of non-empty captions from a text or a list of texts; raises BrokenExample.

    A text that spells a list, `["a", "b"]`, is read as that list. An integer is a text of its
    digits, since a title can be 1984. With `lines`, each line of a text is a caption of its own.
    """
    values = split_lines(value) if isinstance(value, str) and lines else _unwrap(value)
    if isinstance(values, dict):
        keys = list(map(str, values)) or [""]
        raise BrokenExample(
            f"the caption is a dictionary with the keys {', '.join(keys)[:80]}, not a text or a "
            "list of texts; name the right one in the source's field `caption`, as in "
            f"json.captions.{keys[0]} or, of a table's column, captions.{keys[0]}"
        )
    values = [values] if isinstance(values, str | int) else values
    if values is None:
        raise BrokenExample("the caption is null, not a text or a list of texts")
    if isinstance(values, (list, tuple)):
        values = [str(text) if type(text) is int else text for text in values]
    if not isinstance(values, list) or any(type(text) is not str for text in values):
        raise BrokenExample(f"the caption is {str(value)[:40]!r}, not a text or a list of texts")
    captions = [text for text in map(strip, values) if text]
    if not captions:
        raise BrokenExample("the caption is empty")
    for caption in captions:
        if not caption.isascii() and (half := find_half(caption)):
            raise BrokenExample(f"the caption has {half}")
    return captions


def _unwrap(value: Any) -> Any:
    """Returns the list of texts or the dictionary that a text spells, else the value.

    A cell of a table holds one text, so tools write lists into it: as JSON, or as Python or NumPy
    prints them.
    """
    text = strip(value) if isinstance(value, str) else ""
    if not (text[:1] + text[-1:] in ("[]", "{}") and len(text) > 1):
        return value
    for read in (parse_json, _read_literal):
        try:
            found = read(text)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, list) and (not found or any(isinstance(x, str) for x in found)):
            return found
        return found if isinstance(found, dict) and found else value
    return value


def _read_literal(text: str) -> Any:
    """Reads what Python prints; or NumPy, whose arrays have no commas and would be one text."""
    if ARRAY.fullmatch(text):
        text = f"[{', '.join(re.findall(QUOTED, text, re.DOTALL))}]"
    return ast.literal_eval(text)


def clean_label(value: Any) -> int:
    """Makes a class number from an integer, its digits, or a whole float; raises WrongLabel."""
    if type(value) is not int and not _is_whole(value):
        told = "; csv and imagefolder take names"
        raise WrongLabel(
            f"the label is {str(value)[:40]!r}, not an integer{told * isinstance(value, str)}"
        )
    label = int(value)
    if not 0 <= label < 2**31:
        raise WrongLabel(f"the label is {str(value)[:40]}, not a class number from 0 to 2^31 - 1")
    return label


def _is_whole(value: Any) -> bool:
    """Returns whether a value is a whole number; `int` takes more than that."""
    if isinstance(value, str):
        return bool(DIGITS.fullmatch(value))
    if isinstance(value, (float, np.floating)):
        return value.is_integer()
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def clean_labels(value: Any) -> tuple[int, ...]:
    """Makes class numbers, each once, from one or a list of them; raises WrongLabel."""
    values = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(map(clean_label, values)))


def single_label(labels: tuple[int, ...]) -> int:
    """Returns the only label, or -1 if there is none; raises WrongLabel if there are several."""
    if len(labels) > 1:
        raise WrongLabel(f"it has the labels {', '.join(map(str, labels))}, where one is wanted")
    return labels[0] if labels else NO_LABEL
