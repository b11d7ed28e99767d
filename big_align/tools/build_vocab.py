"""Makes a WordPiece vocabulary from the captions of a data set (ALIGN §4.1 has 100k pieces).

For example:
  python -m big_align.tools.build_vocab --source='data/train-*.tar' \
      --source_argument=caption=json.captions --size=100000 --output=vocabulary.txt
  python -m big_align.tools.build_vocab --source=captions.txt --output=vocabulary.txt
  python -m big_align.tools.build_vocab --config=configs/own_pairs.py \
      --config.data.source.path='data/pairs-*.tar' --output=data/vocabulary.txt
A text file has a caption a line. With --config the captions are those that it trains on, of all
parts of a mixture; --config.FIELD=VALUE changes it as in main.py.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Iterable

from absl import logging

from big_align.components.source_flags import add_source_flags, open_captions
from big_align.data.tags import tag_counting
from big_align.data.text import vocabulary


def parse_arguments(arguments: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Reads the command line; returns what is left of it too, the overrides of the config."""
    parser = argparse.ArgumentParser(
        prog="python -m big_align.tools.build_vocab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_source_flags(parser, required=False)
    parser.add_argument("--config", help="a config file, in place of a source")
    parser.add_argument("--size", type=int, default=100_000, help="pieces at most (%(default)s)")
    parser.add_argument(
        "--lowercase",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="drop case and accents; as the tokenizer will",
    )
    parser.add_argument("--output", required=True, help="the file to write, one piece a line")
    options, rest = parser.parse_known_args(arguments)
    for argument in rest:
        if not (options.config and argument.startswith("--config.")):
            parser.error(f"unknown argument {argument}")
    if (options.source is None) == (options.config is None):
        parser.error("give --source or --config")
    return options, rest


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    options, overrides = parse_arguments(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # as in command_line
    logging.set_verbosity(logging.INFO)
    try:
        os.makedirs(os.path.dirname(os.path.abspath(options.output)), exist_ok=True)
        counts = vocabulary.count_words(_read(options, overrides), options.lowercase)
        pieces = vocabulary.learn_vocabulary(counts, options.size)
    except (ValueError, OSError) as error:
        print(f"build_vocab: {error}", file=sys.stderr)
        return 1
    vocabulary.write_vocabulary(pieces, options.output)
    print(f"{options.output}: {len(pieces)} pieces from {len(counts)} different words")
    return 0


def _read(options: argparse.Namespace, overrides: list[str]) -> Iterable[str]:
    """Reads the captions of the source, or of what the config trains on."""
    if options.source:
        given = options.source, options.source_name, options.source_argument
        return open_captions(*given)[0]()
    from big_align.runs import dataset
    from big_align.runs.command_line import load_config

    parts = dataset.read_parts(load_config(options.config, *overrides)).values()
    sources = (dataset.open_source(part) for part in parts if part.classes is None)
    return itertools.chain.from_iterable(map(tag_counting.read_captions, sources))


if __name__ == "__main__":
    sys.exit(main())
