"""A process of `RowProcesses`: `python -m big_align.data.workers.worker DESCRIPTORS`."""

import os
import signal
import sys
import threading
from typing import Any

from big_align.data.workers.batch_memory import MappedBatches
from big_align.data.workers.channel import Channel, serve
from big_align.data.workers.parcel import unpack


def run(memory: int, parcel: int, life: int, channels: list[int]) -> None:
    """Serves the parent's sockets until it closes its end of the pipe `life`, or dies."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides when to end
        signal.signal(number, signal.SIG_IGN)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # stdout belongs to the parent
    threading.Thread(target=_start, args=(memory, parcel, channels), daemon=True).start()
    os.read(life, 1)  # returns at the end
    os._exit(0)  # even if something is still being made


def _start(memory: int, parcel: int, channels: list[int]) -> None:
    try:
        layout, filler = unpack(parcel)
        batches = MappedBatches(memory, layout)
    except BaseException as error:
        failure = error
    else:
        failure = None

    def fill(number: int, *arguments: Any) -> None:
        if failure is not None:
            raise failure
        filler.fill(batches[number], *arguments)

    for descriptor in channels:
        threading.Thread(target=serve, args=(Channel(descriptor), fill), daemon=True).start()


if __name__ == "__main__":
    memory, parcel, life, *channels = map(int, sys.argv[1:])
    run(memory, parcel, life, channels)
