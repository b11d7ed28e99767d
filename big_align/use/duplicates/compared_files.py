"""Files of images compared with test sets: what is nearest to each image, made once and kept.

A comparison of a file with a test set is a unit of work, so any number of processes share them.
"""

import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jax.sharding import Mesh

from big_align.core.digests import fingerprint
from big_align.core.regular_files import map_array
from big_align.data.precomputed.shard_files import write_array
from big_align.data.shared.shared_work import SharedWork, Unit
from big_align.use.duplicates.embedded_files import EmbeddedFiles
from big_align.use.duplicates.twins import Buckets, Centers, Nearest, NearestFinder

KEPT = np.dtype([("cosine", np.float32), ("number", np.int64)])
"""What is kept of each image: the nearest of the test images, and its cosine."""


class Comparisons:
    """The files of training images compared with each of some test sets, in a folder.

    The embeddings of all must be there. A result is named after whatever it depends on, so it is
    there for another threshold, too.
    """

    def __init__(
        self,
        training: EmbeddedFiles,
        tests: Sequence[EmbeddedFiles],
        buckets: Sequence[Buckets],
        folder: str | os.PathLike,
        mesh: Mesh,
    ):
        self._training, self._tests, self._buckets = training, tests, buckets
        self._folder, self._mesh = os.fspath(folder), mesh
        self._files = np.flatnonzero(training.files).tolist()
        self._digests = [self._name(*each) for each in zip(tests, buckets, strict=True)]
        self._find = functools.lru_cache(maxsize=1)(self._make_finder)

    def compare(self) -> bool:
        """Compares what no other process has compared or compares; returns whether all is there."""
        places = [(place, file) for place in range(len(self._tests)) for file in self._files]
        units = []
        for place, file in places:
            name = self._result(place, file)
            units.append(Unit(name, (name,), int(self._training.files[file])))
        with SharedWork(self._folder, units, "image", wait=False, label="compare") as work:
            for number in work:
                place, file = places[number]
                parts = [np.zeros(0, KEPT)]
                for _, nearest in self._find(place).find(self._training.open(file)):
                    parts.append(np.zeros(len(nearest.number), KEPT))
                    parts[-1]["cosine"], parts[-1]["number"] = nearest
                    work.advance(len(nearest.number))
                write_array(os.path.join(self._folder, units[number].name), np.concatenate(parts))
                work.finish(number)
            return work.finished

    def read(self, place: int) -> Iterator[tuple[int, Nearest]]:
        """Yields the first image of each file, and the nearest test images of all of its images."""
        first = 0
        for file in self._files:
            kept = map_array(os.path.join(self._folder, self._result(place, file)))
            yield first, Nearest(np.array(kept["cosine"]), np.array(kept["number"]))
            first += len(kept)

    def _make_finder(self, place: int) -> NearestFinder:
        keep = functools.partial(self._keep_centers, f"{self._digests[place]}.centers")
        return NearestFinder(self._tests[place], self._buckets[place], self._mesh, keep=keep)

    def _keep_centers(self, name: str, make: Callable[[], Centers]) -> Centers:
        """Makes centers, or has those of another process: all must search the same buckets."""
        path = os.path.join(self._folder, f"{name}.npy")
        unit = Unit(name, (f"{name}.npy",), 1)
        with SharedWork(self._folder, [unit], "test set", label="buckets") as work:
            for number in work:
                write_array(path, make())
                work.finish(number)
        return np.array(map_array(path))

    def _result(self, place: int, file: int) -> str:
        return f"{self._training.name(file)}.{self._digests[place]}.npy"

    @staticmethod
    def _name(test: EmbeddedFiles, buckets: Buckets) -> str:
        names = [test.name(file) for file in np.flatnonzero(test.files).tolist()]
        return fingerprint(json.dumps([names, *buckets]), 12)
