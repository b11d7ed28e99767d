"""Trains or evaluates, as `python -m big_align` does: python main.py --help says how."""

from big_align import huge_pages

if __name__ == "__main__":
    huge_pages.restart()  # before anything is imported that takes time

from big_align import __main__ as program  # noqa: E402
from big_align.runs import command_line  # noqa: E402

__doc__ = program.__doc__

if __name__ == "__main__":
    command_line.run(program.main)
