"""The lines that on_gpu.py prints: of a row, of all rows, of marks and of a comparison."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]
"""One line of the table: `what` was measured, and numbers."""


class Mark(NamedTuple):
    """A number to be reached: a field of a row of a measurement, and its limits."""

    text: str
    measurement: str
    what: str
    field: str
    most: float | None = None
    least: float | None = None

    def find(self, measurements: dict[str, Any]) -> float | None:
        """Returns the number, None if it was not measured."""
        rows = measurements.get(self.measurement, {}).get("rows", [])
        return next((row.get(self.field) for row in rows if row["what"] == self.what), None)

    def allows(self, value: float) -> bool:
        """Returns whether a number is within the limits."""
        above = self.least is None or value >= self.least
        return above and (self.most is None or value <= self.most)


def read_rates(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the measured rates by what they are of: a type of products, or "copy"."""
    return {row["of"]: row["rate"] for row in rows if "rate" in row}


FORMS = {
    "ms": "{:.3f} ms",
    "bound_ms": "bound {:.3f}",
    "share": "{:.0%} of it",
    "speed": "{:.2f}x",
    "memory": "{:.3f} of the memory",
    "mib": "{:,.0f} MiB",
    "images_s": "{:,.0f} images/s",
    "batch": "batch {:,}",
    "error": "error {:.1e}",
    "limit": "limit {:.0e}",
    "compile_s": "compiled in {:.0f} s",
    "value": "{:.4f}",
}


def format_row(row: Row) -> str:
    """Formats one row."""
    cells = [form.format(row[name]) for name, form in FORMS.items() if name in row]
    if "rate" in row:
        scale, unit = (1e12, "TFLOP/s") if row["unit"] == "FLOP/s" else (1e9, "GB/s")
        cells.append(f"{row['rate'] / scale:,.1f} {unit}")
    if "met" in row:
        cells.append("pass" if row["met"] else "MISS")
    if "failed" in row:
        cells.append(f"FAILED {row['failed']}")
    cells += [f"[{line}]" for line in row.get("chosen", ())]
    return f"  {row['what']:<48} " + ", ".join(cells)


def format_all(found: dict[str, Any]) -> Iterator[str]:
    """Yields the table of everything that was measured."""
    yield ", ".join(f"{name} {value}" for name, value in found["environment"].items())
    for name, done in found["measurements"].items():
        yield f"{name} ({done['seconds']:.0f} s)"
        yield from map(format_row, done["rows"])
    for name, why in found["failed"].items():
        yield f"{name}: FAILED {why}"
    for name, why in found["skipped"].items():
        yield f"{name}: left out, {why}"


def format_comparison(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Yields how much faster each row of a second run is than that of a first."""
    yield f"{'against the first run':<72}{'before':>12}{'now':>12}{'speed':>9}"
    for name, done in new["measurements"].items():
        rows = old["measurements"].get(name, {}).get("rows", [])
        before = {row["what"]: row["ms"] for row in rows if row.get("ms")}
        for row in done["rows"]:
            if row.get("ms") and row["what"] in before:
                was, now = before[row["what"]], row["ms"]
                label = f"{name}: {row['what']}"
                yield f"{label:<72}{was:12.3f}{now:12.3f}{was / now:8.2f}x"


def format_marks(marks: Sequence[Mark], measurements: dict[str, Any]) -> Iterator[str]:
    """Yields what is to be reached, and whether it is."""
    for mark in marks:
        limit = f"at least {mark.least:g}" if mark.most is None else f"at most {mark.most:g}"
        line = f"mark: {mark.measurement}, {mark.what}: {mark.text}, {limit}: "
        if (value := mark.find(measurements)) is None:
            yield line + "not measured"
        else:
            yield line + f"{value:.3f}, {'pass' if mark.allows(value) else 'MISS'}"
