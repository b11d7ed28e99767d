"""Whether a run was trained on the examples that it is to be measured on."""

import collections
import pathlib

import numpy as np
from absl import logging

from big_align.config.config_files import CONFIG_JSON, read_config
from big_align.config.stages import list_stages
from big_align.core.errors import UserError
from big_align.data.derived.derived_source import key_of
from big_align.data.derived.source_pieces import digest_image
from big_align.data.examples import Source
from big_align.runs import dataset, workdir

SAMPLES = 1024
"""About how many examples of a split are searched for in the training data: some of each shard."""


class TrainedExamples:
    """The examples that a run was trained on, without held-out ones, at a workdir or a checkpoint.

    An example is identified by its key in a file of the same name, and by its image: shards of all
    data sets are called `0.tar`, and their keys count from 0.
    """

    def __init__(self, path: pathlib.Path):
        config = read_config(workdir.split_step(path)[0] / CONFIG_JSON)
        stages = reversed(list_stages(config))  # the last one's first
        parts = [part for stage in stages for part in dataset.read_parts(stage).values()]
        self._sources, faults = [], []
        for part in parts:
            try:
                self._sources += [dataset.open_source(part)] if part.source else []
            except (UserError, OSError) as error:
                faults.append(error)
        if faults and not self._sources:
            raise faults[0]
        for fault in faults:
            logging.warning("%s: of its training data, these are not compared: %s", path, fault)

    def find(self, source: Source) -> list[str]:
        """Returns the names of trained examples, among about 1024 examples of a source."""
        found = (name for trained in self._sources for name in _find_common(source, trained))
        return list(dict.fromkeys(found))


def _find_common(source: Source, trained: Source) -> list[str]:
    """Returns the names of sampled examples of a source that are also in the other."""
    there = collections.defaultdict(list)  # shards of several folders may share a name
    for number in range(len(trained.shard_sizes)):
        there[trained.shard_name(number)].append(number)
    names = [source.shard_name(number) for number in range(len(source.shard_sizes))]
    count, rng, found = max(1, SAMPLES // max(1, len(names))), np.random.default_rng(0), []
    for shard, name in enumerate(names):
        if name not in there:
            continue
        keys = collections.defaultdict(list)
        for other in there[name]:
            for index in range(int(trained.shard_sizes[other])):
                keys[key_of(trained)(other, index)].append((other, index))
        chosen = rng.permutation(int(source.shard_sizes[shard]))[:count]
        for index in np.sort(chosen).tolist():
            places = keys.get(key_of(source)(shard, index), ())
            digest = digest_image(source, shard, index) if places else None
            if any(digest_image(trained, *place) == digest for place in places):
                found.append(source.name(shard, index))
    return found
