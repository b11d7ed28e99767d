"""TensorBoard event files, written immediately, and cut where a run goes back to.

TensorBoard's own writer has a thread whose queue cannot be waited for, so entries that a checkpoint
covers might be missing from its file when the process is killed. Here a record is written at once.
"""

import io
import os
import pathlib
import socket
import time
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary

from big_align.core.regular_files import read_regular
from big_align.core.tf_records import CHECKSUM, LENGTH, encode_record
from big_align.core.whole_files import naming, write_whole

PATTERN = "events.out.tfevents.*"
Line = tuple[int, Mapping[str, float]]  # a step, and the values logged for it by name


class EventFile:
    """A new event file of TensorBoard in a folder, a `trackers.Tracker`.

    Events of `first_step` and later ones in other files are hidden, even in a TensorBoard that has
    already read them.
    """

    def __init__(self, folder: pathlib.Path, first_step: int):
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names, and two may start in the same second.
        number = len(list(folder.glob(PATTERN)))
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{number:04d}"
        self._file = (folder / name).open("ab")
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        self._write(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))
        self.flush()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Logs the scalars of a step."""
        for name, value in scalars.items():
            self._write(_make_scalar(name, value, step, time.time()))

    def show(self, step: int, pictures: Mapping[str, np.ndarray]) -> None:
        """Logs pictures [h w 3] of a step."""
        for name, pixels in pictures.items():
            self._write(_make_picture(name, pixels, step, time.time()))

    def flush(self) -> None:
        """Returns once everything is on disk."""
        with naming(self._file.name):
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        with naming(self._file.name):
            self._file.close()

    def _write(self, event: Event) -> None:
        with naming(self._file.name):
            self._file.write(encode_record(event.SerializeToString()))


def mend_events(folder: pathlib.Path, step: int, lines: Iterable[Line]) -> None:
    """Makes the event files of a folder hold what a run has logged up to a step, each number once.

    Events after the step are removed, since the run repeats it, and so is a record that was cut
    short when the process was killed. Numbers that had not reached the disk are added to the last
    file. If a folder has no event files, none are created.
    """
    paths = sorted(folder.glob(PATTERN))
    known: set[tuple[int, str]] = set()
    for path in reversed(paths):  # a later file overrides what it repeats of earlier ones
        content = read_regular(path)
        kept = list(_keep_records(content, step, known))
        if sum(map(len, kept)) != len(content):
            write_whole(path, b"".join(kept), sync=True)
    if not paths:
        return
    when = paths[-1].stat().st_mtime
    missing = [
        encode_record(_make_scalar(name, value, step, when).SerializeToString())
        for step, numbers in lines
        for name, value in numbers.items()
        if (step, name) not in known
    ]
    if missing:
        write_whole(paths[-1], read_regular(paths[-1]) + b"".join(missing), sync=True)


def _keep_records(content: bytes, step: int, known: set[tuple[int, str]]) -> Iterator[bytes]:
    """Yields the records of a file that stay, and adds the numbers they hold to `known`."""
    for record in split_records(content):
        event = Event.FromString(record[LENGTH + CHECKSUM : -CHECKSUM])
        numbers = {(event.step, value.tag) for value in event.summary.value}
        scalar = any(value.HasField("simple_value") for value in event.summary.value)
        if numbers and (event.step > step or (scalar and numbers <= known)):
            continue
        known |= numbers
        yield record


def split_records(content: bytes) -> Iterator[bytes]:
    """Yields the records of a TFRecord file, up to the first that is incomplete or damaged."""
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


def _make_scalar(name: str, value: float, step: int, when: float) -> Event:
    shown = Summary(value=[Summary.Value(tag=name, simple_value=value)])
    return Event(wall_time=when, step=step, summary=shown)


def _make_picture(name: str, pixels: np.ndarray, step: int, when: float) -> Event:
    height, width, channels = pixels.shape
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, format="PNG")
    image = Summary.Image(
        height=height, width=width, colorspace=channels, encoded_image_string=encoded.getvalue()
    )
    shown = Summary(value=[Summary.Value(tag=name, image=image)])
    return Event(wall_time=when, step=step, summary=shown)
