"""Adds descriptions to a class list, so that texts can say "NAME, DESCRIPTION" (iCLIP eq. 5).

For example:
  python -m big_align.tools.describe_classes --classes=imagenet --output=imagenet_described.json
  python -m big_align.tools.describe_classes --classes=shop/classes.csv \\
      --descriptions=products.json --wordnet=nltk_data --output=shop/described.json

A description comes from the file of --descriptions, else from the list itself, else from WordNet,
by the WordNet id of the class or, if it has none, by its name. A class that is only a WordNet id,
as in ["n02124075", ...], also gets its name from WordNet: this turns ImageNet-21K's folders into a
class list. The output is again a class list. The report says which names were ambiguous and which
classes have no description.
"""

import argparse
import sys

from big_align.core.whole_files import check_file
from big_align.data.labels import descriptions
from big_align.data.labels.classes import read_classes, write_classes
from big_align.data.labels.word_net import WordNet
from big_align.tools import command


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = command.make_parser("describe_classes", __doc__)
    add = parser.add_argument
    add("--classes", required=True, help="a class list of the package (imagenet, cifar100, ...) or "
        "a file: JSON, CSV, or text with one name or WordNet id per line")  # fmt: skip
    add("--output", required=True, help="the JSON file to write")
    add("--wordnet", help="folder of corpora/wordnet.zip (default: where NLTK looks, $NLTK_DATA)")
    add("--descriptions", help="a file of descriptions: JSON {name or id: description}, or rows of "
        "JSON or CSV with name or id, and description")  # fmt: skip
    add("--wordnet_names", action="store_true",
        help="rename every class that has a WordNet id to the first name of its synset, as is done "
        "for a class that is only an id")  # fmt: skip
    add("--overwrite", action="store_true", help="replace the output if it exists")
    return command.run(describe, parser.parse_args(arguments))


def describe(options: argparse.Namespace) -> None:
    """Writes the class list with descriptions, and prints what was found."""
    check_file(options.output, endings=[".json"], overwrite=options.overwrite)
    word_net = WordNet(options.wordnet)
    listed = read_classes(options.classes, allow_ids=True)
    classes = descriptions.name_ids(listed, word_net, options.wordnet_names)
    path = options.descriptions
    given = descriptions.read_descriptions(path) if path else {}
    found = descriptions.describe(classes, word_net, given)
    described = descriptions.apply_descriptions(classes, found)
    source = f"{options.classes}, described by big_align.tools.describe_classes"
    if any(each.origin in ("id", "name") for each in found):
        source += " from WordNet 3.0"
    write_classes(described, options.output, source)
    print("\n".join(descriptions.report(described, found, given)))
    print(options.output)


if __name__ == "__main__":
    sys.exit(main())
