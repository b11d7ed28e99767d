"""The texts that a run trains on, and a vocabulary that it learns from them before it starts."""

import copy
import functools
import itertools
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import jax

from big_align.config import kept_files
from big_align.config.stages import list_stages
from big_align.core.errors import UserError
from big_align.core.nodes import Node
from big_align.core.progress import make_bar
from big_align.data.labels.prompts import fill_class_templates
from big_align.data.tags import tag_counting
from big_align.data.text import tokenizers, vocabulary, word_counts
from big_align.parallel.distributed import agreement
from big_align.runs import dataset

FROM_DATA = "from_data"
"""The name of a vocabulary, in `config.tokenizer.vocabulary`, that is learned from the texts."""
SIZE = 30_000  # pieces at most, where the text tower does not say


def read_texts(config: Node) -> Iterator[str]:
    """Yields the texts that a config trains on: captions, and class texts in their templates."""
    for part in dataset.read_parts(config).values():
        if part.classes is None:
            yield from tag_counting.read_captions(dataset.open_source(part))
            continue
        given = part.classes, part.loader.get("templates")
        yield from itertools.chain.from_iterable(fill_class_templates(*given, synonyms=False))


def take_vocabulary(config: Any, folder: str | None = None) -> Any:
    """Learns the vocabulary that a config names "from_data"; others stay as they are.

    It is kept with the other files of a workdir, so a run that continues has the same. The text
    tower gets as many rows as there are pieces, at most those that the config gives it.

    Args:
      config: of a run; it stays as it is.
      folder: the workdir; without one, the vocabulary lasts as long as this process.

    Returns:
      The config with the vocabulary's path.

    Raises:
      UserError: the data have no texts.
    """
    if not any(run["tokenizer"].get("vocabulary") == FROM_DATA for run in list_stages(config)):
        return config
    path = kept_files.name_vocabulary(folder or _temporary_folder().name)
    agreement.attempt("vocabulary", _learn, config, path)
    size = len(tokenizers.list_wordpieces(str(path)))
    config = copy.deepcopy(config)
    for run in list_stages(config):
        if run["tokenizer"].get("vocabulary") == FROM_DATA:
            run["tokenizer"]["vocabulary"] = str(path)
            if "vocab_size" in (run["model"].get("text") or {}):
                run["model"]["text"]["vocab_size"] = size
    return config


def _learn(config: Node, path: pathlib.Path) -> None:
    """Learns the vocabulary in the first process, if no earlier start has."""
    if jax.process_index() or path.is_file():
        return
    limit = (config["model"].get("text") or {}).get("vocab_size") or SIZE
    bar = make_bar(read_texts(config), "counting words", unit=" texts", mininterval=1.0)
    lowercase = config["tokenizer"].get("lowercase", True)
    counts = word_counts.count_texts(iter(bar), lowercase)
    temperature = config["data"].get("language_temperature")
    words = word_counts.weigh_languages(counts, 1.0 if temperature is None else temperature)
    if not words:
        raise UserError(
            "config.tokenizer.vocabulary = 'from_data', but the training data have no words: let "
            "the source read captions (--config.data.source.caption=...), or name a file"
        )
    learned = vocabulary.learn_vocabulary(words, limit)
    path.parent.mkdir(parents=True, exist_ok=True)
    vocabulary.write_vocabulary(learned.pieces, str(path))
    print(f"vocabulary: {len(learned.pieces):,} pieces, learned from {len(words):,} words: {path}")


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory:
    """Returns a folder that is deleted when this process ends."""
    return tempfile.TemporaryDirectory(prefix="big_align-")
