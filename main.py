"""Trains or evaluates, as `python -m big_align` does: python main.py --help says how."""

from big_align import __main__ as program
from big_align.runs import command_line

__doc__ = program.__doc__

if __name__ == "__main__":
    command_line.run(program.main)
