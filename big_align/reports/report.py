"""A page about a run, or comparing several, in a single file that opens anywhere."""

import html
import os
import pathlib
import sys
from collections.abc import Sequence

from big_align.core.whole_files import write_whole
from big_align.plots.html_page import write_frame
from big_align.reports import comparison, pictures, sections
from big_align.reports.run_record import RunRecord, read_record

FILE = "report.html"


def write_report(workdirs: Sequence[str], output: str | None = None) -> str:
    """Writes the page of one run, or one that compares several.

    Args:
      workdirs: workdirs of the runs.
      output: the file; by default `report.html` in the first workdir.

    Returns:
      The path of the file.

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

    if jax.process_index() != 0 or not os.path.exists(os.path.join(workdir, "starts.jsonl")):
        return
    try:
        print(f"report: {write_report([workdir])}")
    except Exception as error:
        print(f"warning: no report: {type(error).__name__}: {error}", file=sys.stderr)


def describe_run(record: RunRecord) -> str:
    """Returns the page about one run."""
    config, _ = record.find_changes()
    head = f"<h1>{html.escape(record.name)}</h1><p class=soft><code>{html.escape(config)}</code>"
    body = [head, sections.write_tiles(sections.summarize(record))]
    for write in (
        sections.write_evaluations,
        sections.write_curves,
        pictures.write_pictures,
        sections.write_training,
        sections.write_time,
        sections.write_commands,
    ):
        body += write(record)
    return write_frame(record.name, sections.STYLE + pictures.STYLE, "".join(body))
