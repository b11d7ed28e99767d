"""Makes a WordPiece vocabulary from the captions of a data set (ALIGN §4.1 has 100k pieces).

For example:
  python -m big_align.tools.build_vocab --source='data/train-*.tar' \\
      --source_argument=caption=json.captions --size=100000 --output=vocabulary.txt
  python -m big_align.tools.build_vocab --source=captions.txt --output=vocabulary.txt
  python -m big_align.tools.build_vocab \\
      --config=configs/own_pairs.py:'data/pairs-*.tar',start=scratch --output=data/vocabulary.txt
  python -m big_align.tools.build_vocab --source='data/train-*.tar' --temperature=5 \\
      --source_argument=caption='json.{en,de}' --size=250000 --output=vocabulary.txt
  python -m big_align.tools.build_vocab --source='data/train-*.tar' --runner=DirectRunner \\
      --direct_running_mode=multi_processing --direct_num_workers=8 --output=vocabulary.txt

A text file has one caption per line. With --config, the texts are those that the config trains on:
captions and class texts, from all parts of a mixture; --config.FIELD=VALUE changes it as in
main.py. With --runner, words are counted on Apache Beam, which makes the same vocabulary; all other
flags are passed on to Beam, and what cannot be read is left out and counted. At the end, the tool
prints how many pieces a text has on average, and what share of pieces is unknown, for each language
that captions are marked with.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping

from absl import logging

from big_align.config.components.source_flags import add_source_flags, open_captions
from big_align.core.errors import UserError
from big_align.core.progress import make_bar
from big_align.core.whole_files import check_file
from big_align.data.text import vocabulary, word_counts
from big_align.data.text.temperature import share_by_temperature
from big_align.data.text.wordpieces import LONGEST_WORD
from big_align.tools import command

SHOWN = 20
"""How many of the dropped characters are listed."""


def parse_arguments(arguments: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Reads the command line; also returns the flags of the config, or of Beam."""
    parser = command.make_parser("build_vocab", __doc__, allow_abbrev=False)
    add_source_flags(parser, required=False)
    add = parser.add_argument
    add("--config", help="a config file, instead of --source")
    add("--size", type=int, default=100_000, help="maximum number of pieces (%(default)s)")
    add("--lowercase", action=argparse.BooleanOptionalAction, default=True,
        help="drop case and accents; the tokenizer must do the same")  # fmt: skip
    add("--character_coverage", type=float, default=vocabulary.COVERAGE,
        help="the share of all characters that pieces can spell; words with other characters are "
        "unknown (%(default)s; 1 for every character)")  # fmt: skip
    add("--temperature", type=float, help="count languages as if texts were drawn with "
        "p ~ n^(1/T); inf counts all alike (default: data.language_temperature of the config, "
        "else 1, which changes nothing)")  # fmt: skip
    add("--output", required=True, help="the file to write, one piece per line")
    add("--runner", help="count the words of --source on Apache Beam, with this runner: "
        "DirectRunner, DataflowRunner, ... (default: count in this process)")  # fmt: skip
    add("--work", help="with --runner, an empty folder for counts, which every worker can write "
        "to and which is deleted at the end (default: OUTPUT.counts)")  # fmt: skip
    options, rest = parser.parse_known_args(arguments)
    for argument in rest:
        ours = options.config and argument.startswith("--config.")
        if not ours and not options.runner:
            parser.error(f"unknown argument {argument}")
    if (options.source is None) == (options.config is None):
        parser.error("give --source or --config")
    if options.runner and options.config:
        parser.error("--runner counts the words of a --source, not those of a --config")
    return options, rest


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return command.run(build_vocab, *parse_arguments(arguments))


def build_vocab(options: argparse.Namespace, rest: list[str]) -> None:
    """Learns and writes the vocabulary, and prints what it spells."""
    logging.set_verbosity(logging.INFO)
    vocabulary.check_settings(options.size, options.character_coverage)
    share_by_temperature({}, 1.0 if options.temperature is None else options.temperature)
    check_file(options.output)
    if options.runner:
        counts, temperature = _count_on_beam(options, rest), None
    else:
        texts, temperature = _open(options, rest)
        texts = iter(make_bar(texts, "counting words", unit=" texts", mininterval=1.0))
        counts = word_counts.count_texts(texts, options.lowercase)
    if options.temperature is not None:
        temperature = options.temperature
    words = word_counts.weigh_languages(counts, 1.0 if temperature is None else temperature)
    learned = vocabulary.learn_vocabulary(words, options.size, options.character_coverage)
    vocabulary.write_vocabulary(learned.pieces, options.output)
    print(f"{options.output}: {len(learned.pieces)} pieces from {len(words)} different words")
    spelling = vocabulary.measure_spelling(options.output, counts, options.lowercase)
    print("\n".join([*_describe_characters(learned), *_describe_spelling(spelling)]))


def _count_on_beam(
    options: argparse.Namespace, flags: list[str]
) -> dict[str, word_counts.TextCounts]:
    """Counts the words of the source on Beam, in a folder that is deleted at the end."""
    from big_align.data.shared import storage
    from big_align.prepare.on_beam import job

    pipelines = job.import_pipelines()
    from big_align.prepare.words import counting

    beam = pipelines.read_options([f"--runner={options.runner}", *flags])
    work = options.work or f"{options.output}.counts"
    if storage.list_names(work) or os.path.isfile(work):
        raise UserError(f"--work={work} is not an empty folder: give another, or delete it")
    given = options.source, options.source_name, tuple(options.source_argument)
    corpus = counting.find_corpus(*given)
    try:
        job.run_pipeline(counting.count_words, corpus, options.lowercase, work, beam)
        return counting.read_counts(work)
    finally:
        storage.remove(work)


def _describe_characters(learned: vocabulary.Learned) -> Iterator[str]:
    """Says which characters are kept and which are lost."""
    kept, dropped = learned.characters.kept, learned.characters.dropped
    share = 100 * learned.characters.share
    line = f"characters: {len(kept)} kept, {share:.4f}% of all; {len(dropped)} rarer ones dropped"
    yield f"{line}: {' '.join(dropped[:SHOWN])}{' ...' * (len(dropped) > SHOWN)}".rstrip(": ")
    if learned.long_words:
        yield (
            f"{learned.long_words} words have more than {LONGEST_WORD} bytes: these "
            "are unknown to BERT's tokenizer with any vocabulary"
        )


def _describe_spelling(spelling: Mapping[str, vocabulary.Spelling]) -> Iterator[str]:
    """Makes a table with one line per language."""
    names = {language: language or "no language" for language in spelling}
    if set(names) == {""}:
        names = {"": "all"}
    width = max(map(len, (*names.values(), "language")), default=8)
    yield f"{'language':{width}}  {'texts':>11}  {'pieces a text':>13}  {'unknown pieces':>14}"
    for language, found in sorted(spelling.items(), key=lambda item: (-item[1].texts, item[0])):
        yield (
            f"{names[language]:{width}}  {found.texts:>11,}  {found.length:>13.1f}  "
            f"{100 * found.unknown:>13.3f}%"
        )


def _open(options: argparse.Namespace, overrides: list[str]) -> tuple[Iterable[str], float | None]:
    """Returns the captions of the source, or the texts that the config trains on.

    Also returns the temperature by which the config draws languages, None where it does not.
    """
    if options.source:
        given = options.source, options.source_name, options.source_argument
        return open_captions(*given)[0](), None
    from big_align.config.overrides import load_config
    from big_align.runs import own_vocabulary

    config = load_config(options.config, *overrides)
    return own_vocabulary.read_texts(config), config.data.get("language_temperature")


if __name__ == "__main__":
    sys.exit(main())
