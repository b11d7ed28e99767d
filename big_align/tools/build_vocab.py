"""Makes a WordPiece vocabulary from the captions of a data set (ALIGN §4.1 has 100k pieces).

For example:
  python -m big_align.tools.build_vocab --source='data/train-*.tar' \
      --source_argument=caption=json.captions --size=100000 --output=vocabulary.txt
  python -m big_align.tools.build_vocab --source=captions.txt --output=vocabulary.txt
A text file has a caption a line.
"""

import argparse
import os
import sys

from absl import logging

from big_align.components.source_flags import add_source_flags, open_captions
from big_align.data.text import vocabulary


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m big_align.tools.build_vocab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_source_flags(parser)
    parser.add_argument("--size", type=int, default=100_000, help="pieces at most (%(default)s)")
    parser.add_argument(
        "--lowercase",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="drop case and accents; as the tokenizer will",
    )
    parser.add_argument("--output", required=True, help="the file to write, one piece a line")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    options = parse_arguments(arguments)
    logging.set_verbosity(logging.INFO)
    try:
        os.makedirs(os.path.dirname(os.path.abspath(options.output)), exist_ok=True)
        read_captions, _ = open_captions(
            options.source, options.source_name, options.source_argument
        )
        counts = vocabulary.count_words(read_captions(), options.lowercase)
        pieces = vocabulary.learn_vocabulary(counts, options.size)
    except (ValueError, OSError) as error:
        print(f"build_vocab: {error}", file=sys.stderr)
        return 1
    vocabulary.write_vocabulary(pieces, options.output)
    print(f"{options.output}: {len(pieces)} pieces from {len(counts)} different words")
    return 0


if __name__ == "__main__":
    sys.exit(main())
