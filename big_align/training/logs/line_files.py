"""Files of a JSON object a line, as a killed process, a full disk or an editor may leave them.

A line that cannot be read costs that line: the others are read, and one line tells how many were
left out. Nothing here needs JAX, so that pages about runs are made without it.
"""

import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any


def read_lines(
    path: pathlib.Path,
    needs: Iterable[str] = (),
    wanted: Callable[[int, bytes], bool] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file; at its end it tells how many lines were left out.

    Args:
      path: of the file; where there is none, there are no lines.
      needs: fields that every object must have.
      wanted: tells by its number and its bytes whether a line is read at all; None reads all.
    """
    bad = 0
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if wanted is not None and not wanted(number, line):
                continue
            found = parse_line(line, needs)
            if found is not None:
                yield found
            bad += found is None and bool(line.strip())
    _tell(path, bad, "left out")


def parse_line(line: bytes, needs: Iterable[str] = ()) -> dict[str, Any] | None:
    """Returns the object of a line; None where it is no JSON object with the fields it needs.

    A `step` must be a whole number, or null for what no run has trained.
    """
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or any(name not in found for name in needs):
        return None
    step = found.get("step")
    return found if step is None or type(step) is int else None


def keep_lines(
    path: pathlib.Path, keep: Callable[[Mapping[str, Any]], bool], needs: Iterable[str] = ()
) -> None:
    """Rewrites a file with the lines that are kept, each as it is; those it cannot read go.

    Args:
      path: of the file; where there is none, nothing happens.
      keep: tells whether an object stays.
      needs: fields that every object must have.
    """
    if not path.exists():
        return
    lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    objects = [parse_line(line, needs) for line in lines]
    kept = [
        line + b"\n"
        for line, found in zip(lines, objects, strict=True)
        if found is not None and keep(found)
    ]
    replace_file(path, b"".join(kept))
    _tell(path, objects.count(None), "dropped")


def append_line(path: pathlib.Path, record: Mapping[str, Any]) -> None:
    """Appends an object to a file, behind a last line that a kill may have cut short."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        cut = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * cut + json.dumps(record, default=str).encode() + b"\n")


def replace_file(path: pathlib.Path, content: bytes) -> None:
    """Writes a file under another name and renames it, so that it is never there in part."""
    scratch = path.with_name(f"{path.name}.rewrite")
    with scratch.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)


def number_of(value: Any) -> float | None:
    """Returns a number; infinity and NaN are texts in JSON, and anything else is None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:  # JSON has integers of any size
            return None
    known = isinstance(value, str) and value in ("nan", "inf", "-inf")
    return float(value) if known else None


def _tell(path: pathlib.Path, bad: int, what: str) -> None:
    if bad:
        lines = "line that cannot be read is" if bad == 1 else "lines that cannot be read are"
        print(f"warning: {path}: {bad} {lines} {what}", file=sys.stderr)
