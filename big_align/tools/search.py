"""Searches an index with texts and images, which can be added and subtracted.

For example:
  python -m big_align.tools.search --index=index "a red car"
  python -m big_align.tools.search --index=index "in snow" -people --image=here.jpg \\
      --weights=2,1,1 --filter "year>=2020" --output=results.html
  python -m big_align.tools.search --index=index --image=here.jpg --of=captions

A text that begins with - is subtracted. Weights are given for the texts, then for --image, then for
--like; by default, a text beside an image weighs 2 and all else 1, as in ALIGN (Section 7). Results
are printed, or written as JSON or as a page with pictures, depending on the ending of --output.
"""

import argparse
import re
import sys

from big_align.core.errors import WrongValue
from big_align.core.whole_files import check_file, write_whole
from big_align.tools import command


def main(arguments: list[str] | None = None) -> int:
    """Runs the command, of which -cars is a text; returns its exit status."""
    parser = command.make_parser("search", __doc__)
    add = parser.add_argument
    add(
        "--index",
        required=True,
        help="the folder that big_align.tools.index wrote, or lancedb:PLACE",
    )
    add("texts", nargs="*", help="texts to search for; -TEXT subtracts one")
    add("--image", action="append", default=[],
        help="path or URL of an image to search with; may be repeated")  # fmt: skip
    add("--like", action="append", default=[], metavar="NAME",
        help="name of an image in the index to search with; may be repeated")  # fmt: skip
    add("--weights", help="comma-separated weights: of the texts, then --image, then --like")
    add("--k", type=int, default=10, help="number of results (%(default)s)")
    add("--of", choices=("images", "captions"), default="images", help="what to find (%(default)s)")
    add("--filter", action="append", default=[], metavar="COLUMN=VALUE",
        help="a condition on the metadata, with =, !=, <, <=, > or >=; may be "
        "repeated")  # fmt: skip
    add("--model", help="where the model of the index is now (default: where it was)")
    add("--output", help="a .json or .html file to write (default: print the results)")
    given = sys.argv[1:] if arguments is None else arguments
    # argparse takes -cars for a flag, but not a word that begins with the other minus sign. What
    # follows --weights may be a number below 0.
    joined, words = [], iter(given)
    for word in words:
        joined.append(f"{word}={next(words, '')}" if word == "--weights" else word)
    marked = [re.sub(r"^-(?=[^-])(?!h$)", "\N{MINUS SIGN}", word) for word in joined]
    return command.run(search, parser.parse_intermixed_args(marked))


def search(options: argparse.Namespace) -> None:
    """Searches, and prints or writes what was found."""
    from big_align.use.search import results
    from big_align.use.search.search_index import load_index

    if options.output is not None:
        check_file(options.output, endings=[".json", ".html"])
    index = load_index(options.index, options.model)
    options.weights = read_weights(options.weights)
    given = {name: getattr(options, name) for name in ("like", "weights", "k", "of")}
    hits = index.search(options.texts, options.image, filters=options.filter, **given)
    if options.output is None:
        print(results.write_lines(hits))
        return
    if options.output.lower().endswith(".json"):
        content = results.write_json(options, hits)
    else:
        content = results.write_page(index, options, hits)
    write_whole(options.output, content.encode("utf-8", "backslashreplace"))
    print(options.output)


def read_weights(text: str | None) -> list[float] | None:
    """Reads numbers separated by commas."""
    if text is None:
        return None
    try:
        return [float(number) for number in text.split(",")]
    except ValueError as error:
        raise WrongValue(f"--weights={text} are not numbers separated by commas") from error


if __name__ == "__main__":
    sys.exit(main())
