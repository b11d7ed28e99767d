"""Trains or evaluates, as `python -m big_align` does: python main.py --help says how."""

import signal

if __name__ == "__main__":
    # Both wait until there is somebody to answer them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    from big_align.parallel.distributed import stop_requests

    stop_requests.begin()  # before anything is imported that takes time

from big_align import __main__ as program
from big_align.tools import command_line

__doc__ = program.__doc__

if __name__ == "__main__":
    command_line.run(program.main)
