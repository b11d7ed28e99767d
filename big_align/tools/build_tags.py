"""Makes a tag list from captions: names, how often they occur, and their tokens (IDEA §3.2, §4.1).

For example:
  python -m big_align.tools.build_tags --source='data/train-*.tar' \\
      --source_argument=caption=json.captions --names=oidv6-class-descriptions.csv \\
      --ids=oidv6-classes-trainable.txt \\
      --tokenizer=wordpiece --tokenizer_argument=vocabulary=vocabulary.txt \\
      --remove_top=50 --max_tags=1000 --output=tags.json
  python -m big_align.tools.build_tags --source=captions.txt \\
      --tokenizer=clip --tokenizer_argument=merges=bpe_simple_vocab_16e6.txt.gz --compounds=all \\
      --output=tags.json

Without --names, tags are the nouns of WordNet that the captions use. Of compound nouns only those
are tags that have no hypernym in them: "hot dog", but not "brown bear", which is a "bear";
--compounds has other choices. A tag's count is the number of captions that have it; words are
lemmatized with WordNet. A list fits only the vocabulary of its tokenizer.
"""

import argparse
import sys

from big_align.config.components import signatures, tables
from big_align.config.components.source_flags import add_source_flags, open_captions, read_values
from big_align.core.errors import WrongValue
from big_align.core.whole_files import check_file
from big_align.data.labels.word_net import WordNet
from big_align.data.tags import tag_counting, tag_list
from big_align.tools import command

SHOWN = 20


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = command.make_parser("build_tags", __doc__)
    add_source_flags(parser)
    add = parser.add_argument
    add("--captions_used", type=int, help="most captions per example, the first (default: all)")
    add("--names", help="names of possible tags: OpenImages' class descriptions, a class list of "
        "the package, or a file: JSON, CSV, or text with one name per line (default: the nouns of "
        "WordNet)")  # fmt: skip
    add("--ids", help="a file with one id of OpenImages per line: only their names are possible "
        "tags (IDEA: the trainable classes, oidv6-classes-trainable.txt)")  # fmt: skip
    add("--compounds", choices=tag_counting.COMPOUNDS, default=tag_counting.COMPOUNDS[0],
        help="which compounds are possible tags, by WordNet: those without a hypernym among the "
        "names inside them, without one among all names, or all (%(default)s)")  # fmt: skip
    add("--tokenizer", default="wordpiece", help="the tokenizer, as in config.tokenizer.name: "
        "wordpiece, clip, roberta, words (%(default)s)")  # fmt: skip
    add("--tokenizer_argument", action="append", default=[], metavar="NAME=VALUE",
        help="an argument of the tokenizer, such as vocabulary=vocabulary.txt; may be "
        "repeated")  # fmt: skip
    add("--min_count", type=int, default=6, help="how many captions a tag must be in (%(default)s)")
    add("--remove_top", type=int, default=0,
        help="number of most frequent tags to leave out, after counting (%(default)s)")  # fmt: skip
    add("--max_tags", type=int, help="most tags to keep, the most frequent first (default: all)")
    add("--output", required=True, help="the JSON file to write")
    add("--overwrite", action="store_true", help="replace the output if it exists")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return command.run(build_tags, parse_arguments(arguments))


def build_tags(options: argparse.Namespace) -> None:
    """Makes the list, and prints what is in it."""
    check_file(options.output, endings=[".json"], overwrite=options.overwrite)
    command.check_least(options, min_count=1, remove_top=0, max_tags=1, captions_used=1)
    if options.ids and not options.names:
        raise WrongValue("--ids chooses among --names: give both")
    target = signatures.lookup(options.tokenizer, tables.TOKENIZERS, "--tokenizer")
    values = read_values(options.tokenizer_argument, "--tokenizer_argument", target)
    tokenizer = signatures.make(target, values, "--tokenizer")
    dictionary = WordNet()
    if options.names:
        names = tag_counting.read_names(options.names, options.ids)
    else:
        names = tag_counting.list_nouns(dictionary)
    kept = tag_counting.keep_compounds(names, options.compounds, dictionary)
    read_captions, node = open_captions(
        options.source, options.source_name, options.source_argument, options.captions_used
    )
    chosen = tag_counting.choose_tags(
        kept, read_captions, options.min_count, options.remove_top, options.max_tags,
        None if options.names else dictionary,
    )  # fmt: skip
    path = options.output
    tags = tag_list.make_tag_list(chosen.names, chosen.counts, tokenizer, chosen.removed, path)
    made_by = {
        "names": options.names or "nouns of WordNet 3.0",
        **({"ids": options.ids} if options.ids else {}),
        "source": node,
        "tokenizer": options.tokenizer,
        **{k: vars(options)[k] for k in ("captions_used", "min_count", "remove_top", "max_tags")},
        "compounds": options.compounds,
        "captions": chosen.captions,
    }
    tag_list.write_tag_list(tags, path, made_by)
    if fewer := len(names) - len(kept):
        print(f"left out by --compounds={options.compounds}: {fewer} of {len(names)} names")
    _report(chosen, path)


def _report(chosen: tag_counting.Chosen, path: str) -> None:
    if chosen.removed:
        print(f"left out as most frequent: {', '.join(chosen.removed)}")
    rows = list(zip(chosen.names, chosen.counts, strict=True))
    print("\n".join(f"{count:9d}  {name}" for name, count in rows[:SHOWN]))
    compounds = sum(len(name.split()) > 1 for name in chosen.names)
    print(
        f"{path}: {len(rows)} tags, {compounds} of several words, of {chosen.candidates} names, in "
        f"{chosen.captions} captions; the rarest, {rows[-1][0]}, in {rows[-1][1]}"
    )


if __name__ == "__main__":
    sys.exit(main())
