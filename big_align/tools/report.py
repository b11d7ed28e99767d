"""Writes a page about a run, or one that compares several, as a single file that opens anywhere.

For example:
  python -m big_align.tools.report --workdir=workdirs/quickstart
  python -m big_align.tools.report --workdir=workdirs/one --workdir=workdirs/two --output=both.html

The page shows what was trained, curves, evaluations, pictures of the last evaluation, where the
time went, and commands to continue with. Nothing is computed again, so the run may be in progress.
"""

import argparse
import sys

from big_align.core.whole_files import check_file
from big_align.reports.report import write_report
from big_align.tools import command


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = command.make_parser("report", __doc__)
    parser.add_argument(
        "--workdir", required=True, action="append",
        help="the workdir of a run; repeat the flag to compare several",
    )  # fmt: skip
    parser.add_argument("--output", help="the page to write (report.html in the first workdir)")
    options = parser.parse_args(arguments)
    if len(options.workdir) > 1 and not options.output:
        parser.error("--output is missing: the page of several runs belongs to none of them")
    return command.run(report, options)


def report(options: argparse.Namespace) -> None:
    """Writes the page, and prints where it is."""
    if options.output:
        check_file(options.output)
    print(write_report(options.workdir, options.output))


if __name__ == "__main__":
    sys.exit(main())
