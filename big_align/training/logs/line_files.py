"""Files with one JSON object per line, which a kill, a full disk or an editor may have damaged.

A line that cannot be read is lost, but the others are read, and one message says how many were left
out. Nothing here needs JAX, so that pages about runs can be made without it.
"""

import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from big_align.core.regular_files import check_regular, open_given, read_regular
from big_align.core.whole_files import naming, write_whole


def read_lines(
    path: pathlib.Path,
    needs: Iterable[str] = (),
    wanted: Callable[[int, bytes], bool] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file, if there is one, and reports in the end how many were left out.

    Each must have the fields in `needs`. `wanted` says of a line, by its number and its bytes,
    whether to read it at all.
    """
    bad = 0
    if not path.exists():
        return
    with open_given(path) as file:
        for number, line in enumerate(file):
            if wanted is not None and not wanted(number, line):
                continue
            found = parse_line(line, needs)
            if found is not None:
                yield found
            bad += found is None and bool(line.strip())
    _tell(path, bad, "left out")


def parse_line(line: bytes, needs: Iterable[str] = ()) -> dict[str, Any] | None:
    """Returns the object of a line; None if it is not a JSON object with the fields it needs.

    A `step` must be an integer of 64 bits, or null for a state that no run has trained.
    """
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or any(name not in found for name in needs):
        return None
    step = found.get("step")
    return found if step is None or type(step) is int and abs(step) < 2**63 else None


def keep_lines(
    path: pathlib.Path, keep: Callable[[Mapping[str, Any]], bool], needs: Iterable[str] = ()
) -> None:
    """Rewrites a file with the lines to keep, unchanged; lines that cannot be read are dropped."""
    if not path.exists():
        return
    lines = [line for line in read_regular(path).split(b"\n") if line.strip()]
    objects = [parse_line(line, needs) for line in lines]
    kept = [
        line + b"\n"
        for line, found in zip(lines, objects, strict=True)
        if found is not None and keep(found)
    ]
    write_whole(path, b"".join(kept), sync=True)
    _tell(path, objects.count(None), "dropped")


def append_line(path: pathlib.Path, record: Mapping[str, Any]) -> None:
    """Appends an object to a file and to the disk, even if a kill has cut its last line short."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        check_regular(path)
    with naming(path), path.open("ab+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        cut = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * cut + json.dumps(record, default=str).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def number_of(value: Any) -> float | None:
    """Returns a number, with infinity and NaN given as text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:  # JSON allows integers of any size
            return None
    known = isinstance(value, str) and value in ("nan", "inf", "-inf")
    return float(value) if known else None


def _tell(path: pathlib.Path, bad: int, what: str) -> None:
    if bad:
        lines = "line that cannot be read is" if bad == 1 else "lines that cannot be read are"
        print(f"warning: {path}: {bad} {lines} {what}", file=sys.stderr)
