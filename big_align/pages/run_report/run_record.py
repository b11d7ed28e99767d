"""What a workdir says about its run, even while the run writes or after it was killed."""

import dataclasses
import json
import pathlib
from collections.abc import Iterator
from typing import Any

from big_align.config.stages import FIRST
from big_align.core import formats
from big_align.core.errors import UserError
from big_align.core.regular_files import read_regular
from big_align.pages.charts import Series
from big_align.pages.run_report import forms, starts
from big_align.pages.run_report.forms import check_form, fits
from big_align.training.logs.directions import read_said
from big_align.training.logs.line_files import number_of, parse_line, read_lines
from big_align.training.saving.step_folders import find_folder

TRAINING = ("epoch/", "time/")
"""Prefixes of names that do not belong to an evaluator."""
LARGE = 4_000_000
"""Bytes of metrics up to which they are read completely."""


@dataclasses.dataclass
class RunRecord:
    """What a workdir says about its run; fields without information are empty."""

    workdir: str  # as given
    config: dict[str, Any]
    starts: list[dict[str, Any]]  # how each process was started, oldest first
    series: dict[str, Series]  # of training, by name
    evaluations: dict[str, Series]  # by `evaluator/number`
    seconds: dict[str, float]  # where the time of all processes went, by phase
    pictures: dict[str, Any]  # their step, and exhibits by evaluator
    saved: int = 0  # the step of the newest checkpoint; 0 if none is in reach
    said: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """The numbers of which lower is better, by evaluator, of evaluators that say so."""
    chip_hours: float = 0.0  # hours times devices
    before: "RunRecord | None" = None  # the stage from whose weights it starts

    @property
    def stages(self) -> list["RunRecord"]:
        """The stages of the run, the earliest first and itself last."""
        return [*(self.before.stages if self.before else ()), self]

    @property
    def name(self) -> str:
        """The name of the run: its folder."""
        return pathlib.Path(self.workdir).absolute().name

    @property
    def last_start(self) -> dict[str, Any]:
        """The newest start of a process."""
        return self.starts[-1] if self.starts else {}

    def find_changes(self) -> tuple[str, dict[str, list[Any]]]:
        """Returns the config file of the run, and the changes to it as pairs of values.

        A process that continued with the workdir's own config adds its changes.
        """
        own = [pathlib.Path(str(x.get("config"))).name == "config.json" for x in self.starts]
        origin = max((n for n, is_own in enumerate(own) if not is_own), default=0)
        changes: dict[str, list[Any]] = {}
        for start in self.starts[origin:]:
            for field, (before, after) in (start.get("changes") or {}).items():
                changes[field] = [changes.get(field, [before])[0], after]
        config = self.starts[origin].get("config") if self.starts else None
        return str(config or ""), changes

    @property
    def step(self) -> int:
        """The last known step: logged, measured or saved."""
        ends = [values[-1][0] for values in (self.series | self.evaluations).values() if values]
        return max([self.saved, *ends])

    @property
    def total_steps(self) -> int:
        """The last step of the run; 0 if not known."""
        return int(self.config.get("total_steps") or 0)


def read_record(workdir: str) -> RunRecord:
    """Reads a workdir.

    Raises:
      UserError: there is no such folder, no run in it, or a damaged file.
    """
    folder = pathlib.Path(workdir)
    config = formats.strip(_read_object(folder / "config.json", forms.CONFIG, "workdir"))
    lines = list(_read_metrics(folder / "metrics.jsonl"))
    if not config and not lines:
        reason = "it has neither config.json nor metrics.jsonl" if folder.is_dir() else "no folder"
        raise UserError(f"--workdir={workdir} is no workdir of a run: {reason}")
    series = _collect(lines)
    known = set(config.get("evaluators") or {})
    measured = [name for name in series if _is_evaluation(name, known)]
    evaluations = {name: series.pop(name) for name in measured}
    for name, values in _read_evaluations(folder / "evaluations.jsonl").items():
        evaluations[name] = sorted((dict(evaluations.get(name, ())) | dict(values)).items())
    goodput = _read_object(folder / "goodput.json", forms.GOODPUT)
    first = folder / FIRST
    known_first = config.get(FIRST) and (first / "config.json").is_file()
    return RunRecord(
        workdir,
        config,
        [_leave_out_null(x) for x in read_lines(folder / starts.FILE) if fits(x, forms.START)],
        series,
        evaluations,
        {name: float(seconds) for name, seconds in (goodput.get("seconds") or {}).items()},
        read_pictures(folder / "pictures.json"),
        _find_newest(config, folder),
        read_said(read_lines(folder / "evaluations.jsonl", ("step",))),
        float(goodput.get("chip_seconds") or 0) / 3600,
        read_record(str(first)) if known_first else None,
    )


def _leave_out_null(start: dict[str, Any]) -> dict[str, Any]:
    """Returns a start without fields that are null, which says as much as that they are missing."""
    return {name: value for name, value in start.items() if value is not None}


def _find_newest(config: dict[str, Any], workdir: pathlib.Path) -> int:
    """Returns the step of the newest checkpoint of a run; 0 if there is none."""
    node = config.get("checkpoint")
    chosen = node.get("folder") if isinstance(node, dict) else None
    folder = find_folder(str(workdir), chosen if isinstance(chosen, str) else None)
    try:
        steps = (int(x.name) for x in pathlib.Path(folder).iterdir() if x.name.isdecimal())
        return max(steps, default=0)
    except OSError:  # a bucket, where a page is not worth the wait, or not there
        return 0


def read_pictures(path: pathlib.Path) -> dict[str, Any]:
    """Reads the step of the pictures of a run, and the exhibits by evaluator; {} without a file."""
    return _read_object(path, forms.PICTURES)


def _is_evaluation(name: str, evaluators: set[str]) -> bool:
    evaluator, slash, _ = name.partition("/")
    if evaluators:
        return bool(slash) and evaluator in evaluators
    return bool(slash) and not name.startswith(TRAINING)


def _read_object(path: pathlib.Path, form: Any, kind: str = "") -> dict[str, Any]:
    """Reads a JSON object of some form, and perhaps a kind of `formats`; {} without a file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(read_regular(path).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); mend the file or remove it") from error
    if kind and isinstance(found, dict):
        formats.check(kind, found, path)
    check_form(found, form, str(path))
    return found


def _read_metrics(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Reads metrics; for a long run, the newest line of training and evenly spaced other lines.

    So a run that was asked to stop has its page in a second, however long it was.
    """
    if not path.exists():
        return
    stride, left_out = 1 + path.stat().st_size // LARGE, b""

    def wanted(number: int, line: bytes) -> bool:
        nonlocal left_out
        passed = bool(number % stride) and b'"loss": ' in line
        left_out = line if passed else left_out
        return not passed

    yield from read_lines(path, ("step",), wanted)
    if (newest := parse_line(left_out, ("step",))) is not None:
        yield newest


def _collect(lines: list[dict[str, Any]]) -> dict[str, Series]:
    """Returns steps and values of every number, by name."""
    series: dict[str, dict[int, float]] = {}
    for line in lines:
        step = line.get("step")
        if not isinstance(step, int):
            continue
        for name, value in line.items():
            if name != "step" and (number := number_of(value)) is not None:
                series.setdefault(name, {})[step] = number
    return {name: sorted(values.items()) for name, values in series.items()}


def _read_evaluations(path: pathlib.Path) -> dict[str, Series]:
    """Reads one line per evaluation, each with numbers by name in one of its fields."""
    lines = []
    for line in read_lines(path, ("step",)):
        nested = [x for x in line.values() if isinstance(x, dict) and any("/" in k for k in x)]
        numbers = {k: v for x in [line, *nested] for k, v in x.items() if "/" in k}
        lines.append(numbers | {"step": line.get("step")})
    return _collect(lines)
