"""Writes a page about a run, or one that compares several, as a single file that opens anywhere.

For example:
  python -m big_align.tools.report --workdir=workdirs/quickstart
  python -m big_align.tools.report --workdir=workdirs/one --workdir=workdirs/two --output=both.html

The page shows what was trained, curves, evaluations, pictures of the last evaluation, where the
time went, and commands to continue with. Nothing is computed again, so the run may be in progress.
"""

import argparse
import sys

from big_align.errors import UserError
from big_align.reports.report import write_report


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m big_align.tools.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--workdir", required=True, action="append",
        help="the workdir of a run; repeat the flag to compare several",
    )  # fmt: skip
    parser.add_argument("--output", help="the page to write (report.html in the first workdir)")
    options = parser.parse_args(arguments)
    if len(options.workdir) > 1 and not options.output:
        parser.error("--output is missing: the page of several runs belongs to none of them")
    try:
        print(write_report(options.workdir, options.output))
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
