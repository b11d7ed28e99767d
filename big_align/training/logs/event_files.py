"""Event files of TensorBoard, written at once and cut where a run goes back to.

tensorboardX writes in a thread whose queue cannot be waited for, so what a checkpoint covers might
not be in its file when the process is killed. Here a record is written when it is made.
"""

import os
import pathlib
import socket
import time
from collections.abc import Iterable, Iterator, Mapping

import google_crc32c
import numpy as np
from tensorboardX import summary
from tensorboardX.proto.event_pb2 import Event, SessionLog

from big_align.training.logs.line_files import replace_file

PATTERN = "events.out.tfevents.*"
LENGTH, CHECKSUM = 8, 4  # bytes before a record's data: its length and that one's checksum
MASK = 0xA282EAD8
Line = tuple[int, Mapping[str, float]]
"""A step, and what was logged of it by name."""


class EventFile:
    """A new event file of a folder.

    Args:
      folder: where TensorBoard finds it.
      first_step: events of this step and later ones in other files are hidden, also by a
        TensorBoard that has read them already.
    """

    def __init__(self, folder: pathlib.Path, first_step: int):
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names, and two may begin in one second.
        number = len(list(folder.glob(PATTERN)))
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{number:04d}"
        self._file = (folder / name).open("ab")
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        self._write(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))
        self.flush()

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Adds a number of a step."""
        self._write(_make_scalar(name, value, step, time.time()))

    def add_image(self, name: str, pixels: np.ndarray, step: int) -> None:
        """Adds a picture [h w 3] of a step."""
        shown = summary.image(name, pixels, dataformats="HWC")
        self._write(Event(wall_time=time.time(), step=step, summary=shown))

    def flush(self) -> None:
        """Returns when everything is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, event: Event) -> None:
        self._file.write(encode_record(event.SerializeToString()))


def mend_events(folder: pathlib.Path, step: int, lines: Iterable[Line]) -> None:
    """Makes the event files of a folder hold what a run has logged until a step, each number once.

    What lies after the step goes, since the run repeats it, and so does a record that a kill has
    cut short. Numbers that are missing, since they had not reached the disk, are added to the last
    file. A folder without event files stays without.

    Args:
      folder: of the run.
      step: that it continues from.
      lines: what was logged until then, in its order.
    """
    paths = sorted(folder.glob(PATTERN))
    known: set[tuple[int, str]] = set()
    for path in reversed(paths):  # a file hides in the former ones what it repeats
        content = path.read_bytes()
        kept = list(_keep_records(content, step, known))
        if sum(map(len, kept)) != len(content):
            replace_file(path, b"".join(kept))
    if paths:
        _fill(paths[-1], lines, known)


def _fill(path: pathlib.Path, lines: Iterable[Line], known: set[tuple[int, str]]) -> None:
    """Appends numbers that no event file has."""
    when = path.stat().st_mtime
    missing = [
        encode_record(_make_scalar(name, value, step, when).SerializeToString())
        for step, numbers in lines
        for name, value in numbers.items()
        if (step, _make_tag(name)) not in known
    ]
    if missing:
        replace_file(path, path.read_bytes() + b"".join(missing))


def _keep_records(content: bytes, step: int, known: set[tuple[int, str]]) -> Iterator[bytes]:
    """Yields the records of a file that stay, and notes which numbers they hold."""
    for record in split_records(content):
        event = Event.FromString(record[LENGTH + CHECKSUM : -CHECKSUM])
        numbers = {(event.step, value.tag) for value in event.summary.value}
        scalar = any(value.HasField("simple_value") for value in event.summary.value)
        if numbers and (event.step > step or (scalar and numbers <= known)):
            continue
        known |= numbers
        yield record


def split_records(content: bytes) -> Iterator[bytes]:
    """Yields the records of a TFRecord file, until one that is not whole."""
    place = 0
    while place + LENGTH + CHECKSUM <= len(content):
        length = content[place : place + LENGTH]
        end = place + LENGTH + 2 * CHECKSUM + int.from_bytes(length, "little")
        record = content[place:end]
        data = record[LENGTH + CHECKSUM : -CHECKSUM]
        if end > len(content) or record != encode_record(data):
            return
        yield record
        place = end


def encode_record(data: bytes) -> bytes:
    """Returns a record of a TFRecord file."""
    length = len(data).to_bytes(LENGTH, "little")
    return b"".join((length, _checksum(length), data, _checksum(data)))


def _checksum(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return ((((crc >> 15) | (crc << 17)) + MASK) & 0xFFFFFFFF).to_bytes(CHECKSUM, "little")


def _make_scalar(name: str, value: float, step: int, when: float) -> Event:
    return Event(wall_time=when, step=step, summary=summary.scalar(name, value))


def _make_tag(name: str) -> str:
    """Returns what TensorBoard calls a number."""
    return summary.scalar(name, 0.0).value[0].tag
