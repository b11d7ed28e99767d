"""A page about a run, or comparing several, in a single file that opens anywhere."""

import json
import os
import pathlib
import sys
from collections.abc import Sequence

from big_align.core.whole_files import write_whole
from big_align.pages.rendering import render
from big_align.pages.run_report import comparison, pictures, sections, stages
from big_align.pages.run_report.run_record import RunRecord, read_record

FILE = "report.html"


def write_report(workdirs: Sequence[str], output: str | None = None) -> str:
    """Writes the page of one run, or one that compares several; returns its path.

    By default it is `report.html` in the first workdir.

    Raises:
      UserError: a workdir holds no run.
      OSError: the file cannot be written.
    """
    records = [read_record(workdir) for workdir in workdirs]
    page = describe_run(*records) if len(records) == 1 else comparison.compare_runs(records)
    path = pathlib.Path(output or os.path.join(workdirs[0], FILE))
    write_whole(path, page.encode("utf-8", "backslashreplace"))
    return str(path)


def refresh_report(workdir: str) -> None:
    """Writes the page of a run that ends, from its first process; a failure only prints a line."""
    import jax  # the tool, which also writes pages, starts quickly without it

    if jax.process_index() != 0 or not os.path.exists(os.path.join(workdir, "config.json")):
        return
    try:
        record = read_record(workdir)
        if not any(stage.starts for stage in record.stages):
            return
        print("".join(f"{line}\n" for line in stages.tell_costs(record)), end="")
        print(f"report: {write_report([workdir])}")
    except Exception as error:
        print(f"warning: no report: {type(error).__name__}: {error}", file=sys.stderr)


def print_uses(workdir: str) -> None:
    """Prints the commands that use the model of a finished run, from its first process.

    A failure only prints a line: the run is done.
    """
    import jax

    if jax.process_index() != 0:
        return
    try:
        uses = sections.list_uses(read_record(workdir))
        print("\n".join(["next:", *(f"  {command}" for command in uses.values())]))
    except Exception as error:
        print(f"warning: no commands: {type(error).__name__}: {error}", file=sys.stderr)


def describe_run(record: RunRecord) -> str:
    """Returns the page about one run."""
    config, _ = record.find_changes()
    joined, marks = stages.join_stages(record)
    parameters = record.last_start.get("parameters") or {}
    return render(
        "run.html",
        title=record.name,
        record=record,
        config=config,
        trains=stages.tell_training(record),
        changes=list(sections.list_changes(record)),
        tiles=sections.summarize(joined),
        stages=stages.list_stages(record),
        evaluations=sections.list_evaluations(record),
        charts=sections.draw_curves(joined, marks),
        exhibits=list(pictures.list_pictures(record)),
        data=list(sections.list_data(record)),
        parameters=[[name, f"{count:,}"] for name, count in parameters.items()],
        machine=list(sections.list_machine(record.last_start)),
        processes=sections.list_processes(record),
        every_field=json.dumps(record.config, indent=2),
        time=sections.list_time(joined),
        commands=sections.list_commands(record),
    )
