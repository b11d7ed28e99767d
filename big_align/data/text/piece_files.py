"""Files of tokenizers: pieces with their ids, and merges, read as they are written or refused."""

import gzip
import io
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from big_align.core.errors import put_in_a_line
from big_align.data import files
from big_align.data.json_texts import NotJson, find_half, parse_json
from big_align.data.package_files import locate

LARGEST = 2**25
"""Bytes of a file that are read, unpacked; the largest that are published have a tenth of it."""
UNREADABLE = (OSError, EOFError, zlib.error, LookupError, TypeError, AttributeError, ValueError)


def read_ids(path: str, special: Sequence[str], published: str) -> dict[str, int]:
    """Reads a vocabulary, ids by piece in their order, from a disk, a bucket or a package.

    It is a text with one piece per line, from id 0 on; or JSON (`.json`), the ids by piece or a
    `tokenizer.json` of transformers. ValueError says what is wrong and where to get a published
    one: a special token is missing, or ids are not the numbers from 0 on, each once, and an
    embedding would be another piece's.
    """
    path = locate(path)
    try:
        text = _read_text(path)
        if path.endswith(".json"):
            ids = _list_ids(parse_json(text))
        else:
            ids = [(piece, number) for number, piece in enumerate(files.split_lines(text))]
        "".join(piece for piece, _ in ids).encode()
    except FileNotFoundError as error:
        raise ValueError(f"vocabulary: no file {path!r}; {published}") from error
    except UNREADABLE as error:
        raise ValueError(
            f"vocabulary: {path!r} cannot be read as a vocabulary: {_tell(error)}; {published}"
        ) from error
    if missing := [token for token in special if token not in dict(ids)]:
        raise ValueError(f"vocabulary: {path!r} lacks {', '.join(missing)}; {published}")
    return check_ids(ids, f"vocabulary: {path!r}")


def check_ids(ids: Sequence[tuple[str, Any]], where: str) -> dict[str, int]:
    """Returns ids by piece in order; raises ValueError unless they are 0, 1, ..., each once."""
    pieces: dict[int, str] = {}
    for piece, number in ids:
        fits = type(number) is int and 0 <= number < len(ids)
        if not fits or number in pieces:
            others = f" of {pieces[number]!r}" if fits else ""
            raise ValueError(
                f"{where} gives {put_in_a_line(repr(piece))} the id "
                f"{put_in_a_line(repr(number))}{others}; the ids of its {len(ids)} pieces must be "
                f"0 to {len(ids) - 1}, each once"
            )
        pieces[number] = piece
    made = {pieces[number]: number for number in range(len(ids))}
    if len(made) < len(ids):
        twice = next(number for number, piece in pieces.items() if made[piece] != number)
        raise ValueError(
            f"{where} has the piece {put_in_a_line(repr(pieces[twice]))} twice, with the ids "
            f"{twice} and {made[pieces[twice]]}; each piece must have one"
        )
    return made


def read_merges(path: str, published: str) -> list[str]:
    """Reads merges: two pieces with a space between them, the first merge first.

    They are a text with one merge per line, perhaps below the version and perhaps gzipped, or in a
    `tokenizer.json` of transformers; in a bucket, a package or elsewhere. ValueError says what is
    wrong.
    """
    path = locate(path)
    try:
        text = _read_text(path)
        if path.endswith(".json"):
            merges = parse_json(text)["model"]["merges"]
            lines = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
            "".join(lines).encode()
            return lines
    except FileNotFoundError as error:
        raise ValueError(f"merges: no file {path!r}; {published}") from error
    except UNREADABLE as error:
        raise ValueError(f"merges: {path!r} cannot be read as merges ({_tell(error)})") from error
    lines = files.split_lines(text)
    return lines[1:] if lines == [""] or lines and "#version" in lines[0] else lines


def _read_text(path: str) -> str:
    data = files.files_of(path).read_all(path)
    if path.endswith(".gz"):
        data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"it has more than {LARGEST} bytes, unpacked; no tokenizer is so large")
    return files.decode(data)


def _list_ids(content: Any) -> list[tuple[str, Any]]:
    """Returns the ids in JSON; those of added tokens count before those of the model."""
    if not isinstance(content, Mapping):
        raise TypeError("it is no JSON object with the ids of pieces")
    if isinstance(content.get("model"), Mapping):
        added = {each["content"]: each["id"] for each in content.get("added_tokens") or ()}
        content = dict(content["model"]["vocab"]) | added
    return list(content.items())


def _tell(error: Exception) -> str:
    """Returns why a file cannot be read; a name alone is what is missing."""
    if isinstance(error, UnicodeEncodeError):
        return f"it has {find_half(error.object)}"
    subject = "it " if isinstance(error, NotJson | files.NotText) else ""
    subject = "there is no " if isinstance(error, KeyError) else subject
    return subject + put_in_a_line(str(error))
