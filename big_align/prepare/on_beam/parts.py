"""Stages of a job, in one pipeline or in one for each part of the keys.

A runner that holds in memory what it groups, as DirectRunner does, gets a part of the keys at a
time. What passes from stage to stage is then in files, each of which has all parts one after
another, so that a part reads no more than its own bytes.
"""

import uuid
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.coders import FastPrimitivesCoder
from apache_beam.coders.coder_impl import create_InputStream, create_OutputStream
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import GlobalWindows

from big_align.core.errors import UserError
from big_align.core.progress import make_bar
from big_align.data.files import files_of
from big_align.data.shared import storage
from big_align.prepare.on_beam.transforms import SumByName

WRITTEN_BYTES = 2**25  # that a worker holds of what passes before it writes them
HELD = 2**18  # values that a worker holds before it passes on what it has put together
PASSED = "passed"  # the kind of notes about files

Notes = dict[str, dict[str, Any]]
"""What stages have found out, by kind and name: numbers, or lists."""


def place_hash(element: tuple) -> int:
    """Returns where a key that is a hash is in its range, from 0 to below 2^32."""
    return int.from_bytes(element[0][:4], "big")


def place_name(element: tuple) -> int:
    """Returns a number from 0 to below 2^32 that belongs to a key of any kind."""
    return zlib.crc32(repr(element[0]).encode())


class Flow:
    """A pipeline, what it takes from the stages before it, and what it gives to those after it."""

    pipeline: beam.Pipeline

    def __init__(self, folder: str, parts: int, part: int, found: Notes):
        self.parts, self.part, self.found = parts, part, found
        self._folder = folder
        self._given: defaultdict[str, list[beam.PCollection]] = defaultdict(list)
        self._noted: list[beam.PCollection] = []

    def give(
        self,
        name: str,
        keyed: beam.PCollection,
        place: Callable[[tuple], int] = place_hash,
        put_together: Callable[[list], list] | None = None,
    ) -> None:
        """Passes on pairs of keys and values.

        Args:
          name: by which a later stage takes them.
          keyed: the pairs.
          place: returns the place of a pair, below 2^32: a part has a range of them.
          put_together: returns fewer values of a key that say the same, so that less is written.
        """
        if self.parts == 1:
            self._given[name].append(keyed)
            return
        if put_together:
            keyed |= f"Put together {name}" >> beam.ParDo(_PutTogether(put_together))
        folder = storage.join(self._folder, name)
        files = keyed | f"Write {name}" >> beam.ParDo(_WriteParts(folder, self.parts, place))
        self.note(PASSED, files | f"Files of {name}" >> beam.Map(lambda file: {name: [file]}))

    def take(self, name: str, kind: Any = tuple[bytes, Any]) -> beam.PCollection:
        """Returns what stages have given by a name: all, or what is in this part."""
        if self.parts > 1:
            pieces = self.pipeline | f"Pieces of {name}" >> beam.Create(self._list_pieces(name))
            spread = pieces | f"Spread {name}" >> beam.Reshuffle()
            return spread | f"Read {name}" >> beam.FlatMap(_read_piece).with_output_types(kind)
        nothing = self.pipeline | f"No {name}" >> beam.Create([]).with_output_types(kind)
        return [nothing, *self._given[name]] | f"All {name}" >> beam.Flatten()

    def note(self, kind: str, sums: beam.PCollection) -> None:
        """Keeps the sum of dictionaries, entry by entry, for later stages and the driver."""
        named = beam.Map(lambda found: (kind, found)).with_output_types(tuple[str, Any])
        self._noted.append(sums | f"Note {kind} {len(self._noted)}" >> named)

    def end(self, path: str) -> None:
        """Has the notes written; all that the pipeline does ends there.

        A runner may compute only what the last step needs.
        """
        (
            self._noted
            | "All notes" >> beam.Flatten()
            | "Sum notes" >> beam.CombinePerKey(SumByName())
            | "As one" >> beam.combiners.ToDict()
            | "Write notes" >> beam.Map(lambda notes: storage.write_json(path, notes))
        )

    def count_by_part(self, name: str) -> list[int]:
        """Returns how many pairs of each part have been given by a name, where there are parts."""
        given = self.found.get(PASSED, {}).get(name, [])
        return [sum(counts) for counts in zip(*(file[2] for file in given), strict=True)]

    def _list_pieces(self, name: str) -> list[tuple[str, int, int]]:
        pieces = []
        for path, sizes, _ in self.found.get(PASSED, {}).get(name, []):
            if sizes[self.part]:
                pieces.append((path, sum(sizes[: self.part]), sizes[self.part]))
        return pieces


class Stage(NamedTuple):
    """A grouping, and what is done before and after it."""

    name: str
    build: Callable[[Flow], None]  # adds its steps to a pipeline
    split: bool = True  # whether it takes a part at a time
    last: tuple[str, ...] = ()  # names of what no later stage takes


def run_stages(
    stages: Sequence[Stage], folder: str, parts: int, options: PipelineOptions, told: str = ""
) -> Notes:
    """Runs what has not been run of some stages; returns the sums of all their notes.

    Each has notes in the folder, of each part, once that is done. With one part everything is one
    pipeline, and nothing else is in files. `told` is what the progress is of, if it is shown.
    """
    rounds = [([stage], stage.name, parts if stage.split else 1) for stage in stages]
    if parts == 1:
        rounds = [(list(stages), "all", 1)]
    found: Notes = {}
    total = sum(count for *_, count in rounds)
    shown = dict(desc=told, total=total, unit="part", dynamic_ncols=True, disable=not told)
    with make_bar(**shown) as bar:
        for some, name, count in rounds:
            noted = []
            for part in range(count):
                path = storage.join(folder, "notes", f"{name}-{part:05d}.json")
                noted.append(_run_once(path, some, Flow(folder, parts, part, found), options))
                bar.update()
            for kind, sums in (each for notes in noted for each in notes.items()):
                SumByName().add_input(found.setdefault(kind, {}), sums)
            for passed in (passed for stage in some if parts > 1 for passed in stage.last):
                storage.remove(storage.join(folder, passed))
                found.get(PASSED, {}).pop(passed, None)
    return found


def _run_once(path: str, stages: Sequence[Stage], flow: Flow, options: PipelineOptions) -> Notes:
    """Runs stages in a pipeline unless there are notes of that; returns these."""
    if (notes := storage.read_json(path)) is None:
        with beam.Pipeline(options=options) as flow.pipeline:
            for stage in stages:
                stage.build(flow)
            flow.end(path)
        notes = storage.read_json(path)
    return notes


class _PutTogether(beam.DoFn):
    """Puts values of a key together as far as they come to one worker before it has too many."""

    def __init__(self, put_together: Callable[[list], list]):
        self._put_together = put_together

    def start_bundle(self) -> None:
        self._values: dict[Any, list] = {}
        self._held = 0

    def process(self, element: tuple[Any, Any]) -> Iterator[tuple[Any, Any]]:
        key, value = element
        values = self._values.get(key)
        if values is None:
            self._values[key] = [value]
            self._held += 1
        else:
            self._values[key] = fewer = self._put_together([*values, value])
            self._held += len(fewer) - len(values)
        if self._held >= HELD:
            yield from self._pass_on()

    def finish_bundle(self) -> Iterator[Any]:
        return map(GlobalWindows.windowed_value, self._pass_on())

    def _pass_on(self) -> Iterator[tuple[Any, Any]]:
        held = self._values
        self.start_bundle()
        return ((key, value) for key, values in held.items() for value in values)


class _WriteParts(beam.DoFn):
    """Writes elements into files, by part; yields of each file its path, sizes and counts of parts.

    A bundle that a runner tries twice has written its files twice, but notes have only one of them.
    """

    def __init__(self, folder: str, parts: int, place: Callable[[tuple], int]):
        self._folder, self._parts, self._place = folder, parts, place

    def start_bundle(self) -> None:
        self._coder = FastPrimitivesCoder().get_impl()
        self._streams = [create_OutputStream() for _ in range(self._parts)]
        self._counts = [0] * self._parts
        self._size = 0

    def process(self, element: tuple) -> Iterator[tuple[str, list[int], list[int]]]:
        part = self._place(element) * self._parts >> 32
        stream = self._streams[part]
        before = stream.size()
        self._coder.encode_to_stream(element, stream, True)
        self._counts[part] += 1
        self._size += stream.size() - before
        if self._size >= WRITTEN_BYTES:
            yield self._write()

    def finish_bundle(self) -> Iterator[Any]:
        if self._size:
            yield GlobalWindows.windowed_value(self._write())

    def _write(self) -> tuple[str, list[int], list[int]]:
        path = storage.join(self._folder, uuid.uuid4().hex)
        blocks = [stream.get() for stream in self._streams]
        with storage.open_whole(path) as file:
            for block in blocks:
                file.write(block)
        written = path, [len(block) for block in blocks], self._counts
        self.start_bundle()
        return written


def _read_piece(piece: tuple[str, int, int]) -> Iterator[tuple]:
    path, start, size = piece
    try:
        data = files_of(path).read(path, start, size)
    except FileNotFoundError:
        data = b""
    if len(data) < size:
        raise UserError(f"{path} is not there any more; run the same command again")
    stream, coder = create_InputStream(data), FastPrimitivesCoder().get_impl()
    while stream.size() > 0:
        yield coder.decode_from_stream(stream, True)
